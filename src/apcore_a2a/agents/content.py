"""Python values as parts and messages, for agents written by hand.

Rule: values cross as they are: integers exact, nothing shared with the agent, and what JSON cannot say is refused.
"""

from typing import Any

import msgspec

from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.model import Message, Part, Role, check_finite


def to_parts(content: Any) -> list[Part]:
    """Text as text, bytes as a file, parts as they are, None as nothing, anything else as data.

    Raises:
        InvalidAgentResponseError: JSON has no form for it.

    Example:
        >>> to_parts({"celsius": 21})
        [Part(text=UNSET, raw=UNSET, url=UNSET, data={'celsius': 21}, metadata=None, filename='', media_type='')]
    """
    match content:
        case None:
            return []
        case Part():
            return [content]
        case str():
            return [Part(text=content)]
        case bytes() | bytearray() | memoryview():
            return [Part(raw=bytes(content))]
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


def agent_message(content: Any, *, metadata: dict[str, Any] | None = None) -> Message:
    """What the agent says: `content` as `to_parts` reads it. The engine adds the task it belongs to.

    Example:
        >>> agent_message("Hello").role
        <Role.AGENT: 'ROLE_AGENT'>
    """
    if isinstance(content, Message):
        return content
    return Message(message_id=new_id(), role=Role.AGENT, parts=tuple(to_parts(content)), metadata=metadata)
