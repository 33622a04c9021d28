"""Random use of an engine by many clients at once, written down, and the rules that what they saw must keep.

The rules, for each task: streams tell a contiguous run of sequence numbers, all the same events; there is one end, and
it is last; a read that begins after another has returned never shows less; what was acknowledged stays; no caller
sees a task of another owner. `Trial(seed).run()` checks all of them and raises AssertionError. The same seed gives the
same trial again.
"""

import asyncio
import random
from collections.abc import AsyncGenerator

from msgspec import Struct

from apcore_a2a.agent import AgentEvent, Call, Caller
from apcore_a2a.errors import (
    A2AError,
    OverloadedError,
    StoreUnavailableError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.http.asgi import encode_entry
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, join_texts
from apcore_a2a.protocol.model import Task, TaskState, encode
from tests.engine.driving import ALICE, BOB, QUICK, V03, Acts, User, Watcher, serving, soon, until
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, chunk, status

ALLOWED = (TaskNotFoundError, TaskNotCancelableError, UnsupportedOperationError, StoreUnavailableError, OverloadedError)


class Seen(Struct):
    """One operation on one task, with the moments (of a clock that only counts) when it was called and answered."""

    caller: Caller
    task_id: str
    called: int
    answered: int
    task: Task | None
    error: A2AError | None = None


def progress(task: Task) -> int:
    """Grows with every event that says anything."""
    said = len(task.history) + (task.status.message is not None)
    return said + sum(len(artifact.text) for artifact in task.artifacts)


class Trial:
    def __init__(self, seed: int, *, clients: int = 8, steps: int = 25, faults: float = 0.02) -> None:
        self.dice = random.Random(seed)
        self.clients, self.steps, self.faults = clients, steps, faults
        self.seen: list[Seen] = []
        self.watchers: list[Watcher] = []
        self.reading: list[asyncio.Task[Watcher]] = []
        self.owners: dict[str, Caller] = {}
        self.moment = 0
        self.disk = FakeDisk()
        self.disk.fault = self.fault

    # ---- the world ------------------------------------------------------------------------------------------------

    def fault(self, n: int) -> str:
        return self.dice.choice(("before", "after")) if self.dice.random() < self.faults else ""

    async def work(self) -> None:
        """The disk, committing when it likes."""
        while True:
            for _ in range(self.dice.randrange(4)):
                await asyncio.sleep(0)
            if self.disk.waiting:
                self.disk.commit()

    async def play(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """The agent, doing what it likes."""
        for number in range(self.dice.randrange(6)):
            yield chunk(str(number), append=True)
            for _ in range(self.dice.randrange(3)):
                await asyncio.sleep(0)
        match self.dice.randrange(6):
            case 0:
                raise ValueError("a bug")
            case 1:
                return
            case 2 | 3:
                yield ASKS
            case _:
                yield status(TaskState.COMPLETED, "Done") if self.dice.random() < 0.5 else COMPLETED

    def tick(self) -> int:
        self.moment += 1
        return self.moment

    # ---- the clients ------------------------------------------------------------------------------------------------

    async def client(self, user: User) -> None:
        for _ in range(self.steps):
            task_id = self.dice.choice(list(self.owners)) if self.owners and self.dice.random() < 0.7 else ""
            called = self.tick()
            try:
                task = await self.act(user, task_id)
            except ALLOWED as error:
                self.seen.append(Seen(user.caller, task_id, called, self.tick(), None, error))
            else:
                if task is not None:
                    self.owners.setdefault(task.id, user.caller)
                    self.seen.append(Seen(user.caller, task.id, called, self.tick(), task))

    async def act(self, user: User, task_id: str) -> Task | None:
        known = Task(id=task_id, status=COMPLETED.status)
        key = self.dice.choice(("", "", f"key {self.dice.randrange(10)}"))
        match self.dice.randrange(7) if task_id else self.dice.randrange(4, 7):
            case 0:
                return await user.cancel(known)
            case 1:
                self.watch(await user.subscribe(known))
            case 2 | 3:
                return await user.get(known)
            case 4:
                await user.list(include_artifacts=True)
            case 5:
                watcher = await user.stream("go", task_id=task_id, key=key)
                self.watch(watcher)
            case _:
                return await user.send("go", task_id=task_id, key=key, now=self.dice.random() < 0.5)
        return None

    def watch(self, watcher: Watcher) -> None:
        self.watchers.append(watcher)
        self.reading.append(asyncio.create_task(watcher.rest()))

    # ---- the trial ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        self.disk.hold()
        disk = asyncio.create_task(self.work())
        async with serving(Acts(self.play), self.disk, cancel_on_disconnect=False, timing=QUICK) as engine:
            users = [
                User(engine, (ALICE, BOB)[index % 2], V03 if index % 4 > 1 else v1.RULES)
                for index in range(self.clients)
            ]
            await soon(asyncio.wait([asyncio.create_task(self.client(user)) for user in users]))
            self.faults = 0
            await until(lambda: engine.active_tasks == 0)
            await self.finish(engine.live_tasks, users)
        disk.cancel()
        self.check()

    async def finish(self, live: int, users: list[User]) -> None:
        """Cancel all waiting tasks, so that every stream ends. Then let every user read once more."""
        for task_id, row in self.disk.rows.items():
            assert row.state in AT_REST, f"{task_id} is stuck in {row.state}"
            user = next(user for user in users if user.caller.owner == row.owner)
            if row.state not in TERMINAL:
                await user.cancel(row.task())
            called = self.tick()
            self.seen.append(Seen(user.caller, task_id, called, self.tick(), await user.get(row.task())))
        for reading in self.reading:
            await soon(reading)

    # ---- the rules ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for task_id, row in self.disk.rows.items():
            self.check_events(row.events)
            self.check_reads([seen for seen in self.seen if seen.task_id == task_id], row.owner, row.task())
        for watcher in self.watchers:
            self.check_stream(watcher)

    def check_events(self, events: list[bytes]) -> None:
        states = []
        for record in events:
            event, _ = v1.decode_record(record)
            states.append(None if not hasattr(event, "status") else event.status.state)
        ends = [index for index, state in enumerate(states) if state in TERMINAL]
        assert ends == [len(states) - 1], "one end, and it is last"

    def check_reads(self, reads: list[Seen], owner: str, final: Task) -> None:
        for seen in reads:
            if seen.caller.owner != owner:
                assert isinstance(seen.error, TaskNotFoundError | OverloadedError), (
                    "no caller sees a task of another owner"
                )
            elif seen.error is not None:
                assert not isinstance(seen.error, TaskNotFoundError), "what was shown once is not lost"
        shown = [(seen, seen.task) for seen in reads if seen.task is not None]
        for seen, task in shown:
            assert progress(task) <= progress(final)
            for later, newer in shown:
                if later.called > seen.answered:
                    assert progress(newer) >= progress(task), "a later read never shows less"
                    assert task.status.state not in TERMINAL or encode(newer) == encode(task), "an end is final"

    def check_stream(self, watcher: Watcher) -> None:
        if not watcher.entries or not isinstance(watcher.entries[0].event, Task):
            assert len({item.seq for item in watcher.entries}) == len(watcher.entries)
            return
        events = self.disk.rows[watcher.task.id].events
        position = 0
        for item in watcher.entries:
            if isinstance(item.event, Task) and item.seq != 1:
                assert item.seq >= position, "a snapshot never goes back"
                assert encode(item.event) == encode(fold(events[: item.seq])), "a snapshot is what was stored"
            else:
                assert item.seq == position + 1, "no gap, nothing twice"
                assert encode_entry(item, v1) == v1.encode_event(v1.decode_record(events[item.seq - 1])[0])
            position = item.seq
        assert [state in TERMINAL for state in watcher.states[:-1]].count(True) == 0, "nothing follows an end"


def fold(events: list[bytes]) -> Task:
    task, _ = v1.decode_record(events[0])
    assert isinstance(task, Task)
    v1.replay(task, events[1:])
    return join_texts(task)
