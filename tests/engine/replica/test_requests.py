"""A message to a task that another replica runs: queued there, run here after all, or rejected in bounded time.

The replicas are real and share a real database. A disconnected one neither renews its lease nor serves wake-ups. The
test inserts steps between two calls of the database (`scenario`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from apcore_a2a.agent import Admission, Call
from apcore_a2a.engine import intake
from apcore_a2a.engine.context import ReplicaTiming, Timing
from apcore_a2a.engine.replica import requests
from apcore_a2a.engine.task import MAX_QUEUED
from apcore_a2a.errors import OverloadedError, StoreUnavailableError
from apcore_a2a.protocol.model import Task, TaskState
from tests.engine.driving import ALICE, User, until, words
from tests.engine.replica.scenario import (
    disconnect,
    mailbox_of,
    reconnect,
    replica,
    replica_of,
    replicas,
    store_of,
    until_shown,
    watch_of,
)
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent
from tests.postgres_server import shared_server

S = TaskState
ANSWERED = ["slow", "What next?", "next"]  # the words of a task that asked, and got its answer
HASTY = ReplicaTiming(answer=0.02, answer_poll=0.01)
"""The sender of a request reads the answer twice."""


def asking(gate: Gate) -> ScriptedAgent:
    return ScriptedAgent({"slow": (gate, ASKS)})


@asynccontextmanager
async def running(agent: ScriptedAgent, gate: Gate, **options: Any) -> AsyncIterator[tuple[User, User, Task]]:
    """Alice at two replicas, and a task that runs at the first until the gate opens. Any: options of the engines."""
    async with replicas(agent, shared_server().url(), **options) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        yield here, there, task


# ---- run at the replica that received it ---------------------------------------------------------------------------


async def test_a_message_whose_task_comes_to_rest_elsewhere_while_the_agent_admits_it_is_run_here() -> None:
    gate = Gate()

    class Slow(ScriptedAgent):
        """Admits a message when the task has come to rest where it runs."""

        async def admit(self, call: Call) -> Admission:
            if call.message.parts[0].text == "next" and not gate.is_open:
                gate.open()
                await until_shown(here, task, S.INPUT_REQUIRED)
            return await super().admit(call)

    async with running(Slow({"slow": (gate, ASKS)}), gate) as (here, there, task):
        await disconnect(there)  # so it learns of the rest when it reads the task again, and not before
        await there.start("next", task_id=task.id)
        assert words(await until_shown(here, task, S.COMPLETED)) == ANSWERED


async def test_copies_of_a_message_that_arrive_at_two_replicas_are_queued_once_and_run_once() -> None:
    gate = Gate()
    async with running(asking(gate), gate) as (here, there, task):
        copy: dict[str, Any] = {"task_id": task.id, "message_id": "m", "key": "k"}

        async def send_here() -> None:
            await here.start("next", **copy)

        mailbox_of(there).before = send_here
        await there.start("next", **copy)
        record = await store_of(there).load(task.id, ALICE.owner)
        assert record is not None
        assert record.run.count(b'"messageId":"m"') == 1
        gate.open()
        assert words(await until_shown(there, task, S.COMPLETED)) == ANSWERED


async def test_a_message_whose_task_comes_to_rest_before_it_is_posted_is_run_here() -> None:
    gate = Gate()
    async with running(asking(gate), gate) as (here, there, task):

        async def rest() -> None:
            gate.open()
            await until_shown(here, task, S.INPUT_REQUIRED)

        mailbox_of(there).before = rest
        await there.start("next", task_id=task.id)
        assert words(await until_shown(there, task, S.COMPLETED)) == ANSWERED
        assert mailbox_of(there).numbers == [None]


async def test_a_sender_that_waits_is_answered_when_another_replica_lets_go_of_the_task() -> None:
    gate = Gate()
    async with running(asking(gate), gate) as (_, there, task):

        async def open_gate() -> None:
            gate.open()

        watch_of(there).after_follow = open_gate
        done = await there.send("next", task_id=task.id)
        assert (done.status.state, words(done)) == (S.COMPLETED, ANSWERED)


async def test_a_queue_that_another_replica_has_worked_off_is_not_stored_again() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, ASKS)}, default=(ASKS,))
    async with running(agent, gate) as (here, there, task):
        await here.start("second", task_id=task.id)

        async def open_gate() -> None:
            gate.open()

        watch_of(there).after_follow = open_gate  # it has read the task with the queue
        done = await there.send("third", task_id=task.id)
        assert words(done)[::2] == ["slow", "second", "third"]
        record = await store_of(here).load(task.id, ALICE.owner)
        assert record is not None
        assert (record.run, record.runner) == (b"", None)


# ---- rejected ------------------------------------------------------------------------------------------------------


async def test_a_message_to_a_task_that_waits_for_a_replica_with_room_is_rejected_after_a_while() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    url = shared_server().url()
    async with (
        replica(agent, url, max_active_tasks=1, replica=HASTY) as full,
        replica(agent, url, replica=HASTY) as idle,
    ):
        await disconnect(User(idle))  # it has room, and does not learn of the waiting task
        alice = User(full)
        await alice.start("slow")
        await gate.reached()
        waiting = await alice.start("quick")
        with pytest.raises(OverloadedError, match="waits for a replica with room"):
            await User(idle).start("more", task_id=waiting.id)
        assert mailbox_of(User(idle)).runners == []  # no replica could be asked
        gate.open()
        assert words(await until_shown(alice, waiting, S.COMPLETED)) == ["quick"]


async def test_a_rejection_where_the_task_runs_reaches_the_sender() -> None:
    gate = Gate()
    agent = asking(gate)
    async with running(agent, gate) as (here, there, task):
        for number in range(MAX_QUEUED):
            await here.start(f"m{number}", task_id=task.id)
        with pytest.raises(OverloadedError, match="Too many messages wait for this task"):
            await there.start("next", task_id=task.id)
        gate.open()
        await until_shown(there, task, S.COMPLETED)
    assert len(agent.calls) == 2  # the first of those in the queue completed the task


def test_a_rejection_of_another_version_is_a_reason_to_retry() -> None:
    for answer, text in (("?", requests.NOT_UNDERSTOOD), ('{"kind":"NewError","text":"Not now"}', "Not now")):
        error = requests.decode_rejection(answer)
        assert (type(error), error.message) == (OverloadedError, text)


async def test_a_message_that_the_other_replica_does_not_take_is_withdrawn() -> None:
    gate = Gate()
    agent = asking(gate)
    async with running(agent, gate, replica=HASTY) as (here, there, task):
        await disconnect(here)
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            await there.start("next", task_id=task.id)
        assert await mailbox_of(here).take() == []
        gate.open()
        await until_shown(there, task, S.INPUT_REQUIRED)
    assert len(agent.calls) == 1


async def test_a_message_that_was_taken_and_not_answered_may_have_been_run() -> None:
    gate = Gate()
    async with running(asking(gate), gate, replica=ReplicaTiming(answer=0)) as (here, there, task):
        await disconnect(here)
        mailbox_of(there).after = mailbox_of(here).take  # and the request is never finished
        with pytest.raises(StoreUnavailableError) as rejected:
            await there.start("next", task_id=task.id)
        assert rejected.value.message == StoreUnavailableError.text  # it does not say that the message was not taken
        (number,) = mailbox_of(there).numbers
        assert number is not None
        assert await mailbox_of(there).withdraw(number) is False


async def test_a_message_is_rejected_if_its_task_moves_from_replica_to_replica_each_time() -> None:
    gate = Gate()
    agent = asking(gate)
    async with running(agent, gate, timing=Timing(race_pause=0)) as (here, there, task):
        mailbox_of(there).drops = True
        with pytest.raises(OverloadedError, match="Too many messages to this task at once"):
            await there.start("next", task_id=task.id)
        assert mailbox_of(there).runners == [store_of(here).replicas.lease.name] * intake.MAX_RACES
        gate.open()
        await until_shown(there, task, S.INPUT_REQUIRED)
    assert len(agent.calls) == 1


# ---- taken when the run that it was to wait for is over ------------------------------------------------------------


async def test_a_request_that_arrives_when_the_task_rests_is_run_at_once() -> None:
    gate = Gate()
    async with running(asking(gate), gate) as (here, there, task):
        watcher = await here.subscribe(task)
        await disconnect(here)

        async def rest_and_reconnect() -> None:
            gate.open()
            await until_shown(here, task, S.INPUT_REQUIRED)
            reconnect(here)

        mailbox_of(there).after = rest_and_reconnect
        await there.start("next", task_id=task.id)
        assert (await watcher.rest()).states[-1] is S.COMPLETED
        assert words(await there.get(task)) == ANSWERED
        assert len(mailbox_of(there).numbers) == 1


async def test_a_request_to_a_replica_that_has_let_go_of_the_task_is_run_where_it_was_sent() -> None:
    gate = Gate()
    async with running(asking(gate), gate) as (here, there, task):
        await disconnect(here)

        async def let_go_and_reconnect() -> None:
            gate.open()
            await until(lambda: here.engine.live_tasks == 0)
            reconnect(here)

        mailbox_of(there).after = let_go_and_reconnect
        await there.start("next", task_id=task.id)
        assert words(await until_shown(there, task, S.COMPLETED)) == ANSWERED
        assert len(mailbox_of(there).numbers) == 1


async def test_a_request_for_a_task_that_was_claimed_from_its_replica_is_run_where_it_was_sent() -> None:
    gate = Gate()
    agent = asking(gate)
    async with running(agent, gate) as (here, there, task):
        watcher = await here.subscribe(task)
        await disconnect(here)

        async def claim_and_execute() -> None:
            gate.open()
            await until_shown(here, task, S.INPUT_REQUIRED)
            await store_of(there).replicas.claims.claim(task.id, there.context().owner)
            await replica_of(here).inbox.take_all()

        mailbox_of(there).after = claim_and_execute
        await there.start("next", task_id=task.id)
        assert words(await until_shown(there, task, S.COMPLETED)) == ANSWERED
        watcher.stream.close()
    assert len(agent.calls) == 2
