"""The published schemas of an agent's skills: signatures for people, and typed inputs from `NAME=VALUE` words.

An agent of this package publishes the schemas in an extension of its card. Other agents only name media types.
"""

import base64
import mimetypes
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli.options import NOT_JSON
from apcore_a2a.protocol.card import AgentCard, AgentSkill

MODULES: Final = "urn:apcore:a2a:modules:1"
WORD: Final = re.compile(r"([^\W\d][\w.-]*)=(.*)", re.DOTALL)
MAX_DEPTH: Final = 8  # a schema may be recursive
_MEDIA: Final = {"text/plain": "text", "application/json": "data"}
_BOOLEANS: Final = {"true": True, "false": False}

Schema = dict[str, Any]  # Any: the JSON Schema of an agent


# ---- schemas --------------------------------------------------------------------------------------------------------


def published(card: AgentCard, skill_id: str) -> dict[str, Any]:
    """Return the data of a skill in the card's extension: its schemas and annotations."""
    for extension in card.capabilities.extensions:
        if extension.uri == MODULES:
            skills = _record((extension.params or {}).get("skills"))
            return _record(skills.get(skill_id))
    return {}


def _record(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _resolve(schema: Schema, root: Schema, depth: int = 0) -> Schema:
    """Return a schema without its reference, and without null among its alternatives."""
    if depth > MAX_DEPTH:
        return {}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        found: Any = root
        for step in reference.split("/")[1:]:
            found = _record(found).get(step)
        return _resolve(_record(found), root, depth + 1)
    return schema


def _alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """Return the schemas one of which a value must match: one for each type."""
    schema = _resolve(schema, root)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list):
        return [_resolve(_record(choice), root) for choice in choices]
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [{**schema, "type": kind} for kind in kinds]
    return [schema]


def _is_file(schema: Schema) -> bool:
    """Return whether the value is an A2A file: an object with its bytes and its name."""
    names = _record(schema.get("properties"))
    return "bytes" in names and names.keys() <= {"bytes", "uri", "url", "name", "filename", "mimeType", "mediaType"}


# ---- signatures -----------------------------------------------------------------------------------------------------


def signature(skill: AgentSkill, card: AgentCard) -> str:
    """Return a skill as a function: `add(a: integer, b: integer) → integer`."""
    described = published(card, skill.id)
    inputs = _record(described.get("inputSchema"))
    outputs = _record(described.get("outputSchema"))
    if inputs.get("properties"):
        parameters = ", ".join(_parameters(inputs))
    else:
        parameters = _media_names(skill.input_modes or card.default_input_modes)
    if outputs:
        result = type_name(outputs, outputs)
    else:
        result = _media_names(skill.output_modes or card.default_output_modes)
    line = f"{skill.id}({parameters})"
    if result:
        line += f" → {result}"
    return line


def _parameters(inputs: Schema) -> list[str]:
    required = inputs.get("required") or ()
    found: list[str] = []
    for name, schema in _record(inputs["properties"]).items():
        schema = _record(schema)
        text = f"{name}: {type_name(schema, inputs)}"
        if "default" in schema:
            text += f" = {msgspec.json.encode(schema['default']).decode()}"
        elif name not in required:
            text = f"{name}?: {type_name(schema, inputs)}"
        found.append(text)
    return found


def _media_names(modes: Sequence[str]) -> str:
    return " or ".join(_MEDIA.get(mode, mode) for mode in modes)


def type_name(schema: Schema, root: Schema, depth: int = 0) -> str:
    """Return the type in the words of JSON Schema: `integer`, `array of string`, `"a" or "b"`."""
    names: list[str] = []
    for alternative in _alternatives(schema, root):
        name = _one_type_name(alternative, root, depth)
        if name not in names:
            names.append(name)
    return " or ".join(names)


def _one_type_name(schema: Schema, root: Schema, depth: int) -> str:
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if isinstance(choices, list):
        return " or ".join(msgspec.json.encode(choice).decode() for choice in choices)
    if _is_file(schema) or schema.get("format") == "binary" or schema.get("contentEncoding") == "base64":
        return "file"
    kind = schema.get("type")
    if kind == "array" and depth < MAX_DEPTH and schema.get("items"):
        return f"array of {type_name(_record(schema['items']), root, depth + 1)}"
    return kind if isinstance(kind, str) else "any"


# ---- inputs ---------------------------------------------------------------------------------------------------------


def looks_typed(words: Sequence[str]) -> bool:
    """Return whether all words look like `NAME=VALUE`."""
    return bool(words) and all(WORD.fullmatch(word) for word in words)


def read_inputs(words: Sequence[str], skill: AgentSkill, card: AgentCard) -> dict[str, Any] | None:
    """Return the inputs of a skill from `NAME=VALUE` words, each with the type of its schema.

    A name that is given several times is an array. Returns None if the words are a text for this skill: the agent
    publishes no schema of it, or the skill reads text and has no input of that name.

    Raises:
        click.UsageError: a name or a value does not fit the schema.
    """
    root = _record(published(card, skill.id).get("inputSchema"))
    properties = _record(root.get("properties"))
    if not properties:
        return None
    is_known = words[0].partition("=")[0] in properties
    if len(words) == 1 and not is_known and "text/plain" in skill.input_modes:
        return None
    return read_properties(words, root, owner=clean_line(skill.id))


