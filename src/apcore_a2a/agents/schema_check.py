"""Checks values of clients against JSON Schemas, without a regular expression and without recursion into references.

The keywords are those of forms and tools. The others, such as `pattern` and `format`, are left to the tool itself,
which checks its input as well.

Invariant: the work is bounded. At most MAX_CHECKS pairs of a value and a schema are compared, and a value that would
need more is rejected.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import json

from apcore_a2a.agents.schema import Schema
from apcore_a2a.errors import Violation

MAX_CHECKS: Final = 100_000  # about 100 ms
MAX_FOUND: Final = 50  # violations that are reported
MAX_SHOWN: Final = 5  # values of an `enum` that a violation lists
TOO_COMPLEX: Final = Violation("", "The value is too large to be checked against its schema", "too_complex")

_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list | tuple),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: _is_integer(value),
}


def _is_integer(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def find_violations(value: Any, schema: Any, field: str = "") -> list[Violation]:
    """Return how a value violates a schema, which has no `$ref` (`schema.inline`). Empty if it is valid.

    Example:
        >>> find_violations({"seats": "two"}, {"properties": {"seats": {"type": "integer"}}})
        [Violation(field='seats', message='expected an integer', code='type')]
    """
    check = _Check()
    try:
        check.value(value, schema, field)
    except _TooComplexError:
        return [TOO_COMPLEX]
    return check.found[:MAX_FOUND]


class _TooComplexError(Exception):
    """The value and the schema need more than MAX_CHECKS comparisons."""


class _Check:
    """The check of one value: the violations found so far, and the comparisons that are left."""

    def __init__(self) -> None:
        self.found: list[Violation] = []
        self._left = MAX_CHECKS

    def value(self, value: Any, schema: Any, field: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooComplexError
        if schema is False:
            self._add(field, "is not allowed", "unexpected")
        if not isinstance(schema, dict):
            return
        if not self._has_type(value, schema, field):
            return
        self._check_listed(value, schema, field)
        match value:
            case dict():
                self._check_object(value, schema, field)
            case list() | tuple():
                self._check_array(value, schema, field)
            case str():
                self._check_range(len(value), schema, field, ("minLength", "maxLength"), "characters")
            case int() | float() if not isinstance(value, bool):
                self._check_number(value, schema, field)
        self._check_alternatives(value, schema, field)

    def _add(self, field: str, message: str, code: str) -> None:
        if len(self.found) <= MAX_FOUND:
            self.found.append(Violation(field, message, code))

    def _has_type(self, value: Any, schema: Schema, field: str) -> bool:
        wanted = schema.get("type")
        if wanted is None:
            return True
        kinds = wanted if isinstance(wanted, list) else [wanted]
        known = [kind for kind in kinds if kind in _TYPES]
        if not known or any(_TYPES[kind](value) for kind in known):
            return True
        names = [f"an {kind}" if kind[0] in "aio" else f"a {kind}" for kind in known]
        self._add(field, f"expected {' or '.join(names)}", "type")
        return False

    def _check_listed(self, value: Any, schema: Schema, field: str) -> None:
        if "const" in schema and not _equal(value, schema["const"]):
            self._add(field, f"expected {_shown(schema['const'])}", "const")
        listed = schema.get("enum")
        if not isinstance(listed, list):
            return
        self._left -= len(listed) // 10  # comparing two values is cheaper than a check
        if not any(_equal(value, each) for each in listed):
            names = ", ".join(_shown(each) for each in listed[:MAX_SHOWN])
            if len(listed) > MAX_SHOWN:
                names += ", …"
            self._add(field, f"expected one of {names}", "enum")

    def _check_range(self, size: int, schema: Schema, field: str, keywords: tuple[str, str], what: str) -> None:
        lowest = schema.get(keywords[0])
        highest = schema.get(keywords[1])
        if isinstance(lowest, int | float) and size < lowest:
            self._add(field, f"expected at least {lowest} {what}", keywords[0])
        if isinstance(highest, int | float) and size > highest:
            self._add(field, f"expected at most {highest} {what}", keywords[1])

    def _check_number(self, value: float, schema: Schema, field: str) -> None:
        for keyword, fits, text in _BOUNDS:
            bound = schema.get(keyword)
            if isinstance(bound, int | float) and not isinstance(bound, bool) and not fits(value, bound):
                self._add(field, f"expected {text} {bound}", keyword)
        step = schema.get("multipleOf")
        if isinstance(step, int) and step > 0 and _is_integer(value) and int(value) % step:
            self._add(field, f"expected a multiple of {step}", "multipleOf")

    def _check_object(self, value: dict[str, Any], schema: Schema, field: str) -> None:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            properties = {}
        for name in schema.get("required", ()):
            if name not in value:
                self._add(_below(field, name), "Field required", "missing")
        self._check_range(len(value), schema, field, ("minProperties", "maxProperties"), "properties")
        others = schema.get("additionalProperties", True)
        if "patternProperties" in schema:  # they need regular expressions
            others = True
        for name, item in value.items():
            if name in properties:
                self.value(item, properties[name], _below(field, name))
            elif others is False:
                self._add(_below(field, name), "There is no such field", "unexpected")
            elif isinstance(others, dict):
                self.value(item, others, _below(field, name))

    def _check_array(self, value: Sequence[Any], schema: Schema, field: str) -> None:
        self._check_range(len(value), schema, field, ("minItems", "maxItems"), "items")
        first = schema.get("prefixItems", ())
        rest = schema.get("items")
        for index, item in enumerate(value):
            if index < len(first):
                self.value(item, first[index], _below(field, str(index)))
            elif rest is not None:
                self.value(item, rest, _below(field, str(index)))
        if schema.get("uniqueItems") is True:
            if len({_canonical(item) for item in value}) < len(value):
                self._add(field, "expected no repeated items", "uniqueItems")

    def _check_alternatives(self, value: Any, schema: Schema, field: str) -> None:
        for each in schema.get("allOf", ()):
            self.value(value, each, field)
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list) and branches:
                self._check_branches(value, branches, field, only_one=keyword == "oneOf")
        if "not" in schema and not self._violations(value, schema["not"], field):
            self._add(field, "is not allowed", "not")

    def _check_branches(self, value: Any, branches: list[Any], field: str, *, only_one: bool) -> None:
        """Check `anyOf` or `oneOf`. The violations of the branch that fits best are reported."""
        tried = [self._violations(value, branch, field) for branch in branches]
        fitting = [found for found in tried if not found]
        if not fitting:
            closest = tried[0]
            for found in tried:
                if len(found) < len(closest):
                    closest = found
            self.found.extend(closest)
        elif only_one and len(fitting) > 1:
            self._add(field, "fits several alternatives of which one is allowed", "oneOf")

    def _violations(self, value: Any, schema: Any, field: str) -> list[Violation]:
        before = self.found
        self.found = []
        try:
            self.value(value, schema, field)
            return self.found
        finally:
            self.found = before


_BOUNDS: Final[tuple[tuple[str, Callable[[float, float], bool], str], ...]] = (
    ("minimum", lambda value, bound: value >= bound, "at least"),
    ("maximum", lambda value, bound: value <= bound, "at most"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "more than"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "less than"),
)


def _below(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _equal(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal. In Python True equals 1."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    return bool(value == other)


def _canonical(value: Any) -> bytes:
    """Return the same bytes for equal JSON values: 1 equals 1.0."""
    return json.encode(_with_integers(value), order="deterministic")


def _with_integers(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
        case list() | tuple():
            return [_with_integers(item) for item in value]
    return value


def _shown(value: Any) -> str:
    return json.encode(value).decode()[:100]
