"""Python values as parts and messages, for agents written by hand.

Rule: values cross as they are: integers exact, nothing shared with the agent, and what JSON cannot say is refused.
"""

import io
import mimetypes
import os
from typing import Any, Final

import msgspec

from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.model import Message, Part, Role, StatusUpdate, TaskState, TaskStatus, check_finite

# What a file is, by its first bytes.
MAGIC: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
    b"PK\x03\x04": "application/zip",
    b"\x1f\x8b": "application/gzip",
}
UNKNOWN_BYTES: Final = "application/octet-stream"
MAX_FILE: Final = 64 * 1024 * 1024  # bytes of a file object that we read into memory


def media_type_of(content: bytes) -> str:
    """What some bytes are, by how they begin."""
    for magic, media_type in MAGIC.items():
        if content.startswith(magic):
            return media_type
    return UNKNOWN_BYTES


def read_file(file: io.IOBase) -> Part:
    """What is left of an open file, as a part with the file's name; it is closed then. It may block.

    Raises:
        InvalidAgentResponseError: it is too large.
    """
    source: Any = file  # Any: `read` is not among the methods that all of them promise
    with file:
        content = source.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise InvalidAgentResponseError(f"The agent's file is larger than {MAX_FILE} bytes")
    name = getattr(file, "name", "")
    filename = ""
    if isinstance(name, str):  # a file without a name has a number
        filename = os.path.basename(name)
    by_name = mimetypes.guess_type(filename)[0]
    if isinstance(content, str):
        return Part(text=content, filename=filename, media_type=by_name or "")
    return Part(raw=content, filename=filename, media_type=by_name or media_type_of(content))


def to_parts(content: Any) -> list[Part]:
    """Text as text, bytes as a file, parts as they are, None as nothing, anything else as data.

    Raises:
        InvalidAgentResponseError: JSON has no form for it.

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
    dump = getattr(value, "model_dump", None)  # pydantic's, which is not imported for that
    if dump is None:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return dump()


def text_of(message: Message, separator: str = "\n") -> str:
    """The text parts of a message, joined."""
    return separator.join(part.text for part in message.parts if isinstance(part.text, str))


def has_text(message: Message) -> bool:
    """Whether a message has a text part, if only an empty one."""
    return any(isinstance(part.text, str) for part in message.parts)


def agent_message(content: Any, *, metadata: dict[str, Any] | None = None) -> Message:
    """What the agent says: `content` as `to_parts` reads it. The engine adds the task it belongs to.

    Example:
        >>> agent_message("Hello").role
        <Role.AGENT: 'ROLE_AGENT'>
    """
    if isinstance(content, Message):
        return content
    return Message(message_id=new_id(), role=Role.AGENT, parts=tuple(to_parts(content)), metadata=metadata)


# ---- approvals ------------------------------------------------------------------------------------------------------
# What a task says that waits for an approval, and how a reply is read; for functions and apcore modules alike.

ANSWERS: Final = {"approve": True, "approved": True, "yes": True, "reject": False, "rejected": False, "no": False}


def read_answer(message: Message) -> bool | None:
    """Whether a reply approves; None if it says neither yes nor no."""
    for part in message.parts:
        if isinstance(part.data, dict) and isinstance(part.data.get("approved"), bool):
            return bool(part.data["approved"])
        if isinstance(part.text, str):
            word = part.text.strip().lower()
            if word in ANSWERS:
                return ANSWERS[word]
    return None


def approval_required(what: str, *, skill_id: str, approval_id: str | None) -> StatusUpdate:
    """Wait for the caller's yes or no to a call of what is named."""
    text = f'Approval required for {what}. Reply "approve" or "reject".'
    message = agent_message(text, metadata={"approvalId": approval_id, "skillId": skill_id})
    return StatusUpdate(status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=message))


def rejected(text: str) -> StatusUpdate:
    """The end of a task that was not approved. It is not FAILED: nothing was run, and trying again will not help."""
    return StatusUpdate(status=TaskStatus(state=TaskState.REJECTED, message=agent_message(text)))
