"""How much a caller, and all together, may have stored: who is refused, what goes on, how seldom the store counts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import Admission, Call, Caller
from apcore_a2a.engine import stored_limits
from apcore_a2a.engine.context import EngineOptions, Observer
from apcore_a2a.engine.stored_limits import INTERVAL, PAUSE_FACTOR, REFUSAL_INTERVAL, StoredLimits
from apcore_a2a.errors import LimitExceededError, OverloadedError, StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import ALL_OWNERS, Store, Usage
from tests.engine.driving import ALICE, BOB, V03, Ledger, User, request, serving, settle, soon
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk
from tests.storage.contract import STORES, Clock

S = TaskState
KEEPING = ("sqlite", "postgres", "simple")  # memory lets tasks go instead: test_memory_bytes.py
KB = 1000


@pytest.fixture(params=KEEPING)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return STORES[request.param].make(tmp_path, Clock(), 10_000)


@pytest.fixture
def counted_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is asked for every message."""
    for name in ("INTERVAL", "REFUSAL_INTERVAL", "PAUSE_FACTOR"):
        monkeypatch.setattr(stored_limits, name, 0)


class Refusals(Ledger):
    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def storage_refused(self, quota_key: str) -> None:
        self.refused.append(quota_key)


@pytest.mark.usefixtures("counted_always")
async def test_a_caller_has_so_many_tasks_and_then_no_new_one(store: Store) -> None:
    agent = ScriptedAgent({"ask": (ASKS,)})
    watching = Refusals()
    async with serving(agent, store, observer=watching, max_stored_tasks_per_caller=2) as engine:
        alice = User(engine)
        kept = [await alice.send("ask"), await alice.send("go", context_id="talk")]
        for refused in (alice.send, alice.start, alice.stream):
            with pytest.raises(LimitExceededError, match="limit of stored tasks") as caught:
                await refused("one more")
            assert caught.value.retry_after == 60
        assert watching.refused == ["test|alice"] * 3
        assert {task.id for task in (await alice.list()).tasks} == {task.id for task in kept}  # none is half made
        assert [call.text for call in agent.calls] == ["ask", "go"]
        done = await alice.send("answer", task_id=kept[0].id)  # what is there goes on
        assert done.status.state is S.COMPLETED
        await User(engine, BOB).send("go")
        assert await store.remove(kept[1].id, ALICE.owner)  # as one that has expired
        await alice.send("one more")


@pytest.mark.usefixtures("counted_always")
async def test_a_made_up_tenant_is_no_second_share(store: Store) -> None:
    async with serving(ScriptedAgent(), store, max_stored_tasks_per_caller=2) as engine:
        for tenant in ("one", "two"):
            await User(engine, replace(ALICE, tenant=tenant)).send("go")
        for tenant in ("one", "three", ""):
            with pytest.raises(LimitExceededError):
                await User(engine, replace(ALICE, tenant=tenant)).send("go")


@pytest.mark.usefixtures("counted_always")
async def test_a_caller_with_too_many_bytes_is_refused_every_message(store: Store) -> None:
    agent = ScriptedAgent({"ask": (chunk("x" * 6 * KB), ASKS)}, default=(chunk("x" * 6 * KB, append=True), COMPLETED))
    async with serving(agent, store, max_stored_bytes_per_caller=10 * KB) as engine:
        alice = User(engine)
        asked = await alice.send("ask")
        assert (
            await alice.send("go on", task_id=asked.id)
        ).status.state is S.COMPLETED  # over the limit, which was not known before
        for fields in ({}, {"task_id": asked.id}):
            with pytest.raises(LimitExceededError, match="limit of stored bytes"):
                await alice.send("more", **fields)
        await User(engine, BOB).send("go")


@pytest.mark.usefixtures("counted_always")
async def test_a_task_that_runs_may_end_whatever_it_has_stored(store: Store) -> None:
    gate = Gate()
    agent = ScriptedAgent(default=(chunk("x" * 9 * KB), gate, chunk("y" * 9 * KB, append=True), COMPLETED))
    async with serving(agent, store, max_stored_bytes_per_caller=5 * KB) as engine:
        alice = User(engine)
        running = await alice.stream("go")
        await gate.reached()
        await running.until_seq(3)
        with pytest.raises(LimitExceededError):
            await alice.send("another")
        gate.open()
        assert (await running.rest()).states[-1] is S.COMPLETED


@pytest.mark.usefixtures("counted_always")
async def test_the_limit_of_all_callers_together_is_not_one_callers_limit(store: Store) -> None:
    watching = Refusals()
    async with serving(ScriptedAgent(), store, observer=watching, max_stored_bytes=1 * KB) as engine:
        await User(engine).send("x" * KB)
        with pytest.raises(OverloadedError, match="The agent is at its limit of stored bytes") as caught:
            await User(engine, BOB).send("go")
        assert not isinstance(caught.value, LimitExceededError)
        assert watching.refused == [ALL_OWNERS]
        assert engine.stored is not None
        assert (await engine.stored.usage()).tasks == 1


