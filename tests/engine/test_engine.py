"""One method for each operation: what they answer, what they refuse, and how the whole begins and ends."""

from typing import Any

import pytest

from apcore_a2a.engine.context import CallContext
from apcore_a2a.engine.engine import LARGE_PAGE
from apcore_a2a.engine.streams import Stream
from apcore_a2a.errors import (
    ExtendedAgentCardNotConfiguredError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard
from apcore_a2a.protocol.model import (
    GetExtendedCard,
    ListTasks,
    Operation,
    PushConfig,
    SubscribeToTask,
    Task,
    TaskState,
    Value,
)
from tests.engine.driving import ALICE, BOB, V03, User, chunks_of, request, serving, soon, until, words
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk, status
from tests.requirements import requirement

S = TaskState


@requirement("FR-TSK-004")
async def test_a_task_is_shown_as_it_is_now() -> None:
    gate = Gate()
    async with serving(ScriptedAgent(default=(chunk("a"), gate, chunk("b", append=True), COMPLETED))) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await gate.reached()
        now = await alice.get(task)
        assert (now.status.state, chunks_of(now), words(now)) == (S.WORKING, ["a"], ["go"])
        gate.open()
        await until(lambda: engine.active_tasks == 0)
        done = await alice.get(task)
        assert (done.status.state, chunks_of(done)) == (S.COMPLETED, ["ab"])
        assert chunks_of(now) == ["a"]  # what was shown stays as it was
        with pytest.raises(TaskNotFoundError, match=r"^Task not found: nowhere$"):
            await alice.get(Task(id="nowhere", status=task.status))


@requirement("FR-TSK-004")
@pytest.mark.parametrize(("length", "shown"), [(None, 4), (0, 0), (1, 1), (3, 3), (9, 4)])
async def test_history_is_as_long_as_one_asks(length: int | None, shown: int) -> None:
    gate = Gate()
    agent = ScriptedAgent({"ask": (status(S.WORKING, "thinking"), ASKS), "on": (gate, COMPLETED)})
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.send("ask")
        running = await alice.send("on", task_id=task.id, now=True, history=length)
        everything = ["ask", "thinking", "What next?", "on"]
        expected = everything[len(everything) - shown :]
        assert words(running) == expected
        assert words(await alice.get(task, history_length=length)) == expected
        (listed,) = (await alice.list(history_length=length)).tasks
        assert words(listed) == expected
        gate.open()
        await until(lambda: engine.active_tasks == 0)
        assert words(await alice.get(task, history_length=length)) == expected
        assert words(await alice.get(task)) == everything


async def test_a_send_that_is_answered_by_an_earlier_task_trims_its_history_too() -> None:
    async with serving(ScriptedAgent()) as engine:
        alice = User(engine)
        await alice.send("go", key="k")
        assert words(await alice.send("go", key="k", history=0)) == []


@requirement("FR-TSK-006")
async def test_tasks_are_listed_newest_first_page_by_page() -> None:
    async with serving(ScriptedAgent()) as engine:
        alice = User(engine, rules=V03)
        made = [await alice.send(str(number)) for number in range(7)]
        await User(engine, BOB).send("his")
        pages = [await alice.list(page_size=3)]
        while pages[-1].next_page_token:
            pages.append(await alice.list(page_size=3, page_token=pages[-1].next_page_token))
        assert [len(page.tasks) for page in pages] == [3, 3, 1]
        assert [task.id for page in pages for task in page.tasks] == [task.id for task in reversed(made)]
        assert {(page.total_size, page.page_size) for page in pages} == {(7, 3)}
        with pytest.raises(InvalidParamsError):
            await alice.list(page_token="not a token")


@requirement("FR-TSK-006")
async def test_tasks_are_listed_by_context_state_and_time() -> None:
    gate = Gate()
    agent = ScriptedAgent({"ask": (chunk("half"), ASKS), "slow": (gate, COMPLETED)})
    async with serving(agent) as engine:
        alice = User(engine)
        one = await alice.send("go", context_id="talk")
        two = await alice.send("ask", context_id="talk")
        three = await alice.start("slow")
        await gate.reached()

        async def ids(**fields: Any) -> set[str]:
            return {task.id for task in (await alice.list(**fields)).tasks}

        assert await ids() == {one.id, two.id, three.id}
        assert await ids(context_id="talk") == {one.id, two.id}
        assert await ids(status=S.INPUT_REQUIRED) == {two.id}
        assert await ids(status=S.WORKING) == {three.id}
        assert await ids(context_id="talk", status=S.WORKING) == set()
        assert await ids(status_timestamp_after=two.status.timestamp) >= {two.id}
        assert await ids(status_timestamp_after="2999-01-01T00:00:00+02:00") == set()
        assert await ids(status_timestamp_after="2020-01-01T00:00:00") == {one.id, two.id, three.id}
        for no_time in ("yesterday", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-01:00"):
            with pytest.raises(InvalidParamsError, match="statusTimestampAfter"):
                await alice.list(status_timestamp_after=no_time)
        bare, full = (await alice.list()).tasks, (await alice.list(include_artifacts=True)).tasks
        assert [chunks_of(task) for task in bare if task.id == two.id] == [[]]
        assert [chunks_of(task) for task in full if task.id == two.id] == [["half"]]
        gate.open()
        await until(lambda: engine.active_tasks == 0)
        assert chunks_of(await alice.get(two)) == ["half"]  # a listing takes nothing away


class Recorder:
    def __init__(self, refuse: str = "") -> None:
        self.refuse = refuse
        self.seen: list[tuple[str, Operation, str]] = []
        self.results: list[Any] = []

    async def before(self, operation: Operation, request: Value, context: CallContext) -> None:
        self.seen.append(("before", operation, context.caller.id))
        if self.refuse == "before":
            raise UnauthenticatedError

    async def after(self, operation: Operation, request: Value, context: CallContext, result: Any) -> None:
        self.seen.append(("after", operation, context.caller.id))
        self.results.append(result)
        if self.refuse == "after":
            raise UnauthenticatedError


async def test_interceptors_see_every_operation_before_and_after() -> None:
    one, two = Recorder(), Recorder()
    async with serving(ScriptedAgent(), interceptors=(one, two)) as engine:
        context = CallContext(caller=ALICE)
        await soon(engine.handle(Operation.SEND, request("go"), context))
        stream = await soon(engine.handle(Operation.STREAM, request("go"), context))
        stream.close()
        page = await soon(engine.handle(Operation.LIST, ListTasks(), context))
        with pytest.raises(TaskNotFoundError):
            await soon(engine.handle(Operation.SUBSCRIBE, SubscribeToTask(id="nowhere"), context))
        await until(lambda: engine.active_tasks == 0)
    operations = [Operation.SEND, Operation.STREAM, Operation.LIST, Operation.SUBSCRIBE]
    pairs = [(when, operation, "alice") for operation in operations for when in ("before", "after")]
    assert one.seen == pairs == two.seen
    assert one.results == two.results
    assert one.results[2] == page
    assert isinstance(one.results[3], TaskNotFoundError)


async def test_an_interceptor_may_refuse_before_anything_happens() -> None:
    agent, zeroth, first, second = ScriptedAgent(), Recorder(), Recorder("before"), Recorder()
    async with serving(agent, interceptors=(zeroth, first, second)) as engine:
        with pytest.raises(UnauthenticatedError):
            await soon(engine.handle(Operation.SEND, request("go"), CallContext()))
    assert (agent.calls, second.seen) == ([], [])  # who was not asked is not told
    for told in (zeroth, first):
        assert [when for when, *_ in told.seen] == ["before", "after"]
        assert isinstance(told.results[0], UnauthenticatedError)


async def test_what_an_interceptor_makes_of_an_error_is_the_answer_instead() -> None:
    async with serving(ScriptedAgent(), interceptors=(Recorder("after"),)) as engine:
        with pytest.raises(UnauthenticatedError):
            await soon(engine.handle(Operation.SUBSCRIBE, SubscribeToTask(id="nowhere"), CallContext()))


async def test_a_stream_that_an_interceptor_refuses_afterwards_is_closed() -> None:
    gate, recorder = Gate(), Recorder("after")
    async with serving(ScriptedAgent(default=(gate, COMPLETED)), interceptors=(recorder,), max_streams=1) as engine:
        for _ in range(2):
            with pytest.raises(UnauthenticatedError):
                await soon(engine.handle(Operation.STREAM, request("go"), CallContext()))
        with pytest.raises(UnauthenticatedError):
            await soon(engine.handle(Operation.SEND, request("go", now=True), CallContext()))
        gate.open()
        await until(lambda: engine.live_tasks == 0)
    assert isinstance(recorder.results[0], Stream)


async def test_operations_that_are_not_there_say_so() -> None:
    async with serving(ScriptedAgent(), streaming=False) as engine:
        with pytest.raises(PushNotificationNotSupportedError):
            await soon(engine.handle(Operation.CREATE_PUSH, PushConfig(url="https://example.org"), CallContext()))
        for operation in (Operation.STREAM, Operation.SUBSCRIBE):
            with pytest.raises(UnsupportedOperationError, match="does not stream"):
                await soon(engine.handle(operation, request("go"), CallContext()))


async def test_an_extension_that_is_required_must_be_named() -> None:
    async with serving(ScriptedAgent(), required_extensions=frozenset({"urn:a", "urn:b"})) as engine:
        with pytest.raises(ExtensionSupportRequiredError, match="urn:b"):
            await soon(engine.handle(Operation.SEND, request("go"), CallContext(extensions=frozenset({"urn:a"}))))
        named = CallContext(extensions=frozenset({"urn:a", "urn:b", "urn:c"}))
        await soon(engine.handle(Operation.SEND, request("go"), named))


async def test_the_extended_card_is_made_for_its_caller_or_is_not_there() -> None:
    card = AgentCard(
        name="for alice",
        description="d",
        version="1",
        supported_interfaces=(),
        capabilities=AgentCapabilities(),
        default_input_modes=(),
        default_output_modes=(),
        skills=(),
    )
    async with serving(ScriptedAgent(), extended_card=lambda caller: card if caller == ALICE else None) as engine:
        assert await soon(engine.handle(Operation.EXTENDED_CARD, GetExtendedCard(), User(engine).context())) is card
    async with serving(ScriptedAgent()) as engine:
        with pytest.raises(UnsupportedOperationError):
            await engine.get_extended_card(GetExtendedCard(), User(engine).context())
        with pytest.raises(ExtendedAgentCardNotConfiguredError):
            await engine.get_extended_card(GetExtendedCard(), User(engine, rules=V03).context())


async def test_a_page_of_large_tasks_is_listed_like_any_other() -> None:
    large = "x" * (LARGE_PAGE // 2)
    async with serving(ScriptedAgent(default=(chunk(large), COMPLETED))) as engine:
        alice = User(engine)
        tasks = [await alice.send("go") for _ in range(3)]
        page = await alice.list(include_artifacts=True)
        assert [task.id for task in page.tasks] == [task.id for task in reversed(tasks)]
        assert [chunks_of(task) for task in page.tasks] == [[large]] * 3
        assert [task.artifacts for task in (await alice.list()).tasks] == [[]] * 3
