"""What agents say, as parts, messages and events: any Python value, questions, and the output of a run (`TaskOutput`).

Invariant: a converted value shares no object with the agent, and integers stay exact. A value without a JSON form is
rejected.
"""

import io
import mimetypes
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from apcore_a2a.agent import ShowTools, ToolCalled, ToolDone
from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.lifecycle import PROGRESS
from apcore_a2a.protocol.model import (
    Message,
    Part,
    Role,
    StatusUpdate,
    TaskState,
    TaskStatus,
    check_finite,
)
from apcore_a2a.protocol.questions import PART_TYPE, Question, to_part

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
MAX_WORDS: Final = 300  # characters of the arguments of a call in words
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
            return [Part(data=to_data(content))]


def to_data(content: Any) -> Any:
    """Return a value as JSON data, copied.

    Raises:
        InvalidAgentResponseError: The value has no JSON form.
    """
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


# ---- questions ------------------------------------------------------------------------------------------------------


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


def questions_message(
    questions: Sequence[Question], problems: Sequence[str] = (), *, metadata: Mapping[str, Any] | None = None
) -> Message:
    """Return the message that asks these questions, in words and as data.

    Args:
        questions: The questions, at least one.
        problems: Why they are asked again.
        metadata: Further metadata of the message.

    Raises:
        ValueError: Two questions have the same id, or there is none.
    """
    if len({question.id for question in questions}) < max(len(questions), 1):
        raise ValueError("there must be a question, and each needs an id of its own")
    extra = dict(metadata or {})
    if all(question.kind == "approval" for question in questions):
        extra.setdefault("approvalId", questions[0].id)  # for clients that do not read the data
        extra.setdefault("skillId", questions[0].tool)
    parts = question_parts(questions, problems)
    return Message(message_id=new_id(), role=Role.AGENT, parts=parts, metadata=extra or None)


def ask_questions(
    questions: Sequence[Question], problems: Sequence[str] = (), *, metadata: Mapping[str, Any] | None = None
) -> StatusUpdate:
    """Return the INPUT_REQUIRED status that asks these questions."""
    message = questions_message(questions, problems, metadata=metadata)
    return StatusUpdate(status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=message))


def call_in_words(arguments: Any) -> str:
    """Return the arguments of a call as a program writes them, truncated."""
    if isinstance(arguments, Mapping):
        text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    else:
        text = "" if arguments is None else str(arguments)
    if len(text) > MAX_WORDS:
        return f"{text[:MAX_WORDS]}…"
    return text


ADK_TYPE: Final = "adk_type"  # the convention of ADK, by which its clients recognise the calls of tools
MAX_RESULT: Final = 16 * 1024  # bytes of the arguments or the result of a tool that a status shows


# ---- tools ----------------------------------------------------------------------------------------------------------


def tool_status(said: ToolCalled | ToolDone, show: ShowTools) -> StatusUpdate:
    """Return the status of the working task that shows a call of a tool, in words and as data.

    It is progress: the next status replaces it, and it is not kept in the history.
    """
    shown: dict[str, Any] = {"id": said.id, "name": said.name}
    if isinstance(said, ToolCalled):
        kind = ("tool_call", "function_call")
        text = said.name
        if show != "names":
            shown["args"] = _bounded(said.arguments)
            text = f"{said.name}({call_in_words(said.arguments)})"
    else:
        kind = ("tool_result", "function_response")
        text = f"{said.name} failed" if said.failed else f"{said.name} done"
        if show == "results" and said.result is not None:
            shown["response"] = {"error" if said.failed else "result": _bounded(said.result)}
        elif said.failed:
            shown["response"] = {"error": "failed"}
    data = Part(data=shown, metadata={PART_TYPE: kind[0], ADK_TYPE: kind[1]})
    message = agent_message([Part(text=text), data], metadata={PROGRESS: None})
    return StatusUpdate(status=TaskStatus(state=TaskState.WORKING, message=message))


def _bounded(value: Any) -> Any:
    """Return a value as JSON, or the beginning of its text if it is large or has no JSON form."""
    try:
        data = to_data(value)
    except InvalidAgentResponseError:
        return str(value)[:MAX_RESULT]
    if isinstance(data, str):
        return data[:MAX_RESULT]
    text = str(data)
    if len(text) > MAX_RESULT:
        return text[:MAX_RESULT]
    return data
