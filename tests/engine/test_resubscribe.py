"""Coming back to a task: to one that has ended, and to one that waits."""

import pytest

from apcore_a2a.engine.event_log import READ_AT_ONCE
from apcore_a2a.errors import UnsupportedOperationError
from apcore_a2a.http.asgi import encode_entry
from apcore_a2a.protocol.model import StatusUpdate, Task, TaskState
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.engine.driving import (
    V03,
    User,
    serving,
)
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk
from tests.requirements import requirement

S = TaskState


@requirement("FR-MSG-006")
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
async def test_a_task_that_has_ended_is_told_in_one_event_by_the_rules_of_0_3(durable: bool) -> None:
    async with serving(ScriptedAgent(), FakeDisk() if durable else None) as engine:
        alice = User(engine, rules=V03)
        task = await alice.send("go")
        watcher = await (await alice.subscribe(task)).rest()
        (told,) = watcher.entries
        assert isinstance(told.event, StatusUpdate)
        assert (told.event.status, told.seq) == (task.status, 3)
        missed = await (await alice.subscribe(task, last=1)).rest()
        kinds = [type(item.event) for item in missed.entries]
        assert (missed.seqs, kinds) == (([2, 3], [StatusUpdate] * 2) if durable else ([3], [Task]))
        assert encode_entry(missed.entries[-1], v03)
        known = await (await alice.subscribe(task, last=3)).rest()
        assert known.seqs == [3]


async def test_a_task_that_has_ended_has_no_stream_by_the_rules_of_1_0() -> None:
    async with serving(ScriptedAgent()) as engine:
        alice = User(engine)
        task = await alice.send("go")
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await alice.subscribe(task)


async def test_a_snapshot_of_a_waiting_task_does_not_change_when_the_task_goes_on() -> None:
    gate = Gate()
    agent = ScriptedAgent({"ask": (ASKS,), "on": (gate, chunk("more"), COMPLETED)})
    async with serving(agent) as engine:
        alice = User(engine, rules=V03)
        task = await alice.send("ask")
        watcher = await alice.subscribe(task)  # and does not read yet
        gate.open()
        await alice.send("on", task_id=task.id)
        await watcher.rest()
    assert b'"state":"input-required"' in encode_entry(watcher.entries[0], v03)
    assert b"more" not in encode_entry(watcher.entries[0], v03)
    assert watcher.states == [S.INPUT_REQUIRED, S.WORKING, S.WORKING, S.COMPLETED]


async def test_a_long_replay_is_read_a_page_at_a_time() -> None:
    chunks = [chunk(str(number), append=number > 0) for number in range(2 * READ_AT_ONCE)]
    async with serving(ScriptedAgent(default=(*chunks, COMPLETED)), FakeDisk()) as engine:
        alice = User(engine, rules=V03)
        task = await alice.send("go")
        watcher = await alice.subscribe(task, last=0)
        sizes: list[int] = []
        while await watcher.read():
            sizes.append(len(watcher.entries) - sum(sizes))
    assert watcher.seqs == list(range(1, len(chunks) + 4))
    assert max(sizes) <= READ_AT_ONCE


async def test_subscribers_of_one_version_share_its_snapshot_and_the_next_version_has_its_own() -> None:
    first, second = Gate(), Gate()
    agent = ScriptedAgent(default=(chunk("a"), first, chunk("b", append=True), second, COMPLETED))
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await first.reached()
        watchers = [await alice.subscribe(task) for _ in range(3)]
        for watcher in watchers:
            await watcher.read()
        assert len({id(watcher.entries[0]) for watcher in watchers}) == 1
        first.open()
        await second.reached()
        late = await alice.subscribe(task)
        await late.read()
        assert late.entries[0].seq > watchers[0].entries[0].seq
        second.open()
        for watcher in (*watchers, late):
            assert (await watcher.rest()).states[-1] is S.COMPLETED
