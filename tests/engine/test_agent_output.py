"""What an agent yields is checked, taken as it is at that moment, and poisons nothing."""

import copy
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import AgentEvent, Call, Remember
from apcore_a2a.engine.agent_output import describe_exception
from apcore_a2a.errors import A2AError, TaskNotFoundError
from apcore_a2a.ids_and_time import utc_now
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Message,
    Part,
    Role,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
)
from apcore_a2a.storage.contract import Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import Acts, User, chunks_of, serving, text_of, until, words
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, WORKING, Gate, ScriptedAgent, Step, chunk, pause, says, status
from tests.requirements import requirement

S = TaskState


INVALID = "The agent's output is not valid A2A"


def artifact(part: Any, **fields: Any) -> ArtifactUpdate:  # Any: what no type checker would let an agent say
    return ArtifactUpdate(artifact=Artifact(artifact_id="out", parts=[part]), **fields)


@pytest.mark.parametrize(("task_id", "context_id"), [("", ""), ("another", ""), ("", "another")])
async def test_what_a_status_says_is_a_message_of_its_task(task_id: str, context_id: str) -> None:
    parts = (Part(text="more?"),)
    said = Message(message_id="", role=Role.AGENT, parts=parts, task_id=task_id, context_id=context_id)
    async with serving(ScriptedAgent(default=(StatusUpdate(status=TaskStatus(S.INPUT_REQUIRED, said)),))) as engine:
        task = await User(engine).send("hi")
        message = task.status.message
        assert message is not None and message.message_id and text_of(task) == "more?"
        assert (message.task_id, message.context_id) == (task.id, task.context_id)


async def test_what_an_agent_says_in_a_task_is_of_that_task() -> None:
    async def hand_over(call: Call) -> AsyncGenerator[AgentEvent, None]:
        said = Message(message_id="", role=Role.AGENT, parts=(Part(text="more?"),))
        yield replace(call.task, status=TaskStatus(S.INPUT_REQUIRED, said), history=[said])

    async with serving(Acts(hand_over)) as engine:
        task = await User(engine).send("hi")
        assert text_of(task) == "more?"
        for message in (task.status.message, *task.history):
            assert message is not None and message.message_id
            assert (message.task_id, message.context_id) == (task.id, task.context_id)


@pytest.mark.parametrize(
    "event",
    [
        artifact(Part(data=object())),
        artifact(Part(data={1: {2, object()}})),
        artifact(Part(text=5)),  # type: ignore[arg-type]  # the point of it
        artifact("text"),
        ArtifactUpdate(artifact=Artifact(artifact_id="", parts=[Part(text="x")])),
        ArtifactUpdate(artifact=Artifact(artifact_id="x" * 257, parts=[Part(text="x")])),
        StatusUpdate(status=TaskStatus(state=S.WORKING, message=Message(message_id="m", role=Role.AGENT, parts=()))),
        StatusUpdate(status=TaskStatus(state=S.WORKING, message=says("x"), timestamp=7)),  # type: ignore[arg-type]
        StatusUpdate(status=TaskStatus(state=S.WORKING, message="text")),  # type: ignore[arg-type]  # the point of it
        StatusUpdate(status="working"),  # type: ignore[arg-type]  # the point of it
        Task(id="t", context_id="c", status=TaskStatus(S.WORKING), history=["text"]),  # type: ignore[list-item]
        Task(id="t", context_id="c", status=TaskStatus(S.WORKING), history=None),  # type: ignore[arg-type]
        "not an event",
        None,
    ],
    ids=lambda event: type(event).__name__,
)
async def test_output_that_is_not_valid_fails_the_task_and_poisons_nothing(event: Any) -> None:
    agent = ScriptedAgent({"bad": (chunk("a"), event, COMPLETED)})
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.send("bad")
        assert (task.status.state, text_of(task), chunks_of(task)) == (S.FAILED, INVALID, ["a"])
        assert await alice.get(task) == task
        assert (await alice.list()).total_size == 1


