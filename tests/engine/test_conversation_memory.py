"""What an agent remembers of a conversation: for the same caller, across tasks, cancels, failures and restarts."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace

from apcore_a2a.agent import Admission, AgentEvent, Call, Remember
from apcore_a2a.engine.conversation import LARGE_PIECE, MAX_PIECES, ConversationTurns, RunMemory, common_length
from apcore_a2a.protocol.model import StatusUpdate, TaskState, TaskStatus
from apcore_a2a.storage.contract import ConversationWrite, Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import ALICE, BOB, QUICK, Acts, User, serving, settle, soon, text_of, until
from tests.engine.fake_disk import FakeDisk
from tests.fakes import COMPLETED, WORKING, Gate, chunk, says

S = TaskState


def tells(*told: object) -> StatusUpdate:
    return StatusUpdate(status=TaskStatus(state=S.COMPLETED, message=says(json.encode(told).decode())))


async def listen(call: Call) -> AsyncGenerator[AgentEvent, None]:
    """Remember each message, and tell all of them."""
    heard = [*(await call.recall() or []), call.text]
    yield Remember(heard, scope="conversation")
    yield tells(*heard)


def heard(task: Any) -> list[str]:
    return list(json.decode(text_of(task)))


@pytest.fixture(params=[InMemoryTaskStore, FakeDisk], ids=["memory", "durable"])
def store(request: pytest.FixtureRequest) -> Store:
    made: Store = request.param()
    return made


async def test_an_agent_remembers_a_conversation_across_tasks_of_the_same_caller(store: Store) -> None:
    async with serving(Acts(listen), store) as engine:
        alice, bob = User(engine, ALICE), User(engine, BOB)
        assert heard(await alice.send("a", context_id="talk")) == ["a"]
        assert heard(await alice.send("b", context_id="talk")) == ["a", "b"]
        assert heard(await bob.send("x", context_id="talk")) == ["x"]
        assert heard(await alice.send("y", context_id="other")) == ["y"]
        assert heard(await alice.send("c", context_id="talk")) == ["a", "b", "c"]


async def test_a_memory_outlives_the_process() -> None:
    disk = FakeDisk()
    async with serving(Acts(listen), disk) as engine:
        await User(engine).send("a", context_id="talk")
    async with serving(Acts(listen), disk.reopen()) as engine:
        assert heard(await User(engine).send("b", context_id="talk")) == ["a", "b"]


async def test_the_second_task_of_a_context_waits_for_the_first(store: Store) -> None:
    gate = Gate()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        known = await call.recall() or []
        if call.text == "slow":
            await gate.wait()
        yield Remember([*known, call.text], scope="conversation")
        yield tells(*known, call.text)

    async with serving(Acts(play), store) as engine:
        alice = User(engine)
        slow = await alice.start("slow", context_id="talk")
        await gate.reached()
        second = asyncio.create_task(alice.send("second", context_id="talk"))
        bobs = await User(engine, BOB).send("bob", context_id="talk")
        await settle()
        assert not second.done() and heard(bobs) == ["bob"]
        gate.open()
        assert heard(await second) == ["slow", "second"]
        assert heard(await alice.get(slow)) == ["slow"]


async def test_a_task_that_waits_for_the_memory_can_be_canceled(store: Store) -> None:
    gate = Gate()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        await call.recall()
        if call.text == "slow":
            await gate.wait()
        yield tells("done")

    async with serving(Acts(play), store) as engine:
        alice = User(engine)
        slow = await alice.start("slow", context_id="talk")
        await gate.reached()
        waiting = await alice.start("waits", context_id="talk")
        await settle()
        assert (await alice.cancel(waiting)).status.state is S.CANCELED
        gate.open()
        await soon((await alice.subscribe(slow)).rest())
        assert heard(await alice.send("next", context_id="talk")) == ["done"]


async def test_the_message_of_a_canceled_task_is_remembered(store: Store) -> None:
    gate = Gate()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        known = await call.recall() or []
        yield Remember([*known, call.text], scope="conversation")
        if call.text == "hangs":
            yield WORKING
            await gate.wait()
        yield tells(*known, call.text)

    async with serving(Acts(play), store) as engine:
        alice = User(engine)
        hangs = await alice.start("hangs", context_id="talk")
        await gate.reached()
        await alice.cancel(hangs)
        assert heard(await alice.send("next", context_id="talk")) == ["hangs", "next"]


async def test_the_message_of_a_failed_task_is_remembered(store: Store) -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        known = await call.recall() or []
        yield Remember([*known, call.text], scope="conversation")
        if call.text == "fails":
            raise RuntimeError("secret")
        yield tells(*known, call.text)

    async with serving(Acts(play), store) as engine:
        alice = User(engine)
        assert (await alice.send("fails", context_id="talk")).status.state is S.FAILED
        assert heard(await alice.send("next", context_id="talk")) == ["fails", "next"]


async def test_an_agent_that_may_reply_remembers_what_it_kept_before_its_task(store: Store) -> None:
    async with serving(Acts(listen, may_reply=True), store) as engine:
        alice = User(engine)
        await alice.send("a", context_id="talk")
        assert heard(await alice.send("b", context_id="talk")) == ["a", "b"]


async def test_a_memory_is_read_once_by_parallel_calls(store: Store) -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        found = await asyncio.gather(call.recall(), call.recall())
        yield Remember("kept", scope="conversation")
        yield tells(*found, await call.recall())

    async with serving(Acts(play), store) as engine:
        assert heard(await User(engine).send("a", context_id="talk")) == [None, None, None]
        assert heard(await User(engine).send("b", context_id="talk")) == ["kept", "kept", "kept"]


async def test_an_abandoned_agent_does_not_take_the_memory_from_later_runs() -> None:
    gate = Gate(deaf=True)
    found: list[Any] = []

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        if call.text == "stubborn":
            await gate.wait()
            found.append(await call.recall())
            return
        yield Remember(call.text, scope="conversation")
        yield tells(await call.recall())

    async with serving(Acts(play), timing=QUICK) as engine:
        alice = User(engine)
        stubborn = await alice.start("stubborn", context_id="talk")
        await gate.reached()
        assert (await alice.cancel(stubborn)).status.state is S.CANCELED
        await alice.send("a", context_id="talk")
        gate.open()
        await until(lambda: bool(found))
        assert found == [None]
        assert (await alice.send("b", context_id="talk")).status.state is S.COMPLETED


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_memory_is_stored_although_a_write_failed(fault: str) -> None:
    disk = FakeDisk()
    async with serving(Acts(listen), disk) as engine:
        alice = User(engine)
        await alice.send("a", context_id="talk")
        failing = disk.writes + 2
        disk.fault = lambda number: fault if number == failing else ""
        await alice.send("b", context_id="talk")
        assert heard(await alice.send("c", context_id="talk")) == ["a", "b", "c"]


async def test_a_run_knows_which_attempt_it_is() -> None:
    attempts: list[int] = []

    class Repeatable(Acts):
        async def admit(self, call: Call) -> Admission:
            return Admission(retry_safe=True)

    gate = Gate()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        attempts.append(call.attempt)
        yield chunk("x")
        if call.attempt == 1:
            await gate.wait()
        yield COMPLETED

    disk = FakeDisk()
    async with serving(Repeatable(play), disk) as engine:
        await User(engine).start("go")
        await gate.reached()
        again = disk.reopen()
    async with serving(Repeatable(play), again) as engine:
        await until(lambda: attempts == [1, 2])


async def test_an_unknown_scope_fails_the_task() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        yield Remember(1, scope="forever")  # type: ignore[arg-type]  # the point of it

    async with serving(Acts(play)) as engine:
        task = await User(engine).send("go")
    assert text_of(task) == "The agent's memo has an unknown scope: 'forever'"


async def test_there_is_nothing_to_recall_outside_of_a_run() -> None:
    class Curious(Acts):
        async def admit(self, call: Call) -> Admission:
            assert await call.recall() is None
            return Admission()

    async with serving(Curious(listen)) as engine:
        assert heard(await User(engine).send("a")) == ["a"]


# ---- pieces ---------------------------------------------------------------------------------------------------------


class Pieces(InMemoryTaskStore):
    """A store that lists what is written of conversations."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[ConversationWrite] = []

    def append(self, change: Any) -> None:
        if change.conversation is not None:
            self.written.append(change.conversation)
        super().append(change)


