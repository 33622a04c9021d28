"""Streams: a snapshot or a replay, then what follows, the same for all; closing one touches no other."""

import asyncio
from collections import Counter

import pytest

from apcore_a2a.agent import AgentEvent
from apcore_a2a.engine.context import LogWindow, Timing
from apcore_a2a.http.asgi import encode_entry
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import ArtifactUpdate, Event, StatusUpdate, Task, TaskState
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.engine.driving import (
    V03,
    User,
    Watcher,
    chunks_of,
    serving,
    settle,
    soon,
    until,
)
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, WORKING, Gate, ScriptedAgent, chunk, status
from tests.requirements import requirement

S = TaskState


EVENTS = 50


def bodies(watcher: Watcher, start: int = 0) -> list[tuple[int, bytes, bytes]]:
    """What a reader was told, in both dialects."""
    return [(item.seq, encode_entry(item, v1), encode_entry(item, v03)) for item in watcher.entries[start:]]


def _digits(chunks: int) -> list[str]:
    """The texts of a task after so many chunks of a walk."""
    text = "".join(str(index) for index in range(chunks))
    return [text] if text else []


class Walk:
    """A run of `EVENTS` chunks that takes one step at a time."""

    def __init__(self) -> None:
        self.gates = [Gate() for _ in range(EVENTS + 1)]
        steps: list[Gate | AgentEvent] = []
        for index in range(EVENTS):
            steps += [self.gates[index], chunk(str(index), append=True)]
        self.agent = ScriptedAgent(default=(*steps, self.gates[EVENTS], COMPLETED))

    async def reach(self, index: int) -> None:
        """Let the run come to a gate, and stand there."""
        for gate in self.gates[:index]:
            gate.open()
        await self.gates[index].reached()

    def step(self, index: int) -> None:
        self.gates[index].open()

    def run_on(self) -> None:
        for gate in self.gates:
            gate.open()


@requirement("FR-MSG-002")
async def test_a_stream_begins_with_the_task_and_tells_every_step_to_the_end() -> None:
    agent = ScriptedAgent(default=(chunk("a"), chunk("b", append=True), COMPLETED))
    async with serving(agent) as engine:
        watcher = await (await User(engine).stream("go")).rest()
    assert [type(item.event) for item in watcher.entries] == [
        Task,
        StatusUpdate,
        ArtifactUpdate,
        ArtifactUpdate,
        StatusUpdate,
    ]
    assert watcher.states == [S.SUBMITTED, S.WORKING, S.WORKING, S.WORKING, S.COMPLETED]
    assert watcher.seqs == [1, 2, 3, 4, 5]
    assert [item.event.append for item in watcher.entries if isinstance(item.event, ArtifactUpdate)] == [False, True]


async def test_the_first_event_comes_before_the_agent_runs() -> None:
    gate = Gate()
    async with serving(ScriptedAgent(default=(gate, COMPLETED))) as engine:
        watcher = await User(engine).stream("go")
        await watcher.read()
        assert watcher.entries[0].state is S.SUBMITTED
        gate.open()
        assert (await watcher.rest()).states == [S.SUBMITTED, S.WORKING, S.COMPLETED]


async def test_a_stream_ends_when_the_user_is_asked_but_not_for_a_login() -> None:
    script = (status(S.AUTH_REQUIRED), WORKING, ASKS)
    async with serving(ScriptedAgent(default=script)) as engine:
        watcher = await (await User(engine).stream("go")).rest()
    assert watcher.states == [S.SUBMITTED, S.WORKING, S.AUTH_REQUIRED, S.WORKING, S.INPUT_REQUIRED]


async def test_a_stream_that_ends_with_a_question_does_not_tell_what_follows() -> None:
    async with serving(ScriptedAgent(default=(ASKS, WORKING, COMPLETED))) as engine:
        watcher = await (await User(engine).stream("go")).rest()
    assert watcher.states[-1] is S.INPUT_REQUIRED


@requirement("FR-MSG-006")
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
async def test_a_subscriber_at_any_position_gets_the_task_as_it_is_and_then_the_same_events(durable: bool) -> None:
    walk, joined = Walk(), []
    async with serving(walk.agent, FakeDisk() if durable else None) as engine:
        alice = User(engine)
        everything = await alice.stream("go")
        await everything.read()
        task = everything.task
        for index in range(EVENTS + 1):
            await walk.reach(index)
            joined.append(await alice.subscribe(task))
            walk.step(index)
        await everything.rest()
        for watcher in joined:
            await watcher.rest()
    assert everything.seqs == list(range(1, EVENTS + 4))
    for watcher in joined:
        seq = watcher.entries[0].seq
        assert chunks_of(watcher.task) == _digits(seq - 2)
        assert bodies(watcher, 1) == bodies(everything, seq)
    starts = [watcher.entries[0].seq for watcher in joined]
    assert len(set(starts)) == len(starts) == EVENTS + 1 or durable  # a commit may come after the subscriber