NAN = float("nan")


@pytest.mark.parametrize(
    "event",
    [
        artifact(Part(data=NAN)),
        artifact(Part(data={"deep": [{"n": float("-inf")}]})),
        artifact(Part(text="x", metadata={"n": NAN})),
        artifact(Part(text="x"), metadata={"n": float("inf")}),
        StatusUpdate(status=TaskStatus(state=S.WORKING), metadata={"n": NAN}),
        Message(message_id="m", role=Role.AGENT, parts=(Part(data=[None, NAN]),)),
    ],
    ids=repr,
)
async def test_a_number_that_json_has_not_fails_the_task(event: AgentEvent) -> None:
    async with serving(ScriptedAgent(default=(chunk("a"), event, COMPLETED))) as engine:
        task = await User(engine).send("go")
    assert (task.status.state, chunks_of(task)) == (S.FAILED, ["a"])
    assert text_of(task) == "The agent's output holds NaN or infinity, which JSON cannot represent"


@pytest.mark.parametrize(
    ("data", "is_taken"),
    [
        ([0] * 490_000, True),
        (["x,[{"] * 490_000, True),
        ("[{,}]" * 490_000, True),  # one value
        ([0] * 510_000, False),
        ([{}] * 260_000, False),
        ([""] * 1_100_000, False),
    ],
    ids=["numbers", "texts", "one text", "too many numbers", "too many objects", "too many texts"],
)
async def test_an_event_of_too_many_values_fails_the_task(data: Any, is_taken: bool) -> None:
    async with serving(ScriptedAgent(default=(artifact(Part(data=data)), COMPLETED))) as engine:
        task = await User(engine).send("go")
    if is_taken:
        assert (task.status.state, task.artifacts[0].parts[0].data) == (S.COMPLETED, data)
    else:
        assert task.status.state is S.FAILED
        assert "more than 500000 JSON values" in text_of(task)


async def test_null_and_the_word_for_it_stay_what_they_are() -> None:
    said = artifact(Part(data={"none": None, "n": 1.5, "raw": b"x"}, metadata={"a": None}))
    async with serving(ScriptedAgent(default=(chunk("null"), said, COMPLETED))) as engine:
        task = await User(engine).send("go")
    assert task.status.state is S.COMPLETED
    assert [part.data for part in task.artifacts[0].parts] == [{"none": None, "n": 1.5, "raw": "eA=="}]


async def test_an_invalid_end_that_would_skip_a_state_leaves_no_trace() -> None:
    bad = StatusUpdate(status=TaskStatus(state=S.COMPLETED, message=says("x"), timestamp=7))  # type: ignore[arg-type]
    gate = Gate()
    async with serving(ScriptedAgent(default=(ASKS, gate, bad))) as engine:
        alice = User(engine)
        watcher = await alice.subscribe(await alice.send("go"))
        gate.open()
        await watcher.rest()
    assert watcher.states == [S.INPUT_REQUIRED, S.FAILED]
    assert watcher.seqs == [3, 4]


@pytest.mark.parametrize(
    "event",
    [
        StatusUpdate(status=TaskStatus(state=S.WORKING, message=says("x")), task_id="another"),
        artifact(Part(text="x"), task_id="another"),
        Task(id="another", context_id="c", status=TaskStatus(state=S.WORKING)),
    ],
    ids=lambda event: type(event).__name__,
)
async def test_an_event_of_another_task_fails_the_task(event: AgentEvent) -> None:
    async with serving(ScriptedAgent(default=(event, COMPLETED))) as engine:
        task = await User(engine).send("go")
    assert task.status.state is S.FAILED
    assert "not its" in text_of(task)


