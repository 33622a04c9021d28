"""Questions of an agent to its user, as the message of a waiting task carries them, and the answers of the reply.

The message has the questions in words, for clients that do not know this form, and in one data part, which the metadata
key `PART_TYPE` marks. The reply answers in words, or with a data part that has the answers by the ids of the questions.
docs/agents.md describes both.

Invariant: questions of a remote agent are bounded in number, and those that cannot be read are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from apcore_a2a.protocol.model import Message, Part

PART_TYPE: Final = "apcore.type"
"""The key in the metadata of a data part that names what the data is. The text of the same message says the same."""
QUESTIONS: Final = "questions"
ANSWERS: Final = "answers"
APPROVED: Final = "approved"
ARGUMENTS: Final = "arguments"
MAX_QUESTIONS: Final = 64  # in one message


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """A question of an agent to its user.

    An approval asks whether a tool may be called. Any other question asks for a value.

    Example:
        >>> Question(id="seats", text="How many seats?", schema={"type": "integer", "minimum": 1}).kind
        'input'
    """

    id: str
    """The name of the question in its message."""
    text: str
    """The question in words."""
    kind: Literal["input", "approval"] = "input"
    tool: str = ""
    """The tool or skill that runs if the user approves."""
    arguments: Any = None
    """The arguments of the call that is to be approved."""
    editable: bool = False
    """Whether an approval may change the arguments."""
    schema: dict[str, Any] | None = None
    """The JSON Schema of the answer, if it is restricted. The answer to an approval is a boolean."""
    optional: bool = False
    """Whether the user may decline to answer."""


def to_part(questions: Sequence[Question]) -> Part:
    """Return the data part with these questions.

    Example:
        >>> to_part([Question(id="city", text="Which city?")]).data
        {'questions': [{'id': 'city', 'text': 'Which city?', 'kind': 'input'}]}
    """
    listed: list[dict[str, Any]] = []
    for question in questions:
        fields = {"id": question.id, "text": question.text, "kind": question.kind}
        listed.append(fields | msgspec.to_builtins(question))
    return Part(data={QUESTIONS: listed}, metadata={PART_TYPE: QUESTIONS})


def questions_of(message: Message | None) -> list[Question]:
    """Return the questions in the message of a waiting task. Empty if it asks in words only.

    Example:
        >>> from apcore_a2a.protocol.model import Role
        >>> part = to_part([Question(id="city", text="Which city?")])
        >>> asked = Message(message_id="m-1", role=Role.AGENT, parts=(Part(text="Which city?"), part))
        >>> [question.id for question in questions_of(asked)]
        ['city']
    """
    if message is None:
        return []
    for part in message.parts:
        if is_repeated_in_words(part) and isinstance(part.data, dict):
            listed = part.data.get(QUESTIONS)
            if isinstance(listed, list):
                return _read_all(listed)
    approval_id = (message.metadata or {}).get("approvalId")
    if not isinstance(approval_id, str) or not approval_id:
        return []
    skill = (message.metadata or {}).get("skillId")
    tool = skill if isinstance(skill, str) else ""
    return [Question(id=approval_id, text=message.text, kind="approval", tool=tool)]


def _read_all(listed: list[Any]) -> list[Question]:
    found: dict[str, Question] = {}
    for each in listed[:MAX_QUESTIONS]:
        try:
            question = msgspec.convert(each, Question)
        except msgspec.ValidationError:
            continue
        found.setdefault(question.id, question)
    return list(found.values())


def is_repeated_in_words(part: Part) -> bool:
    """Return whether the texts of the same message say what this data part says.

    Example:
        >>> is_repeated_in_words(Part(data={"a": 1}))
        False
    """
    return part.metadata is not None and PART_TYPE in part.metadata


def to_answers(answers: Mapping[str, Any]) -> Part:
    """Return the data part that answers questions by their ids.

    The answer to an approval is True or False, or an object with `approved`, and optionally `reason` and `arguments`.
    None declines to answer.

    Example:
        >>> to_answers({"seats": 2, "pay": True}).data
        {'answers': {'seats': 2, 'pay': True}}
    """
    return Part(data={ANSWERS: dict(answers)})
