"""Estimates what the check of an input costs, before it is checked, and rejects inputs that no limit can bound.

Invariant: an estimate is linear in the input. It is never too low, and often too high: then the check runs in a process
(`checker`), or the reading on a thread, which is slower for that input and for no other.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import unquote
from uuid import UUID

from msgspec import UNSET, Struct

from apcore_a2a.agents.inputs import refuse_inputs
from apcore_a2a.agents.schema import Schema
from apcore_a2a.agents.schema_check import TOO_COMPLEX
from apcore_a2a.errors import Violation
from apcore_a2a.protocol.model import Part

P = ParamSpec("P")
T = TypeVar("T")

MAX_VALUES: Final = 1_000  # JSON values of an input that is read and checked on the event loop: about 10 ms
MAX_LETTERS: Final = 100_000  # characters of a text that is read there (it may be JSON), and of an input
MAX_ITEMS: Final = 100  # items that are compared with each other there
MAX_LEVELS: Final = 4  # levels of an input whose schema refers to itself
MAX_STEPS: Final = 100_000  # steps of regular expressions: about 5 ms
MAX_ERRORS: Final = 1_000  # of a pydantic model, which counts them fast. Describing each takes 20 µs.
TOO_MANY_ERRORS: Final = "The value has {} errors"
MAX_COMPARISONS: Final = 20_000  # of an input with the alternatives of a recursive schema: about 20 ms
COMPARISONS_PER_VALUE: Final = 10  # further ones, for large inputs

# ---- size -----------------------------------------------------------------------------------------------------------


class InputSize(Struct):
    """The size of a JSON value. Only a lower bound if it has more than MAX_VALUES values."""

    values: int = 0
    levels: int = 0
    longest_list: int = 0
    longest_text: int = 0
    letters: int = 0


def measure(value: Any) -> InputSize:
    size = InputSize()
    level = [value]
    while level and size.values <= MAX_VALUES:
        size.levels += 1
        size.values += len(level)
        below: list[Any] = []
        for each in level:
            match each:
                case str():
                    _add_text(size, each)
                case dict():
                    for name in each:
                        _add_text(size, name)
                    below.extend(each.values())
                case list() | tuple():
                    size.longest_list = max(size.longest_list, len(each))
                    below.extend(each)
        level = below
    return size


def _add_text(size: InputSize, text: Any) -> None:
    size.letters += len(text)
    size.longest_text = max(size.longest_text, len(text))


def _values(value: Any) -> Iterator[Any]:
    """Yield a value and all values in it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


def texts_of(value: Any) -> list[str]:
    """Return the different texts of a value, names of properties included."""
    found: set[str] = set()
    for each in _values(value):
        if isinstance(each, dict):
            found.update(each)
        elif isinstance(each, str):
            found.add(each)
    return list(found)


