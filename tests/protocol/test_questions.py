"""The form of questions and answers in messages."""

from typing import Any

import pytest

from apcore_a2a.protocol.model import Message, Part, Role
from apcore_a2a.protocol.questions import MAX_QUESTIONS, Question, questions_of, to_answers, to_part

SEATS = Question(id="seats", text="How many?", schema={"type": "integer"}, optional=True)
PAY = Question(id="c-1", text="Pay?", kind="approval", tool="pay", arguments={"to": "Ada"}, editable=True)


def message(*parts: Part, **fields: Any) -> Message:
    return Message(message_id="m", role=Role.AGENT, parts=parts, **fields)


def test_questions_are_read_as_they_were_written() -> None:
    assert questions_of(message(Part(text="?"), to_part([SEATS, PAY]))) == [SEATS, PAY]


def test_the_data_of_an_approval_names_the_call() -> None:
    assert to_part([PAY]).data == {
        "questions": [
            {
                "id": "c-1",
                "text": "Pay?",
                "kind": "approval",
                "tool": "pay",
                "arguments": {"to": "Ada"},
                "editable": True,
            }
        ]
    }
    assert to_part([PAY]).metadata == {"apcore.type": "questions"}


def test_an_approval_without_data_is_read_from_the_metadata() -> None:
    old = message(Part(text="Approve?"), metadata={"approvalId": "a-1", "skillId": "pay"})
    assert questions_of(old) == [Question(id="a-1", text="Approve?", kind="approval", tool="pay")]


@pytest.mark.parametrize(
    "said",
    [
        None,
        message(Part(text="Which city?")),
        message(Part(data={"questions": [{"id": "1", "text": "?"}]})),  # not marked: data of the agent
        message(Part(data={"questions": "none"}, metadata={"apcore.type": "questions"})),
        message(Part(text="?"), metadata={"approvalId": 5}),
    ],
)
def test_other_messages_have_no_questions(said: Message | None) -> None:
    assert questions_of(said) == []


def test_unreadable_and_repeated_questions_are_left_out() -> None:
    listed = [{"id": 1, "text": "?"}, {"id": "a", "text": "first"}, {"id": "a", "text": "second"}, "?", {"id": "b"}]
    part = Part(data={"questions": listed}, metadata={"apcore.type": "questions"})
    assert questions_of(message(part)) == [Question(id="a", text="first")]


def test_the_number_of_questions_is_bounded() -> None:
    many = [Question(id=str(number), text="?") for number in range(MAX_QUESTIONS + 1)]
    assert len(questions_of(message(to_part(many)))) == MAX_QUESTIONS


def test_answers_are_a_copy() -> None:
    given = {"seats": 2}
    part = to_answers(given)
    given["seats"] = 3
    assert part.data == {"answers": {"seats": 2}}
