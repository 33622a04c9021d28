"""The questions of a task that waits: what a person reads, and the answers from what a person types.

Invariant: an answer that does not fit its question is rejected here, with the values that fit.
"""

import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import click
import msgspec

from apcore_a2a.clean_text import clean_line, clean_text
from apcore_a2a.cli import rendering, schemas
from apcore_a2a.protocol.model import Part, Task
from apcore_a2a.protocol.questions import Question, questions_of, to_answers

DECISIONS: Final = {"approve": True, "yes": True, "y": True, "true": True} | {
    "reject": False,
    "no": False,
    "n": False,
    "false": False,
}
MAX_CHOICE: Final = 200  # characters of the choices beside a prompt


def describe_question(question: Question, task: Task) -> list[str]:
    """Return the lines that a person reads before the prompt."""
    lines = clean_text(question.text).strip().splitlines()
    if question.kind == "approval":
        lines.append(f"It would run: {rendering.planned_call(question, task)}")
    return lines


def prompt_for(question: Question) -> str:
    """Return the prompt: what can be answered."""
    if question.kind == "approval":
        return "Approve this call? [y/n] "
    choices = "text"
    if question.schema is not None:
        choices = clean_line(schemas.expected(question.schema, question.schema), MAX_CHOICE).replace('"', "")
        properties = question.schema.get("properties")
        if isinstance(properties, dict) and properties:
            choices = clean_line(" ".join(f"{name}=…" for name in properties), MAX_CHOICE)
    if question.optional:
        choices += ", or nothing"
    return f"[{choices}] "


def read_answer(question: Question, text: str) -> Any:  # Any: a value of the question's schema
    """Return the answer from a line of text.

    Raises:
        ValueError: it does not fit the question. The text says what does.
    """
    text = text.strip()
    if question.kind == "approval":
        return _read_decision(text)
    if not text:
        if question.optional:
            return None
        raise ValueError("an answer is needed")
    if question.schema is None:
        return text
    try:
        if question.schema.get("properties") and not text.startswith("{"):
            return schemas.read_properties(_words(text), question.schema, owner="The answer")
        return schemas.to_value(text, question.schema, question.schema)
    except click.UsageError as error:
        raise ValueError(error.format_message()) from error


def reply_part(asked: Sequence[Question], answers: Mapping[str, Any]) -> Part:
    """Return the part of the reply: data by the ids of the questions, or words for a single one.

    Agents read words as well, and those that ask without this form read nothing else.
    """
    if len(asked) > 1:
        return to_answers(answers)
    (answer,) = answers.values()
    if asked[0].kind == "approval" and isinstance(answer, bool):
        return Part(text="approve" if answer else "reject")
    if asked[0].kind == "approval" or answer is None:
        return to_answers(answers)
    if isinstance(answer, str):
        return Part(text=answer)
    if isinstance(answer, dict | list):
        return Part(data=answer, media_type="application/json")
    return Part(text=msgspec.json.encode(answer).decode())


def why_again(task: Task) -> str:
    """Return why an agent asks once more: the first line of its message, if that is not a question itself."""
    message = task.status.message
    if message is None:
        return ""
    first = message.text.partition("\n")[0]
    if any(question.text and question.text in first for question in questions_of(message)):
        return ""
    return clean_line(first)


def _words(text: str) -> list[str]:
    words = shlex.split(text)
    if not schemas.looks_typed(words):
        raise ValueError(f"{text!r} is not JSON, and not NAME=VALUE")
    return words


def _read_decision(text: str) -> Any:  # Any: a boolean, or an object with the reason of a rejection
    word, _, reason = text.partition(" ")
    if word.lower() not in DECISIONS:
        raise ValueError(f"{text!r} is not y (approve) or n (reject)")
    approved = DECISIONS[word.lower()]
    if reason and not approved:
        return {"approved": False, "reason": reason.strip()}
    return approved


def read_named_answers(words: Sequence[str], asked: Mapping[str, Question]) -> dict[str, Any]:
    """Return the answers by the ids of their questions, from `ID=VALUE` words.

    Raises:
        click.UsageError: there is no such question, or a value does not fit it.
    """
    answers: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in asked:
            near = get_close_matches(name, asked, n=1)
            advice = f" Did you mean {clean_line(near[0])!r}?" if near else ""
            listed = clean_line(", ".join(asked)) or "none, because the task does not wait for answers"
            raise click.UsageError(f"The task asks no question {name!r}.{advice} Its questions: {listed}.")
        try:
            answers[name] = read_answer(asked[name], value)
        except ValueError as error:
            raise click.UsageError(f"{word}: {error}") from error
    return answers