async def off_loop_if_large(parts: Iterable[Part], read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call `read`, on a thread if the parts of the message are large."""
    if any(map(_is_large, parts)):
        return await asyncio.to_thread(read, *args, **options)
    return read(*args, **options)


def _is_large(part: Part) -> bool:
    if isinstance(part.text, str):
        return len(part.text) > MAX_LETTERS
    return part.data is not UNSET and measure(part.data).values > MAX_VALUES


# ---- the cost of a schema -------------------------------------------------------------------------------------------


class InputCost:
    """What makes the check of inputs against a schema slow.

    Example:
        >>> InputCost({"pattern": "^(a+)+$"}).may_be_slow("aaaaaaaaaaaaaaaaaaaaaaaaaaaa!")
        True
        >>> InputCost({"pattern": "^a+$"}).may_be_slow("aaaaaaaaaaaaaaaaaaaaaaaaaaaa!")
        False
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.patterns: list[str] = []
        self._has_unique = False
        references: set[str] = set()
        for node in _nodes(schema):
            if isinstance(node.get("pattern"), str):
                self.patterns.append(node["pattern"])
            if isinstance(node.get("patternProperties"), dict):
                self.patterns.extend(node["patternProperties"])
            if node.get("uniqueItems") is True:
                self._has_unique = True
            references.update(_references(node))
        self.is_recursive = any(self._refers_to_itself(each) for each in references)

    def may_be_slow(self, value: Any) -> bool:
        """Whether a check by jsonschema may block the event loop."""
        size = measure(value)
        return (
            size.values > MAX_VALUES
            or size.letters > MAX_LETTERS  # each error repeats the value that is wrong
            or (self._has_unique and size.longest_list > MAX_ITEMS)
            or (self.is_recursive and size.levels > MAX_LEVELS)
            or self._has_slow_patterns(size)
        )

    def may_be_slow_for_model(self, value: Any) -> bool:
        """Whether a check by a pydantic model may block the event loop."""
        size = measure(value)
        return (
            size.values > MAX_VALUES
            or (self.is_recursive and size.levels > MAX_LEVELS)
            or self._has_slow_patterns(size)
        )

    def has_slow_patterns(self, value: Any) -> bool:
        """Whether the regular expressions of the schema may take long for the texts of a value."""
        return bool(self.patterns) and self._has_slow_patterns(measure(value))

    def _has_slow_patterns(self, size: InputSize) -> bool:
        if not self.patterns:
            return False
        if size.values > MAX_VALUES:
            return True
        texts = 1 + size.letters // (1 + size.longest_text)
        steps = sum(steps_of(each, size.longest_text) for each in self.patterns)
        return steps * texts > MAX_STEPS

    def refuse_if_too_complex(self, value: Any) -> None:
        """Raise InvalidParamsError if a recursive schema with alternatives needs too many comparisons for a value.

        A library may try each alternative with all values below it, which doubles the work with each level.
        """
        if not self.is_recursive:
            return
        left = MAX_COMPARISONS + COMPARISONS_PER_VALUE * sum(1 for _ in _values(value))
        waiting: list[tuple[Any, Any]] = [(value, self.schema)]
        while waiting:
            left -= 1
            if left < 0:
                raise refuse_inputs([TOO_COMPLEX])
            each, node = waiting.pop()
            if isinstance(node, dict):
                waiting.extend((each, other) for other in self._alternatives(each, node))
                waiting.extend(_below(each, node))

    def _alternatives(self, value: Any, node: Schema) -> Iterator[Any]:
        if "$ref" in node:
            yield self._resolve(node["$ref"])
        yield from node.get("allOf", ())
        chosen = _chosen_by_tag(value, node)
        if chosen is not None:
            yield self._resolve(chosen)
            return
        for keyword in ("anyOf", "oneOf"):
            yield from node.get(keyword, ())

    def _refers_to_itself(self, reference: str) -> bool:
        if reference.startswith("dynamic:"):
            return True
        seen: set[str] = set()
        waiting = [reference]
        while waiting:
            for node in _nodes(self._resolve(waiting.pop())):
                for found in _references(node):
                    if found == reference:
                        return True
                    if found not in seen:
                        seen.add(found)
                        waiting.append(found)
        return False

    def _resolve(self, reference: str) -> Any:
        """Return the node at a JSON pointer into this schema, or None."""
        node: Any = self.schema
        for step in unquote(reference.removeprefix("#")).split("/")[1:]:
            if not isinstance(node, dict):
                return None
            node = node.get(step.replace("~1", "/").replace("~0", "~"))
        return node


def _nodes(schema: Any) -> Iterator[Schema]:
    """Yield all objects of a schema, itself included. Some are not schemas, for example a table of properties."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _references(node: Schema) -> Iterator[str]:
    if isinstance(node.get("$ref"), str):
        reference = node["$ref"]
        yield reference if reference.startswith("#") else f"dynamic:{reference}"
    for keyword in ("$dynamicRef", "$recursiveRef"):
        if keyword in node:
            yield f"dynamic:{keyword}"


def _chosen_by_tag(value: Any, node: Schema) -> str | None:
    """Return the reference that the tag of an object chooses (`discriminator`), or None."""
    tag = node.get("discriminator")
    if not isinstance(tag, dict) or not isinstance(value, dict):
        return None
    name = value.get(tag.get("propertyName", ""))
    if not isinstance(name, str):
        return None
    chosen = tag.get("mapping", {}).get(name)
    return chosen if isinstance(chosen, str) else None


def _below(value: Any, node: Schema) -> Iterator[tuple[Any, Any]]:
    """Yield the items of a value with their schemas."""
    if isinstance(value, dict):
        properties = node.get("properties", {})
        others = node.get("additionalProperties")
        for name, item in value.items():
            yield item, properties.get(name, others)
    elif isinstance(value, list):
        first = node.get("prefixItems", ())
        for index, item in enumerate(value):
            yield item, first[index] if index < len(first) else node.get("items")


# ---- the cost of a regular expression --------------------------------------------------------------------------------


_TIMES: Final = re.compile(r"\{\d+\}")  # a fixed number of repetitions


def steps_of(pattern: str, length: int) -> float:
    """Return how many steps the search for a pattern in a text of this length takes at most.

    A repeated group may take exponential time. Without one, each repetition multiplies the steps by the length.

    Example:
        >>> steps_of("^[a-z]+$", 100) < 1_000, steps_of("[a-z]+$", 100) < 100_000, steps_of("^(a+)+$", 30) > 1e9
        (True, True, True)
    """
    starts = not pattern.startswith(("^", "\\A")) or "|" in pattern
    exponent = int(starts)  # the search begins at each character
    choices = 1.0
    before = ""
    for token in _tokens(pattern):
        if before == ")" and token in ("*", "+", "{", "{n}"):
            return 2.0 ** min(length, 1_000)
        if token == "\\number":
            return 2.0 ** min(length, 1_000)
        if token in ("*", "+", "{"):
            exponent += 1
        elif token in ("?", "|"):
            choices *= 2
        before = token
    return choices * min(float(length + 1) ** min(exponent, 60), 1e300)


def _tokens(pattern: str) -> Iterator[str]:
    """Yield the special characters of a pattern, and "x" for each other character and each class."""
    position = 0
    while position < len(pattern):
        letter = pattern[position]
        if letter == "\\":
            following = pattern[position + 1 : position + 2]
            yield "\\number" if following in "123456789" or following == "" else "x"
            position += 2
        elif letter == "[":
            position = _end_of_class(pattern, position)
            yield "x"
        elif pattern.startswith("(?P=", position):
            yield "\\number"
            position += 4
        elif pattern.startswith("(?", position):
            yield "("
            position += 2
        elif _TIMES.match(pattern, position):
            yield "{n}"
            position = pattern.index("}", position) + 1
        else:
            yield letter if letter in "*+?{|()" else "x"
            position += 1


def _end_of_class(pattern: str, position: int) -> int:
    position += 1
    if pattern.startswith("^", position):
        position += 1
    if pattern.startswith("]", position):  # as the first character it is one of the class
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position + 1


# ---- numbers with the same hash -------------------------------------------------------------------------------------
# Python's hash of a number is its remainder by 2**61 - 1. A set or dict of thousands of multiples takes quadratic time,
# in C code that nothing interrupts.

MODULUS: Final = 2**61 - 1
MAX_COLLISIONS: Final = 16  # different numbers of an input with the same hash
MAX_TUPLES: Final = 1_000  # different lists of integers with the same hash: -1 and -2 have the same, so some are usual
_SHORTEST: Final = 18  # characters of a number that is not its own hash
_LONGEST: Final = 5_000  # characters of a number: Python reads 4,300 digits
_LONGEST_UUID: Final = 45  # characters, with "urn:uuid:"
_LONGEST_TUPLE: Final = 16  # items of a tuple in a set
_COLLISIONS: Final = Violation("", "The value has too many numbers with the same hash", "too_complex")


def refuse_collisions(value: Any) -> None:
    """Raise InvalidParamsError if many different numbers of a value have the same hash. Texts of numbers count."""
    found: dict[int, set[Any]] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        for number in _numbers_in(each):
            same = found.setdefault(hash(number), set())
            same.add(number)
            if len(same) > MAX_COLLISIONS and (type(number) is not tuple or len(same) > MAX_TUPLES):
                raise refuse_inputs([_COLLISIONS])
        if type(each) is dict:
            waiting.extend(each.values())
            waiting.extend(name for name in each if len(name) >= _SHORTEST)
        elif type(each) is list:
            waiting.extend(each)


def _numbers_in(value: Any) -> list[Any]:
    """Return what a value may become in a set, if many of its kind may have the same hash."""
    kind = type(value)
    if kind is int and not -MODULUS < value < MODULUS:
        return [value]
    if kind is list and 1 < len(value) <= _LONGEST_TUPLE and all(type(each) is int for each in value):
        return [tuple(value)]
    if kind is str and _SHORTEST <= len(value) <= _LONGEST:
        return _numbers_of_text(value)
    return []


def _numbers_of_text(text: str) -> list[Any]:
    """Return the numbers that a text may stand for: an integer or a decimal number, and a UUID."""
    found: list[Any] = []
    if text[0] in "-+.0123456789":
        with suppress(InvalidOperation):
            number = Decimal(text)
            if number.is_finite():
                found.append(number)
    if len(text) <= _LONGEST_UUID:
        with suppress(ValueError):
            found.append(UUID(text).int)
    return found