@requirement("FR-MSG-006")
async def test_a_subscriber_who_knows_the_last_event_gets_exactly_what_follows_it() -> None:
    walk = Walk()
    async with serving(walk.agent) as engine:
        alice = User(engine, rules=V03)
        everything = await alice.stream("go")
        await everything.read()
        task = everything.task
        await walk.reach(10)
        joined = [await alice.subscribe(task, last=seq) for seq in range(13)]
        walk.run_on()
        await everything.rest()
        for seq, watcher in enumerate(joined):
            assert bodies(await watcher.rest()) == bodies(everything, seq)


async def test_who_claims_to_know_the_future_gets_the_task_as_it_is() -> None:
    walk = Walk()
    async with serving(walk.agent) as engine:
        alice = User(engine, rules=V03)
        task = await alice.start("go")
        await walk.reach(0)
        watcher = await alice.subscribe(task, last=1_000_000)
        walk.run_on()
        await watcher.rest()
    assert watcher.seqs == [2, *range(3, EVENTS + 4)]
    assert isinstance(watcher.entries[0].event, Task)


async def test_the_rules_of_1_0_know_no_replay() -> None:
    walk = Walk()
    async with serving(walk.agent) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await walk.reach(5)
        watcher = await alice.subscribe(task, last=3)
        assert await watcher.read()
        assert isinstance(watcher.entries[0].event, Task)
        walk.run_on()
        await watcher.rest()


async def test_a_slow_reader_delays_no_other_reader_and_misses_nothing() -> None:
    walk = Walk()
    async with serving(walk.agent) as engine:
        alice = User(engine)
        slow = await alice.stream("go")
        await slow.read()
        task = slow.task
        await walk.reach(0)
        fast = [await alice.subscribe(task) for _ in range(50)]
        readers = [asyncio.create_task(watcher.rest()) for watcher in fast]
        walk.run_on()
        for reader in readers:
            await soon(reader)
        assert engine.active_tasks == 0
        assert slow.seqs[-1] < EVENTS  # it has not read since
        await slow.rest()
    assert slow.seqs == list(range(1, EVENTS + 4))
    for watcher in fast:
        assert bodies(watcher, 1) == bodies(slow, 2)


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
async def test_a_reader_out_of_the_window_goes_on_from_a_snapshot(durable: bool) -> None:
    walk = Walk()
    small = {"timing": Timing(wake_interval=0.0), "log_window": LogWindow(events=10)}  # so that it sees every event
    async with serving(walk.agent, FakeDisk() if durable else None, **small) as engine:
        alice = User(engine)
        slow, fast = await alice.stream("go"), await alice.stream("beside it")
        await slow.read()
        await walk.reach(40)
        await until(lambda: len(asyncio.all_tasks()) == 3)
        await slow.read()
        snapshot = slow.entries[-1]
        assert isinstance(snapshot.event, Task)
        assert chunks_of(snapshot.event) == _digits(snapshot.seq - 2)
        rest = asyncio.create_task(slow.rest())
        for index in range(40, EVENTS + 1):
            walk.step(index)
            await settle()
        await soon(rest)
        await fast.rest()
    after = slow.seqs[slow.entries.index(snapshot) :]
    assert after == list(range(snapshot.seq, EVENTS + 4))
    assert slow.states[-1] is S.COMPLETED


async def test_a_stream_that_closes_affects_no_other_and_not_the_task() -> None:
    walk = Walk()
    async with serving(walk.agent) as engine:
        alice = User(engine)
        leaves, stays = await alice.stream("go"), None
        await leaves.read()
        await walk.reach(0)
        stays = await alice.subscribe(leaves.task)
        leaves.stream.close()
        leaves.stream.close()  # twice is as good as once
        walk.run_on()
        await stays.rest()
        assert not await leaves.read()
    assert stays.seqs == list(range(2, EVENTS + 4))


async def test_a_stream_closed_by_another_task_ends_for_its_reader() -> None:
    gate = Gate()
    async with serving(ScriptedAgent(default=(gate, COMPLETED))) as engine:
        watcher = await User(engine).stream("go")
        reading = asyncio.create_task(watcher.rest())
        await gate.reached()
        await settle()
        watcher.stream.close()
        await soon(reading)
        assert watcher.states == [S.SUBMITTED, S.WORKING]


async def test_a_silent_stream_says_now_and_then_that_it_is_alive() -> None:
    gate = Gate()
    async with serving(ScriptedAgent(default=(gate, COMPLETED)), keep_alive_interval=0.001) as engine:
        watcher = await User(engine).stream("go")
        await watcher.until_seq(2)
        assert await soon(watcher.next()) == []
        assert await soon(watcher.next()) == []
        gate.open()
        await watcher.rest()


async def test_events_are_encoded_once_for_each_dialect_however_many_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    encode = v03.encode_event

    def counting(event: Event) -> bytes:
        calls["0.3"] += 1
        return encode(event)

    monkeypatch.setattr(v03, "encode_event", counting)
    gate = Gate()
    async with serving(ScriptedAgent(default=(gate, *[chunk("x")] * EVENTS, COMPLETED))) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await gate.reached()
        calls.clear()
        readers = [await alice.subscribe(task) for _ in range(30)]
        gate.open()
        for reader in readers:
            await reader.rest()
            assert len(bodies(reader, 1)) == EVENTS + 1
    assert calls == {"0.3": EVENTS + 1}
    assert len({id(encode_entry(entry, v1)) for reader in readers for entry in reader.entries[1:]}) == EVENTS + 1
