"""Answers of agents that mix the forms of A2A 0.3 and 1.0, rewritten as the JSON of 1.0. Only the client reads these.

Some servers move to 1.0 step by step. LangGraph's server, for example, wraps the first event of a stream as 1.0 does,
and sends the other ones as 0.3 does, with `kind`, but with the states and roles of 1.0. The name of the version in the
card then says little about an answer.

Invariant: only names are translated. Data and metadata stay as they are, and a value that fits no form is rejected by
the decoder of 1.0.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.protocol import decoding, v1
from apcore_a2a.protocol.model import Operation, encode
from apcore_a2a.protocol.v03 import values

Json = dict[str, Any]  # decoded JSON of an agent

_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)
_MEMBERS: Final = {
    "task": "task",
    "message": "message",
    "status-update": "statusUpdate",
    "artifact-update": "artifactUpdate",
}


def decode_result(operation: Operation, data: bytes | Raw, left_out: list[str]) -> Any:  # Any: as in the dialects
    """Return a task, a page of tasks or an event in any mix of forms. Raises the errors of `v1.decode_result`."""
    value = decoding.decode(data, _ANY)
    if not isinstance(value, dict):
        raise InvalidAgentResponseError("The agent's answer is not an object")
    if operation is Operation.SEND:
        value = _wrap(value)
    elif operation is Operation.LIST and "tasks" not in value:  # in 1.0 an empty page may omit them
        raise InvalidAgentResponseError("The agent's answer is not a page of tasks")
    elif isinstance(value.get("task"), dict):
        value = value["task"]
    return v1.decode_result(operation, encode(_translate(value)), left_out)


def _wrap(value: Json) -> Json:
    """Return an event with the wrapper of 1.0: an object with one member, named after the type of its value."""
    member = _MEMBERS.get(str(value.get("kind"))) or _guess_member(value)
    if member:
        return {member: value}
    return value


def _guess_member(value: Json) -> str:
    """Return the type of an event without wrapper and `kind`, from its fields, or "" for one with its wrapper."""
    if "artifact" in value:
        return "artifactUpdate"
    if "status" in value:
        return "task" if "id" in value else "statusUpdate"
    if "parts" in value:
        return "message"
    return ""


_DEPTH: Final = 6  # a page or a wrapper, a task, its status, the message of that, its parts
_VALUES: Final = ("task", "message", "statusUpdate", "artifactUpdate", "status", "artifact")  # fields with one value
_LISTS: Final = ("tasks", "artifacts", "history")  # fields with several


def _translate(value: Any, levels: int = _DEPTH) -> Any:
    """Return an object of the model with the names of 1.0, and likewise the objects in it."""
    if not isinstance(value, dict) or levels == 0:
        return value
    translated = dict(value)
    for name in _VALUES:
        if name in value:
            translated[name] = _translate(value[name], levels - 1)
    for name in _LISTS:
        if isinstance(value.get(name), list):
            translated[name] = [_translate(item, levels - 1) for item in value[name]]
    if isinstance(value.get("parts"), list):
        translated["parts"] = [_translate_part(part) for part in value["parts"]]
    state = value.get("state")
    if isinstance(state, str) and state in values.STATES:
        translated["state"] = values.STATES[state].value
    role = value.get("role")
    if isinstance(role, str) and role in values.ROLES:
        translated["role"] = values.ROLES[role].value
    return translated


_FILE_FIELDS: Final = {"bytes": "raw", "uri": "url", "name": "filename", "mimeType": "mediaType"}


def _translate_part(part: Any) -> Any:
    """Return a part with the fields of 1.0. A file of 0.3 is an object of its own."""
    if not isinstance(part, dict) or not isinstance(part.get("file"), dict):
        return part
    file = part["file"]
    translated = {name: item for name, item in part.items() if name not in ("file", "kind")}
    for name, new_name in _FILE_FIELDS.items():
        if file.get(name) is not None:
            translated[new_name] = file[name]
    if "raw" in translated:  # 1.0 has one of them, and the content needs no download
        translated.pop("url", None)
    return translated
