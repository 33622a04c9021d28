"""Approvals, and the answers of a reply: by the ids of the questions, or in words.

Invariant: an answer belongs to the question that was asked. A reply that cannot be assigned answers nothing, and the
agent asks again.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET, Struct, json, to_builtins
from msgspec.structs import replace

from apcore_a2a.agents.content import agent_message, ask_questions, call_in_words
from apcore_a2a.agents.inputs import EXACT, IntegerSchema
from apcore_a2a.agents.schema import Schema, inline
from apcore_a2a.agents.schema_check import find_violations
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.decoding import check_tree, decode
from apcore_a2a.protocol.model import Message, Part, StatusUpdate, TaskState, TaskStatus, encode
from apcore_a2a.protocol.questions import ANSWERS, APPROVED, ARGUMENTS, Question

MAX_ARGUMENTS: Final = 64 * 1024  # bytes of arguments that an approval shows
MAX_WORDS: Final = 1_000  # lines with numbers, or items between commas, that are read in a text
WORDS: Final = {"approve": True, "approved": True, "yes": True, "reject": False, "rejected": False, "no": False}
UNNAMED: Final = "approval"  # the id of the question, if the approval has none
DECLINED: Final = frozenset({"decline", "cancel", "skip"})
_JSON: Final = json.Decoder()
NUMBERED: Final = re.compile(r"\s*(\d{1,3})\s*[:.)]\s*(\S.*)")


class Answer(Struct, frozen=True, kw_only=True):
    """The answer to one question."""

    value: Any = None
    """The value, if the question asks for one. None if the user declined."""
    approved: bool | None = None
    """Whether the call is approved. None if the question is not an approval."""
    reason: str = ""
    """Why the call is not approved, if the user says so."""
    arguments: Any = None
    """The changed arguments of an approved call. None if they are unchanged."""


class Reply(Struct, frozen=True):
    """What a message answers: the answers by the ids of their questions, and what is wrong with the others."""

    answers: dict[str, Answer]
    problems: list[str]


# ---- asking ---------------------------------------------------------------------------------------------------------


def approval(question_id: str, tool: str, arguments: Any, *, note: str = "", editable: bool = False) -> Question:
    """Return the question whether a tool may be called with these arguments.

    Example:
        >>> approval("1", "pay", {"to": "Ada", "amount": 5}).text
        "Approval required for pay(to='Ada', amount=5)."
    """
    shown = arguments
    if len(encode(arguments)) > MAX_ARGUMENTS:
        shown = None
    text = f"Approval required for {tool}({call_in_words(arguments)})."
    if note:
        text += f" {note}"
    schema = {"type": "boolean"}
    return Question(
        id=question_id, text=text, kind="approval", tool=tool, arguments=shown, editable=editable, schema=schema
    )


def approval_required(what: str, *, skill_id: str, approval_id: str | None, inputs: Any = None) -> StatusUpdate:
    """Return the INPUT_REQUIRED status that asks the caller to approve or reject a call of a skill."""
    question = approval(approval_id or UNNAMED, skill_id, inputs)
    question = replace(question, text=f"Approval required for {what}.")
    return ask_questions([question], metadata={"approvalId": approval_id, "skillId": skill_id})


def rejected(text: str) -> StatusUpdate:
    """Return the REJECTED status that ends a task without approval. FAILED would suggest a run, and a useful retry."""
    return StatusUpdate(status=TaskStatus(state=TaskState.REJECTED, message=agent_message(text)))


# ---- reading the answers --------------------------------------------------------------------------------------------


def read_reply(message: Message, questions: Sequence[Question]) -> Reply:
    """Return what a message answers.

    A data part `{"answers": {id: value}}` answers by the ids. Without one, lines such as "2: reject" answer by number,
    a word such as "approve" answers every approval, and any other content answers the only question for a value.
    """
    by_id: dict[str, Any] = {}
    rest: list[Part] = []
    for part in message.parts:
        if isinstance(part.data, dict) and isinstance(part.data.get(ANSWERS), dict):
            by_id.update(part.data[ANSWERS])
        else:
            rest.append(part)
    given = by_id or _by_number(rest, questions) or _from_content(rest, questions)
    answers: dict[str, Answer] = {}
    problems: list[str] = []
    for question in questions:
        if question.id not in given:
            continue
        answer, problem = _read_answer(given[question.id], question, is_word=not by_id)
        if answer is None:
            problems.append(problem)
        else:
            answers[question.id] = answer
    return Reply(answers, problems)


def read_approval(message: Message, approval_id: str | None) -> bool | None:
    """Whether a reply approves the call that waits for it. None if it neither approves nor rejects."""
    asked = Question(id=approval_id or UNNAMED, text="", kind="approval")
    answer = read_reply(message, [asked]).answers.get(asked.id)
    if answer is None:
        return None
    return answer.approved


def _by_number(parts: Sequence[Part], questions: Sequence[Question]) -> dict[str, Any]:
    """Return the answers of lines that all begin with the number of a question."""
    if len(questions) < 2 or any(not isinstance(part.text, str) for part in parts):
        return {}
    found: dict[str, Any] = {}
    lines = "\n".join(str(part.text) for part in parts).splitlines()
    if len(lines) > MAX_WORDS:
        return {}
    for line in lines:
        if not line.strip():
            continue
        match = NUMBERED.fullmatch(line)
        if match is None or not 0 < int(match[1]) <= len(questions):
            return {}
        found[questions[int(match[1]) - 1].id] = match[2].strip()
    return found


def _from_content(parts: Sequence[Part], questions: Sequence[Question]) -> dict[str, Any]:
    """Return the answers of a reply that names no question."""
    approvals = [question for question in questions if question.kind == "approval"]
    others = [question for question in questions if question.kind != "approval"]
    found: dict[str, Any] = {}
    content = [_content_of(part) for part in parts]
    for value in content:
        if _to_decision(value) is not None and approvals:
            for question in approvals:
                found[question.id] = value
            return found
    if len(others) == 1 and content:
        found[others[0].id] = content[0] if len(content) == 1 else content
    return found


def _content_of(part: Part) -> Any:
    if isinstance(part.text, str):
        return part.text
    if part.data is not UNSET:
        return part.data
    return to_builtins(part)  # a file


def _read_answer(given: Any, question: Question, *, is_word: bool) -> tuple[Answer | None, str]:
    """Return the answer, or None and what is wrong with it."""
    if question.kind == "approval":
        decision = _to_decision(given)
        if decision is None:
            return None, f"{given!s:.100} neither approves nor rejects {question.tool}."
        return _check_arguments(decision, question)
    if question.optional and (given is None or (isinstance(given, str) and given.strip().lower() in DECLINED)):
        return Answer(), ""
    schema = inline(question.schema or {})
    value = IntegerSchema(schema).restore(given)  # official clients send all numbers as floats
    if is_word and isinstance(value, str):
        value = _from_words(value, schema)
    violations = find_violations(value, schema)
    if not violations:
        return Answer(value=value), ""
    texts = [f"{each.field}: {each.message}" if each.field else each.message for each in violations[:3]]
    return None, f"The answer does not fit. {'; '.join(texts)[:300]}."


def _to_decision(given: Any) -> Answer | None:
    """Return the decision about a call: of a boolean, a word or an object. None for any other value."""
    if isinstance(given, bool):
        return Answer(approved=given)
    if isinstance(given, str):
        approved = WORDS.get(given.strip().rstrip(".!").lower())
        return None if approved is None else Answer(approved=approved)
    if isinstance(given, dict) and isinstance(given.get(APPROVED), bool):
        reason = given.get("reason")
        text = reason if isinstance(reason, str) else ""
        return Answer(approved=given[APPROVED], reason=text, arguments=given.get(ARGUMENTS))
    return None


def _check_arguments(decision: Answer, question: Question) -> tuple[Answer | None, str]:
    """Reject changed arguments of a call whose arguments may not be changed."""
    if decision.arguments is None or decision.arguments == question.arguments:
        return decision, ""
    if not question.editable or not isinstance(decision.arguments, dict):
        return None, f"The arguments of {question.tool} cannot be changed."
    return replace(decision, arguments=_restore_integers(decision.arguments, question.arguments)), ""


def _restore_integers(given: Any, original: Any) -> Any:
    """Return changed arguments with an integer where the original has one. Official clients send floats."""
    if isinstance(given, float) and type(original) is int:
        return int(given) if given.is_integer() and abs(given) <= EXACT else given
    if isinstance(given, dict) and isinstance(original, dict):
        return {name: _restore_integers(value, original.get(name)) for name, value in given.items()}
    if isinstance(given, list) and isinstance(original, list) and original:
        return [_restore_integers(value, original[0]) for value in given]
    return given


def _from_words(text: str, schema: Schema) -> Any:
    """Return the value that a text stands for in a schema. The text itself if it stands for none."""
    words = text.strip()
    for name in _kinds(schema):
        value = _READERS[name](words, schema) if name in _READERS else None
        if value is not None:
            return value
    listed = schema.get("enum")
    if isinstance(listed, list):
        lowered = words.lower()
        for each in listed:
            if isinstance(each, str) and each.lower() == lowered:
                return each
    return text


def _kinds(schema: Schema) -> list[str]:
    kind = schema.get("type")
    if isinstance(kind, list):
        return [str(each) for each in kind]
    return [str(kind)]


def _to_number(words: str, schema: Schema) -> Any:
    value = _parse(words)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return None


def _to_boolean(words: str, schema: Schema) -> Any:
    return {**WORDS, "true": True, "false": False}.get(words.lower())


def _to_object(words: str, schema: Schema) -> Any:
    """Return a JSON object, or an object with the text as its only field."""
    value = _parse(words)
    if isinstance(value, dict):
        return value
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return None
    names = list(properties)
    if len(names) > 1:
        names = [name for name in schema.get("required", ()) if name in properties]
    if len(names) != 1 or not isinstance(properties[names[0]], dict):
        return None
    return {names[0]: _from_words(words, properties[names[0]])}


def _to_array(words: str, schema: Schema) -> Any:
    value = _parse(words)
    if isinstance(value, list):
        return value
    items = schema.get("items")
    inner = items if isinstance(items, dict) else {}
    if words.count(",") > MAX_WORDS:  # on the event loop
        return None
    return [_from_words(each, inner) for each in words.split(",") if each.strip()]


_READERS: Final = {
    "boolean": _to_boolean,
    "integer": _to_number,
    "number": _to_number,
    "object": _to_object,
    "array": _to_array,
}


def _parse(words: str) -> Any:
    try:
        body = words.encode()
        check_tree(body)
        return decode(body, _JSON)
    except (A2AError, UnicodeError):
        return None