def read_properties(words: Sequence[str], root: Schema, *, owner: str) -> dict[str, Any]:
    """Return an object of this schema from `NAME=VALUE` words. `owner` is what the errors call the object.

    Raises:
        click.UsageError: a name or a value does not fit the schema.
    """
    properties = _record(root.get("properties"))
    given: dict[str, list[str]] = {}
    for word in words:
        name, _, value = word.partition("=")
        given.setdefault(name, []).append(value)
    found: dict[str, Any] = {}
    for name, values in given.items():
        if name not in properties and root.get("additionalProperties") in (None, False):
            raise click.UsageError(_unknown_name(name, owner, list(properties)))
        found[name] = _read_values(name, values, _record(properties.get(name)), root)
    return found


def _unknown_name(name: str, owner: str, known: list[str]) -> str:
    text = f"{owner} has no input {name!r}."
    near = get_close_matches(name, known, n=1)
    if near:
        text += f" Did you mean {clean_line(near[0])!r}?"
    return f"{text} It has: {clean_line(', '.join(known))}."


def _read_values(name: str, values: list[str], schema: Schema, root: Schema) -> Any:  # Any: a value of the schema
    for alternative in _alternatives(schema, root):
        if alternative.get("type") == "array" and not (len(values) == 1 and values[0].lstrip().startswith("[")):
            items = _record(alternative.get("items"))
            return [_read_value(name, value, items, root) for value in values]
    if len(values) > 1:
        raise click.UsageError(f"{name} is given {len(values)} times, and is not an array.")
    return _read_value(name, values[0], schema, root)


def _read_value(name: str, value: str, schema: Schema, root: Schema) -> Any:  # Any: a value of the schema
    try:
        return to_value(value, schema, root)
    except ValueError as error:
        raise click.UsageError(f"{name}={value}: {error}") from error


def to_value(value: str, schema: Schema, root: Schema) -> Any:  # Any: a value of the schema
    """Return a text as a value of the schema.

    Raises:
        ValueError: it does not fit. The text says what does.
        click.UsageError: a file that the text names cannot be read.
    """
    for alternative in _alternatives(schema, root):
        try:
            return _convert(value, alternative)
        except (ValueError, *NOT_JSON):
            continue
    raise ValueError(f"{value!r} is not {expected(schema, root)}.")


def expected(schema: Schema, root: Schema) -> str:
    """Return which values the schema accepts, for a person who types one."""
    return type_name(schema, root).replace("boolean", "true or false")


def _convert(value: str, schema: Schema) -> Any:  # Any: a value of the schema
    """Convert one word to the type of the schema.

    Raises:
        ValueError: the value does not fit, or one of NOT_JSON.
    """
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if isinstance(choices, list):
        return _choose(value, choices)
    if _is_file(schema):
        return _read_file_object(value, schema)
    kind = schema.get("type")
    convert = _CONVERTERS.get(kind, _convert_any) if isinstance(kind, str) else _convert_any
    return convert(value, schema)


def _choose(value: str, choices: list[Any]) -> Any:  # Any: one of the schema's values
    for choice in choices:
        if value == choice or value == msgspec.json.encode(choice).decode():
            return choice
    raise ValueError(value)


def _convert_integer(value: str, schema: Schema) -> int:
    return msgspec.json.decode(value, type=int)


def _convert_number(value: str, schema: Schema) -> int | float:
    return msgspec.json.decode(value, type=int | float)


def _convert_boolean(value: str, schema: Schema) -> bool:
    if value.lower() not in _BOOLEANS:
        raise ValueError(value)
    return _BOOLEANS[value.lower()]


def _convert_null(value: str, schema: Schema) -> None:
    if value not in ("null", ""):
        raise ValueError(value)


def _convert_string(value: str, schema: Schema) -> str:
    """Return the text. `@FILE` is the content of a file, and `@@…` a text that begins with @."""
    if value.startswith("@@"):
        return value[1:]
    if not value.startswith("@"):
        return value
    content = read_file(value[1:])
    if schema.get("format") == "binary" or schema.get("contentEncoding") == "base64":
        return base64.b64encode(content).decode()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{value[1:]} is not UTF-8 text.") from error


def _convert_json(value: str, schema: Schema) -> Any:  # Any: a value of the schema
    if value.startswith("@"):
        value = read_file(value[1:]).decode(errors="replace")
    decoded: object = msgspec.json.decode(value)
    if not isinstance(decoded, dict if schema["type"] == "object" else list):
        raise ValueError(value)
    return decoded


def _convert_any(value: str, schema: Schema) -> Any:  # Any: the schema says nothing
    try:
        return msgspec.json.decode(value)
    except NOT_JSON:
        return _convert_string(value, schema)


def _read_file_object(value: str, schema: Schema) -> dict[str, str]:
    """Return an A2A file: `@FILE` with its content, or an address."""
    names = _record(schema.get("properties"))
    media_type = mimetypes.guess_type(value)[0] or "application/octet-stream"
    found: dict[str, str] = {}
    if value.startswith(("http://", "https://")):
        found["url" if "url" in names else "uri"] = value
    else:
        path = value.removeprefix("@")
        found["bytes"] = base64.b64encode(read_file(path)).decode()
        found["filename" if "filename" in names else "name"] = Path(path).name
    found["mediaType" if "mediaType" in names else "mimeType"] = media_type
    return {name: text for name, text in found.items() if name in names}


def read_file(path: str) -> bytes:
    """Return the content of a local file that the user named.

    Raises:
        click.UsageError: it cannot be read.
    """
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except RuntimeError as error:  # from expanduser: `~user` with an unknown user
        raise click.UsageError(f"cannot read {path}: no such user") from error


_CONVERTERS: Final[dict[str, Callable[[str, Schema], Any]]] = {
    "string": _convert_string,
    "integer": _convert_integer,
    "number": _convert_number,
    "boolean": _convert_boolean,
    "null": _convert_null,
    "array": _convert_json,
    "object": _convert_json,
}
