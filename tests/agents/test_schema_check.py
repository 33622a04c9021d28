"""The check of values against JSON Schemas, compared with a complete implementation."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.agents.schema_check import MAX_CHECKS, TOO_COMPLEX, find_violations

NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(-3, 3)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(-3, 3), st.sampled_from(["", "a", "abcd"]))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
TYPES = st.sampled_from(["string", "boolean", "null", "object", "array", "number", "integer"])


def optional(**fields: Any) -> Any:
    return st.fixed_dictionaries({}, optional=fields)


def extend(inner: Any) -> Any:
    some = st.lists(inner, min_size=1, max_size=2)
    return optional(
        type=TYPES,
        properties=st.dictionaries(NAMES, inner, max_size=2),
        required=st.lists(NAMES, unique=True, max_size=2),
        additionalProperties=st.booleans() | inner,
        items=inner,
        prefixItems=some,
        anyOf=some,
        oneOf=some,
        allOf=some,
        uniqueItems=st.booleans(),
    ) | st.fixed_dictionaries({"not": inner})


LEAVES = st.booleans() | optional(
    type=TYPES | st.lists(TYPES, unique=True, min_size=1, max_size=2),
    enum=st.lists(SCALARS, min_size=1, max_size=3),
    minimum=NUMBERS,
    exclusiveMaximum=NUMBERS,
    multipleOf=st.integers(1, 3),
    minLength=st.integers(0, 3),
    maxItems=st.integers(0, 3),
    minProperties=st.integers(0, 2),
)
SCHEMAS = st.recursive(LEAVES, extend, max_leaves=6)


@given(VALUES, SCHEMAS)
def test_a_value_is_valid_if_a_complete_implementation_says_so(value: Any, schema: Any) -> None:
    official = jsonschema.Draft202012Validator(schema)
    assert (find_violations(value, schema) == []) == official.is_valid(value)


def test_a_violation_names_its_field() -> None:
    schema = {
        "type": "object",
        "properties": {"people": {"type": "array", "items": {"type": "object", "required": ["name"]}}},
        "additionalProperties": False,
    }
    found = find_violations({"people": [{}, {"name": 1}], "x": 1}, schema)
    assert [(each.field, each.code) for each in found] == [("people.0.name", "missing"), ("x", "unexpected")]


@pytest.mark.parametrize(
    "schema", [{"pattern": "^(a+)+$"}, {"patternProperties": {"^(a+)+$": {}}}, {"format": "email"}]
)
def test_no_regular_expression_is_evaluated(schema: dict[str, Any]) -> None:
    value: Any = "a" * 40 + "!"
    assert find_violations(value, schema) == []
    assert find_violations({value: 1}, schema) == []


def test_the_work_is_bounded() -> None:
    nested: dict[str, Any] = {"type": "array"}
    for _ in range(16):
        nested = {"type": "array", "items": {"anyOf": [nested, nested]}}
    value: list[Any] = []
    for _ in range(17):
        value = [value]
    assert find_violations([value] * 10, nested) == [TOO_COMPLEX]
    assert find_violations([0] * (MAX_CHECKS + 1), {"items": {"type": "integer"}}) == [TOO_COMPLEX]
    assert find_violations([0] * 5000, {"enum": [[n] for n in range(1000)]})[0].code == "enum"
