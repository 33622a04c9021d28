"""Parts of a message into the inputs of a skill, be it a function or an apcore module.

Rule: values cross as they are: integers exact, those that came as floats included (`integers`); nothing is shared with
what is stored.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET

from apcore_a2a import errors
from apcore_a2a.agents.integers import IntegerSchema
from apcore_a2a.agents.schema import ROOT, Schema, file_field, is_base64, text_field
from apcore_a2a.protocol.decoding import check_tree, decode
from apcore_a2a.protocol.model import Part

MAX_VIOLATIONS: Final = 50  # that an error names
MAX_TEXT: Final = 300  # characters of each: it may repeat what a client sent
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
        field = text_field(schema)
        inputs = _read_text(part.text, field, any_object=field is None)
        if inputs is None:
            names = ", ".join(schema.get("properties", {}))
            raise _unreadable("Invalid JSON in TextPart", f"Skill {skill.id} takes a JSON object with {names}")
        return inputs
    return _read_file(part, skill)


def _read_text(text: str, field: str | None, *, any_object: bool) -> Any:
    """Text as the inputs themselves if it is JSON, else as the value of `field`; None if it can be neither."""
    if field == ROOT:
        return text
    value = _parse_json(text)
    # An object without the field that text goes to would be refused. The text of a question may well be JSON.
    if isinstance(value, dict) and (any_object or field in value):
        return value
    if field is None:
        return None
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
    if is_base64(skill.input_schema, field):
        file = _read_content(part, skill)
    else:
        file = _describe_file(part)
    if field == ROOT:
        return file
    return {field: file}


def _read_content(part: Part, skill: TakesInputs) -> Any:
    if part.raw is UNSET:
        raise errors.ContentTypeNotSupportedError(f"Skill {skill.id} takes the content of files, and no addresses")
    return msgspec.to_builtins(part.raw)  # base64


def _describe_file(part: Part) -> dict[str, Any]:
    file: dict[str, Any] = {}
    if part.raw is UNSET:
        file["uri"] = part.url
    else:
        file["bytes"] = msgspec.to_builtins(part.raw)
    file["name"] = part.filename
    file["mimeType"] = part.media_type
    return file


def fill_in(inputs: dict[str, Any], rest: tuple[Part, ...], skill: TakesInputs) -> None:
    """Put the first text and the first file of the parts that are left where nothing was given."""
    for part in rest:
        if isinstance(part.text, str):
            field = text_field(skill.input_schema)
            if field and field not in inputs:
                inputs[field] = part.text
        elif part.data is UNSET:
            field = file_field(skill.input_schema)
            if field and field not in inputs:
                inputs |= _read_file(part, skill)


def refuse_inputs(violations: Sequence[errors.Violation]) -> errors.InvalidParamsError:
    """The error that names each wrong field, as many as anybody reads: a client may send any number of them."""
    named: list[errors.Violation] = []
    texts: list[str] = []
    for field, message, code in violations[:MAX_VIOLATIONS]:
        shown = errors.Violation(field[:MAX_TEXT], message[:MAX_TEXT], code)
        named.append(shown)
        texts.append(f"{shown.field}: {shown.message}" if shown.field else shown.message)
    text = f"Invalid parameters: {'; '.join(texts[:3])}"  # for people
    return errors.InvalidParamsError(text, named, kind="SchemaValidationError")


def _unreadable(text: str, hint: str = "") -> errors.A2AError:
    return errors.InvalidParamsError(text, [errors.Violation("message.parts", hint or text)])
