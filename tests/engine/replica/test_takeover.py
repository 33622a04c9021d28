"""One replica that takes over tasks of others, also when answers of the store are lost."""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import Admission, Call
from apcore_a2a.engine import recovery
from apcore_a2a.engine.agent_output import UNANSWERED_KEY
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.stored_run import QueuedMessage, decode_stored_run, encode_stored_run
from apcore_a2a.errors import (
    TaskNotFoundError,
)
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Page, Query
from tests.engine.driving import (
    ALICE,
    User,
    chunks_of,
    metadata_of,
    request,
    serving,
    settle,
    soon,
    text_of,
    until,
    words,
)
from tests.engine.shared_disk import MANUAL, NO_PAUSES, NOTHING, SharedDisk, lose_the_answer
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk

S = TaskState
SLOW = "slow"  # the message of the tasks that `SharedDisk.put` stores


def serve(agent: ScriptedAgent, disk: SharedDisk, *, peer_cancel: float = 0) -> AbstractAsyncContextManager[Engine]:
    """A replica without pauses, whose lease is renewed when the test says so."""
    return serving(agent, disk, timing=replace(NO_PAUSES, peer_cancel=peer_cancel), replica=MANUAL)


@pytest.fixture
def disk() -> SharedDisk:
    return SharedDisk()


# ---- claims --------------------------------------------------------------------------------------------------------


async def test_every_twentieth_renewal_removes_what_dead_replicas_left(disk: SharedDisk) -> None:
    async with serve(ScriptedAgent(), disk):
        for _ in range(recovery.CLEAN_UP_EVERY - 1):
            await disk.replicas.renews()
        assert disk.replicas.cleanups == 0
        await disk.replicas.renews()
        assert disk.replicas.cleanups == 1


async def test_a_task_that_no_run_of_its_runner_works_on_is_claimed_again(disk: SharedDisk) -> None:
    gate = Gate()
    agent = ScriptedAgent({"other": (gate, COMPLETED)}, default=(chunk("whole"), COMPLETED), retry_safe=True)
    async with serve(agent, disk) as engine:
        alice = User(engine)
        runs = await alice.start("other")
        await gate.reached()
        task = disk.put("stuck", disk.replicas.name, retry_safe=True)
        watcher = await alice.subscribe(task)
        for _ in range(2 * recovery.CLEAN_UP_EVERY - 1):
            await disk.replicas.renews()
        assert disk.rows["stuck"].epoch == 1  # it was seen once, and a run might be about to begin
        await disk.replicas.renews()
        assert (await watcher.rest()).states[-1] is S.COMPLETED
        assert (disk.rows["stuck"].epoch, disk.rows[runs.id].epoch) == (2, 1)
        gate.open()
        await until(lambda: engine.active_tasks == 0)


async def test_a_replica_that_shuts_down_takes_over_nothing(disk: SharedDisk) -> None:
    async with serve(ScriptedAgent(), disk) as engine:
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        engine.begin_drain()
        await disk.replicas.renews()
        assert disk.runners["left"] == "dead"


async def test_tasks_of_a_replica_that_another_one_declared_dead_are_claimed_before_the_next_renewal(
    disk: SharedDisk,
) -> None:
    agent = ScriptedAgent(default=(COMPLETED,))
    async with serve(agent, disk):
        disk.put("left", "dead", retry_safe=True)
        disk.replicas.dead.add("dead")
        await disk.replicas.wakes(NOTHING)
        await settle()
        assert disk.runners["left"] == "dead"
        await disk.replicas.wakes(replace(NOTHING, orphans=True))
        await until(lambda: disk.rows["left"].state is S.COMPLETED)
    assert len(agent.calls) == 1


@pytest.mark.parametrize("method", ["claim_orphans", "claim_queued"])
async def test_a_task_whose_claim_was_lost_with_the_answer_is_run_all_the_same(disk: SharedDisk, method: str) -> None:
    agent = ScriptedAgent(default=(chunk("whole"), COMPLETED))
    async with serve(agent, disk):
        disk.put("left", "" if method == "claim_queued" else "dead", retry_safe=True)
        disk.replicas.dead.add("dead")
        disk.replicas.meanwhile[method] = lose_the_answer
        if method == "claim_queued":
            await disk.replicas.wakes()
        else:
            await disk.replicas.renews()
        assert disk.runners["left"] == disk.replicas.name
        assert agent.calls == []
        await disk.replicas.renews()
        await until(lambda: disk.rows["left"].state is S.COMPLETED)
    assert len(agent.calls) == 1


