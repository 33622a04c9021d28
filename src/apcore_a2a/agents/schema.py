"""JSON Schemas of skills: makes them self-contained, and finds the fields for text and files.

Invariant: a schema is never changed.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

Schema = dict[str, Any]  # JSON Schema is free-form. Only the keywords named below are read.

ROOT: Final = ""  # stands for the whole input, in place of a property name
_TABLES: Final = ("$defs", "definitions")  # the keyword that pydantic uses, and that of older schemas


# Expanded references may hold as many objects and lists as all definitions together, plus MAX_COPIED. Without a limit,
# a dozen definitions that each refer to the next one twice make a card of a megabyte. With two dozen the server does
# not start.
MAX_COPIED: Final = 2_000
MAX_LEVELS: Final = 16  # nested references that are expanded


def inline(schema: Schema) -> Schema:
    """Return the schema with each `$ref` replaced by its definition.

    A reference inside its own definition, or nested so deep that the result would be too large, becomes the empty
    schema, which any value matches. The card is less precise then, but calls are checked against the module's own
    schema.
    """
    definitions: dict[str, Any] = {}
    rest: Schema = {}
    for key, value in schema.items():
        if key not in _TABLES or not isinstance(value, dict):
            rest[key] = value
            continue
        for name, definition in value.items():
            definitions[f"#/{key}/{name}"] = definition
    limit = MAX_COPIED + _count(definitions)
    levels = MAX_LEVELS
    while True:
        try:
            expanded: Schema = _Expansion(definitions, levels, limit).expand(rest, frozenset())
            return expanded
        except _TooLargeError:
            levels -= 1  # at 0 nothing is copied, so this ends


class _TooLargeError(Exception):
    """The expansion exceeds the limit of copied objects and lists."""


class _Expansion:
    """Replaces references by their definitions, down to a number of levels."""

    def __init__(self, definitions: Mapping[str, Any], levels: int, limit: int) -> None:
        self._definitions = definitions
        self._levels = levels
        self._left = limit  # objects and lists that may still be copied

    def expand(self, node: Any, inside: frozenset[str]) -> Any:
        """Return an expanded copy of a node that is inside of these definitions."""
        if isinstance(node, dict | list) and inside:
            self._left -= 1
            if self._left < 0:
                raise _TooLargeError
        match node:
            case {"$ref": str(name), **rest}:
                named: Any = {}
                if name not in inside and len(inside) < self._levels:  # else endless, or too large
                    named = self.expand(self._definitions.get(name, {}), inside | {name})
                if not isinstance(named, dict):  # true and false are schemas as well
                    return named
                # Keywords beside a `$ref`, such as a description, override those of the definition.
                return {**named, **self.expand(rest, inside)}
            case dict():
                return {key: self.expand(value, inside) for key, value in node.items()}
            case list():
                return [self.expand(item, inside) for item in node]
        return node


def _count(node: Any) -> int:
    """Return the number of objects and lists in a node."""
    match node:
        case dict():
            return 1 + sum(map(_count, node.values()))
        case list():
            return 1 + sum(map(_count, node))
    return 0


def text_field(schema: Schema) -> str | None:
    """Return the field that takes plain text, or None.

    This is ROOT if the input is a string. Otherwise it is the only property, or the only required property that takes
    no file, provided that it is a string.
    """
    if _is_text(schema):
        return ROOT
    properties = _properties(schema)
    names = list(properties)
    if len(names) > 1:
        names = []
        for name in schema.get("required", ()):
            if not _may_be(properties.get(name, {}), _is_file):
                names.append(name)
    if len(names) == 1 and _may_be(properties.get(names[0], {}), _is_text):
        return str(names[0])
    return None


def file_field(schema: Schema) -> str | None:
    """Return the field that takes a file: ROOT if the input is a file, else the only property that is one, or None."""
    if _is_file(schema):
        return ROOT
    found: list[str] = []
    for name, node in _properties(schema).items():
        if _may_be(node, _is_file):
            found.append(name)
    if len(found) != 1:
        return None
    return found[0]


def is_base64(schema: Schema, field: str) -> bool:
    """Whether this field takes a file as a base64 string. Otherwise it takes an object with `uri` or `bytes`."""
    node = schema
    if field != ROOT:
        node = _properties(schema).get(field, {})
    return _may_be(node, _is_content)


def _is_text(node: Schema) -> bool:
    return node.get("type") == "string" and not _is_content(node)


def _is_content(node: Schema) -> bool:
    return node.get("contentEncoding") == "base64"


def _is_file(node: Schema) -> bool:
    properties = _properties(node)
    return "uri" in properties or "bytes" in properties or _is_content(node)


def _properties(schema: Schema) -> dict[str, Any]:
    found = schema.get("properties")
    if isinstance(found, dict):
        return found
    return {}


def _may_be(node: object, fits: Callable[[Schema], bool]) -> bool:
    if not isinstance(node, dict):  # for example true, the schema that any value matches
        return False
    choices = node.get("anyOf", [node])  # an optional property is anyOf of its type and null
    return any(fits(choice) for choice in choices if isinstance(choice, dict))
