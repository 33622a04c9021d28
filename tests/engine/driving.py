"""An engine under test, and callers who use it through its public methods. Every wait is bounded.

When an engine is closed here, it must have forgotten every task, and no asyncio task may be left.
"""

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

from apcore_a2a.agent import Admission, Agent, AgentEvent, Call, Caller
from apcore_a2a.engine.context import CallContext, EngineOptions, Hooks, Observer, RunTimes, Timing
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.event_log import LogEntry
from apcore_a2a.engine.streams import Events
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import (
    CancelTask,
    Document,
    GetTask,
    ListTasks,
    Message,
    Part,
    Role,
    SendConfiguration,
    SendMessage,
    SubscribeToTask,
    Task,
    TaskPage,
    TaskState,
)
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.storage.contract import Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.fakes import PATIENCE

ALICE = Caller(id="alice", type="user", issuer="test")
BOB = Caller(id="bob", type="user", issuer="test")
V1, V03 = v1.RULES, v03.RULES
QUICK = Timing(cancel_grace=0.05, cancel_margin=0.15, save_retries=(0.0, 0.0, 0.001))
"""Retries and grace periods that take almost no time."""
NO_GRACE = Timing(disconnect_grace=0)
"""A 0.3 task without subscribers is canceled at once."""

T = TypeVar("T")
_numbers = count(1)


async def soon(waited: Awaitable[T]) -> T:
    """The result of a wait that must not take long."""
    async with asyncio.timeout(PATIENCE):
        return await waited


