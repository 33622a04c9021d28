"""Whole numbers that come as floats, made integers where a skill's schema says integer.

Official clients keep the data of a part in a `google.protobuf.Struct`, whose numbers are all doubles: they send the
integer 5 as `5.0`. JSON Schema calls that an integer, too; code that counts with it does not.

Rule: a number becomes an integer where the schema says integer and nowhere says number, and only if it is one that a
double holds exactly. Every other value stays as it came.
"""

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

from apcore_a2a.agents.schema import Schema

EXACT: Final = 2**53  # beyond it, a double stands for several integers, and nobody knows which one was meant
_CHOICES: Final = ("anyOf", "oneOf")


class IntegerSchema:
    """The input schema of a skill, as it is, asked where integers stand.

    Not the schema of the card: in that one, references have been replaced so many levels deep, and no further.
    """

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._has_integers = _mentions_integers(schema)

    def restore(self, value: Any) -> Any:
        """The value with its integers; objects and lists in it are changed in place."""
        if not self._has_integers:
            return value
        return self._restore(value, [self._root])

    def _restore(self, value: Any, given: list[Any]) -> Any:
        """`given`: the schemas that may speak of this value; some may be anything but a schema."""
        if not isinstance(value, float | dict | list):
            return value
        nodes = self._all_that_apply(value, given)
        if isinstance(value, float):
            return _to_integer(value, nodes)
        if isinstance(value, dict):
            for name, item in value.items():
                value[name] = self._restore(item, _of_property(nodes, name))
        else:
            for index, item in enumerate(value):
                value[index] = self._restore(item, _of_item(nodes, index))
        return value

    def _all_that_apply(self, value: Any, given: list[Any]) -> list[Schema]:
        """The schemas, with those that they name or are made of. Each is there once, so that circles end."""
        found: list[Schema] = []
        seen: set[int] = set()
        waiting = [*given]
        while waiting:
            node = waiting.pop()
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            found.append(node)
            if "$ref" in node:
                waiting.append(self._resolve(node["$ref"]))
            waiting.extend(node.get("allOf", ()))
            for choice in _CHOICES:
                waiting.extend(self._that_may_be(value, node.get(choice, ())))
        return found

    def _that_may_be(self, value: Any, branches: Iterable[Any]) -> list[Any]:
        return [branch for branch in branches if _may_be(value, self._named_by(branch))]

    def _named_by(self, node: Any) -> Any:
        """What a reference names; anything else as it is."""
        if isinstance(node, dict) and "$ref" in node:
            return self._resolve(node["$ref"])
        return node

    def _resolve(self, reference: Any) -> Any:
        """What a JSON pointer into this schema names; None if that is nothing."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        node: Any = self._root
        for step in unquote(reference).split("/")[1:]:
            if not isinstance(node, dict):
                return None
            node = node.get(step.replace("~1", "/").replace("~0", "~"))
        return node


def _mentions_integers(node: Any) -> bool:
    match node:
        case dict():
            return _says(node, "integer") or bool(_listed_integers(node)) or any(map(_mentions_integers, node.values()))
        case list():
            return any(map(_mentions_integers, node))
    return False


def _says(node: Schema, kind: str) -> bool:
    kinds = node.get("type")
    return kinds == kind or (isinstance(kinds, list) and kind in kinds)


def _listed_integers(node: Schema) -> list[int]:
    """The integers among the only values that a schema allows."""
    allowed = [node.get("const")]
    listed = node.get("enum")
    if isinstance(listed, list):  # else it is a property of that name
        allowed.extend(listed)
    return [value for value in allowed if type(value) is int]  # not a bool, which Python counts among the integers


def _to_integer(value: float, nodes: Iterable[Schema]) -> float | int:
    """The number as an integer, if that is what the schemas want."""
    if not value.is_integer() or abs(value) > EXACT:
        return value
    wanted = False
    for node in nodes:
        if _says(node, "number"):
            return value
        if _says(node, "integer") or value in _listed_integers(node):
            wanted = True
    if wanted:
        return int(value)
    return value


def _may_be(value: Any, node: Any) -> bool:
    """Whether an alternative is worth a look: an object has what it requires, and the marks by which it is told."""
    if not isinstance(node, dict):
        return False
    if isinstance(value, float):
        return True
    if isinstance(value, list):
        return "type" not in node or _says(node, "array")
    if "type" in node and not _says(node, "object"):
        return False
    if not value.keys() >= set(node.get("required", ())):
        return False
    for name, mark in node.get("properties", {}).items():
        if name in value and not _is_allowed(value[name], mark):
            return False
    return True


def _is_allowed(value: Any, mark: Any) -> bool:
    """Whether a value is among the only ones that a schema allows, if it says so."""
    if not isinstance(mark, dict):
        return True
    if "const" in mark:
        return bool(value == mark["const"])
    if "enum" in mark:
        return value in mark["enum"]
    return True


def _of_property(nodes: Iterable[Schema], name: str) -> list[Any]:
    """What the schemas of an object say of one of its properties."""
    found: list[Any] = []
    for node in nodes:
        properties = node.get("properties", {})
        if name in properties:
            found.append(properties[name])
        else:
            found.extend(node.get("patternProperties", {}).values())
            found.append(node.get("additionalProperties"))
    return found


def _of_item(nodes: Iterable[Schema], index: int) -> list[Any]:
    """What the schemas of a list say of one of its items."""
    found: list[Any] = []
    for node in nodes:
        rest = node.get("items")
        first = node.get("prefixItems", ())
        if isinstance(rest, list):  # as older schemas wrote `prefixItems`, and what follows it
            first = rest
            rest = node.get("additionalItems")
        if index < len(first):
            found.append(first[index])
        else:
            found.append(rest)
    return found