async def test_a_turn_writes_what_is_new_and_not_the_whole_conversation() -> None:
    store = Pieces()
    async with serving(Acts(listen), store) as engine:
        for number in range(100):
            task = await User(engine).send(f"{number:02}" + "x" * 200, context_id="talk")
        assert len(heard(task)) == 100
    sizes = [len(write.tail) for write in store.written]
    assert len(sizes) == 100
    assert sorted(sizes)[90] < 300  # nearly all turns
    assert sum(write.keep == 0 for write in store.written) < 10


@pytest.mark.parametrize(
    ("old", "new", "length"),
    [(b"", b"", 0), (b"abc", b"abc", 3), (b"abc", b"abd", 2), (b"abc", b"ab", 2), (b"ab", b"abc", 2), (b"x", b"y", 0)],
)
def test_the_common_length_of_two_texts(old: bytes, new: bytes, length: int) -> None:
    assert common_length(old, new) == length


async def test_the_limit_of_output_counts_what_is_new_in_a_memory() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        pieces = 20 if call.text == "fits" else 60
        for number in range(pieces):
            yield Remember(["x" * 1_000] * number, scope="conversation")
        yield tells()

    async with serving(Acts(play), max_output_bytes=50_000) as engine:
        assert (await User(engine).send("fits")).status.state is S.COMPLETED  # the memories have 190,000 bytes together
        assert (await User(engine).send("more")).status.state is S.FAILED  # the last one has 59,000 bytes


