"""JSON Schemas of modules: made self-contained, and asked where text and files go. Rule: a schema is never changed."""

from collections.abc import Callable, Mapping
from typing import Any, Final

Schema = dict[str, Any]  # JSON Schema is free-form; only the keywords named below are looked at

ROOT: Final = ""  # "the input itself", where a property name could stand
_TABLES: Final = ("$defs", "definitions")  # pydantic's, and that of older schemas


def inline(schema: Schema) -> Schema:
    """The schema with every `$ref` replaced by what it names; where a definition contains itself, anything goes."""
    definitions: dict[str, Any] = {}
    rest: Schema = {}
    for key, value in schema.items():
        if key not in _TABLES:
            rest[key] = value
            continue
        for name, definition in value.items():
            definitions[f"#/{key}/{name}"] = definition
    expanded: Schema = _expand(rest, definitions, frozenset())
    return expanded


def _expand(node: Any, definitions: Mapping[str, Any], inside: frozenset[str]) -> Any:
    match node:
        case {"$ref": str(name), **rest}:
            named = {}
            if name not in inside:  # else the definition holds itself, and this would never end
                named = definitions.get(name, {})
            expanded = _expand(named, definitions, inside | {name})
            # Keywords beside a `$ref`, a description say, are nearer to the property than those of the definition.
            return {**expanded, **_expand(rest, definitions, inside)}
        case dict():
            return {key: _expand(value, definitions, inside) for key, value in node.items()}
        case list():
            return [_expand(item, definitions, inside) for item in node]
    return node


def text_field(schema: Schema) -> str | None:
    """Where plain text goes: ROOT if the input is a string, its only property if that is one, else None."""
    if len(schema.get("properties", {})) > 1:
        return None
    return _find_field(schema, _is_text)


def file_field(schema: Schema) -> str | None:
    """Where a file goes: ROOT if the input has `uri` or `bytes`, the only property that has them, else None."""
    return _find_field(schema, _is_file)


def _is_text(node: Schema) -> bool:
    return node.get("type") == "string"


def _is_file(node: Schema) -> bool:
    properties = node.get("properties", {})
    return "uri" in properties or "bytes" in properties


def _find_field(schema: Schema, fits: Callable[[Schema], bool]) -> str | None:
    if fits(schema):
        return ROOT
    found: list[str] = []
    for name, node in schema.get("properties", {}).items():
        choices = node.get("anyOf", [node])  # an optional property is anyOf itself and null
        if any(map(fits, choices)):
            found.append(name)
    if len(found) != 1:
        return None
    return found[0]
