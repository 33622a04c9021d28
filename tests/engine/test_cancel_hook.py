"""A task that waits for its user is canceled: the agent is told, if it wants to know."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from apcore_a2a.agent import AgentEvent, Call, Remember
from apcore_a2a.engine.context import Timing
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import Task, TaskState, TaskStatus
from tests.engine.driving import User, chunks_of, serving, settle, text_of
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk, status

S = TaskState


class Polite(ScriptedAgent):
    """Asks, and says something when it is canceled."""

    def __init__(self, *last: AgentEvent | BaseException) -> None:
        super().__init__(default=(ASKS,))
        self.last = last
        self.farewells: list[Call] = []

    async def cancel(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        self.farewells.append(call)
        for event in self.last:
            if isinstance(event, BaseException):
                raise event
            yield event


async def test_what_the_agent_says_at_the_end_is_taken() -> None:
    agent = Polite(chunk("notes"), status(S.CANCELED, "Put away"), chunk("too late"))
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.send("go")
        canceled = await alice.cancel(task)
    assert (canceled.status.state, text_of(canceled), chunks_of(canceled)) == (S.CANCELED, "Put away", ["notes"])
    (call,) = agent.farewells
    assert (call.message.parts[0].text, call.task.id, call.cancel.is_cancelled) == ("go", task.id, True)


async def test_the_agent_is_told_what_it_asked_to_be_remembered_and_what_was_said_last() -> None:
    agent = Polite()
    agent.default = (Remember({"page": 7}), status(S.WORKING, "Reading"), ASKS)
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.send("go")
        await alice.send("on", task_id=task.id)
        await alice.cancel(task)
    (call,) = agent.farewells
    assert (call.message.parts[0].text, call.memo) == ("on", {"page": 7})


async def test_a_task_without_messages_is_canceled_without_its_agent() -> None:
    class Own(Polite):
        async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
            submitted = TaskStatus(state=S.SUBMITTED)
            yield Task(id=call.task.id, context_id=call.task.context_id, status=submitted)
            yield ASKS

    agent = Own(chunk("notes"))
    agent.may_reply = True
    async with serving(agent) as engine:
        alice = User(engine)
        canceled = await alice.cancel(await alice.send("go"))
    assert (canceled.status.state, agent.farewells) == (S.CANCELED, [])


@pytest.mark.parametrize(
    "last",
    [(), (chunk("notes"),), (RuntimeError("broken"),), (SystemExit(1),), (asyncio.CancelledError(),)],
    ids=["silent", "unfinished", "broken", "leaving", "cancelled"],
)
async def test_the_task_is_canceled_whatever_the_agent_does(last: tuple[AgentEvent | BaseException, ...]) -> None:
    async with serving(Polite(*last)) as engine:
        alice = User(engine)
        canceled = await alice.cancel(await alice.send("go"))
    assert (canceled.status.state, text_of(canceled)) == (S.CANCELED, "Canceled by client")


async def test_the_task_is_canceled_in_time() -> None:
    class Slow(Polite):
        async def cancel(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
            await asyncio.Event().wait()
            yield COMPLETED

    async with serving(Slow(), timing=Timing(cancel_hook=0.01)) as engine:
        alice = User(engine)
        assert (await alice.cancel(await alice.send("go"))).status.state is S.CANCELED


async def test_a_deaf_agent_does_not_keep_the_task() -> None:
    deaf = Gate(deaf=True)

    class Deaf(Polite):
        async def cancel(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
            await deaf.wait()
            yield chunk("too late")

    async with serving(Deaf(), timing=Timing(cancel_hook=0.01)) as engine:
        alice = User(engine)
        task = await alice.send("go")
        canceled = await alice.cancel(task)
        assert (canceled.status.state, engine.live_tasks) == (S.CANCELED, 0)
        deaf.open()
        await settle()
        assert await alice.get(task) == canceled


async def test_what_the_agent_says_may_fail_to_be_stored_and_the_task_waits_on() -> None:
    disk = FakeDisk()
    async with serving(Polite(chunk("notes")), disk) as engine:
        alice = User(engine)
        task = await alice.send("go")
        disk.fault = lambda n: "before"
        with pytest.raises(StoreUnavailableError):
            await alice.cancel(task)
        disk.fault = lambda n: ""
        canceled = await alice.cancel(task)
    assert (canceled.status.state, chunks_of(canceled)) == (S.CANCELED, ["notes"])


async def test_an_agent_that_does_not_want_to_know_is_not_told() -> None:
    async with serving(ScriptedAgent(default=(ASKS,))) as engine:
        alice = User(engine)
        assert (await alice.cancel(await alice.send("go"))).status.state is S.CANCELED