@requirement("FR-TSK-001")
async def test_a_step_the_lifecycle_forbids_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedAgent(default=(WORKING, status(S.SUBMITTED), COMPLETED))) as engine:
        task = await User(engine).send("go")
    assert task.status.state is S.FAILED
    assert text_of(task) == "Internal error"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_what_was_yielded_stays_as_it_was_whatever_the_agent_does_with_it() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        data: dict[str, Any] = {"n": 1}
        yield artifact(Part(data=data))
        data["n"] = object()
        yield COMPLETED

    async with serving(Acts(play)) as engine:
        task = await User(engine).send("go")
    assert task.status.state is S.COMPLETED
    assert task.artifacts[0].parts[0].data == {"n": 1}


async def test_what_an_agent_does_to_its_copy_of_the_task_changes_nothing() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        call.task.history.clear()
        call.task.status = TaskStatus(state=S.REJECTED)
        yield COMPLETED

    async with serving(Acts(play)) as engine:
        task = await User(engine).send("go")
    assert (task.status.state, words(task)) == (S.COMPLETED, ["go"])


async def test_a_reply_makes_no_task() -> None:
    async with serving(ScriptedAgent(default=(Remember({"a": 1}), says("Hello"), COMPLETED), may_reply=True)) as engine:
        alice = User(engine)
        reply = await alice.answer("hi", context_id="talk")
        assert isinstance(reply, Message)
        assert (reply.context_id, reply.task_id, reply.parts[0].text) == ("talk", "", "Hello")
        assert reply.message_id
        streamed = await (await alice.stream("hi")).rest()
        assert [type(entry.event) for entry in streamed.entries] == [Message]
        assert (await alice.list()).total_size == 0


async def test_a_reply_that_is_not_valid_is_a_failed_task() -> None:
    broken = Message(message_id="m", role=Role.AGENT, parts=(Part(data=object()),))
    async with serving(ScriptedAgent(default=(broken,), may_reply=True)) as engine:
        task = await User(engine).send("hi")
    assert (task.status.state, text_of(task)) == (S.FAILED, INVALID)


async def test_a_message_within_a_task_completes_it_if_the_agent_may_reply() -> None:
    async with serving(ScriptedAgent(default=(WORKING, says("Done")), may_reply=True)) as engine:
        task = await User(engine).send("hi")
    assert (task.status.state, text_of(task)) == (S.COMPLETED, "Done")


async def test_a_message_within_a_task_is_what_any_other_agent_says_while_it_works() -> None:
    async with serving(ScriptedAgent(default=(says("Thinking"), COMPLETED))) as engine:
        task = await User(engine).send("hi")
    assert (task.status.state, words(task)) == (S.COMPLETED, ["hi", "Thinking"])


async def test_an_agents_own_idea_of_its_new_task_is_taken() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        made = Task(
            id=call.task.id,
            context_id=call.task.context_id,
            status=TaskStatus(state=S.SUBMITTED),
            history=list(call.task.history),
            metadata={"made": "by the agent"},
        )
        yield made
        yield COMPLETED

    async with serving(Acts(play, may_reply=True)) as engine:
        task = await User(engine).send("hi")
    assert (task.status.state, task.metadata) == (S.COMPLETED, {"made": "by the agent"})


async def test_an_event_of_another_task_from_an_agent_is_rejected() -> None:
    other = Task(id="another", context_id="c", status=TaskStatus(state=S.SUBMITTED))
    async with serving(ScriptedAgent(default=(other, COMPLETED), may_reply=True)) as engine:
        task = await User(engine).send("hi")
    assert (task.id != "another", task.status.state) == (True, S.FAILED)


