"""Converts what a caller passes as a message: text, parts, data, a message of either version, or a `Message`."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import Message, Operation, Part, Role, SendMessage, check_finite, encode
from apcore_a2a.protocol.v03 import jsonrpc as v03

Sendable = str | Part | Sequence[Part] | Mapping[str, Any] | Message
SKILL: str = "skillId"  # where our own agents look for it: A2A has no field for the requested skill


def to_message(given: Sendable, *, skill: str | None, context_id: str | None, task_id: str | None) -> Message:
    """Return the message to send, with a new id if it has none.

    Raises:
        ValueError: the message and the arguments name different contexts or tasks, or the data contains NaN or
            infinity, which JSON cannot represent.
        InvalidParamsError: a dict with `parts` is not a valid message. The error names the invalid field.
    """
    message = _convert(given)
    for part in message.parts:
        if part.data is not UNSET:
            _reject_non_finite(part.data)
    metadata = message.metadata
    if skill is not None:
        metadata = {**(metadata or {}), SKILL: skill}  # a new dict: the caller's message is not changed
    return replace(
        message,
        metadata=metadata,
        context_id=_agree("context_id", message.context_id, context_id),
        task_id=_agree("task_id", message.task_id, task_id),
    )


def _convert(given: Sendable) -> Message:
    match given:
        case Message():
            return given
        case str():
            return _from_parts(Part(text=given))
        case Part():
            return _from_parts(given)
        # Every message has parts; plain data with this key must be passed as a Part.
        case Mapping() if "parts" in given:
            return _from_dict(given)
        case Mapping():
            return _from_parts(Part(data=dict(given)))
        case [Part(), *rest] if all(isinstance(part, Part) for part in rest):
            return _from_parts(*given)
    raise TypeError(f"A message is a str, dict, Part, sequence of Parts or Message; got {type(given).__name__}")


def _reject_non_finite(data: object) -> None:
    """Reject NaN and infinity. They would be encoded as null, so that the agent would receive other data."""
    try:
        check_finite(msgspec.to_builtins(data, str_keys=True))
    except ValueError as error:
        raise ValueError("Data must be valid JSON, which has neither NaN nor infinity") from error


def _from_parts(*parts: Part) -> Message:
    return Message(message_id=new_id(), role=Role.USER, parts=parts)


def _from_dict(given: Mapping[str, Any]) -> Message:
    """Decode a JSON message of 1.0 or 0.3. Parts of 0.3 may have `type` instead of `kind`."""
    _reject_non_finite(given)  # before it is encoded
    if _is_of_0_3(given):
        defaults = {"role": "user", "messageId": new_id()}
        request = v03.decode_request(Operation.SEND, encode({"message": {**defaults, **given}}))
    else:
        defaults = {"role": Role.USER, "messageId": new_id()}
        request = v1.decode_request(Operation.SEND, encode({"message": {**defaults, **given}}))
    assert isinstance(request, SendMessage)
    return request.message


def _is_of_0_3(given: Mapping[str, Any]) -> bool:
    # A dict may omit its role, but its parts show the version: only parts of 0.3 name their kind.
    if given.get("role") in ("user", "agent"):
        return True
    parts = given["parts"]
    if not isinstance(parts, list):
        return False
    for part in parts:
        if isinstance(part, dict) and ("kind" in part or "type" in part):
            return True
    return False


def _agree(name: str, in_message: str, argument: str | None) -> str:
    """Return the value from the argument or from the message. Two different values are an error."""
    if argument and in_message and argument != in_message:
        raise ValueError(f"{name} is {in_message!r} in the message, but {argument!r} in the argument")
    return argument or in_message
