"""Replicas on one PostgreSQL database, and steps that a test inserts before or after a call of the store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from apcore_a2a.engine.context import EngineOptions
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.replica.replica import Replica
from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.storage.contract import (
    FollowedTask,
    Record,
    ReplicaRequest,
    RequestMailbox,
    TaskUpdate,
    TaskWatch,
    WakeUp,
)
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.engine.driving import User, soon
from tests.fakes import PATIENCE, ScriptedAgent

Step = Callable[[], Awaitable[object]]


class HookedMailbox:
    """A mailbox with steps of the test around `post`."""

    def __init__(self, mailbox: RequestMailbox) -> None:
        self.mailbox = mailbox
        self.before: Step | None = None
        self.after: Step | None = None
        self.drops = False
        """Whether each request is answered as if the task had just left the replica that it was posted to."""
        self.runners: list[str] = []
        """The replica that each request was posted to."""
        self.numbers: list[int | None] = []
        """The number of each posted request; None where the replica ran the task no longer."""

    async def post(self, task_id: str, owner: str, runner: str, body: bytes) -> int | None:
        self.runners.append(runner)
        if self.drops:
            return None
        if self.before is not None:
            await self.before()
        number = await self.mailbox.post(task_id, owner, runner, body)
        self.numbers.append(number)
        if self.after is not None:
            await self.after()
        return number

    async def take(self) -> list[ReplicaRequest]:
        return await self.mailbox.take()

    async def finish(self, number: int, rejection: str = "") -> None:
        await self.mailbox.finish(number, rejection)

    async def answer(self, number: int) -> str | None:
        return await self.mailbox.answer(number)

    async def withdraw(self, number: int) -> bool:
        return await self.mailbox.withdraw(number)


class HookedWatch:
    """A watch with steps of the test after `follow` and around `is_followed_elsewhere`."""

    def __init__(self, watch: TaskWatch) -> None:
        self.watch = watch
        self.after_follow: Step | None = None
        self.before_answer: Step | None = None
        """A step before each answer of `is_followed_elsewhere`."""
        self.answered = asyncio.Event()
        """Set when `is_followed_elsewhere` has answered or failed."""

    async def follow(self, task_id: str, owner: str) -> Record | None:
        record = await self.watch.follow(task_id, owner)
        if self.after_follow is not None:
            await self.after_follow()
        return record

    async def unfollow(self, task_ids: Sequence[str]) -> None:
        await self.watch.unfollow(task_ids)

    async def is_followed_elsewhere(self, task_id: str, owner: str) -> bool:
        try:
            found = await self.watch.is_followed_elsewhere(task_id, owner)
            if self.before_answer is not None:
                await self.before_answer()
            return found
        finally:
            self.answered.set()

    async def read_updates(self, followed: Sequence[FollowedTask]) -> list[TaskUpdate]:
        return await self.watch.read_updates(followed)

    async def until_woken(self, seconds: float) -> WakeUp:
        return await self.watch.until_woken(seconds)

    def wake_here(self) -> None:
        self.watch.wake_here()


@asynccontextmanager
async def replica(agent: ScriptedAgent, url: str, lease: float = 15, **options: Any) -> AsyncIterator[Engine]:
    """An open engine. Other replicas may run its tasks, so tasks may be left when it is closed. Any: its options."""
    store = PostgresStore(url, lease=lease)
    store.replicas.mailbox = HookedMailbox(store.replicas.mailbox)
    store.replicas.watch = HookedWatch(store.replicas.watch)
    engine = Engine(agent, store, options=EngineOptions(shutdown_timeout=0.01, **options))
    await soon(engine.open())
    await soon(engine.recover())
    try:
        yield engine
    finally:
        await soon(engine.close())
    assert (engine.active_tasks, engine.live_tasks) == (0, 0)


@asynccontextmanager
async def replicas(agent: ScriptedAgent, url: str, count: int = 2, **options: Any) -> AsyncIterator[list[User]]:
    """Alice, as a caller of each of several replicas. Any: options of the engines."""
    async with AsyncExitStack() as stack:
        yield [User(await stack.enter_async_context(replica(agent, url, **options))) for _ in range(count)]


def store_of(user: User) -> PostgresStore:
    assert isinstance(user.engine.store, PostgresStore)
    return user.engine.store


def mailbox_of(user: User) -> HookedMailbox:
    mailbox = store_of(user).replicas.mailbox
    assert isinstance(mailbox, HookedMailbox)
    return mailbox


def watch_of(user: User) -> HookedWatch:
    watch = store_of(user).replicas.watch
    assert isinstance(watch, HookedWatch)
    return watch


def replica_of(user: User) -> Replica:
    assert user.engine.replica is not None
    return user.engine.replica


async def disconnect(user: User) -> None:
    """From now on this user's replica neither renews its lease nor serves wake-ups."""
    await replica_of(user).close()


def reconnect(user: User) -> None:
    """Undo `disconnect`."""
    replica_of(user).start()


async def until_shown(user: User, task: Task, state: TaskState) -> Task:
    """The task, when this user's replica shows it in that state."""
    async with asyncio.timeout(PATIENCE):
        while True:
            shown = await user.get(task)
            if shown.status.state is state:
                return shown
            await asyncio.sleep(0.01)