@pytest.mark.usefixtures("counted_always")
async def test_callers_without_a_name_share_what_one_may_store(store: Store) -> None:
    async with serving(ScriptedAgent(), store, max_stored_tasks_per_caller=1) as engine:
        await User(engine, Caller()).send("go")
        for anonymous in (Caller(), Caller(tenant="made up")):
            with pytest.raises(OverloadedError, match="anonymous callers") as caught:
                await User(engine, anonymous).send("go")
            assert not isinstance(caught.value, LimitExceededError)
        await User(engine).send("go")


async def test_many_messages_at_once_make_as_many_tasks_as_there_may_be(store: Store) -> None:
    """Counted here, for the store does not know yet what is about to be stored."""

    class Slow(ScriptedAgent):
        async def admit(self, call: Call) -> Admission:
            await settle()  # until all others have been let in as well
            return await super().admit(call)

    async with serving(Slow(), store, max_stored_tasks_per_caller=5) as engine:
        alice = User(engine)

        async def attempt() -> bool:
            try:
                await alice.send("go")
            except LimitExceededError:
                return False
            return True

        async with asyncio.TaskGroup() as group:
            attempts = [group.create_task(attempt()) for _ in range(40)]
        assert sum(attempt.result() for attempt in attempts) == 5
        assert (await alice.list()).total_size == 5


@pytest.mark.usefixtures("counted_always")
async def test_an_answer_by_its_context_is_no_new_task(store: Store) -> None:
    """As 0.3 does it: the message names no task, and goes on with the one that waits."""
    async with serving(ScriptedAgent({"ask": (ASKS,)}), store, max_stored_tasks_per_caller=1) as engine:
        alice = User(engine, ALICE, V03)
        asked = await alice.send("ask")
        done = await alice.send("answer", context_id=asked.context_id)
        assert (done.id, done.status.state) == (asked.id, S.COMPLETED)


@pytest.mark.usefixtures("counted_always")
async def test_a_repeat_finds_its_task_at_every_limit_of_what_is_stored(store: Store) -> None:
    for limit in ({"max_stored_tasks_per_caller": 1}, {"max_stored_bytes_per_caller": 1}, {"max_stored_bytes": 1}):
        async with serving(ScriptedAgent(), store, **limit) as engine:
            alice = User(engine)
            (key,) = limit
            first = await alice.send("go", key=key)
            assert await alice.send("go", key=key) == first
            with pytest.raises(OverloadedError):
                await alice.send("go", key="another")
            assert await store.remove(first.id, ALICE.owner)


async def test_repeats_are_no_tasks(store: Store) -> None:
    async with serving(ScriptedAgent(), store, max_stored_tasks_per_caller=3) as engine:
        alice = User(engine)
        first = await alice.send("go", key="k")
        for _ in range(5):
            assert await alice.send("go", key="k") == first
        assert engine.stored is not None
        assert (await engine.stored.usage()).tasks == 1
        await alice.send("go")
        await alice.send("go")
        with pytest.raises(LimitExceededError):
            await alice.send("go")


def test_a_store_that_does_not_say_what_it_keeps_is_refused_where_that_is_limited() -> None:
    class Silent(FakeDisk):
        usage = None

    with pytest.raises(TypeError, match="usage"):
        stored_limits.stored_limits_of(Silent(), EngineOptions(max_stored_bytes=1), Ledger())
    assert stored_limits.stored_limits_of(Silent(), EngineOptions(), Ledger()) is None


# ---- how often the store is asked -----------------------------------------------------------------------------------