async def test_a_replica_claims_those_of_its_own_tasks_again_that_are_unknown_here(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, recovery.__name__)
    gate = Gate()
    agent = ScriptedAgent({SLOW: (gate, COMPLETED)}, retry_safe=True)
    async with serve(agent, disk) as engine:
        alice = User(engine)
        runs = await alice.start(SLOW)
        await gate.reached()
        for task_id in ("gone", "taken", "left"):
            disk.put(task_id, "dead", retry_safe=True)
        disk.replicas.dead.add("dead")
        disk.replicas.meanwhile["claim_orphans"] = lose_the_answer
        await disk.replicas.renews()

        async def others_write() -> None:
            del disk.rows["gone"]
            disk.write(taken, COMPLETED)

        taken = disk.rows["taken"].task()
        disk.replicas.meanwhile["own_tasks"] = others_write
        await disk.replicas.renews()
        await until(lambda: len(agent.calls) == 2)
        assert {call.task.id for call in agent.calls} == {runs.id, "left"}
        said = [vars(record) for record in caplog.records]
        assert [line["task_id"] for line in said if line["msg"] == "task taken over"] == ["left"]
        assert (disk.rows[runs.id].epoch, disk.rows["left"].epoch) == (1, 3)
        disk.replicas.meanwhile["own_tasks"] = others_write
        await disk.replicas.renews()
        assert disk.replicas.meanwhile  # not asked again: no claim is lost any more
        gate.open()
        await until(lambda: {row.state for row in disk.rows.values()} == {S.COMPLETED})


