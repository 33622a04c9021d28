"""Requests that a replica takes from others: executed, or rejected with the reason."""

import pytest

from apcore_a2a.agent import Admission, Call
from apcore_a2a.engine.replica import requests
from apcore_a2a.engine.replica.requests import RequestBody, decode_rejection
from apcore_a2a.errors import A2AError, OverloadedError, StaleWriteError, UnsupportedOperationError
from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.contract import ReplicaRequest
from tests.engine.driving import ALICE, User, request, serving, until
from tests.engine.shared_disk import MANUAL, NO_PAUSES, OWNER, SharedDisk
from tests.fakes import COMPLETED, Gate, ScriptedAgent

S = TaskState


class Buggy(ScriptedAgent):
    """Has a bug in its `admit`, for one message."""

    async def admit(self, call: Call) -> Admission:
        if call.message.parts[0].text == "bug":
            raise ValueError("a secret")
        return await super().admit(call)


async def test_a_request_that_fails_is_answered_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SharedDisk()
    gate = Gate()
    agent = Buggy({"slow": (gate, COMPLETED), "no": UnsupportedOperationError("Not that")})
    async with serving(agent, disk, timing=NO_PAUSES, replica=MANUAL) as engine:
        task = await User(engine).start("slow")
        await gate.reached()

        async def rejects(task_id: str, body: bytes) -> A2AError:
            return decode_rejection(await disk.replicas.receives(task_id, body))

        gone = await rejects("elsewhere", encode(RequestBody(ALICE)))
        assert type(gone) is StaleWriteError  # its sender looks for the task again
        wrong = await rejects(task.id, encode(RequestBody(ALICE, request("no", task_id=task.id))))
        assert (type(wrong), wrong.message) == (UnsupportedOperationError, "Not that")
        foreign = await rejects(task.id, b"[]")
        assert (type(foreign), foreign.message) == (OverloadedError, requests.NOT_UNDERSTOOD)
        bug = await rejects(task.id, encode(RequestBody(ALICE, request("bug", task_id=task.id))))
        assert (type(bug), bug.message) == (A2AError, "Internal error")
        assert [record.getMessage() for record in caplog.records] == ["a replica request failed"]
        assert await disk.replicas.receives(task.id, encode(RequestBody(ALICE))) == ""
        assert disk.rows[task.id].state is S.CANCELED


async def test_one_wake_up_takes_all_requests() -> None:
    disk = SharedDisk()
    disk.replicas.taken_at_once = 2
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES, replica=MANUAL):
        disk.replicas.requests += [
            ReplicaRequest(number, "elsewhere", OWNER, encode(RequestBody(ALICE))) for number in range(5)
        ]
        await disk.replicas.wakes()
        await until(lambda: len(disk.replicas.rejections) == 5)