class Books:
    """A store that counts how often it is asked, and takes its time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.kept: dict[str, Usage] = {}
        self.asked: list[str] = []
        self.seconds = 0.0
        self.gate = Gate()
        self.gate.open()
        self.error: Exception | None = None

    async def usage(self, quota_key: str) -> Usage:
        self.asked.append(quota_key)
        answer = self.kept.get(quota_key, Usage(0, 0))
        await self.gate.wait()
        self.clock.now += self.seconds
        if self.error is not None:
            raise self.error
        return answer


def limits(books: Books, **options: Any) -> StoredLimits:
    return StoredLimits(books, EngineOptions(**options), observer=Observer(), clock=books.clock)


@pytest.fixture
def books() -> Books:
    return Books(Clock())


async def test_the_store_is_asked_every_few_seconds_at_most(books: Books) -> None:
    limited = limits(books, max_stored_tasks_per_caller=10)
    for _ in range(3):
        await limited.check("ada", is_new=True)
    assert books.asked == ["ada"]
    books.clock.now += INTERVAL
    await limited.check("ada\ntenant", is_new=True)
    await limited.check("bob", is_new=True)
    assert books.asked == ["ada", "ada", "bob"]


async def test_an_outdated_count_rejects_no_message(books: Books) -> None:
    limited = limits(books, max_stored_tasks_per_caller=1)
    books.kept["ada"] = Usage(1, 0)
    with pytest.raises(LimitExceededError):
        await limited.check("ada", is_new=True)
    books.kept["ada"] = Usage(0, 0)
    with pytest.raises(LimitExceededError):
        await limited.check("ada", is_new=True)  # asked a moment ago
    assert books.asked == ["ada"]
    books.clock.now += REFUSAL_INTERVAL
    await limited.check("ada", is_new=True)
    assert books.asked == ["ada", "ada"]


async def test_a_store_that_counts_slowly_is_asked_seldom(books: Books) -> None:
    limited = limits(books, max_stored_tasks_per_caller=1)
    books.kept["ada"] = Usage(1, 0)
    books.seconds = 2.0
    with pytest.raises(LimitExceededError):
        await limited.check("ada", is_new=True)
    books.clock.now += PAUSE_FACTOR * 2.0 - 2.1  # from when it was asked
    with pytest.raises(LimitExceededError):
        await limited.check("ada", is_new=True)
    assert books.asked == ["ada"]
    books.clock.now += 0.2
    with pytest.raises(LimitExceededError):
        await limited.check("ada", is_new=True)
    assert books.asked == ["ada", "ada"]


async def test_what_is_begun_while_the_store_counts_is_counted_on(books: Books) -> None:
    limited = limits(books, max_stored_tasks_per_caller=3)
    limited.take("ada", request("go"), is_new=True)
    books.gate = Gate()
    asking = asyncio.create_task(limited.check("ada", is_new=True))
    await books.gate.reached()
    limited.take("ada", request("go"), is_new=True)
    books.kept["ada"] = Usage(1, 0)  # the first, which was there when it began to count: it had answered 0 by then
    books.gate.open()
    await soon(asking)
    limited.take("ada", request("go"), is_new=True)
    limited.take("ada", request("go"), is_new=True)
    with pytest.raises(LimitExceededError):
        limited.take("ada", request("go"), is_new=True)
    limited.take("ada", request("go"), is_new=False)


async def test_many_who_wait_cause_one_count_and_one_who_leaves_disturbs_none(books: Books) -> None:
    limited = limits(books, max_stored_tasks_per_caller=3)
    books.gate = Gate()
    first, *others = [asyncio.create_task(limited.check("ada", is_new=True)) for _ in range(5)]
    await books.gate.reached()
    first.cancel()
    books.gate.open()
    async with asyncio.timeout(5):
        await asyncio.wait(others)
    assert all(other.exception() is None for other in others)
    assert books.asked == ["ada", "ada"]


async def test_an_unreachable_store_rejects_messages_and_counts_when_it_is_back(books: Books) -> None:
    limited = limits(books, max_stored_tasks_per_caller=1)
    limited.take("ada", request("go"), is_new=True)
    books.error = StoreUnavailableError()
    with pytest.raises(StoreUnavailableError):
        await limited.check("ada", is_new=True)
    books.error = None
    books.kept["ada"] = Usage(1, 0)
    with pytest.raises(LimitExceededError):
        await limited.check("ada", is_new=True)


@pytest.mark.parametrize("retry_safe", [False, True])  # if it is, the task ends in the first step, without a run
async def test_what_a_run_has_made_counts_at_its_end(tmp_path: Path, retry_safe: bool) -> None:
    """Also before the store is asked again."""
    agent = ScriptedAgent(default=(chunk("x" * 4 * KB), COMPLETED), retry_safe=retry_safe)
    store = STORES["sqlite"].make(tmp_path, Clock(), 10_000)
    async with serving(agent, store, max_stored_bytes_per_caller=9 * KB) as engine:
        alice = User(engine)
        await alice.send("go")
        await alice.send("y" * 3 * KB)
        with pytest.raises(LimitExceededError, match="stored bytes"):
            await alice.send("go")


async def test_a_message_to_an_old_task_counts_at_once(tmp_path: Path) -> None:
    agent = ScriptedAgent(default=(ASKS,))
    store = STORES["sqlite"].make(tmp_path, Clock(), 10_000)
    async with serving(agent, store, max_stored_bytes_per_caller=9 * KB) as engine:
        alice = User(engine)
        asked = await alice.send("go")
        for _ in range(2):
            await alice.send("y" * 5 * KB, task_id=asked.id)
        with pytest.raises(LimitExceededError, match="stored bytes"):
            await alice.send("y", task_id=asked.id)


async def test_few_accounts_are_remembered(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_limits, "MAX_KNOWN", 3)
    limited = limits(books, max_stored_tasks_per_caller=1)
    for quota_key in ("ada", "bob", "cy", "ada", "dee", "ada"):
        await limited.check(quota_key, is_new=True)
    assert books.asked == ["ada", "bob", "cy", "dee"]  # bob was forgotten, who had not asked for longest
    await limited.check("bob", is_new=True)
    assert books.asked[4:] == ["bob"]


async def test_what_was_counted_and_never_stored_is_forgotten_when_the_store_counts(books: Books) -> None:
    """The agent may have answered without a task."""
    limited = limits(books, max_stored_bytes=100)
    await limited.check("ada", is_new=True)
    limited.take("ada", request("x" * 200), is_new=True)
    with pytest.raises(OverloadedError):
        await limited.check("ada", is_new=True)
    books.clock.now += REFUSAL_INTERVAL
    await limited.check("ada", is_new=True)
    assert books.asked == [ALL_OWNERS, ALL_OWNERS]
