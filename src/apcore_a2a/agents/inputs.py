"""Parts of a message into the inputs of a skill, be it a function or an apcore module.

Rule: values cross as they are: integers exact, those that came as floats included (`integers`); nothing is shared with
what is stored.
"""

from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET

from apcore_a2a import errors
from apcore_a2a.agents.integers import IntegerSchema
from apcore_a2a.agents.schema import ROOT, Schema, file_field, text_field
from apcore_a2a.protocol.decoding import check_tree, decode
from apcore_a2a.protocol.model import Part

_JSON: Final = msgspec.json.Decoder()


class TakesInputs(Protocol):
    """What is asked of a skill to read its inputs. The schema is empty where the skill has none."""

    @property
    def id(self) -> str: ...

    @property
    def input_schema(self) -> Schema: ...

    @property
    def integers(self) -> IntegerSchema: ...


def read_inputs(parts: tuple[Part, ...], skill: TakesInputs) -> tuple[Any, tuple[Part, ...]]:
    """Read the first part that fits the skill; the others are for its context.

    Raises:
        InvalidParamsError: no part can be read as input of this skill.
        ContentTypeNotSupportedError: a file for a skill that takes none.
    """
    if not parts:
        raise errors.InvalidParamsError("Message must contain at least one Part")
    chosen = 0  # where none fits, the error is about the first
    for index, part in enumerate(parts):
        if _fits(part, skill):
            chosen = index
            break
    inputs = skill.integers.restore(_read(parts[chosen], skill))
    return inputs, parts[:chosen] + parts[chosen + 1 :]


def _fits(part: Part, skill: TakesInputs) -> bool:
    schema = skill.input_schema
    if part.data is not UNSET:
        return bool(schema)
    if not schema:
        return True
    if part.text is not UNSET:
        return text_field(schema) is not None
    return file_field(schema) is not None


def _read(part: Part, skill: TakesInputs) -> Any:
    schema = skill.input_schema
    if part.data is not UNSET:
        if not isinstance(part.data, dict) and schema.get("type", "object") == "object":
            raise _unreadable("The data part must be a JSON object")
        return msgspec.to_builtins(part.data)  # a copy: skills change their inputs
    if isinstance(part.text, str):
        if not schema:
            return _read_text(part.text, "text", any_object=True)
        return _read_text(part.text, text_field(schema), any_object=False)
    return _read_file(part, skill)


def _read_text(text: str, field: str | None, *, any_object: bool) -> Any:
    """Text as the inputs themselves if it is JSON, else as the value of `field`."""
    if field == ROOT:
        return text
    value = _parse_json(text)
    # An object without the only property there is would be refused. The text of a question may well be JSON.
    if isinstance(value, dict) and (any_object or field is None or field in value):
        return value
    if field is None:
        raise _unreadable("Invalid JSON in TextPart")
    return {field: text}


def _parse_json(text: str) -> Any:
    """What the text says in JSON; None if that is nothing, or too much or too deep to be touched."""
    try:
        body = text.encode()
        check_tree(body)
        return decode(body, _JSON)
    except (errors.A2AError, UnicodeError):
        return None


def _read_file(part: Part, skill: TakesInputs) -> Any:
    field: str | None = ROOT
    if skill.input_schema:
        field = file_field(skill.input_schema)
    if field is None:
        raise errors.ContentTypeNotSupportedError(f"Skill {skill.id} takes no files")
    file: dict[str, Any] = {}
    if part.raw is UNSET:
        file["uri"] = part.url
    else:
        file["bytes"] = msgspec.to_builtins(part.raw)  # base64
    file["name"] = part.filename
    file["mimeType"] = part.media_type
    if field == ROOT:
        return file
    return {field: file}


def _unreadable(text: str) -> errors.A2AError:
    return errors.InvalidParamsError(text, [errors.Violation("message.parts", text)])
