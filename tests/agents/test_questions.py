"""Questions of agents: how they are asked, and how replies are read."""

from typing import Any

import pytest

from apcore_a2a.agents.content import ask_questions, questions_message
from apcore_a2a.agents.questions import Answer, Reply, approval, read_approval, read_reply
from apcore_a2a.protocol.model import Message, Part, Role, TaskState
from apcore_a2a.protocol.questions import Question, questions_of, to_answers

PAY = approval("p", "pay", {"to": "Ada", "amount": 5})
DELETE = approval("d", "delete", {"name": "a"}, editable=True)
CITY = Question(id="city", text="Which city?")
SEATS = Question(id="seats", text="How many seats?", schema={"type": "integer", "minimum": 1})
FORM = Question(
    id="form",
    text="Where to?",
    optional=True,
    schema={
        "type": "object",
        "properties": {"city": {"type": "string"}, "window": {"type": "boolean"}},
        "required": ["city"],
    },
)


def reply(*content: Any) -> Message:
    parts = [each if isinstance(each, Part) else Part(text=each) for each in content]
    return Message(message_id="m", role=Role.USER, parts=tuple(parts))


# ---- asking ---------------------------------------------------------------------------------------------------------


def test_one_approval_is_asked_in_words_and_as_data() -> None:
    asked = ask_questions([PAY]).status
    assert asked.state is TaskState.INPUT_REQUIRED
    assert asked.text == 'Approval required for pay(to=\'Ada\', amount=5). Reply "approve" or "reject".'
    assert questions_of(asked.message) == [PAY]
    assert asked.message is not None
    assert asked.message.metadata == {"approvalId": "p", "skillId": "pay"}


def test_several_questions_are_numbered() -> None:
    said = questions_message([PAY, CITY], ["Please answer both."])
    assert said.text.splitlines() == [
        "Please answer both.",
        "1. Approval required for pay(to='Ada', amount=5).",
        "2. Which city?",
        'Reply "approve" or "reject". Answer each in a line of its own, such as "1: approve".',
    ]
    assert said.metadata is None  # clients that know only approvals must not draw one


def test_each_question_needs_an_id_of_its_own() -> None:
    with pytest.raises(ValueError, match="an id of its own"):
        questions_message([CITY, CITY])
    with pytest.raises(ValueError, match="must be a question"):
        questions_message([])


def test_large_arguments_are_not_repeated() -> None:
    asked = approval("p", "store", {"file": "x" * 100_000})
    assert asked.arguments is None
    assert len(asked.text) < 400


# ---- approvals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "approved"),
    [
        (reply("Approve"), True),
        (reply(" yes. "), True),
        (reply("no"), False),
        (reply(Part(data={"approved": False})), False),
        (reply("see below", Part(data={"approved": True})), True),
        (reply(to_answers({"a-1": True})), True),
        (reply(to_answers({"a-1": {"approved": False, "reason": "too much"}})), False),
        (reply(to_answers({"another": True})), None),
        (reply(to_answers({"a-1": 1})), None),
        (reply("approve it, but only 5"), None),
        (reply(Part(data={"approved": "yes"})), None),
    ],
)
def test_a_reply_approves_or_rejects(said: Message, approved: bool | None) -> None:
    assert read_approval(said, "a-1") is approved


def test_answers_by_id_take_precedence_over_words() -> None:
    assert read_approval(reply("approve", to_answers({"a-1": False})), "a-1") is False
    assert read_approval(reply("approve", to_answers({"another": True})), "a-1") is None


def test_one_word_answers_all_approvals() -> None:
    assert read_reply(reply("approve"), [PAY, DELETE]).answers == {
        "p": Answer(approved=True),
        "d": Answer(approved=True),
    }


def test_lines_answer_by_number() -> None:
    read = read_reply(reply("1: approve\n2. Rome\n\n3) no"), [PAY, CITY, DELETE])
    assert read.answers == {"p": Answer(approved=True), "city": Answer(value="Rome"), "d": Answer(approved=False)}


@pytest.mark.parametrize("text", ["1: approve\nand the other, too", "7: approve", "0: approve"])
def test_a_text_that_is_not_all_numbers_answers_nothing(text: str) -> None:
    assert read_reply(reply(text), [PAY, DELETE]).answers == {}


