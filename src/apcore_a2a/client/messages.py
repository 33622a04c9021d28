"""What a caller may hand over as a message: a string, parts, data, a message of either version, or a `Message`."""

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
SKILL: str = "skillId"  # where our own agents look for it; A2A has no field for the skill that is meant


def to_message(given: Sendable, *, skill: str | None, context_id: str | None, task_id: str | None) -> Message:
    """The message to send, with a fresh id if it has none.

    Raises:
        ValueError: the message says one context or task, and the arguments another; or its data has a number that JSON
            has not.
        InvalidParamsError: a dict that looks like a message is none; the error names the wrong field.
    """
    message = _convert(given)
    for part in message.parts:
        if part.data is not UNSET:
            _refuse_endless_numbers(part.data)
    metadata = message.metadata
    if skill is not None:
        metadata = {**(metadata or {}), SKILL: skill}  # a new one: the caller's own message stays as it is
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
        case Mapping() if "parts" in given:  # no message is without; data that has it goes in a Part
            return _from_dict(given)
        case Mapping():
            return _from_parts(Part(data=dict(given)))
        case [Part(), *rest] if all(isinstance(part, Part) for part in rest):
            return _from_parts(*given)
    raise TypeError(f"A message is a str, dict, Part, sequence of Parts or Message; got {type(given).__name__}")


def _refuse_endless_numbers(data: object) -> None:
    """NaN and infinity would be written as null: the agent would get something else than was sent."""
    try:
        check_finite(msgspec.to_builtins(data, str_keys=True))
    except ValueError as error:
        raise ValueError("Data is JSON, which has neither NaN nor infinity") from error


def _from_parts(*parts: Part) -> Message:
    return Message(message_id=new_id(), role=Role.USER, parts=parts)


def _from_dict(given: Mapping[str, Any]) -> Message:
    """A message as JSON: of 1.0; or of 0.3 and the requirements' dialect, with `kind`, `type` or "role": "user"."""
    _refuse_endless_numbers(given)  # before it is written
    if _is_of_0_3(given):
        defaults = {"role": "user", "messageId": new_id()}
        request = v03.decode_request(Operation.SEND, encode({"message": {**defaults, **given}}))
    else:
        defaults = {"role": Role.USER, "messageId": new_id()}
        request = v1.decode_request(Operation.SEND, encode({"message": {**defaults, **given}}))
    assert isinstance(request, SendMessage)
    return request.message


def _is_of_0_3(given: Mapping[str, Any]) -> bool:
    # A dict may leave out its role, but its parts tell as well: those of 1.0 carry no tag.
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
    """The one of two values that is given; a message for another conversation than the caller means is an error."""
    if argument and in_message and argument != in_message:
        raise ValueError(f"The message says {name} {in_message!r}, the argument {argument!r}")
    return argument or in_message