async def until(holds: Callable[[], bool]) -> None:
    """Let the other asyncio tasks run, one step at a time, until the condition holds."""
    for _ in range(100_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def settle(steps: int = 20) -> None:
    """Let the other asyncio tasks run for some steps. For asserting that something does NOT happen."""
    for _ in range(steps):
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(agent: Agent, store: Store | None = None, **fields: Any) -> AsyncIterator[Engine]:
    """An open engine. Any: options and hooks by name."""
    hooks = {name: fields.pop(name) for name in ("observer", "interceptors", "extended_card") if name in fields}
    options = EngineOptions(**{"shutdown_timeout": 0.01, **fields})
    before = asyncio.all_tasks()
    engine = Engine(agent, store or InMemoryTaskStore(), options=options, hooks=Hooks(**hooks))
    await soon(engine.open())
    await soon(engine.recover())
    try:
        yield engine
    finally:
        await soon(engine.close())
    assert (engine.active_tasks, engine.live_tasks) == (0, 0)
    await until(lambda: asyncio.all_tasks() == before)
    gc.collect(1)  # coroutines that were never awaited cause their warnings now


class Watcher:
    """Someone who reads a stream."""

    def __init__(self, stream: Events) -> None:
        self.stream = stream
        self.entries: list[LogEntry] = []

    @property
    def task(self) -> Task:
        """The task that the stream began with."""
        task = self.entries[0].event
        assert isinstance(task, Task)
        return task

    @property
    def seqs(self) -> list[int]:
        return [entry.seq for entry in self.entries]

    @property
    def states(self) -> list[TaskState]:
        return [entry.state for entry in self.entries]

    async def read(self) -> bool:
        """One batch; whether there was one."""
        batch = await soon(self.next())
        self.entries += batch or []
        return batch is not None

    async def next(self) -> list[LogEntry] | None:
        """The next batch, an empty one if nothing happened for a while; None at the end."""
        batch = self.stream.take()
        if batch is not None and not batch:
            await self.stream.wait()
            batch = self.stream.take()
        return batch

    async def rest(self) -> "Watcher":
        """All that is left; then the stream is closed."""
        while await self.read():
            pass
        self.stream.close()
        return self

    async def until_seq(self, seq: int) -> None:
        while not self.entries or self.entries[-1].seq < seq:
            assert await self.read()


class User:
    """A caller of an engine."""

    def __init__(self, engine: Engine, caller: Caller = ALICE, rules: Any = V1) -> None:
        self.engine, self.caller, self.rules = engine, caller, rules

    def context(self, **fields: Any) -> CallContext:
        return CallContext(caller=self.caller, rules=self.rules, **fields)

    async def answer(self, text: str, *, key: str = "", **fields: Any) -> Task | Message:
        """What SendMessage answers."""
        result = await soon(self.engine.send_message(request(text, **fields), self.context(idempotency_key=key)))
        return result.task() if isinstance(result, Document) else result

    async def send(self, text: str, **fields: Any) -> Task:
        answer = await self.answer(text, **fields)
        assert isinstance(answer, Task)
        return answer

    async def start(self, text: str, **fields: Any) -> Task:
        """Send without waiting for the task to come to rest."""
        return await self.send(text, now=True, **fields)

    async def stream(self, text: str, *, key: str = "", **fields: Any) -> Watcher:
        return Watcher(
            await soon(self.engine.stream_message(request(text, **fields), self.context(idempotency_key=key)))
        )

    async def subscribe(self, task: Task, *, last: int | None = None) -> Watcher:
        context = self.context(last_event_id=last)
        return Watcher(await soon(self.engine.subscribe(SubscribeToTask(id=task.id), context)))

    async def get(self, task: Task, **fields: Any) -> Task:
        result = await soon(self.engine.get_task(GetTask(id=task.id, **fields), self.context()))
        return result.task() if isinstance(result, Document) else result

    async def cancel(self, task: Task) -> Task:
        return (await soon(self.engine.cancel_task(CancelTask(id=task.id), self.context()))).task()

    async def list(self, **fields: Any) -> TaskPage:
        return await soon(self.engine.list_tasks(ListTasks(**fields), self.context()))


def request(
    text: str, *, now: bool = False, history: int | None = None, modes: tuple[str, ...] = (), **fields: Any
) -> SendMessage:
    """Any: the fields of a Message; a fresh messageId unless one is given."""
    metadata = fields.pop("request_metadata", None)
    message = Message(**{"message_id": f"m-{next(_numbers)}", "role": Role.USER, "parts": (Part(text=text),), **fields})
    configuration = SendConfiguration(accepted_output_modes=modes, return_immediately=now, history_length=history)
    return SendMessage(message=message, configuration=configuration, metadata=metadata)


def words(task: Task) -> list[str]:
    """The texts in a task's history."""
    return [str(message.parts[0].text) for message in task.history]


def text_of(task: Task) -> str:
    """What the task's status says."""
    assert task.status.message is not None
    return str(task.status.message.parts[0].text)


def metadata_of(task: Task) -> object:
    """What the task's status says for programs."""
    assert task.status.message is not None
    return task.status.message.metadata


def chunks_of(task: Task) -> list[str]:
    """Return the texts of the stored task. A text that was streamed in pieces is one text."""
    return [str(part.text) for artifact in task.artifacts for part in artifact.parts]


class Acts:
    """An agent whose run is one async generator function; for what a script cannot say."""

    def __init__(self, play: Callable[[Call], AsyncGenerator[AgentEvent, None]], *, may_reply: bool = False) -> None:
        self.play, self.may_reply = play, may_reply

    async def admit(self, call: Call) -> Admission:
        return Admission()

    def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        return self.play(call)


class Ledger(Observer):
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[tuple[str, TaskState]] = []
        self.abandoned: list[str] = []
        self.lost: list[str] = []
        self.streams = 0

    def run_started(self, task_id: str, call: Call) -> None:
        self.started.append(task_id)

    def run_ended(self, task_id: str, call: Call, state: TaskState, times: RunTimes) -> None:
        self.ended.append((task_id, state))

    def run_lost(self, task_id: str) -> None:
        self.lost.append(task_id)

    def run_abandoned(self, task_id: str) -> None:
        self.abandoned.append(task_id)

    def stream_opened(self, task_id: str) -> None:
        self.streams += 1

    def stream_closed(self, task_id: str) -> None:
        self.streams -= 1
