"""Converts the output of agents, which may be any Python value, to parts and messages.

Invariant: a converted value shares no object with the agent, and integers stay exact. A value without a JSON form is
rejected.
"""

import io
import mimetypes
import os
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.model import Message, Part, Role, check_finite
from apcore_a2a.protocol.questions import Question, to_part

# Media types by the first bytes of a file.
MAGIC: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
    b"PK\x03\x04": "application/zip",
    b"\x1f\x8b": "application/gzip",
}
HOW_TO_APPROVE: Final = 'Reply "approve" or "reject".'
HOW_TO_ANSWER_SEVERAL: Final = 'Answer each in a line of its own, such as "1: approve".'
UNKNOWN_BYTES: Final = "application/octet-stream"
MAX_FILE: Final = 64 * 1024 * 1024  # bytes that we read from a file object into memory


def media_type_of(content: bytes) -> str:
    """Return the media type of some bytes, guessed from how they begin."""
    for magic, media_type in MAGIC.items():
        if content.startswith(magic):
            return media_type
    return UNKNOWN_BYTES


def read_file(file: io.IOBase) -> Part:
    """Read the rest of an open file into a part with the file's name, and close the file. May block.

    Raises:
        InvalidAgentResponseError: The file is too large.
    """
    source: Any = file  # Any: io.IOBase does not declare `read`
    with file:
        content = source.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise InvalidAgentResponseError(f"The agent's file is larger than {MAX_FILE} bytes")
    name = getattr(file, "name", "")
    filename = ""
    if isinstance(name, str):  # the "name" of an unnamed file is its descriptor, a number
        filename = os.path.basename(name)
    by_name = mimetypes.guess_type(filename)[0]
    if isinstance(content, str):
        return Part(text=content, filename=filename, media_type=by_name or "")
    return Part(raw=content, filename=filename, media_type=by_name or media_type_of(content))


def to_parts(content: Any) -> list[Part]:
    """Convert a value to parts: text to a text part, bytes to a file, None to no part, any other value to data.

    Parts stay as they are.

    Raises:
        InvalidAgentResponseError: The value has no JSON form.

    Example:
        >>> to_parts({"celsius": 21})
        [Part(data={'celsius': 21})]
    """
    match content:
        case None:
            return []
        case Part():
            return [content]
        case str():
            return [Part(text=content)]
        case bytes() | bytearray() | memoryview():
            raw = bytes(content)
            return [Part(raw=raw, media_type=media_type_of(raw))]
        case list() | tuple() if any(isinstance(item, Part) for item in content):
            parts: list[Part] = []
            for item in content:
                parts.extend(to_parts(item))
            return parts
        case _:
            return [Part(data=_to_data(content))]


def _to_data(content: Any) -> Any:
    try:
        data = msgspec.to_builtins(content, str_keys=True, enc_hook=_dump)
        check_finite(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidAgentResponseError(f"The agent's output has no JSON form: {type(content).__name__}") from error
    return data


def _dump(value: Any) -> Any:
    if isinstance(value, str):  # a subclass, which msgspec does not accept
        return str.__str__(value)
    dump = getattr(value, "model_dump", None)  # a pydantic model, recognized without importing pydantic
    if dump is None:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return dump()


def text_of(message: Message, separator: str = "\n") -> str:
    """Return the text parts of a message, joined."""
    return separator.join(part.text for part in message.parts if isinstance(part.text, str))


def question_parts(questions: Sequence[Question], problems: Sequence[str] = ()) -> tuple[Part, ...]:
    """Return the parts of a message that asks questions: in words, and as data.

    Args:
        questions: The questions, at least one.
        problems: Why they are asked again.
    """
    lines = [*problems]
    for number, question in enumerate(questions, 1):
        lines.append(f"{number}. {question.text}" if len(questions) > 1 else question.text)
    hints: list[str] = []
    if any(question.kind == "approval" for question in questions):
        hints.append(HOW_TO_APPROVE)
    if len(questions) > 1:
        hints.append(HOW_TO_ANSWER_SEVERAL)
    words = "\n".join(lines)
    if hints:
        separator = " " if len(questions) == 1 else "\n"
        words = f"{words}{separator}{' '.join(hints)}"
    return (Part(text=words), to_part(questions))


def agent_message(content: Any, *, metadata: dict[str, Any] | None = None) -> Message:
    """Return a message of the agent with `content`, converted by `to_parts`. The engine adds the ids of the task.

    Example:
        >>> agent_message("Hello").role
        <Role.AGENT: 'ROLE_AGENT'>
    """
    if isinstance(content, Message):
        return content
    if isinstance(content, Question):
        parts = question_parts([content])
    else:
        parts = tuple(to_parts(content))
    return Message(message_id=new_id(), role=Role.AGENT, parts=parts, metadata=metadata)
