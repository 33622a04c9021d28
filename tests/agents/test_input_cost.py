"""What the check of an input costs: sizes, regular expressions, recursive schemas and numbers with the same hash."""

import itertools
import re
import time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from apcore_a2a.agents.input_cost import MAX_STEPS, MODULUS, InputCost, refuse_collisions, steps_of
from apcore_a2a.errors import InvalidParamsError

LINEAR = ["^[a-z]+$", "^a{2,5}b", r"^\d{4}-\d{2}-\d{2}$", "^(a|b)c$", r"^[^\]+*]*$", r"^\(\)\+$", "^(?:ab)c*$"]
EXPONENTIAL = ["^(a+)+$", "(a|aa)*b", r"^(\w+\s?)*$", "^(a?){30}a{30}$", r"(a*)\1b", "(?P<x>a*)(?P=x)b", "^(?:a|a)+$"]
QUADRATIC = [r"\s+$", "a+b", "^a*a*b$", "^a+|b+$"]


@pytest.mark.parametrize("pattern", LINEAR)
def test_an_anchored_pattern_without_a_repeated_group_is_cheap(pattern: str) -> None:
    re.compile(pattern)
    assert steps_of(pattern, 1_000) <= MAX_STEPS


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_a_repeated_group_or_a_backreference_may_be_exponential(pattern: str) -> None:
    re.compile(pattern)
    assert steps_of(pattern, 30) > MAX_STEPS


@pytest.mark.parametrize("pattern", QUADRATIC)
def test_a_pattern_that_may_begin_anywhere_costs_the_square_of_the_length(pattern: str) -> None:
    re.compile(pattern)
    assert steps_of(pattern, 30) <= MAX_STEPS
    assert steps_of(pattern, 1_000) > MAX_STEPS


@pytest.mark.parametrize(
    ("schema", "value", "slow"),
    [
        ({"uniqueItems": True}, [{"n": n} for n in range(50)], False),
        ({"uniqueItems": True}, [{"n": n} for n in range(101)], True),
        ({}, list(range(900)), False),
        ({}, list(range(1_001)), True),
        ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "b"}, False),
        ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 40}, True),
        ({"patternProperties": {"^(a+)+$": True}}, {"a" * 40: 1}, True),
        ({"$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}, [[[[[1]]]]], True),
        ({"$defs": {"n": {"items": {"type": "array"}}}, "$ref": "#/$defs/n"}, [[[[[1]]]]], False),
        ({"items": {"$ref": "#"}}, [[[[[1]]]]], True),
        ({"$dynamicRef": "#node"}, [[[[[1]]]]], True),
        ({"$ref": "https://schemas.example/tree"}, [[[[[1]]]]], True),
    ],
)
def test_large_recursive_and_patterned_inputs_may_be_slow(schema: Any, value: Any, slow: bool) -> None:
    assert InputCost(schema).may_be_slow(value) is slow


KINDS = ["sum", "product"]
TREE: dict[str, Any] = {"$ref": "#/$defs/tree", "$defs": {"tree": {"oneOf": []}}}
for kind in KINDS:
    properties: dict[str, Any] = {side: {"$ref": "#/$defs/tree"} for side in ("left", "right")}
    TREE["$defs"]["tree"]["oneOf"].append({"properties": {"kind": {"const": kind}, **properties}})
TAGGED: dict[str, Any] = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in KINDS],
            "discriminator": {"propertyName": "kind", "mapping": {kind: f"#/$defs/{kind}" for kind in KINDS}},
        },
        **{kind: {"properties": {"left": {"$ref": "#/$defs/tree"}}} for kind in KINDS},
    },
}


def tree(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"kind": "sum", "left": value}
    return value


def test_a_deep_value_of_a_schema_with_alternatives_is_rejected_in_bounded_time() -> None:
    InputCost(TREE).refuse_if_too_complex(tree(8))
    begun = time.process_time()
    with pytest.raises(InvalidParamsError, match="too large"):
        InputCost(TREE).refuse_if_too_complex(tree(60))
    assert time.process_time() - begun < 5  # 2**60 comparisons never end


def test_a_tag_that_chooses_the_alternative_allows_deep_values() -> None:
    InputCost(TAGGED).refuse_if_too_complex(tree(60))


def test_a_long_list_of_a_recursive_schema_is_allowed() -> None:
    schema = {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "items": {"$ref": "#/$defs/n"}}
    InputCost(schema).refuse_if_too_complex([{"next": {"next": {}}} for _ in range(30_000)])


MULTIPLES = [MODULUS * number for number in range(1, 40)]


@pytest.mark.parametrize(
    "value",
    [
        MULTIPLES,
        {"a": [[number] for number in MULTIPLES]},
        {str(number): 1 for number in MULTIPLES},
        [f"{number}.0" for number in MULTIPLES],
        [str(UUID(int=number)) for number in MULTIPLES],
        [UUID(int=number).hex for number in MULTIPLES],
        [-number for number in MULTIPLES],
    ],
    ids=["integers", "nested", "keys", "decimals", "UUIDs", "short UUIDs", "negative"],
)
def test_numbers_with_the_same_hash_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidParamsError, match="same hash"):
        refuse_collisions(value)


def signs(length: int) -> list[list[int]]:
    """Return all lists of -1 and -2, which have the same hash in Python."""
    return [list(each) for each in itertools.product((-1, -2), repeat=length)]


def test_many_lists_of_integers_with_the_same_hash_are_rejected() -> None:
    assert len({hash(tuple(each)) for each in signs(10)}) == 1
    with pytest.raises(InvalidParamsError, match="same hash"):
        refuse_collisions(signs(10))
    refuse_collisions(signs(9))


@pytest.mark.parametrize(
    "value",
    [
        list(range(10_000)),
        [2**62 + number for number in range(10_000)],
        [MULTIPLES[0]] * 10_000,
        [str(2**62 + number) for number in range(1_000)],
        [str(UUID(int=2**100 + number)) for number in range(1_000)],
        ["2026-01-01T00:00:00Z", "+NaN123456789012345", "-sNaN12345678901234", "1e999999999999999999", "x" * 100_000],
        ["1" * 5_001] * 20,
    ],
)
def test_other_numbers_and_texts_are_not_rejected(value: Any) -> None:
    refuse_collisions(value)


def test_decimals_and_integers_hash_alike() -> None:
    assert hash(Decimal(MODULUS * 3)) == hash(MODULUS * 5)  # the fact that the check relies on
