"""JSON Schemas of skills: made self-contained, and asked where text and files go. Rule: a schema is never changed."""

from collections.abc import Callable, Mapping
from typing import Any, Final

Schema = dict[str, Any]  # JSON Schema is free-form; only the keywords named below are looked at

ROOT: Final = ""  # "the input itself", where a property name could stand
_TABLES: Final = ("$defs", "definitions")  # pydantic's, and that of older schemas


# What takes the place of references may be as much as all definitions together, each once, and so many objects and
# lists more. Without a limit, a dozen definitions that each name the next one twice make a card of a megabyte, and two
# dozen a server that does not start.
MAX_COPIED: Final = 2_000
MAX_LEVELS: Final = 16  # of references inside of what references name


def inline(schema: Schema) -> Schema:
    """The schema with every `$ref` replaced by what it names.

    Where a definition contains itself, and so deep inside that all would be too large, anything goes: the card says
    less then, but a call is checked by the module's own schema.
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
    """More would be copied than may be."""


class _Expansion:
    """Puts what they name in the place of references, so many levels deep."""

    def __init__(self, definitions: Mapping[str, Any], levels: int, limit: int) -> None:
        self._definitions = definitions
        self._levels = levels
        self._left = limit  # objects and lists that may still be copied

    def expand(self, node: Any, inside: frozenset[str]) -> Any:
        """A copy of a node, which stands inside of these definitions."""
        if isinstance(node, dict | list) and inside:
            self._left -= 1
            if self._left < 0:
                raise _TooLargeError
        match node:
            case {"$ref": str(name), **rest}:
                named: Any = {}
                if name not in inside and len(inside) < self._levels:  # else this would never end, or be too large
                    named = self.expand(self._definitions.get(name, {}), inside | {name})
                if not isinstance(named, dict):  # true and false are schemas, too
                    return named
                # Keywords beside a `$ref`, a description say, are nearer to the property than those of the definition.
                return {**named, **self.expand(rest, inside)}
            case dict():
                return {key: self.expand(value, inside) for key, value in node.items()}
            case list():
                return [self.expand(item, inside) for item in node]
        return node


def _count(node: Any) -> int:
    """How many objects and lists there are."""
    match node:
        case dict():
            return 1 + sum(map(_count, node.values()))
        case list():
            return 1 + sum(map(_count, node))
    return 0


def text_field(schema: Schema) -> str | None:
    """Where plain text goes: ROOT if the input is a string; else its only property, or the only one that is required
    and takes no file, if that is a string; else None.
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
    """Where a file goes: ROOT if the input is one, the only property that is one, else None."""
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
    """Whether the file of this field is its content alone, in a string; else it is an object with `uri` or `bytes`."""
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
    if not isinstance(node, dict):  # true, say: a schema that takes anything, and says nothing
        return False
    choices = node.get("anyOf", [node])  # an optional property is anyOf itself and null
    return any(fits(choice) for choice in choices if isinstance(choice, dict))
