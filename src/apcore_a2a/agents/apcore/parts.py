"""Parts of a message into the inputs of a module, and its output into parts of an artifact.

Rule: values cross as they are: integers exact, those that came as floats included (`integers`); nothing is shared with
what is stored, and what JSON cannot say is refused.
"""

from typing import Any, Final

import msgspec
from msgspec import UNSET
from pydantic import BaseModel, TypeAdapter

from apcore_a2a import errors
from apcore_a2a.agents.apcore.approvals import TOKEN
from apcore_a2a.agents.apcore.modules import ModuleInfo
from apcore_a2a.agents.apcore.schema import ROOT, file_field, text_field
from apcore_a2a.protocol.decoding import check_tree, decode
from apcore_a2a.protocol.model import Part, check_finite

# What a file is, by its first bytes.
MAGIC: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
    b"PK\x03\x04": "application/zip",
    b"\x1f\x8b": "application/gzip",
}
_JSON: Final = msgspec.json.Decoder()
_dump_any: Final = TypeAdapter(Any).dump_python


# ---- inputs ----------------------------------------------------------------------------------------------------------


def to_inputs(parts: tuple[Part, ...], module: ModuleInfo) -> tuple[Any, tuple[Part, ...]]:
    """Read the first part that fits the module; the others are for its context.

    Raises:
        InvalidParamsError: no part can be read as input of this module.
        ContentTypeNotSupportedError: a file for a module that takes none.
    """
    if not parts:
        raise errors.InvalidParamsError("Message must contain at least one Part")
    chosen = 0  # where none fits, the error is about the first
    for index, part in enumerate(parts):
        if _fits(part, module):
            chosen = index
            break
    inputs = module.integers.restore(_read(parts[chosen], module))
    if isinstance(inputs, dict):
        inputs.pop(TOKEN, None)  # a client that sends one has not been approved
    return inputs, parts[:chosen] + parts[chosen + 1 :]


def _fits(part: Part, module: ModuleInfo) -> bool:
    schema = module.input_schema
    if part.data is not UNSET:
        return bool(schema)
    if not schema:
        return True
    if part.text is not UNSET:
        return text_field(schema) is not None
    return file_field(schema) is not None


def _read(part: Part, module: ModuleInfo) -> Any:
    schema = module.input_schema
    if part.data is not UNSET:
        if not isinstance(part.data, dict) and schema.get("type", "object") == "object":
            raise _unreadable("The data part must be a JSON object")
        return msgspec.to_builtins(part.data)  # a copy: modules change their inputs
    if isinstance(part.text, str):
        if not schema:
            return _read_text(part.text, "text", any_object=True)
        return _read_text(part.text, text_field(schema), any_object=False)
    return _read_file(part, module)


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


def _read_file(part: Part, module: ModuleInfo) -> Any:
    field: str | None = ROOT
    if module.input_schema:
        field = file_field(module.input_schema)
    if field is None:
        raise errors.ContentTypeNotSupportedError(f"Skill {module.id} takes no files")
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


# ---- outputs ---------------------------------------------------------------------------------------------------------


def copy_output(output: Any) -> Any:
    """A copy made of JSON values and bytes, shared with nobody.

    Raises:
        InvalidAgentResponseError: JSON has no form for it.
    """
    try:
        return msgspec.to_builtins(output, str_keys=True, builtin_types=(bytes,), enc_hook=_dump)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.InvalidAgentResponseError("The module's output has no JSON form") from error


def _dump(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    return _dump_any(value, mode="json")


def output_parts(output: Any) -> list[Part]:
    """The parts of an artifact, from what `copy_output` made: text stays text, bytes become files, the rest is data.

    Raises:
        InvalidAgentResponseError: it holds NaN or infinity.
    """
    if isinstance(output, str):
        return [Part(text=output)]
    if isinstance(output, bytes):
        return [_file("", output)]
    if not isinstance(output, dict):
        return [_data(output)]
    files: list[Part] = []
    rest: dict[str, Any] = {}
    for name, value in output.items():
        if isinstance(value, bytes):
            files.append(_file(name, value))
        else:
            rest[name] = value
    if files and not rest:
        return files
    return [_data(rest), *files]


def _file(name: str, content: bytes) -> Part:
    return Part(raw=content, filename=name, media_type=_media_type(content))


def _media_type(content: bytes) -> str:
    for magic, media_type in MAGIC.items():
        if content.startswith(magic):
            return media_type
    return "application/octet-stream"


def _data(output: Any) -> Part:
    data = msgspec.to_builtins(output)  # bytes further inside become base64
    try:
        check_finite(data)
    except ValueError as error:
        text = "The module's output holds NaN or infinity, which JSON has not"
        raise errors.InvalidAgentResponseError(text) from error
    return Part(data=data, media_type="application/json")
