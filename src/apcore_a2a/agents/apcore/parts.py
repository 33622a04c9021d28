"""Parts of a message into the inputs of a module, and its output into parts of an artifact.

Rule: values cross as they are: integers exact, nothing shared with what is stored, and what JSON cannot say is refused.
"""

import json
from typing import Any, Final

import msgspec
from msgspec import UNSET
from pydantic import BaseModel, TypeAdapter

from apcore_a2a import errors
from apcore_a2a.agents.apcore.registry import ModuleInfo
from apcore_a2a.agents.apcore.schema import ROOT, file_field, text_field
from apcore_a2a.protocol.decoding import check_depth, decode
from apcore_a2a.protocol.model import Part

APPROVAL_TOKEN: Final = "_approval_token"  # apcore's, and ours alone to give: it would approve whatever call it is in
MAGIC: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
    b"PK\x03\x04": "application/zip",
    b"\x1f\x8b": "application/gzip",
    b"": "application/octet-stream",
}
_JSON: Final = msgspec.json.Decoder()
_check_finite: Final = json.JSONEncoder(allow_nan=False, check_circular=False).encode
_dump_any: Final = TypeAdapter(Any).dump_python

Parts = tuple[Part, ...]


def to_inputs(parts: Parts, module: ModuleInfo) -> tuple[Any, Parts]:
    """Read the first part that fits the module; the others are for its context.

    Raises:
        InvalidParamsError: no part can be read as input of this module.
        ContentTypeNotSupportedError: a file for a module that takes none.
    """
    if not parts:
        raise errors.InvalidParamsError("Message must contain at least one Part")
    index = next((index for index, part in enumerate(parts) if _fits(part, module)), 0)
    inputs = _read(parts[index], module)
    if isinstance(inputs, dict):
        inputs.pop(APPROVAL_TOKEN, None)
    return inputs, parts[:index] + parts[index + 1 :]


def _fits(part: Part, module: ModuleInfo) -> bool:
    schema = module.input_schema
    if part.data is not UNSET:
        return bool(schema)
    return not schema or (file_field if part.text is UNSET else text_field)(schema) is not None


def _read(part: Part, module: ModuleInfo) -> Any:
    schema = module.input_schema
    if part.data is not UNSET:
        if not isinstance(part.data, dict) and schema.get("type", "object") == "object":
            raise _unreadable("The data part must be a JSON object")
        return msgspec.to_builtins(part.data)
    if isinstance(part.text, str):
        return _read_text(part.text, text_field(schema) if schema else "text", any_object=not schema)
    field = file_field(schema) if schema else ROOT
    if field is None:
        raise errors.ContentTypeNotSupportedError(f"Skill {module.id} takes no files")
    content = {"uri": part.url} if part.raw is UNSET else {"bytes": msgspec.to_builtins(part.raw)}
    file = {**content, "name": part.filename, "mimeType": part.media_type}
    return file if field == ROOT else {field: file}


def _read_text(text: str, field: str | None, *, any_object: bool) -> Any:
    if field == ROOT:
        return text
    try:
        check_depth(body := text.encode())
        value = decode(body, _JSON)
    except (errors.A2AError, UnicodeError):
        value = None
    if isinstance(value, dict) and (any_object or field is None or field in value):
        return value
    if field is None:
        raise _unreadable("Invalid JSON in TextPart")
    return {field: text}


def _unreadable(text: str) -> errors.A2AError:
    return errors.InvalidParamsError(text, [errors.Violation("message.parts", text)])


def to_plain(output: Any) -> Any:
    """A copy made of JSON values and bytes, shared with nobody.

    Raises:
        InvalidAgentResponseError: JSON has no form for it.
    """
    try:
        return msgspec.to_builtins(output, str_keys=True, builtin_types=(bytes,), enc_hook=_dump)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.InvalidAgentResponseError("The module's output has no JSON form") from error


def _dump(value: Any) -> Any:
    return value.model_dump() if isinstance(value, BaseModel) else _dump_any(value, mode="json")


def to_parts(plain: Any) -> list[Part]:
    """The parts of an artifact: text stays text, bytes become files, the rest is data."""
    if isinstance(plain, str):
        return [Part(text=plain)]
    named = plain if isinstance(plain, dict) else {"": plain}
    files = {name: value for name, value in named.items() if isinstance(value, bytes)}
    parts = [Part(raw=content, filename=name, media_type=_media_type(content)) for name, content in files.items()]
    if len(files) == len(named) > 0:
        return parts
    data = {name: value for name, value in named.items() if name not in files} if files else plain
    data = msgspec.to_builtins(data)  # bytes further inside become base64
    try:
        _check_finite(data)
    except ValueError as error:
        raise errors.InvalidAgentResponseError(
            "The module's output holds NaN or infinity, which JSON has not"
        ) from error
    return [Part(data=data, media_type="application/json"), *parts]


def _media_type(content: bytes) -> str:
    return next(kind for magic, kind in MAGIC.items() if content.startswith(magic))
