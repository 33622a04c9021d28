"""What a caller may hand over as a message: a string, parts, data, a message of either version, or a `Message`."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import Message, Part, Role, SendMessage, encode
from apcore_a2a.protocol.operations import Operation
from apcore_a2a.protocol.v03 import jsonrpc as v03

Sendable = str | Part | Sequence[Part] | Mapping[str, Any] | Message
SKILL: str = "skillId"


def to_message(given: Sendable, *, skill: str | None, context_id: str | None, task_id: str | None) -> Message:
    """The message to send, with a fresh id if it has none.

    Raises:
        ValueError: the message says one context or task, and the arguments another.
        InvalidParamsError: a dict that looks like a message is none; the error names the wrong field.
    """
    message = _convert(given)
    metadata = message.metadata if skill is None else {**(message.metadata or {}), SKILL: skill}
    return replace(
        message,
        metadata=metadata,
        context_id=_agreed("context_id", message.context_id, context_id),
        task_id=_agreed("task_id", message.task_id, task_id),
    )


def _convert(given: Sendable) -> Message:
    match given:
        case Message():
            return given
        case str():
            return _from_parts(Part(text=given))
        case Part():
            return _from_parts(given)
        case Mapping() if "parts" in given:
            return _from_dict(given)
        case Mapping():
            return _from_parts(Part(data=dict(given)))
        case [Part(), *rest] if all(isinstance(part, Part) for part in rest):
            return _from_parts(*given)
    raise TypeError(f"A message is a str, dict, Part, sequence of Parts or Message; got {type(given).__name__}")


def _from_parts(*parts: Part) -> Message:
    return Message(message_id=new_id(), role=Role.USER, parts=parts)


def _from_dict(given: Mapping[str, Any]) -> Message:
    """A message as JSON: of 1.0; or of 0.3 and the requirements' dialect, with `kind`, `type` or "role": "user"."""
    parts = given["parts"]
    tagged = isinstance(parts, list) and any(
        isinstance(part, dict) and {"kind", "type"} & part.keys() for part in parts
    )
    old = tagged or given.get("role") in ("user", "agent")
    defaults = {"role": "user" if old else Role.USER, "messageId": new_id()}
    body = encode({"message": {**defaults, **given}})
    request = (v03 if old else v1).decode_request(Operation.SEND, body)
    assert isinstance(request, SendMessage)
    return request.message


def _agreed(name: str, said: str, given: str | None) -> str:
    if given and said and given != said:
        raise ValueError(f"The message says {name} {said!r}, the argument {given!r}")
    return given or said
