"""The forms of an answer: data as text, and how a text that was sent in pieces ends."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from apcore_a2a import skill
from apcore_a2a.agent import AgentEvent, Call, Remember
from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.agents.content import agent_message, questions_message
from apcore_a2a.agents.functions.agent import ask
from apcore_a2a.engine.answer_forms import DataForm, data_form
from apcore_a2a.protocol.lifecycle import REPEATS_ANSWER
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Part,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
)
from apcore_a2a.protocol.questions import Question, is_repeated_in_words
from tests.engine.driving import User, chunks_of, serving
from tests.fakes import ASKS, COMPLETED, ScriptedAgent, chunk, says

S = TaskState


async def words(text: str) -> AsyncIterator[str]:
    """Yields each word of the message."""
    for word in text.split():
        yield f"{word} "


def updates_of(events: list[Event]) -> list[tuple[str, bool, bool]]:
    """The artifact updates of a stream: text, append, lastChunk."""
    updates = [event for event in events if isinstance(event, ArtifactUpdate)]
    return [(update.artifact.text, update.append, update.last_chunk) for update in updates]


async def stream_of(agent: Any, text: str, **options: Any) -> tuple[list[Event], Task]:
    """Send a message, and return the events of its stream, and the stored task."""
    async with serving(agent, **options) as engine:
        alice = User(engine)
        watcher = await alice.stream(text)
        await watcher.rest()
        return [entry.event for entry in watcher.entries], await alice.get(watcher.task)


# ---- how a text in pieces ends --------------------------------------------------------------------------------------

PIECES = [("a ", False, False), ("b ", True, False)]


async def test_a_text_ends_with_its_last_piece() -> None:
    events, task = await stream_of(as_agent(words), "a b")
    assert updates_of(events) == PIECES
    assert (chunks_of(task), task.status.message) == (["a b "], None)


async def test_replace_ends_a_text_with_one_event_of_the_whole() -> None:
    events, task = await stream_of(as_agent(words), "a b", stream_final="replace")
    assert updates_of(events) == [*PIECES, ("a b ", False, True)]
    assert (chunks_of(task), task.status.message) == (["a b "], None)


async def test_status_repeats_the_whole_text_in_the_last_status() -> None:
    events, task = await stream_of(as_agent(words), "a b", stream_final="status")
    assert updates_of(events) == PIECES
    assert chunks_of(task) == ["a b "]
    assert task.status.message is not None
    assert (task.status.message.text, task.status.message.metadata) == ("a b ", {REPEATS_ANSWER: True})
    assert [message.text for message in task.history] == ["a b", "a b "]  # agno reads only the history


async def test_the_repeated_text_is_not_in_the_conversation_twice() -> None:
    agent = ScriptedAgent(default=(chunk("hello"), COMPLETED))
    async with serving(agent, stream_final="status") as engine:
        alice = User(engine)
        await alice.send("one", context_id="talk")
        await alice.send("two", context_id="talk")
    assert [message.text for message in agent.calls[1].history] == ["one", "hello"]


async def test_a_whole_text_is_not_sent_again_and_is_repeated_in_the_status() -> None:
    async def answer(text: str) -> str:
        return text.upper()

    events, _ = await stream_of(as_agent(answer), "hi", stream_final="replace")
    assert updates_of(events) == [("HI", False, True)]
    _, task = await stream_of(as_agent(answer), "hi", stream_final="status")
    assert task.status.text == "HI"


async def test_a_skill_chooses_how_its_text_ends() -> None:
    @skill(stream_final="replace")
    async def replacing(text: str) -> AsyncIterator[str]:
        yield text
        yield "!"

    events, _ = await stream_of(as_agent(replacing), "hi")
    assert updates_of(events)[-1] == ("hi!", False, True)

    @skill(stream_final="append")
    async def appending(text: str) -> AsyncIterator[str]:
        yield text
        yield "!"

    events, _ = await stream_of(as_agent(appending), "hi", stream_final="replace")
    assert updates_of(events)[-1] == ("!", True, False)


def test_a_skill_rejects_an_unknown_end() -> None:
    with pytest.raises(TypeError, match="stream_final"):
        skill(stream_final="last")  # type: ignore[call-overload]  # that is the point


@pytest.mark.parametrize("final", ["replace", "status"])
async def test_texts_of_any_agent_end_as_the_server_is_configured(final: str) -> None:
    script = (
        chunk("a", artifact_id="x"),
        chunk("1", artifact_id="y"),
        chunk("b", append=True, artifact_id="x"),
        COMPLETED,
    )
    events, task = await stream_of(ScriptedAgent(default=script), "go", stream_final=final)
    repeated = [("ab", False, True)] if final == "replace" else []
    assert updates_of(events)[3:] == repeated
    assert task.status.text == ("" if final == "replace" else "ab\n1")


async def test_an_own_last_message_is_kept_and_artifacts_of_more_than_text_are_not_repeated() -> None:
    file = ArtifactUpdate(artifact=Artifact(artifact_id="x", parts=[Part(raw=b"png")]), append=True)
    done = StatusUpdate(status=TaskStatus(state=S.COMPLETED, message=says("Done")))
    script: tuple[AgentEvent, ...] = (chunk("a", artifact_id="x"), file, done)
    events, _ = await stream_of(ScriptedAgent(default=script), "go", stream_final="replace")
    assert len(updates_of(events)) == 2
    _, task = await stream_of(ScriptedAgent(default=script), "go", stream_final="status")
    assert task.status.text == "Done"


async def test_a_text_is_whole_before_the_agent_asks() -> None:
    async def plan(text: str) -> AsyncIterator[str | StatusUpdate]:
        yield "draft "
        yield "one"
        yield ask("Good?")

    events, task = await stream_of(as_agent(plan), "go", stream_final="replace")
    assert updates_of(events)[-1] == ("draft one", False, True)
    assert (task.status.state, task.status.text) == (S.INPUT_REQUIRED, "Good?")


@pytest.mark.parametrize("final", ["replace", "status"])
async def test_a_text_over_the_limit_of_an_event_is_not_repeated(final: str) -> None:
    pieces = [chunk("a" * 300, append=number > 0) for number in range(5)]
    script: tuple[AgentEvent, ...] = (*pieces, COMPLETED)
    events, task = await stream_of(ScriptedAgent(default=script), "go", stream_final=final, max_event_bytes=1_000)
    assert len(updates_of(events)) == 5
    assert (task.status.state, task.status.message, chunks_of(task)) == (S.COMPLETED, None, ["a" * 1_500])


@pytest.mark.parametrize("final", ["replace", "status"])
async def test_a_repeated_text_does_not_count_as_output_of_the_agent(final: str) -> None:
    script = (chunk("a" * 300), chunk("a" * 300, append=True), COMPLETED)
    _, task = await stream_of(ScriptedAgent(default=script), "go", stream_final=final, max_output_bytes=1_300)
    assert task.status.state is S.COMPLETED


# ---- empty parts ----------------------------------------------------------------------------------------------------


async def test_an_event_of_empty_text_is_neither_sent_nor_stored() -> None:
    script = (chunk(""), chunk("a"), chunk("", append=True), chunk("", append=True, last=True), COMPLETED)
    events, task = await stream_of(ScriptedAgent(default=script), "go")
    assert updates_of(events) == [("a", False, False)]
    assert chunks_of(task) == ["a"]


async def test_empty_texts_beside_other_parts_are_removed() -> None:
    parts = [Part(text=""), Part(data=1), Part(text=""), Part(text="b")]
    update = ArtifactUpdate(artifact=Artifact(artifact_id="x", parts=parts))
    _, task = await stream_of(ScriptedAgent(default=(update, COMPLETED)), "go")
    assert task.artifacts[0].parts == [Part(data=1), Part(text="b")]


async def test_an_artifact_that_becomes_empty_keeps_one_empty_part() -> None:
    update = ArtifactUpdate(artifact=Artifact(artifact_id="out", parts=[Part(text=""), Part(text="")]))
    _, task = await stream_of(ScriptedAgent(default=(chunk("a"), update, COMPLETED)), "go")
    assert task.artifacts[0].parts == [Part(text="")]


# ---- data for callers that read only text ---------------------------------------------------------------------------

TEXT = ("text/plain",)


@pytest.mark.parametrize(
    ("modes", "as_text", "form"),
    [
        ((), False, DataForm.DATA),
        ((), True, DataForm.BOTH),
        (("text/plain",), False, DataForm.TEXT),
        (("text",), True, DataForm.TEXT),
        (("TEXT/PLAIN; charset=utf-8", "image/png"), False, DataForm.TEXT),
        (("text/plain", "application/json"), False, DataForm.DATA),
        (("text/plain", "application/json"), True, DataForm.BOTH),
        (("text/plain", "application/vnd.me+json"), False, DataForm.DATA),
        (("text/markdown", "*/*"), False, DataForm.DATA),
        (("image/png",), False, DataForm.DATA),
    ],
)
def test_the_media_types_of_the_caller_choose_the_form_of_data(
    modes: tuple[str, ...], as_text: bool, form: DataForm
) -> None:
    assert data_form(modes, as_text=as_text) is form


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"city": "Rom", "days": [1, 2]}, '{"city":"Rom","days":[1,2]}'),
        (["é", None], '["é",null]'),
        (10**30, str(10**30)),
        (1.5, "1.5"),
        (True, "true"),
        ("plain", "plain"),
    ],
)
async def test_a_caller_of_text_gets_data_as_text(data: Any, text: str) -> None:
    update = ArtifactUpdate(artifact=Artifact(artifact_id="x", parts=[Part(data=data), Part(raw=b"b")]))
    async with serving(ScriptedAgent(default=(update, COMPLETED))) as engine:
        task = await User(engine).send("go", modes=TEXT)
    assert task.artifacts[0].parts == [Part(text=text), Part(raw=b"b")]


async def test_data_as_text_adds_a_text_for_callers_that_name_no_media_types() -> None:
    update = ArtifactUpdate(artifact=Artifact(artifact_id="x", parts=[Part(data={"a": 1})]))
    async with serving(ScriptedAgent(default=(update, COMPLETED)), data_as_text=True) as engine:
        task = await User(engine).send("go")
        only = await User(engine).send("go", modes=TEXT)
    assert task.artifacts[0].parts == [Part(data={"a": 1}), Part(text='{"a":1}')]
    assert only.artifacts[0].parts == [Part(text='{"a":1}')]


QUESTION = StatusUpdate(status=TaskStatus(state=S.INPUT_REQUIRED, message=agent_message({"choose": ["a", "b"]})))
WHOLE = Task(
    id="",
    status=TaskStatus(state=S.COMPLETED, message=agent_message([1])),
    artifacts=[Artifact(artifact_id="x", parts=[Part(data=2)])],
)


async def test_data_in_a_status_message_is_text_as_well() -> None:
    async with serving(ScriptedAgent(default=(QUESTION,))) as engine:
        task = await User(engine).send("go", modes=TEXT)
    assert task.status.text == '{"choose":["a","b"]}'


async def test_data_in_a_reply_without_a_task_is_text_as_well() -> None:
    agent = ScriptedAgent(default=(agent_message({"a": 1}),), may_reply=True)
    async with serving(agent) as engine:
        reply = await User(engine).answer("go", modes=TEXT)
    assert isinstance(reply, Message) and reply.parts == (Part(text='{"a":1}'),)


class PublishesItsTask(ScriptedAgent):
    """Publishes the whole task with data in the status and in an artifact."""

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        yield Task(id=call.task.id, context_id=call.task.context_id, status=WHOLE.status, artifacts=WHOLE.artifacts)


async def test_data_in_a_task_that_the_agent_publishes_is_text_as_well() -> None:
    async with serving(PublishesItsTask()) as engine:
        task = await User(engine).send("go", modes=TEXT)
    assert (task.status.text, chunks_of(task)) == ("[1]", ["2"])


@pytest.mark.parametrize("data", [float("nan"), {"a": [float("inf")]}, {1, 2}.__iter__()])
async def test_data_without_a_json_form_fails_the_task_in_every_form(data: Any) -> None:
    update = ArtifactUpdate(artifact=Artifact(artifact_id="x", parts=[Part(data=data)]))
    async with serving(ScriptedAgent(default=(update, COMPLETED))) as engine:
        task = await User(engine).send("go", modes=TEXT)
    assert task.status.state is S.FAILED


@pytest.mark.parametrize(("as_text", "modes", "kept"), [(True, (), True), (False, TEXT, False)], ids=["both", "text"])
async def test_questions_are_in_words_already_and_get_no_second_text(
    as_text: bool, modes: tuple[str, ...], kept: bool
) -> None:
    asked = questions_message([Question(id="seats", text="How many seats?", schema={"type": "integer"})])
    question = StatusUpdate(status=TaskStatus(state=S.INPUT_REQUIRED, message=asked))
    async with serving(ScriptedAgent(default=(question,)), data_as_text=as_text) as engine:
        task = await User(engine).send("go", modes=modes)
    assert task.status.message is not None
    texts = [part.text for part in task.status.message.parts if isinstance(part.text, str)]
    assert len(texts) == 1 and "How many seats?" in texts[0]
    assert any(is_repeated_in_words(part) for part in task.status.message.parts) is kept


async def test_a_memo_is_not_changed_for_callers_of_text() -> None:
    agent = ScriptedAgent(default=(Remember({"a": 1}), ASKS))
    async with serving(agent) as engine:
        task = await User(engine).send("go", modes=TEXT)
        await User(engine).send("more", task_id=task.id, modes=TEXT)
    assert agent.calls[1].memo == {"a": 1}


async def test_a_status_repeats_no_text_if_the_pieces_are_of_another_kind() -> None:
    data = ArtifactUpdate(artifact=Artifact(artifact_id="x", parts=[Part(data=1)]))
    _, task = await stream_of(ScriptedAgent(default=(data, COMPLETED)), "go", stream_final="status")
    assert task.status.message is None