async def test_pieces_are_joined_before_there_are_many() -> None:
    store = InMemoryTaskStore()
    memory = RunMemory(store, {}, "alice", "talk")
    assert await memory.recall() is None
    writes: list[ConversationWrite] = []
    for number in range(2 * MAX_PIECES + 2):
        memory.remember(b"x" * 1_000 + b"y" * number)
        write = memory.next_write()
        assert write is not None
        writes.append(write)
    assert [write.keep == 0 for write in writes].count(True) == 3
    memory.remember(b"x" * 1_000 + b"y" * (2 * MAX_PIECES + 1))
    assert memory.next_write() is None


async def test_a_damaged_memory_is_reported_and_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    disk = FakeDisk()
    async with serving(Acts(listen), disk) as engine:
        alice = User(engine)
        await alice.send("a", context_id="talk")
        (key,) = disk.memories
        disk.memories[key] = replace(disk.memories[key], body=b'["a')
        assert heard(await alice.send("b", context_id="talk")) == ["b"]
        assert "memory of a conversation is damaged" in caplog.text
        assert heard(await alice.send("c", context_id="talk")) == ["b", "c"]


async def test_the_bytes_written_per_turn_do_not_grow_with_the_conversation() -> None:
    store = InMemoryTaskStore()
    memory = RunMemory(store, {}, "alice", "talk")
    assert await memory.recall() is None
    sizes: list[int] = []
    for number in range(3_000):
        memory.remember(b"x" * 200 * number)
        write = memory.next_write()
        sizes.append(0 if write is None else len(write.tail))
    for turns in (sizes[:1_000], sizes[1_000:2_000], sizes[2_000:]):
        assert sum(turns) / 1_000 < 200 + LARGE_PIECE


async def test_a_hook_for_a_canceled_task_may_change_the_memory(store: Store) -> None:
    class Forgetful(Acts):
        async def cancel(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
            known = await call.recall()
            yield Remember([*known, "canceled"], scope="conversation")

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        known = await call.recall() or []
        yield Remember([*known, call.text], scope="conversation")
        if call.text == "ask":
            yield StatusUpdate(status=TaskStatus(state=S.INPUT_REQUIRED))
        else:
            yield tells(*known)

    async with serving(Forgetful(play), store) as engine:
        alice = User(engine)
        task = await alice.send("ask", context_id="talk")
        assert (await alice.cancel(task)).status.state is S.CANCELED
        assert heard(await alice.send("next", context_id="talk")) == ["ask", "canceled"]


async def test_a_run_that_ends_while_it_waits_for_the_memory_passes_it_on() -> None:
    store = InMemoryTaskStore()
    turns: ConversationTurns = {}
    first, second, third = (RunMemory(store, turns, "owner", "talk") for _ in range(3))
    await first.recall()
    waiting = [asyncio.create_task(memory.recall()) for memory in (second, third)]
    await settle()
    second.release()
    first.release()
    assert [await soon(each) for each in waiting] == [None, None]
    third.release()
    assert turns == {}