async def test_an_agent_may_replace_its_whole_task() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        yield chunk("old")
        yield Task(id=call.task.id, context_id=call.task.context_id, status=TaskStatus(state=S.COMPLETED))

    async with serving(Acts(play)) as engine:
        task = await User(engine).send("hi")
    assert (task.status.state, task.artifacts, task.history) == (S.COMPLETED, [], [])
    assert task.status.timestamp


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
async def test_what_an_agent_keeps_before_it_makes_a_task_is_kept_with_it(apart: bool) -> None:
    script: tuple[Step, ...] = (Remember({"n": 1}), pause(), ASKS) if apart else (Remember({"n": 1}), ASKS)
    agent = ScriptedAgent({"go": script}, may_reply=True)
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.send("go")
        await alice.send("on", task_id=task.id)
    assert [call.memo for call in agent.calls] == [None, {"n": 1}]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.678Z"),
        ("2026-01-02T03:04:05.678901+00:00", "2026-01-02T03:04:05.678Z"),  # as an executor of a2a-sdk 0.3 writes it
        ("2026-01-02T05:04:05+02:00", "2026-01-02T03:04:05.000Z"),
        ("2026-01-02T03:04:05", "2026-01-02T03:04:05.000Z"),
    ],
)
async def test_an_agents_own_time_is_kept_as_utc(given: str, kept: str) -> None:
    end = StatusUpdate(status=TaskStatus(state=S.COMPLETED, timestamp=given))
    async with serving(ScriptedAgent(default=(end,))) as engine:
        assert (await User(engine).send("go")).status.timestamp == kept


@pytest.mark.parametrize("given", ["yesterday", "0001-01-01T00:00:00+14:00"])
async def test_a_time_that_is_none_is_replaced_by_the_present_time(given: str) -> None:
    before = utc_now()
    end = StatusUpdate(status=TaskStatus(state=S.COMPLETED, timestamp=given))
    async with serving(ScriptedAgent(default=(end,))) as engine:
        assert before <= (await User(engine).send("go")).status.timestamp <= utc_now()


async def test_a_message_that_is_not_valid_makes_no_task() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        called.append(call)
        yield COMPLETED

    called: list[Call] = []
    async with serving(Acts(play)) as engine:
        alice = User(engine)
        with pytest.raises(A2AError, match="not valid A2A"):
            await alice.send("go", parts=())
        assert ((await alice.list()).total_size, called) == (0, [])


@pytest.mark.parametrize(
    "fields",
    [{}, {"metadata": {"n": 1}}, {"parts": (Part(data={"n": 1}),)}, {"parts": (Part(text="x", metadata={"n": 1}),)}],
    ids=["text", "metadata", "data", "part with metadata"],
)
async def test_what_an_agent_does_to_its_call_changes_nothing_that_is_kept(fields: dict[str, Any]) -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        for values in (call.message.metadata, call.message.parts[0].metadata, call.message.parts[0].data):
            if isinstance(values, dict):
                values["n"] = 2
        call.task.history.clear()
        yield chunk("right")
        call.task.artifacts.append(Artifact(artifact_id="wrong", parts=[Part(text="wrong")]))
        yield COMPLETED

    async with serving(Acts(play)) as engine:
        task = await User(engine).send("go", **copy.deepcopy(fields))
    said = task.history[0]
    assert [part.text for artifact in task.artifacts for part in artifact.parts] == ["right"]
    assert (said.metadata, said.parts) == (fields.get("metadata"), fields.get("parts", (Part(text="go"),)))


async def test_a_status_with_nothing_but_metadata_is_kept_with_it() -> None:
    script = (StatusUpdate(status=TaskStatus(state=S.WORKING), metadata={"n": 1}), COMPLETED)
    async with serving(ScriptedAgent(default=script)) as engine:
        task = await User(engine).send("go")
    assert (task.status.state, task.metadata) == (S.COMPLETED, {"n": 1})


@pytest.mark.parametrize("store", [InMemoryTaskStore, FakeDisk])
async def test_what_came_before_an_event_that_may_not_follow_is_kept(store: type[Store]) -> None:
    script = (chunk("kept"), status(S.SUBMITTED), chunk("never"))
    async with serving(ScriptedAgent(default=script), store()) as engine:
        task = await User(engine).send("go")
    assert (task.status.state, chunks_of(task)) == (S.FAILED, ["kept"])


