"""A blocking send returns a task at rest, or an error after which a retry continues, wherever the task is run."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.stored_run import QueuedMessage, decode_stored_run, encode_stored_run
from apcore_a2a.errors import OverloadedError, StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from tests.engine.driving import ALICE, User, chunks_of, request, serving, settle, soon, text_of, until
from tests.engine.shared_disk import MANUAL, NO_PAUSES, SharedDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk, status

S = TaskState


@pytest.fixture
def disk() -> SharedDisk:
    return SharedDisk()


def lose_lease(engine: Engine) -> None:
    """Let the lease of this replica come to its end without a renewal."""
    assert engine.replica is not None
    engine.replica.lease_keeper.expire(0)


@pytest.mark.parametrize("retry_safe", [True, False])
async def test_a_sender_whose_replica_loses_its_lease_gets_the_result_of_the_next_runner(
    disk: SharedDisk, retry_safe: bool
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("half"), gate, COMPLETED)}, retry_safe=retry_safe)
    async with serving(agent, disk, timing=NO_PAUSES, replica=MANUAL) as engine:
        sending = asyncio.create_task(User(engine).send("slow"))
        await gate.reached()
        ((task_id, row),) = disk.rows.items()
        if not retry_safe:
            disk.claim(task_id, "other")  # so that the end here is stale
        lose_lease(engine)
        await until(lambda: engine.active_tasks == 0)
        await settle()
        assert not sending.done()
        if retry_safe:
            disk.claim(task_id, "other")
        await disk.replicas.wakes(disk.write(row.task(), chunk("whole", artifact_id="again")))
        assert not sending.done()
        await disk.replicas.wakes(disk.write(row.task(), COMPLETED))
        done = await soon(sending)
    assert (done.status.state, chunks_of(done)[-1]) == (S.COMPLETED, "whole")


async def test_a_sender_whose_replica_shuts_down_is_told_to_retry(disk: SharedDisk) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)}, retry_safe=True)
    async with serving(agent, disk, replica=MANUAL) as engine:
        sending = asyncio.create_task(User(engine).send("slow"))
        await gate.reached()
        engine.begin_drain()
        with pytest.raises(OverloadedError, match="shutting down") as rejected:
            await soon(sending)
    assert rejected.value.retry_after == 5
    ((task_id, row),) = disk.rows.items()
    assert (row.state, disk.runners[task_id]) == (S.WORKING, "")  # handed on


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_sender_that_waits_for_another_replica_is_told_to_retry_at_the_shutdown(
    disk: SharedDisk, key: str
) -> None:
    async with serving(ScriptedAgent(), disk, replica=MANUAL) as engine:
        task = disk.put("theirs", "other")
        said = disk.rows["theirs"].task().history[0]
        sending = asyncio.create_task(User(engine).send("slow", task_id=task.id, key=key, message_id=said.message_id))
        await settle()
        engine.begin_drain()
        with pytest.raises(OverloadedError, match="shutting down"):
            await soon(sending)


@pytest.mark.parametrize("timeout", [0.01, None])
async def test_no_sender_waits_forever_for_a_task_of_another_replica(disk: SharedDisk, timeout: float | None) -> None:
    disk.replicas.seconds = 0
    options: dict[str, Any] = {"execution_timeout": timeout, "replica": replace(MANUAL, answer=0, longest_silence=0.01)}
    async with serving(ScriptedAgent(), disk, **options) as engine:
        task = disk.put("theirs", "other")
        with pytest.raises(StoreUnavailableError, match="reports nothing"):
            await User(engine).send("next", task_id=task.id)


async def test_a_sender_waits_on_for_a_task_that_another_replica_still_writes(disk: SharedDisk) -> None:
    options: dict[str, Any] = {"execution_timeout": None, "replica": replace(MANUAL, answer=0, longest_silence=0.5)}
    disk.replicas.seconds = 0
    async with serving(ScriptedAgent(), disk, **options) as engine:
        task = disk.put("theirs", "other")
        sending = asyncio.create_task(User(engine).send("next", task_id=task.id))
        await settle()
        await disk.replicas.wakes(disk.write(task, status(S.WORKING, "halfway")))
        with pytest.raises(StoreUnavailableError, match="reports nothing"):
            await soon(sending)


async def test_a_copy_of_a_message_that_another_replica_runs_is_answered_with_its_result(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk, replica=MANUAL) as engine:
        alice = User(engine)
        task = disk.put("theirs", "other")
        said = disk.rows["theirs"].task().history[0]
        copy: dict[str, Any] = {"task_id": task.id, "key": "k", "message_id": said.message_id}
        assert (await alice.start("slow", **copy)).status.state is S.WORKING
        sending = asyncio.create_task(alice.send("slow", **copy))
        await settle()
        await disk.replicas.wakes(disk.write(task, status(S.WORKING, "halfway")))
        assert not sending.done()
        await disk.replicas.wakes(disk.write(task, ASKS))
        assert text_of(await soon(sending)) == "What next?"


async def test_a_copy_of_a_message_in_the_queue_of_another_replica_is_answered_with_its_result(
    disk: SharedDisk,
) -> None:
    async with serving(ScriptedAgent(), disk, replica=MANUAL) as engine:
        task = disk.put("theirs", "other")
        row = disk.rows["theirs"]
        waits = QueuedMessage(request("next", task_id=task.id, message_id="a"), ALICE)
        run = decode_stored_run(row.run)
        row.run = encode_stored_run(run, (waits,))
        sending = asyncio.create_task(User(engine).send("next", task_id=task.id, message_id="a", key="k"))
        await settle()
        assert not sending.done()
        row.run = b""
        await disk.replicas.wakes(disk.write(task, ASKS))
        assert text_of(await soon(sending)) == "What next?"


async def test_a_copy_of_a_message_in_the_queue_is_answered_by_the_next_runner_if_the_lease_is_lost(
    disk: SharedDisk,
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, ASKS)}, retry_safe=True)
    async with serving(agent, disk, timing=NO_PAUSES, replica=MANUAL) as engine:
        alice = User(engine)
        task = await alice.start("slow")
        await gate.reached()
        answer: dict[str, Any] = {"task_id": task.id, "message_id": "a", "key": "k"}
        await alice.start("next", **answer)
        sending = asyncio.create_task(alice.send("next", **answer))
        await settle()
        disk.claim(task.id, "other")
        lose_lease(engine)
        await until(lambda: engine.active_tasks == 0)
        await settle()
        assert not sending.done()
        disk.rows[task.id].run = b""
        await disk.replicas.wakes(disk.write(task, ASKS))
        assert text_of(await soon(sending)) == "What next?"
