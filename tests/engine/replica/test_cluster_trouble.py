"""One replica when things go wrong: answers of the store that get lost, commands that cannot be obeyed."""

import asyncio
import logging

import pytest

from apcore_a2a.agent import Admission, Call
from apcore_a2a.engine import intake
from apcore_a2a.engine.context import CallContext, Timing
from apcore_a2a.engine.replica import lease, requests
from apcore_a2a.engine.replica.requests import Errand, decode_refusal
from apcore_a2a.errors import (
    A2AError,
    OverloadedError,
    StaleWriteError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.contract import ReplicaRequest
from tests.engine.driving import ALICE, User, chunks_of, request, serving, settle, soon, text_of, until
from tests.engine.shared_disk import OWNER, SharedDisk, lose_the_answer
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk

S = TaskState
SLOW = "slow"  # what the tasks that the disk begins with were told


NO_PAUSES = Timing(save_retries=(0,), peer_cancel=0)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test says when there is a beat, not the clock."""
    monkeypatch.setattr(lease, "BEATS", 1e9)
    monkeypatch.setattr(lease, "RETRY", 0)


@pytest.fixture
def disk() -> SharedDisk:
    return SharedDisk()


# ---- taking over ---------------------------------------------------------------------------------------------------


async def test_what_dead_replicas_left_behind_is_tidied_up_every_twelfth_beat(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES):
        for _ in range(lease.TIDY_EVERY - 1):
            await disk.replicas.renews()
        assert disk.replicas.cleanups == 0
        await disk.replicas.renews()
        assert disk.replicas.cleanups == 1


async def test_a_replica_that_shuts_down_takes_over_nothing(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES) as engine:
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        engine.begin_drain()
        await disk.replicas.renews()
        assert disk.runners["left"] == "dead"


@pytest.mark.parametrize("method", ["claim_orphans", "claim_queued"])
async def test_a_task_that_was_claimed_by_an_answer_that_got_lost_is_run_all_the_same(
    disk: SharedDisk, method: str
) -> None:
    agent = ScriptedAgent(default=(chunk("whole"), COMPLETED))
    async with serving(agent, disk, timing=NO_PAUSES):
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


async def test_of_its_own_tasks_a_replica_claims_again_those_that_nobody_here_knows_of(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, lease.__name__)
    gate = Gate()
    agent = ScriptedAgent({SLOW: (gate, COMPLETED)}, retry_safe=True)
    async with serving(agent, disk, timing=NO_PAUSES) as engine:
        alice = User(engine)
        runs = await alice.start(SLOW)
        await gate.reached()
        for task_id in ("gone", "taken", "left"):
            disk.put(task_id, "dead", retry_safe=True)
        disk.replicas.dead.add("dead")
        disk.replicas.meanwhile["claim_orphans"] = lose_the_answer
        await disk.replicas.renews()

        async def others_do_something() -> None:
            del disk.rows["gone"]
            disk.write(taken, COMPLETED)

        taken = disk.rows["taken"].task()
        disk.replicas.meanwhile["own_tasks"] = others_do_something
        await disk.replicas.renews()
        await until(lambda: len(agent.calls) == 2)
        assert {call.task.id for call in agent.calls} == {runs.id, "left"}
        said = [vars(record) for record in caplog.records]
        assert [line["task_id"] for line in said if line["msg"] == "task taken over"] == ["left"]
        assert (disk.rows[runs.id].epoch, disk.rows["left"].epoch) == (1, 3)
        disk.replicas.meanwhile["own_tasks"] = others_do_something
        await disk.replicas.renews()
        assert disk.replicas.meanwhile  # nobody asked: what was lost is found
        gate.open()
        await until(lambda: {row.state for row in disk.rows.values()} == {S.COMPLETED})


async def test_a_task_that_somebody_else_claims_meanwhile_is_left_to_them(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES):
        task = disk.put("left", "dead")
        disk.replicas.dead.add("dead")

        async def another_claims() -> None:
            disk.claim(task.id, "other")

        disk.replicas.meanwhile["claim_orphans"] = another_claims
        caplog.set_level(logging.INFO, lease.__name__)
        await disk.replicas.renews()
        await until(lambda: disk.writes == 1)
        await settle()
        assert [record.getMessage() for record in caplog.records] == ["task taken over"]
        assert (disk.writes, disk.rows[task.id].state, disk.runners[task.id]) == (1, S.WORKING, "other")


async def test_a_task_is_taken_over_when_the_store_can_write_again(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES) as engine:
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
    async with serving(agent, disk, timing=NO_PAUSES) as engine:
        alice = User(engine)
        task = await alice.start(SLOW)
        await gate.reached()
        await disk.replicas.renews(False)
        await disk.replicas.renews()  # under its new name it finds the task of a dead replica: itself
        assert disk.runners[task.id] == "here-2"
        await settle()
        assert len(agent.calls) == 1
        gate.open()
        await until(lambda: disk.rows[task.id].state is S.COMPLETED)
        assert len(agent.calls) == 2
        assert chunks_of(await alice.get(task)) == ["whole"]


async def test_a_task_that_waits_for_its_user_is_nobodys_again_when_whoever_wanted_to_cancel_it_dies(
    disk: SharedDisk,
) -> None:
    agent = ScriptedAgent()
    async with serving(agent, disk, timing=NO_PAUSES):
        disk.put("asked", "dead", S.INPUT_REQUIRED)
        disk.replicas.dead.add("dead")
        await disk.replicas.renews()
        await until(lambda: disk.runners["asked"] is None)
        assert (disk.rows["asked"].state, agent.calls) == (S.INPUT_REQUIRED, [])


async def test_a_message_that_waits_here_for_a_task_that_is_taken_over_here_is_run_after_it(disk: SharedDisk) -> None:
    agent = ScriptedAgent(default=(chunk("x"), ASKS))
    async with serving(agent, disk, timing=NO_PAUSES) as engine:
        task = disk.put("left", "dead", retry_safe=True)
        sending = asyncio.create_task(User(engine).send("next", task_id=task.id))
        await settle()
        told = Gate()
        add_history = engine._intake.conversations.add_history

        async def add_late(call: Call, context: CallContext) -> None:
            await told.stand()
            await add_history(call, context)

        engine._intake.conversations.add_history = add_late  # type: ignore[method-assign]  # the store is slow
        disk.replicas.dead.add("dead")
        await disk.replicas.renews()
        await told.reached()
        await disk.replicas.wakes()
        await settle()
        told.open()
        await soon(sending)
    assert [call.message.parts[0].text for call in agent.calls] == [SLOW, "next"]


async def test_a_replica_starts_though_another_one_takes_a_task_that_it_recovers(disk: SharedDisk) -> None:
    left = disk.put("left", "dead")
    disk.put("other", "dead")
    disk.replicas.dead.add("dead")

    async def another_claims() -> None:
        disk.claim(left.id, "other")

    disk.replicas.meanwhile["claim_orphans"] = another_claims
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES):
        assert (disk.rows["left"].state, disk.rows["other"].state) == (S.WORKING, S.FAILED)


async def test_what_is_claimed_when_the_shutdown_begins_is_left_to_others(disk: SharedDisk) -> None:
    agent = ScriptedAgent(default=(Gate(), COMPLETED))
    async with serving(agent, disk, timing=NO_PAUSES) as engine:
        disk.put("waits", "", S.SUBMITTED, attempt=0)

        async def shut_down() -> None:
            engine.begin_drain()
            await settle()

        disk.replicas.meanwhile["claim_queued"] = shut_down
        await disk.replicas.wakes()
        await settle()
    assert agent.calls == []
    assert (disk.rows["waits"].state, disk.runners["waits"]) == (S.SUBMITTED, "")


# ---- commands ------------------------------------------------------------------------------------------------------


class Buggy(ScriptedAgent):
    """Has a bug in its `admit`, for one message."""

    async def admit(self, call: Call) -> Admission:
        if call.message.parts[0].text == "bug":
            raise ValueError("a secret")
        return await super().admit(call)


async def test_a_command_that_cannot_be_obeyed_is_answered_with_the_reason(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    agent = Buggy({SLOW: (gate, COMPLETED), "no": UnsupportedOperationError("Not that")})
    async with serving(agent, disk, timing=NO_PAUSES) as engine:
        task = await User(engine).start(SLOW)
        await gate.reached()

        async def refuses(task_id: str, body: bytes) -> A2AError:
            return decode_refusal(await disk.replicas.receives(task_id, body))

        gone = await refuses("elsewhere", encode(Errand(ALICE)))
        assert type(gone) is StaleWriteError  # look again
        wrong = await refuses(task.id, encode(Errand(ALICE, request("no", task_id=task.id))))
        assert (type(wrong), wrong.message) == (UnsupportedOperationError, "Not that")
        foreign = await refuses(task.id, b"[]")
        assert (type(foreign), foreign.message) == (OverloadedError, requests.NOT_UNDERSTOOD)
        bug = await refuses(task.id, encode(Errand(ALICE, request("bug", task_id=task.id))))
        assert (type(bug), bug.message) == (A2AError, "Internal error")
        assert [record.getMessage() for record in caplog.records] == ["a command failed"]
        assert await disk.replicas.receives(task.id, encode(Errand(ALICE))) == ""
        assert disk.rows[task.id].state is S.CANCELED


async def test_one_wake_up_has_all_commands_taken_however_many_there_are(disk: SharedDisk) -> None:
    disk.replicas.taken_at_once = 2
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES):
        disk.replicas.requests += [
            ReplicaRequest(number, "elsewhere", OWNER, encode(Errand(ALICE))) for number in range(5)
        ]
        await disk.replicas.wakes()
        await until(lambda: len(disk.replicas.rejections) == 5)


async def test_a_task_that_is_removed_while_it_is_canceled_is_not_found(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES) as engine:
        task = disk.put("queued", "")

        async def another_removes_it() -> None:
            del disk.rows[task.id]

        disk.replicas.meanwhile["follow"] = another_removes_it
        with pytest.raises(TaskNotFoundError):
            await User(engine).cancel(task)


async def test_a_task_that_comes_to_rest_while_its_replica_is_asked_to_cancel_it_is_canceled_here(
    disk: SharedDisk,
) -> None:
    async with serving(ScriptedAgent(), disk, timing=Timing(peer_cancel=60)) as engine:
        task = disk.put("theirs", "other")
        canceling = asyncio.create_task(User(engine).cancel(task))
        await settle()
        await disk.replicas.wakes(disk.write(task, ASKS))  # nobody there knows of it any more
        assert (await soon(canceling)).status.state is S.CANCELED


# ---- races ---------------------------------------------------------------------------------------------------------


async def test_a_message_that_loses_many_races_for_the_turn_is_taken_all_the_same(
    disk: SharedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "RACE_PAUSE", 0)
    races = 0

    class Outrun(ScriptedAgent):
        """While it looks at a message, another replica runs one of its own."""

        async def admit(self, call: Call) -> Admission:
            nonlocal races
            races += 1
            if races <= 30:
                disk.write(asked, chunk("a rival's"))
            return await super().admit(call)

    asked = disk.put("asked", None, S.INPUT_REQUIRED)
    agent = Outrun(default=(chunk("mine"), COMPLETED))
    async with serving(agent, disk, timing=NO_PAUSES) as engine:
        done = await User(engine).send("next", task_id="asked")
    assert (done.status.state, chunks_of(done)) == (S.COMPLETED, ["mine"])
    assert (races, len(agent.calls)) == (31, 1)