async def test_a_task_that_another_replica_claims_meanwhile_is_left_to_it(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(ScriptedAgent(), disk):
        task = disk.put("left", "dead")
        disk.replicas.dead.add("dead")

        async def another_claims() -> None:
            disk.claim(task.id, "other")

        disk.replicas.meanwhile["claim_orphans"] = another_claims
        caplog.set_level(logging.INFO, recovery.__name__)
        await disk.replicas.renews()
        await until(lambda: disk.writes == 1)
        await settle()
        assert [record.getMessage() for record in caplog.records] == ["task taken over"]
        assert (disk.writes, disk.rows[task.id].state, disk.runners[task.id]) == (1, S.WORKING, "other")


async def test_messages_in_the_queue_of_a_silent_replica_are_refused_when_its_task_is_canceled_here(
    disk: SharedDisk,
) -> None:
    async with serve(ScriptedAgent(), disk, peer_cancel=0.1) as engine:
        task = disk.put("theirs", "other")
        waiting = QueuedMessage(request("more", task_id=task.id, message_id="waits"), ALICE)
        stored = decode_stored_run(disk.rows["theirs"].run)
        disk.rows["theirs"].run = encode_stored_run(stored, (waiting,))
        canceled = await User(engine).cancel(task)
    assert (canceled.status.state, words(canceled)) == (S.CANCELED, ["slow", "more"])
    assert metadata_of(canceled) == {UNANSWERED_KEY: ["waits"]}


async def test_a_task_is_taken_over_when_the_store_can_write_again(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(ScriptedAgent(), disk) as engine:
        task = disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        disk.fault = lambda number: "before" if number <= 2 else ""
        await disk.replicas.renews()
        await until(lambda: disk.writes >= 2)
        await asyncio.gather(*(later for later in asyncio.all_tasks() if later.get_name() == "task taken over"))
        assert text_of(await User(engine).get(task)).startswith("Worker lost")
        said = [record.getMessage() for record in caplog.records]
        assert said == ["task not taken over yet"] * 2


async def test_a_replica_that_claims_its_own_task_back_lets_its_first_run_end_before_the_next(
    disk: SharedDisk,
) -> None:
    gate = Gate(deaf=True)
    agent = ScriptedAgent({SLOW: (chunk("half"), gate, chunk("whole"), COMPLETED)}, retry_safe=True)
    async with serve(agent, disk) as engine:
        alice = User(engine)
        task = await alice.start(SLOW)
        await gate.reached()
        await disk.replicas.renews(False)
        await disk.replicas.renews()  # under its new name it claims the task of a dead replica, which is itself
        assert disk.runners[task.id] == "here-2"
        await settle()
        assert len(agent.calls) == 1
        gate.open()
        await until(lambda: disk.rows[task.id].state is S.COMPLETED)
        assert len(agent.calls) == 2
        assert chunks_of(await alice.get(task)) == ["whole"]


async def test_a_waiting_task_that_a_dead_replica_had_claimed_to_cancel_it_has_no_runner_again(
    disk: SharedDisk,
) -> None:
    agent = ScriptedAgent()
    async with serve(agent, disk):
        disk.put("asked", "dead", S.INPUT_REQUIRED)
        disk.replicas.dead.add("dead")
        await disk.replicas.renews()
        await until(lambda: disk.runners["asked"] is None)
        assert (disk.rows["asked"].state, agent.calls) == (S.INPUT_REQUIRED, [])


async def test_a_message_that_waits_for_a_task_that_is_taken_over_here_runs_after_it() -> None:
    read = Gate()

    class Slow(SharedDisk):
        """A disk whose pages are read when the gate opens."""

        async def page(self, query: Query) -> Page:
            await read.wait()
            return await super().page(query)

    disk = Slow()
    agent = ScriptedAgent(default=(chunk("x"), ASKS))
    async with serve(agent, disk) as engine:
        task = disk.put("left", "dead", retry_safe=True)
        sending = asyncio.create_task(User(engine).send("next", task_id=task.id))
        await settle()
        disk.replicas.dead.add("dead")
        await disk.replicas.renews()
        await read.reached()
        await disk.replicas.wakes()
        await settle()
        read.open()
        await soon(sending)
    assert [call.message.parts[0].text for call in agent.calls] == [SLOW, "next"]


async def test_a_replica_starts_though_another_one_claims_a_task_that_it_recovers(disk: SharedDisk) -> None:
    left = disk.put("left", "dead")
    disk.put("other", "dead")
    disk.replicas.dead.add("dead")

    async def another_claims() -> None:
        disk.claim(left.id, "other")

    disk.replicas.meanwhile["claim_orphans"] = another_claims
    async with serve(ScriptedAgent(), disk):
        assert (disk.rows["left"].state, disk.rows["other"].state) == (S.WORKING, S.FAILED)


async def test_a_task_that_is_claimed_when_the_shutdown_begins_is_left_to_others(disk: SharedDisk) -> None:
    agent = ScriptedAgent(default=(Gate(), COMPLETED))
    async with serve(agent, disk) as engine:
        disk.put("waits", "", S.SUBMITTED, attempt=0)

        async def shut_down() -> None:
            engine.begin_drain()
            await settle()

        disk.replicas.meanwhile["claim_queued"] = shut_down
        await disk.replicas.wakes()
        await settle()
    assert agent.calls == []
    assert (disk.rows["waits"].state, disk.runners["waits"]) == (S.SUBMITTED, "")


# ---- cancels -----------------------------------------------------------------------------------------------------


async def test_a_task_that_is_removed_while_it_is_canceled_is_not_found(disk: SharedDisk) -> None:
    async with serve(ScriptedAgent(), disk) as engine:
        task = disk.put("queued", "")

        async def another_removes_it() -> None:
            del disk.rows[task.id]

        disk.replicas.meanwhile["follow"] = another_removes_it
        with pytest.raises(TaskNotFoundError):
            await User(engine).cancel(task)


async def test_a_task_that_comes_to_rest_while_its_replica_is_asked_to_cancel_it_is_canceled_here(
    disk: SharedDisk,
) -> None:
    async with serve(ScriptedAgent(), disk, peer_cancel=60) as engine:
        task = disk.put("theirs", "other")
        canceling = asyncio.create_task(User(engine).cancel(task))
        await settle()
        await disk.replicas.wakes(disk.write(task, ASKS))  # the request is answered no more
        assert (await soon(canceling)).status.state is S.CANCELED


# ---- races ---------------------------------------------------------------------------------------------------------


async def test_a_message_that_loses_many_races_for_the_turn_is_run_all_the_same(
    disk: SharedDisk,
) -> None:
    races = 0

    class Outrun(ScriptedAgent):
        """While it admits a message, another replica runs one of its own."""

        async def admit(self, call: Call) -> Admission:
            nonlocal races
            races += 1
            if races <= 30:
                disk.write(asked, chunk("a rival's"))
            return await super().admit(call)

    asked = disk.put("asked", None, S.INPUT_REQUIRED)
    agent = Outrun(default=(chunk("mine"), COMPLETED))
    async with serve(agent, disk) as engine:
        done = await User(engine).send("next", task_id="asked")
    assert (done.status.state, chunks_of(done)) == (S.COMPLETED, ["mine"])
    assert (races, len(agent.calls)) == (31, 1)
