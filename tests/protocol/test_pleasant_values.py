"""What people ask of a task and of an event: its text, its data, its files, its state in a word."""

import pytest

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
    encode,
)

FILE = Part(raw=b"1", filename="a.txt")
LINK = Part(url="https://example.com/b")


def message(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.AGENT, parts=parts)


def task(*artifacts: Artifact, said: Message | None = None, state: TaskState = TaskState.COMPLETED) -> Task:
    return Task(id="t", status=TaskStatus(state=state, message=said), artifacts=list(artifacts))


def artifact(*parts: Part) -> Artifact:
    return Artifact(artifact_id="a", parts=list(parts))


def test_the_parts_of_a_message_are_lines_and_those_of_an_artifact_are_pieces() -> None:
    assert message(Part(text="a"), Part(data=1), Part(text="b")).text == "a\nb"
    assert artifact(Part(text="a"), Part(data=1), Part(text="b")).text == "ab"
    assert ArtifactUpdate(artifact=artifact(Part(text="a"))).text == "a"
    assert message(FILE).text == ""


def test_the_text_of_a_task_is_that_of_its_artifacts_else_of_its_status() -> None:
    said = message(Part(text="Done"))
    assert task(artifact(Part(text="a"), Part(text="b")), artifact(Part(text="c")), said=said).text == "ab\nc"
    assert task(artifact(Part(data=1)), said=said).text == "Done"
    assert task(said=said).text == "Done"
    assert task().text == ""


def test_the_data_of_a_task_is_its_first_value_and_may_be_anything() -> None:
    assert task(artifact(Part(text="x")), artifact(Part(data=0), Part(data=1))).data == 0
    assert task(artifact(Part(text="x")), said=message(Part(data={"a": 1}))).data == {"a": 1}
    assert task(artifact(Part(data=False))).data is False
    assert task().data is None


def test_files_are_parts_with_content_or_address() -> None:
    assert task(artifact(Part(text="x"), FILE), artifact(LINK)).files == [FILE, LINK]
    assert message(FILE, Part(data=1), LINK).files == [FILE, LINK]
    assert [part.is_file for part in (FILE, LINK, Part(text=""), Part(data=None))] == [True, True, False, False]


def test_what_is_printed_is_what_a_person_wants_to_read() -> None:
    said = message(Part(text="Reading"))
    assert str(task(artifact(Part(text="HELLO")))) == "completed: HELLO"
    assert str(task(said=message(Part(text="No such city")), state=TaskState.FAILED)) == "failed: No such city"
    assert str(StatusUpdate(status=TaskStatus(state=TaskState.WORKING, message=said))) == "working: Reading"
    assert str(StatusUpdate(status=TaskStatus(state=TaskState.WORKING))) == "working"
    assert str(ArtifactUpdate(artifact=artifact(Part(text="piece")))) == "piece"
    assert str(said) == "Reading"
    assert str(task(artifact(Part(data={"sum": 5})))) == 'completed: {"sum":5}'
    assert str(task(artifact(Part(data=0)))) == "completed: 0"
    assert str(task(artifact(FILE))) == "completed"
    assert str(message(Part(data=[1]))) == "[1]"


def test_the_repr_has_what_is_there_and_nothing_else() -> None:
    assert repr(Part(text="a")) == "Part(text='a')"
    assert repr(TaskStatus(state=TaskState.WORKING)) == ("TaskStatus(state=<TaskState.WORKING: 'TASK_STATE_WORKING'>)")
    assert repr(task()).startswith("Task(id='t', status=TaskStatus(")


@pytest.mark.parametrize("state", TaskState)
def test_a_state_is_its_name_and_its_word(state: TaskState) -> None:
    word = state.name.lower().replace("_", "-")
    assert (str(state), f"{state}", f"{state:>20}", "%s" % state) == (word, word, f"{word:>20}", word)  # noqa: UP031
    for text in (word, f"TASK_STATE_{state.name}"):
        assert state == text
        assert text == state
        assert not state != text
    assert hash(state) == hash(f"TASK_STATE_{state.name}")
    assert encode(state) == f'"TASK_STATE_{state.name}"'.encode()


def test_a_state_is_no_other_and_nothing_else() -> None:
    assert TaskState.COMPLETED != "failed"
    assert TaskState.COMPLETED != TaskState.FAILED
    assert TaskState.COMPLETED not in (None, 3, "COMPLETED", b"completed")
    assert {TaskState.COMPLETED: 1}["TASK_STATE_COMPLETED"] == 1  # type: ignore[index]  # the point: a text