async def test_a_task_that_is_removed_while_it_runs_stays_removed() -> None:
    store, gate = InMemoryTaskStore(), Gate()
    async with serving(ScriptedAgent(default=(gate, chunk("late"), COMPLETED)), store) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await gate.reached()
        assert await store.remove(task.id, alice.caller.owner)
        gate.open()
        await until(lambda: not engine.live_tasks)
        with pytest.raises(TaskNotFoundError):
            await alice.get(task)


class FrameworkText(str):
    """A text as LangChain's messages have it."""

    __slots__ = ()


async def test_a_text_of_a_subclass_of_str_is_stored_as_text() -> None:
    text = FrameworkText("hello")
    said = artifact(Part(text=text, metadata={"a": [text, None]}))
    async with serving(ScriptedAgent(default=(said, COMPLETED))) as engine:
        task = await User(engine).send("go")
    (part,) = task.artifacts[0].parts
    assert (type(part.text), part.text, part.metadata) == (str, "hello", {"a": ["hello", None]})


async def test_the_cause_of_an_invalid_output_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedAgent(default=(artifact(Part(data=object())), COMPLETED))) as engine:
        await User(engine).send("go")
    (record,) = [record for record in caplog.records if record.getMessage() == "agent output rejected"]
    assert "object is unsupported" in vars(record)["cause"]


@pytest.mark.parametrize("may_reply", [False, True], ids=["task", "reply"])
@pytest.mark.parametrize(
    ("memo", "text"),
    [
        ({"n": NAN}, "The agent's memo holds NaN or infinity, which JSON cannot represent"),
        ({"n": object()}, "The agent's memo has no JSON form"),
        ("x" * 2_000, "The agent's memo is over its limit of bytes"),
        ([0] * 600_000, "The agent's memo has more than 500000 JSON values"),
    ],
    ids=["NaN", "object", "large", "many values"],
)
async def test_a_memo_that_cannot_be_stored_fails_the_task(memo: Any, text: str, may_reply: bool) -> None:
    agent = ScriptedAgent(default=(Remember(memo), COMPLETED), may_reply=may_reply)
    limit = 1_000 if isinstance(memo, str) else 10_000_000
    async with serving(agent, max_event_bytes=limit) as engine:
        task = await User(engine).send("go")
    assert (task.status.state, text_of(task)) == (S.FAILED, text)


async def test_all_memos_of_a_run_count_as_its_output() -> None:
    steps: list[Step] = [*(Remember("x" * 500) for _ in range(5)), COMPLETED]
    async with serving(ScriptedAgent(default=steps), max_output_bytes=2_000) as engine:
        task = await User(engine).send("go")
    assert (task.status.state, text_of(task)) == (S.FAILED, "The agent's memo is over its limit of bytes")


# ---- the description of an exception --------------------------------------------------------------------------------


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """Return the exception with a traceback into this file."""
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_an_exception_is_described_with_the_line_of_the_agent_that_raised_it() -> None:
    first, second = describe_exception(raised(ValueError("no\nsuch city"))).split("\n")
    assert first == "ValueError: no such city"
    assert second.startswith("tests/engine/test_agent_output.py:") and second.endswith("raise error from cause")


def test_the_cause_of_an_exception_is_described_instead_of_the_wrapper() -> None:
    wrapped = raised(RuntimeError("the framework failed"), raised(ValueError("no such city")))
    assert describe_exception(wrapped).startswith("ValueError: no such city\n")


def test_an_endless_chain_of_causes_is_described_as_well() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert describe_exception(one) in ("ValueError: one", "ValueError: two")


def test_an_exception_of_a_library_is_described_with_its_last_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    try:
        json.loads("{")
    except ValueError as error:
        caught = error
    monkeypatch.chdir(tmp_path)  # no file of the traceback is below it
    assert re.search(r"json/decoder\.py:\d+, in raw_decode: ", describe_exception(caught))