def test_one_approval_of_two_leaves_the_other_open() -> None:
    assert list(read_reply(reply(to_answers({"p": True})), [PAY, DELETE]).answers) == ["p"]


def test_only_an_editable_call_may_be_changed() -> None:
    changed = {"approved": True, "arguments": {"name": "b"}}
    read = read_reply(reply(to_answers({"p": changed, "d": changed})), [PAY, DELETE])
    assert read.answers == {"d": Answer(approved=True, arguments={"name": "b"})}
    assert read.problems == ["The arguments of pay cannot be changed."]


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "question", "value"),
    [
        (reply("Rome"), CITY, "Rome"),
        (reply(Part(data={"name": "Rome"})), CITY, {"name": "Rome"}),
        (reply("2"), SEATS, 2),
        (reply(Part(data=2.0)), SEATS, 2),
        (reply(to_answers({"seats": 2.0})), SEATS, 2),
        (reply("Rome"), FORM, {"city": "Rome"}),
        (reply('{"city": "Rome", "window": true}'), FORM, {"city": "Rome", "window": True}),
        (reply(to_answers({"form": {"city": "Rome"}})), FORM, {"city": "Rome"}),
        (reply(to_answers({"form": None})), FORM, None),
        (reply("decline"), FORM, None),
        (reply("YES"), Question(id="b", text="?", schema={"type": "boolean"}), True),
        (reply("red"), Question(id="c", text="?", schema={"enum": ["Red", "Blue"]}), "Red"),
        (reply("1, 2"), Question(id="l", text="?", schema={"type": "array", "items": {"type": "integer"}}), [1, 2]),
        (reply("12"), Question(id="s", text="?", schema={"type": "string"}), "12"),
    ],
)
def test_a_value_is_read_from_words_or_data(said: Message, question: Question, value: Any) -> None:
    read = read_reply(said, [question])
    assert read.problems == []
    assert read.answers == {question.id: Answer(value=value)}
    assert type(read.answers[question.id].value) is type(value)


@pytest.mark.parametrize(
    ("said", "question", "problem"),
    [
        (reply("two"), SEATS, "The answer does not fit. expected an integer."),
        (reply("0"), SEATS, "The answer does not fit. expected at least 1."),
        (reply(to_answers({"seats": "2"})), SEATS, "The answer does not fit. expected an integer."),
        (reply(Part(data={"window": 1})), FORM, "The answer does not fit. city: Field required; window: expected a"),
        (reply(to_answers({"seats": None})), SEATS, "The answer does not fit. expected an integer."),
    ],
)
def test_a_value_that_does_not_fit_is_explained(said: Message, question: Question, problem: str) -> None:
    read = read_reply(said, [question])
    assert read.answers == {}
    assert len(read.problems) == 1
    assert read.problems[0].startswith(problem)


def test_words_are_not_assigned_to_one_of_two_values() -> None:
    assert read_reply(reply("Rome"), [CITY, SEATS]).answers == {}


def test_a_file_answers_a_question() -> None:
    read = read_reply(reply(Part(raw=b"1", filename="a.txt")), [CITY])
    assert read.answers["city"].value == {"raw": "MQ==", "filename": "a.txt"}


def test_integers_of_changed_arguments_stay_integers() -> None:
    """Official clients send all numbers as floats."""
    given = {"amount": 5, "rate": 0.5, "seats": [1, 2], "to": {"year": 1815}}
    question = approval("1", "pay", given, editable=True)
    changed = {"amount": 3.0, "rate": 2.0, "seats": [4.0, 5.5, 6.0], "to": {"year": 2.0**60}, "new": 1.0}
    read = read_reply(reply(to_answers({"1": {"approved": True, "arguments": changed}})), [question])
    expected = {"amount": 3, "rate": 2.0, "seats": [4, 5.5, 6], "to": {"year": 2.0**60}, "new": 1.0}
    assert repr(read.answers["1"].arguments) == repr(expected)


def test_a_text_with_thousands_of_items_or_lines_is_no_answer() -> None:
    numbers = Question(id="n", text="Which?", schema={"type": "array", "items": {"type": "integer"}})
    assert read_reply(reply("1," * 900), [numbers]).answers["n"].value == [1] * 900
    assert read_reply(reply("1," * 2_000), [numbers]).problems == ["The answer does not fit. expected an array."]
    assert read_reply(reply("1: yes\n" * 2_000), [PAY, DELETE]) == Reply({}, [])
