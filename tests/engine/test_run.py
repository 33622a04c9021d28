"""Every way a run can end; whatever an agent does, its task comes to rest in a stored state."""

import asyncio
import logging
from collections.abc import AsyncGenerator

import pytest

from apcore_a2a.agent import AgentEvent, Call, CancelToken
from apcore_a2a.engine.run import MOVES, Phase
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import Task, TaskState
from tests.engine.driving import (
    QUICK,
    Acts,
    Ledger,
    User,
    chunks_of,
    metadata_of,
    serving,
    settle,
    soon,
    text_of,
    until,
)
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, WORKING, Gate, ScriptedAgent, chunk, says, status
from tests.requirements import requirement

S = TaskState


@requirement("NFR-REL-002")
@pytest.mark.parametrize(
    "error", [ValueError("secret"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
async def test_an_agent_that_raises_anything_fails_its_own_task_and_no_other(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"bad": (chunk("a"), error), "good": (gate, COMPLETED)})
    async with serving(agent) as engine:
        alice = User(engine)
        good = await alice.start("good")
        await gate.reached()
        bad = await alice.send("bad")
        gate.open()
        assert (await (await alice.subscribe(good)).rest()).states[-1] is S.COMPLETED
    assert bad.status.state is S.FAILED
    assert text_of(bad) == "Internal error"
    assert chunks_of(bad) == ["a"]
    (logged,) = [record for record in caplog.records if record.message == "agent failed"]
    assert logged.levelno == logging.ERROR
    assert logged.exc_info is not None
    assert logged.exc_info[1] is error
    assert metadata_of(bad) == {"type": "InternalError", "code": -32603, "reference": logged.__dict__["reference"]}


async def test_an_error_meant_for_the_client_is_shown_to_it() -> None:
    error = AgentError("No such city", kind="CityNotFound", city="Atlantis")
    async with serving(ScriptedAgent(default=(error,))) as engine:
        task = await User(engine).send("weather")
    assert (task.status.state, text_of(task)) == (S.FAILED, "No such city")
    assert metadata_of(task) == {"type": "CityNotFound", "code": -32603, "city": "Atlantis"}


async def test_an_agent_that_returns_without_an_end_fails_its_task() -> None:
    async with serving(ScriptedAgent(default=(chunk("half"),))) as engine:
        task = await User(engine).send("go")
    assert (task.status.state, text_of(task)) == (S.FAILED, "The agent ended without finishing the task")
    assert metadata_of(task) == {"type": "AgentError", "code": -32603}
    assert chunks_of(task) == ["half"]


async def test_what_an_agent_yields_after_the_end_is_not_taken() -> None:
    went_on = False

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        nonlocal went_on
        yield COMPLETED
        went_on = True
        yield chunk("late")

    async with serving(Acts(play)) as engine:
        alice = User(engine)
        task = await alice.send("go")
        assert await alice.get(task) == task
    assert (task.status.state, task.artifacts, went_on) == (S.COMPLETED, [], False)


async def test_an_agent_that_will_not_be_closed_keeps_its_end() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        try:
            yield COMPLETED
        finally:
            yield chunk("late")  # Python: "async generator ignored GeneratorExit"

    async with serving(Acts(play)) as engine:
        task = await User(engine).send("go")
    assert (task.status.state, task.artifacts) == (S.COMPLETED, [])


async def test_a_run_that_fails_after_it_asked_does_not_wait_for_an_answer() -> None:
    gate = Gate()
    async with serving(ScriptedAgent(default=(ASKS, gate, ValueError("broken")))) as engine:
        alice = User(engine)
        task = await alice.send("go")
        assert task.status.state is S.INPUT_REQUIRED
        watcher = await alice.subscribe(task)
        gate.open()
        assert (await watcher.rest()).states[-1] is S.FAILED


async def test_a_sender_is_answered_at_auth_required_and_the_run_goes_on() -> None:
    gate = Gate()
    script = (status(S.AUTH_REQUIRED), WORKING, gate, COMPLETED)  # no wait between the two states
    async with serving(ScriptedAgent(default=script)) as engine:
        alice = User(engine)
        task = await alice.send("go")
        assert task.status.state is S.WORKING
        watcher = await alice.subscribe(task)
        gate.open()
        assert (await watcher.rest()).states[-1] is S.COMPLETED


async def test_a_run_has_its_deadline_and_ends_then() -> None:
    gate = Gate()
    agent = ScriptedAgent(default=(gate, COMPLETED))
    async with serving(agent, execution_timeout=0.01) as engine:
        task = await User(engine).send("go")
    assert (task.status.state, text_of(task)) == (S.FAILED, "Execution timed out")
    assert metadata_of(task) == {"type": "ModuleTimeoutError", "code": -32603}
    assert agent.calls[0].cancel.is_cancelled
    assert agent.calls[0].deadline is not None


async def test_each_run_is_stopped_at_its_own_deadline() -> None:
    gates = [Gate(), Gate()]
    agent = ScriptedAgent({"first": (gates[0], COMPLETED), "second": (gates[1], COMPLETED)})
    async with serving(agent, execution_timeout=0.05) as engine:
        alice = User(engine)
        first = asyncio.create_task(alice.send("first"))
        await gates[0].reached()
        await asyncio.wait({first}, timeout=0.02)
        second = asyncio.create_task(alice.send("second"))
        await gates[1].reached()
        assert text_of(await first) == "Execution timed out"
        assert not second.done()
        assert text_of(await second) == "Execution timed out"
        assert (await alice.send("third")).status.state is S.COMPLETED


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_run_without_a_timeout_has_no_deadline(key: str, waits: bool) -> None:
    gate = Gate()
    gate.open()
    agent = ScriptedAgent(default=(gate, COMPLETED) if waits else (COMPLETED,))
    async with serving(agent, execution_timeout=None) as engine:
        task = await User(engine).answer("go", key=key)
        assert isinstance(task, Task) and task.status.state is S.COMPLETED
    assert agent.calls[0].deadline is None


@requirement("FR-TSK-005")
async def test_an_agent_that_ignores_its_cancellation_is_left_behind_and_counted_once() -> None:
    deaf, ledger = Gate(deaf=True), Ledger()
    agent = ScriptedAgent(default=(chunk("a"), deaf, chunk("late"), COMPLETED))
    async with serving(agent, observer=ledger, timing=QUICK) as engine:
        alice = User(engine)
        watcher = await alice.stream("go")
        task = watcher.entries[0].event if await watcher.read() else None
        assert isinstance(task, Task)
        await deaf.reached()
        first, second = asyncio.create_task(alice.cancel(task)), asyncio.create_task(alice.cancel(task))
        canceled = await first
        assert await second == canceled
        assert (canceled.status.state, text_of(canceled)) == (S.CANCELED, "Canceled by client")
        assert (engine.active_tasks, ledger.abandoned) == (0, [task.id])
        deaf.open()  # now it yields, and its output is ignored
        assert (await watcher.rest()).states[-1] is S.CANCELED
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert await alice.get(task) == canceled
    assert chunks_of(canceled) == ["a"]
    assert ledger.ended == [(task.id, S.CANCELED)]


async def test_a_deaf_agent_does_not_outlive_its_deadline() -> None:
    deaf, ledger = Gate(deaf=True), Ledger()
    async with serving(ScriptedAgent(default=(deaf,)), observer=ledger, execution_timeout=0.01, timing=QUICK) as engine:
        task = await User(engine).send("go")
        assert (task.status.state, text_of(task)) == (S.FAILED, "Execution timed out")
        assert ledger.abandoned == [task.id]
        deaf.open()


async def test_a_deaf_agent_without_a_task_yet_gets_one_that_failed() -> None:
    deaf = Gate(deaf=True)
    agent = ScriptedAgent(default=(deaf, says("too late")), may_reply=True)
    async with serving(agent, execution_timeout=0.01, timing=QUICK) as engine:
        alice = User(engine)
        task = await alice.send("go")
        assert text_of(task) == "Execution timed out"
        deaf.open()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert await alice.get(task) == task


@requirement("FR-TSK-005")
async def test_a_cancel_reaches_the_token_first_and_a_broken_callback_stops_nothing() -> None:
    order: list[str] = []
    reached = asyncio.Event()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        call.cancel.on_cancel(lambda: 1 / 0)
        call.cancel.on_cancel(lambda: order.append("token"))
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            order.append("cancelled")
            call.cancel.on_cancel(lambda: order.append("late"))
            raise
        yield COMPLETED

    async with serving(Acts(play)) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await reached.wait()
        canceled = await alice.cancel(task)
    assert (canceled.status.state, order) == (S.CANCELED, ["token", "cancelled", "late"])


async def test_an_agent_may_say_itself_how_its_cancel_ends() -> None:
    reached = asyncio.Event()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield status(S.CANCELED, "Rolled back")

    async with serving(Acts(play)) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await reached.wait()
        assert text_of(await alice.cancel(task)) == "Rolled back"


async def test_a_run_that_is_stopped_before_it_began_never_calls_the_agent() -> None:
    agent, disk = ScriptedAgent(), FakeDisk()
    disk.hold()
    async with serving(agent, disk, execution_timeout=0) as engine:
        sending = asyncio.create_task(User(engine).send("go"))
        await until(lambda: disk.waiting == 1)
        await settle()  # the deadline passes while the task is being stored
        disk.let_go()
        task = await sending
    assert (task.status.state, text_of(task), agent.calls) == (S.FAILED, "Execution timed out", [])


async def test_a_run_is_told_of_when_it_begins_and_when_it_ends() -> None:
    ledger = Ledger()
    async with serving(ScriptedAgent({"ask": (ASKS,)}), observer=ledger) as engine:
        alice = User(engine)
        asked, done = await alice.send("ask"), await alice.send("go")
    assert ledger.started == [asked.id, done.id]
    assert ledger.ended == [(asked.id, S.INPUT_REQUIRED), (done.id, S.COMPLETED)]


def test_a_token_calls_back_once() -> None:
    token, calls = CancelToken(), list[str]()
    token.on_cancel(lambda: calls.append("told"))
    token.cancel()
    token.cancel()
    assert (calls, token.is_cancelled) == (["told"], True)


async def test_an_agent_that_tidies_up_for_ever_is_left_behind_and_its_task_stays_as_it_ended() -> None:
    tidying = Gate(deaf=True)

    class Tidy(ScriptedAgent):
        async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
            try:
                yield COMPLETED
            finally:
                await tidying.wait()

    async with serving(Tidy(), shutdown_timeout=0.01, timing=QUICK) as engine:
        task = await User(engine).send("go")
        assert task.status.state is TaskState.COMPLETED
        await tidying.reached()
        assert engine.active_tasks == 1
        await soon(engine.close())
        assert engine.active_tasks == 0
        tidying.open()


def test_every_phase_but_the_last_leads_somewhere_and_can_be_reached() -> None:
    assert set(MOVES) == set(Phase)
    assert [phase for phase, moves in MOVES.items() if not moves] == [Phase.OVER]
    assert frozenset().union(*MOVES.values()) == set(Phase)
