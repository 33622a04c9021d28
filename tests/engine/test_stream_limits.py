"""Only so many streams: who is refused, and what gives its place back."""

import asyncio

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import Caller
from apcore_a2a.engine.context import CallContext
from apcore_a2a.errors import LimitExceededError, OverloadedError, UnsupportedOperationError
from apcore_a2a.protocol.model import TaskState
from tests.engine.driving import (
    ALICE,
    BOB,
    V03,
    Ledger,
    User,
    Watcher,
    request,
    serving,
    settle,
    soon,
    until,
)
from tests.engine.fake_disk import FakeDisk
from tests.fakes import COMPLETED, Gate, ScriptedAgent, chunk, pause

S = TaskState


@pytest.mark.parametrize("limit", ["max_streams", "max_streams_per_caller"])
async def test_streams_have_a_limit_and_a_closed_one_makes_room(limit: str) -> None:
    gate, ledger = Gate(), Ledger()
    agent = ScriptedAgent(default=(gate, COMPLETED))
    async with serving(agent, None, observer=ledger, **{limit: 2}) as engine:
        alice, bob = User(engine, ALICE), User(engine, BOB)
        open_ones = [await alice.stream("go"), await alice.stream("go")]
        with pytest.raises(OverloadedError, match="limit of open streams"):
            await alice.stream("go")
        assert engine.active_tasks == 2  # refused before there was a task
        task = (await alice.list()).tasks[0]
        with pytest.raises(OverloadedError, match="limit of open streams"):
            await alice.subscribe(task)
        if limit == "max_streams":
            with pytest.raises(OverloadedError, match="The agent is"):
                await bob.stream("go")
        else:
            open_ones.append(await bob.stream("go"))
        open_ones.pop(0).stream.close()
        open_ones.append(await alice.stream("go"))
        assert ledger.streams == len(open_ones)
        gate.open()
        for watcher in open_ones:
            await watcher.rest()
    assert ledger.streams == 0


async def test_a_tenant_is_no_second_allowance() -> None:
    gate = Gate()
    async with serving(ScriptedAgent(default=(gate, COMPLETED)), max_streams_per_caller=1) as engine:
        opened = [await User(engine, ALICE).stream("go"), await User(engine, BOB).stream("go")]
        for made_up in ("one", "two"):
            with pytest.raises(LimitExceededError, match="your limit of open streams"):
                await User(engine, replace(ALICE, tenant=made_up)).stream("go")
        gate.open()
        for watcher in opened:
            await watcher.rest()


async def test_callers_without_a_name_have_an_allowance_for_each_address() -> None:
    gate = Gate()
    async with serving(ScriptedAgent(default=(gate, COMPLETED)), max_streams_per_caller=1) as engine:
        here = CallContext(peer=("10.0.0.1", 1))
        there = CallContext(peer=("10.0.0.2", 1))
        nowhere = CallContext()
        opened = [await soon(engine.stream_message(request("go"), who)) for who in (here, there, nowhere)]
        for who in (here, there, nowhere, CallContext(peer=("10.0.0.1", 2), caller=Caller(tenant="made up"))):
            with pytest.raises(LimitExceededError, match="your limit of open streams"):
                await engine.stream_message(request("go"), who)
        gate.open()
        for stream in opened:
            await Watcher(stream).rest()


async def test_callers_without_a_name_may_have_a_part_of_the_streams_of_others() -> None:
    gate = Gate()
    agent = ScriptedAgent(default=(gate, COMPLETED))
    async with serving(agent, max_streams_per_caller=25, anonymous_divisor=10) as engine:
        anonymous = CallContext(peer=("10.0.0.1", 1))
        opened = [await soon(engine.stream_message(request("go"), anonymous)) for _ in range(2)]
        with pytest.raises(LimitExceededError, match="your limit of open streams"):
            await engine.stream_message(request("go"), anonymous)
        opened.append(await soon(engine.stream_message(request("go"), CallContext(peer=("10.0.0.2", 1)))))
        named = [await User(engine).stream("go") for _ in range(3)]
        gate.open()
        for watcher in (*map(Watcher, opened), *named):
            await watcher.rest()


async def test_streams_that_are_asked_for_together_do_not_pass_the_limit_together() -> None:
    gate, disk = Gate(), FakeDisk()
    disk.hold()
    async with serving(ScriptedAgent(default=(gate, COMPLETED)), disk, max_streams=2) as engine:
        alice = User(engine)
        asked = [asyncio.create_task(alice.stream("go")) for _ in range(5)]
        await settle()
        disk.let_go()
        await soon(asyncio.wait(asked))
        opened = [each.result() for each in asked if each.exception() is None]
        assert len(opened) == 2
        gate.open()
        for watcher in opened:
            await watcher.rest()


async def test_a_place_is_given_back_by_whatever_came_to_nothing() -> None:
    agent = ScriptedAgent({"refused": UnsupportedOperationError("no")})
    async with serving(agent, max_streams=1) as engine:
        alice = User(engine)
        for _ in range(3):
            with pytest.raises(UnsupportedOperationError):
                await alice.stream("refused")
            with pytest.raises(UnsupportedOperationError):
                await alice.subscribe(await alice.send("go"))
        await (await alice.stream("go")).rest()


@pytest.mark.parametrize("last", [0, None], ids=["what was missed", "the outcome"])
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
async def test_a_stream_of_a_task_that_has_ended_takes_its_place_until_it_is_read(
    durable: bool, last: int | None
) -> None:
    ledger = Ledger()
    async with serving(ScriptedAgent(), FakeDisk() if durable else None, observer=ledger, max_streams=1) as engine:
        alice = User(engine, rules=V03)
        task = await alice.send("go")
        for _ in range(3):
            watcher = await alice.subscribe(task, last=last)
            assert ledger.streams == 1
            with pytest.raises(OverloadedError, match="limit of open streams"):
                await alice.subscribe(task, last=last)
            await watcher.rest()
            watcher.stream.close()  # may be called twice
            assert ledger.streams == 0


async def test_a_place_is_given_back_when_the_snapshot_cannot_be_read() -> None:
    gate, disk = Gate(), FakeDisk()
    async with serving(ScriptedAgent(default=(gate, chunk("a"), pause(), COMPLETED)), disk, max_streams=1) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await gate.reached()
        disk.hold()
        gate.open()
        await until(lambda: disk.waiting == 2)  # the chunk is folded, but not saved: only the store knows the truth
        row = disk.rows.pop(task.id)
        for _ in range(3):
            with pytest.raises(Exception, match="Task not found"):
                await alice.subscribe(task)
        disk.rows[task.id] = row
        watcher = await alice.subscribe(task)
        disk.let_go()
        assert (await watcher.rest()).seqs == [2, 3, 4]
