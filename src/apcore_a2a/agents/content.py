"""Converts the output of agents, which may be any Python value, to parts and messages. Asks for approvals.

Invariant: a converted value shares no object with the agent, and integers stay exact. A value without a JSON form is
rejected.
"""

import io
import mimetypes
import os
from typing import Any, Final

import msgspec

from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.model import Message, Part, Role, StatusUpdate, TaskState, TaskStatus, check_finite

# Media types by the first bytes of a file.
MAGIC: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
    b"PK\x03\x04": "application/zip",
    b"\x1f\x8b": "application/gzip",
}
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


def agent_message(content: Any, *, metadata: dict[str, Any] | None = None) -> Message:
    """Return a message of the agent with `content`, converted by `to_parts`. The engine adds the ids of the task.

    Example:
        >>> agent_message("Hello").role
        <Role.AGENT: 'ROLE_AGENT'>
    """
    if isinstance(content, Message):
        return content
    return Message(message_id=new_id(), role=Role.AGENT, parts=tuple(to_parts(content)), metadata=metadata)


# ---- approvals ------------------------------------------------------------------------------------------------------
# Shared by functions and apcore modules.

ANSWERS: Final = {"approve": True, "approved": True, "yes": True, "reject": False, "rejected": False, "no": False}


def read_answer(message: Message) -> bool | None:
    """Whether a reply approves the call. None if it neither approves nor rejects."""
    for part in message.parts:
        if isinstance(part.data, dict) and isinstance(part.data.get("approved"), bool):
            return bool(part.data["approved"])
        if isinstance(part.text, str):
            word = part.text.strip().lower()
            if word in ANSWERS:
                return ANSWERS[word]
    return None


def approval_required(what: str, *, skill_id: str, approval_id: str | None) -> StatusUpdate:
    """Return the INPUT_REQUIRED status that asks the caller to approve or reject a call of `what`."""
    text = f'Approval required for {what}. Reply "approve" or "reject".'
    message = agent_message(text, metadata={"approvalId": approval_id, "skillId": skill_id})
    return StatusUpdate(status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=message))


def rejected(text: str) -> StatusUpdate:
    """Return the REJECTED status that ends a task without approval. FAILED would suggest a run, and a useful retry."""
    return StatusUpdate(status=TaskStatus(state=TaskState.REJECTED, message=agent_message(text)))
