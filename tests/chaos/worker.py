"""A process to be killed: an engine on an SQLite file, and readers that print the events that they received.

`python -m tests.chaos.worker FILE TASKS CHUNKS` continues the tasks in the file, starts TASKS new tasks, and exits when
no task runs. For each event that a reader receives, it writes a line "task seq digest" to standard output immediately:
such an event must never be lost. For each message to a running task that was acknowledged while in the queue, it writes
"task ack message". The line "ready" means that all tasks have begun. At that moment the wall clock is set ten years
ahead. A start-up hook creates the resource that the agent needs, for new tasks and for those that are run again.
"""

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import AsyncGenerator

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.app.serve import build_app
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.engine.driving import User, Watcher
from tests.fakes import ASKS, COMPLETED, chunk

READY = "ready\n"
ACK = "ack"
TEN_YEARS = 10 * 365 * 86_400.0
KINDS = ("safe", "unsafe", "turns", "unsafe", "safe", "once", "asks", "short")
ONCE = "once"  # a task that is safe to repeat, and whose agent ends without waiting: it is stored with its end
TURNS = "turns"  # a task whose first turn has ended with a question, and whose second one runs
AGAIN = "again"  # the message of the second turn


class Patient:
    """An agent that counts to `chunks`. Its tasks "asks" wait for their user, its tasks "short" end soon.

    The tasks "turns" ask after a first turn. Their second turn counts, into an artifact of its own.
    """

    may_reply = False

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.pool: object = None

    async def open_pool(self) -> None:
        await asyncio.sleep(0.01)
        self.pool = object()

    async def admit(self, call: Call) -> Admission:
        return Admission(retry_safe=call.message.parts[0].text in ("safe", ONCE, TURNS, AGAIN))

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        kind = call.message.parts[0].text
        if self.pool is None:
            raise RuntimeError("run before the start-up hooks")
        artifact = "second" if kind == AGAIN else "out"
        for number in range(self.chunks if kind in ("safe", "unsafe", AGAIN) else 3):
            yield chunk(str(number), append=True, artifact_id=artifact)
            if kind != ONCE:
                await asyncio.sleep(0.001)
        yield ASKS if kind in ("asks", TURNS) else COMPLETED


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


async def print_events(watcher: Watcher) -> None:
    printed = int(watcher.entries[0].seq > 1)  # the stream of a later turn begins with a snapshot, which is no event
    while await watcher.read():
        news = watcher.entries[printed:]
        printed = len(watcher.entries)
        lines = [f"{watcher.task.id} {item.seq} {digest(item.body)}\n" for item in news]
        os.write(1, "".join(lines).encode())
    watcher.stream.close()


async def send_more(user: User, task_id: str) -> None:
    """Send a message that waits in the queue of the task, without waiting for its result."""
    message_id = f"more-{task_id}"
    try:
        await user.start("more", task_id=task_id, message_id=message_id)
    except StoreUnavailableError:
        return  # the file is gone, and the message was rejected
    os.write(1, f"{task_id} {ACK} {message_id}\n".encode())


async def begin(user: User, kind: str) -> Watcher:
    """Begin a task of this kind, and return a reader of its running turn."""
    if kind != TURNS:
        return await user.stream(kind)
    first = await user.send(kind)
    return await user.stream(AGAIN, task_id=first.id, message_id=f"again-{first.id}")


class WallClock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


async def live(path: str, tasks: int, chunks: int) -> None:
    clock = WallClock()
    agent = Patient(chunks)
    store = SQLiteStore(path, clock=clock)
    app = build_app(agent, task_store=store, on_startup=[agent.open_pool], shutdown_timeout=60)
    await app.open()
    alice = User(app.engine)
    async with asyncio.TaskGroup() as group:
        begun = [group.create_task(begin(alice, KINDS[number % len(KINDS)])) for number in range(tasks)]
        for number, each in enumerate(begun):
            watcher = await each
            await watcher.read()  # the task itself
            group.create_task(print_events(watcher))
            if KINDS[number % len(KINDS)] in ("safe", "unsafe"):  # the others end before
                group.create_task(send_more(alice, watcher.task.id))
        clock.ahead = TEN_YEARS
        os.write(1, READY.encode())
    await app.close()  # waits for the tasks that are run again


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
