"""Questions with structure at the command line: `chat` asks one after the other, `send` answers them by their ids."""

from collections.abc import Iterator
from typing import Any

import pytest

from apcore_a2a import Call, Question
from apcore_a2a.cli.questions import prompt_for, read_answer
from tests.cli.conftest import Terminal, elsewhere
from tests.cli.pseudo_terminal import CTRL_D, at_terminal
from tests.interaction.serving import serving

SEATS = Question(id="seats", text="How many seats?", schema={"type": "integer", "minimum": 1})
FARE = Question(id="fare", text="Which class?", schema={"enum": ["economy", "business"]}, optional=True)
PAY = Question(id="pay", text="Pay 50 EUR?", kind="approval", tool="pay", arguments={"amount": 50})
PLACE = Question(
    id="place",
    text="Where to?",
    schema={"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}},
)


async def buy(city: str, call: Call) -> dict[str, Any]:
    return call.ask_all(SEATS, FARE, PAY)


async def move(name: str, call: Call) -> dict[str, Any]:
    return call.ask_all(PLACE)


async def count(name: str, call: Call) -> str:
    return call.ask(SEATS).text


@pytest.fixture(scope="module")
def asking() -> Iterator[str]:
    with elsewhere(serving([buy, move, count], card=None)) as address:
        yield address


def test_chat_asks_one_question_after_the_other_and_shows_the_call_to_approve(terminal: Terminal, asking: str) -> None:
    ran = terminal("chat", asking, "--skill", "buy", stdin=b"Rome\n2\nbusiness\ny\n")

    assert ran.out == '{\n  "seats": 2,\n  "fare": "business",\n  "pay": true\n}\n'
    assert (
        "How many seats?\n[integer] \nWhich class?\n[economy or business, or nothing] \n"
        'Pay 50 EUR?\nIt would run: pay {"amount":50}\nApprove this call? [y/n] \n'
    ) in ran.err


def test_an_answer_that_does_not_fit_is_asked_for_again_with_what_fits(terminal: Terminal, asking: str) -> None:
    ran = terminal("chat", asking, "--skill", "buy", stdin=b"Rome\nmany\n2\nfirst\n\nperhaps\nn too dear\n")

    assert ran.out == '{\n  "seats": 2,\n  "fare": null,\n  "pay": false\n}\n'
    assert "Error: 'many' is not integer." in ran.err
    assert """Error: 'first' is not "economy" or "business".""" in ran.err
    assert "Error: 'perhaps' is not y (approve) or n (reject)" in ran.err


def test_an_answer_that_the_agent_rejects_is_asked_for_again_with_its_reason(terminal: Terminal, asking: str) -> None:
    ran = terminal("chat", asking, "--skill", "buy", stdin=b"Rome\n0\n\ny\n1\n\ny\n")

    assert '"seats": 1' in ran.out
    assert "\nThe answer does not fit. expected at least 1.\nHow many seats?\n" in ran.err


def test_an_object_is_answered_by_names(terminal: Terminal, asking: str) -> None:
    ran = terminal("chat", asking, "--skill", "move", stdin=b'Ada\ntown=Rome\nRome\ncity="New York" zip=10001\n')

    assert '"city": "New York"' in ran.out and '"zip": 10001' in ran.out
    assert "Error: The answer has no input 'town'. It has: city, zip." in ran.err
    assert "Error: 'Rome' is not JSON, and not NAME=VALUE" in ran.err


def test_a_single_answer_is_sent_in_words_which_every_agent_reads(terminal: Terminal, asking: str) -> None:
    assert terminal("chat", asking, "--skill", "count", stdin=b"Rome\n3\n").out == "3\n"


def test_a_command_in_place_of_an_answer_leaves_the_questions_open(terminal: Terminal, asking: str) -> None:
    ran = terminal("chat", asking, "--skill", "buy", stdin=b"Rome\n2\n/skills\n3\n\nn\n")

    assert "buy(text) → object" in ran.err
    assert '"seats": 3' in ran.out


def test_questions_are_asked_again_when_a_conversation_is_resumed(terminal: Terminal, asking: str) -> None:
    first = terminal("chat", asking, "--skill", "buy", stdin=b"Rome\n")
    context = first.err.rpartition("--context ")[2].strip()

    second = terminal("chat", asking, "--context", context, stdin=b"4\n\ny\n")

    assert '"seats": 4' in second.out


def test_a_person_answers_at_a_terminal(asking: str) -> None:
    with at_terminal("chat", asking, "--skill", "buy") as person:
        person.sees("> ")
        person.type("Rome\n")
        person.sees(r"How many seats\?\n\[integer\] ")
        person.type("2\n")
        person.sees(r"or nothing\] ")
        person.type("\n")
        person.sees(r"Approve this call\? \[y/n\] ")
        person.type("y\n")
        person.sees('"pay": true')
        person.sees("> ")
        person.type(CTRL_D)
        assert person.ends() == 0


def test_send_answers_questions_by_their_ids(terminal: Terminal, asking: str) -> None:
    asked = terminal("send", asking, "Rome", "--skill", "buy")

    assert asked.fields["Next"].endswith("seats=… fare=… pay=…")
    assert asked.fields["Call"] == 'pay {"amount":50}'
    assert "questions" not in asked.out  # the data repeats the text
    reply = ("send", asking, "--task-id", asked.fields["Task"])
    unknown = terminal(*reply, "seats=2", "fere=economy")
    wrong = terminal(*reply, "seats=2", "pay=perhaps")
    ran = terminal(*reply, "seats=2", "fare=economy", "pay=approve", "-o", "raw")
    assert "The task asks no question 'fere'. Did you mean 'fare'? Its questions: seats, fare, pay." in unknown.err
    assert "pay=perhaps: 'perhaps' is not y (approve) or n (reject)" in wrong.err
    assert ran.json == {"seats": 2, "fare": "economy", "pay": True}
    again = terminal(*reply, "seats=2", "pay=y")
    assert "Its questions: none, because the task does not wait for answers" in again.err


def test_a_question_that_needs_an_answer_takes_no_empty_line() -> None:
    with pytest.raises(ValueError, match="an answer is needed"):
        read_answer(SEATS, " ")
    anything = Question(id="x", text="?")
    assert prompt_for(anything) == "[text] "
    assert read_answer(anything, '{"a": 1}') == '{"a": 1}'
