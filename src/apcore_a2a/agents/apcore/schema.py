"""JSON Schemas of modules: made self-contained, and asked where text and files go. Rule: a schema is never changed."""

from collections.abc import Callable
from typing import Any, Final

Schema = dict[str, Any]  # JSON Schema is free-form; only the keywords named below are looked at

ROOT: Final = ""  # "the input itself", where a property name could stand
_TABLES: Final = ("$defs", "definitions")


def inline(schema: Schema) -> Schema:
    """The schema with every `$ref` replaced by what it names; where a definition contains itself, anything goes."""
    definitions = {f"#/{table}/{name}": body for table in _TABLES for name, body in schema.get(table, {}).items()}

    def expand(node: Any, inside: frozenset[str]) -> Any:
        match node:
            case {"$ref": str(name), **rest}:
                named = {} if name in inside else definitions.get(name, {})
                return {**expand(named, inside | {name}), **expand(rest, inside)}
            case dict():
                return {key: expand(value, inside) for key, value in node.items()}
            case list():
                return [expand(item, inside) for item in node]
        return node

    expanded: Schema = expand({key: value for key, value in schema.items() if key not in _TABLES}, frozenset())
    return expanded


def text_field(schema: Schema) -> str | None:
    """Where plain text goes: ROOT if the input is a string, its only property if that is one, else None."""
    field = _field(schema, lambda node: node.get("type") == "string")
    return field if len(schema.get("properties", {})) <= 1 else None


def file_field(schema: Schema) -> str | None:
    """Where a file goes: ROOT if the input has `uri` or `bytes`, the only property that has them, else None."""
    return _field(schema, lambda node: not {"uri", "bytes"}.isdisjoint(node.get("properties", {})))


def _field(schema: Schema, fits: Callable[[Schema], bool]) -> str | None:
    if fits(schema):
        return ROOT
    properties = schema.get("properties", {}).items()
    names = [name for name, node in properties if any(map(fits, node.get("anyOf", [node])))]
    return names[0] if len(names) == 1 else None
