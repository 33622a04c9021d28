"""Integers are restored where the schema says integer, at any depth. Other numbers are unchanged."""

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from apcore_a2a.agents.apcore.call import to_inputs
from apcore_a2a.agents.inputs import IntegerSchema
from apcore_a2a.protocol.model import Part
from tests.agents.apcore.running import Pair, Returns, Spy, agent_of, call_of, modules_of, needs_pipeline, run
from tests.calls import count_calls

INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
WHOLE = st.integers(-(2**53), 2**53)


def inputs_of(schema: Any, data: Any) -> Any:
    module = modules_of(a__module=Returns({}, input_schema=schema)).find("a.module")
    assert module is not None
    return to_inputs((Part(data=data),), module)[0]


def taking(schema: Any, **definitions: Any) -> dict[str, Any]:
    """Return the schema of an object with a property `x`."""
    return {"type": "object", "properties": {"x": schema}, "$defs": definitions}


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types: 5 is not 5.0."""
    return repr(left) == repr(right)


class Leaf(BaseModel):
    kind: Literal["leaf"]
    size: int


class Cut(BaseModel):
    kind: Literal["cut"]
    size: float


class Tree(BaseModel):
    size: int | None = None
    weight: float = 0
    either: int | float = 0
    branches: list["Tree"] = []
    by_name: dict[str, "Tree"] = {}
    pair: tuple[int, float] = (0, 0)
    what: Annotated[Leaf | Cut, Field(discriminator="kind")] | None = None
    level: Literal[1, 2] = 1
    free: Any = None


def test_a_pydantic_model_gets_its_integers_at_any_depth() -> None:
    branch = {"size": 3.0, "weight": 3.0, "branches": [{"size": 4.0}] * 20, "level": 2.0}
    deep: dict[str, Any] = {"size": 1.0}
    for _ in range(18):  # deeper than the card expands a recursive schema
        deep = {"size": 1.0, "branches": [deep]}
    data = {
        "size": 5.0,
        "either": 5.0,
        "branches": [branch, deep],
        "by_name": {"a": {"size": -0.0}},
        "pair": [1.0, 1.0],
        "what": {"kind": "cut", "size": 2.0},
        "free": {"size": 1.0},
    }
    read = inputs_of(Tree, data)
    assert same(read["branches"][0], {"size": 3, "weight": 3.0, "branches": [{"size": 4}] * 20, "level": 2})
    innermost = read["branches"][1]
    while "branches" in innermost:
        assert same(innermost["size"], 1)
        innermost = innermost["branches"][0]
    assert same(innermost, {"size": 1})
    del read["branches"]
    expected = {
        "size": 5,
        "either": 5.0,  # a number is allowed, so it is unchanged
        "by_name": {"a": {"size": 0}},
        "pair": [1, 1.0],
        "what": {"kind": "cut", "size": 2.0},
        "free": {"size": 1.0},
    }
    assert same(read, expected)
    assert same(inputs_of(Tree, {"what": {"kind": "leaf", "size": 2.0}}), {"what": {"kind": "leaf", "size": 2}})


@pytest.mark.parametrize(
    "schema",
    [
        INTEGER,
        {"type": ["integer", "null"]},
        {"anyOf": [{"type": "string"}, INTEGER]},
        {"oneOf": [INTEGER, {"type": "object"}]},
        {"allOf": [{"minimum": 0}, INTEGER]},
        {"$ref": "#/$defs/Count"},
        {"$ref": "#/$defs/A~1B%20~0"},
        {"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "null"}]},
        {"enum": ["all", 5]},
        {"const": 5},
        {"$ref": "#/$defs/Circle"},
    ],
)
def test_every_form_of_integer_in_a_dict_schema_counts(schema: dict[str, Any]) -> None:
    definitions = {"Count": INTEGER, "A/B ~": INTEGER, "Circle": {"allOf": [{"$ref": "#/$defs/Circle"}, INTEGER]}}
    assert same(inputs_of(taking(schema, **definitions), {"x": 5.0}), {"x": 5})


@pytest.mark.parametrize(
    ("schema", "data", "expected"),
    [
        ({"items": INTEGER}, [1.0, 2.0], [1, 2]),
        ({"prefixItems": [INTEGER, NUMBER], "items": INTEGER}, [1.0, 2.0, 3.0], [1, 2.0, 3]),
        ({"items": [NUMBER, INTEGER], "additionalItems": INTEGER}, [1.0, 2.0, 3.0], [1.0, 2, 3]),
        ({"prefixItems": [INTEGER]}, [1.0, 2.0], [1, 2.0]),
        ({"additionalProperties": INTEGER}, {"a": 1.0}, {"a": 1}),
        ({"additionalProperties": True, "properties": {"b": INTEGER}}, {"a": 1.0}, {"a": 1.0}),
        ({"patternProperties": {"^n": INTEGER}}, {"n": 1.0}, {"n": 1}),
        ({"anyOf": [{"type": "array", "items": INTEGER}, {"type": "string"}]}, [1.0], [1]),
        ({"anyOf": [{"type": "object", "additionalProperties": INTEGER}, True]}, [1.0], [1.0]),
    ],
)
def test_lists_and_objects_are_followed(schema: dict[str, Any], data: Any, expected: Any) -> None:
    assert same(inputs_of(taking(schema), {"x": data}), {"x": expected})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"kind": "a", "n": 1.0}, {"kind": "a", "n": 1}),
        ({"kind": "b", "n": 1.0}, {"kind": "b", "n": 1.0}),
        ({"kind": "c", "n": 1.0}, {"kind": "c", "n": 1}),
        ({"n": 1.0}, {"n": 1.0}),
    ],
)
def test_the_matching_alternative_decides(data: Any, expected: Any) -> None:
    def one(kind: dict[str, Any], number: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "required": ["kind"], "properties": {"kind": kind, "n": number, "any": True}}

    branches = [one({"const": "a"}, INTEGER), one({"enum": ["b"]}, NUMBER), one({"enum": ["c", "d"]}, INTEGER)]
    assert same(inputs_of(taking({"oneOf": branches}), {"x": data | {"any": 1.0}}), {"x": expected | {"any": 1.0}})


@pytest.mark.parametrize("value", [5.5, 1e300, -1e300, 2.0**53 + 2, 2**60, 10**400, True, "5.0", None])
def test_a_value_that_is_not_an_exact_integer_is_unchanged(value: Any) -> None:
    assert same(inputs_of(taking(INTEGER), {"x": value}), {"x": value})


@pytest.mark.parametrize(
    "schema",
    [
        NUMBER,
        {"anyOf": [INTEGER, NUMBER]},
        {"type": ["integer", "number"]},
        {"enum": [1, 2]},
        {"const": True},
        {"$ref": "https://example.com/integer"},
        {"$ref": 7},
        {"$ref": "#/$defs/Missing/deeper"},
        {"$ref": "#/type/deeper"},
        {},
    ],
)
def test_a_float_stays_a_float_unless_the_schema_says_integer(schema: dict[str, Any]) -> None:
    described = taking(schema)
    described["properties"]["y"] = INTEGER
    assert same(inputs_of(described, {"x": 5.0, "y": 5.0}), {"x": 5.0, "y": 5})


def test_a_module_without_integers_receives_the_input_unchanged() -> None:
    assert same(inputs_of(taking(NUMBER), {"x": 5.0}), {"x": 5.0})
    assert same(inputs_of(None, {"x": 5.0}), {"x": 5.0})


@given(WHOLE, st.floats(allow_nan=False, allow_infinity=False))
def test_every_integer_is_exact_and_every_float_unchanged(whole: int, real: float) -> None:
    schema = {"type": "object", "properties": {"whole": INTEGER, "real": NUMBER}}
    assert same(inputs_of(schema, {"whole": float(whole), "real": real}), {"whole": whole, "real": real})


def test_numbers_in_text_are_restored_as_well() -> None:
    module = modules_of(a__module=Returns({}, input_schema=Pair)).find("a.module")
    assert module is not None
    assert same(to_inputs((Part(text='{"a": 1.0, "b": 2}'),), module)[0], {"a": 1, "b": 2})


class Strict(BaseModel, strict=True):
    x: int


@pytest.mark.parametrize(
    "schema",
    [Strict, pytest.param(taking(INTEGER), marks=needs_pipeline)],  # 0.6.0 cannot run modules with dict schemas
)
async def test_the_module_receives_the_integer_and_the_message_is_unchanged(schema: Any) -> None:
    spy = Spy()
    spy.input_schema = schema  # type: ignore[attr-defined]  # the attribute that apcore reads
    call = call_of({"x": 5.0})
    await run(agent_of(a__spy=spy), call)
    assert same(spy.inputs, {"x": 5})
    assert same(call.message.parts[0].data, {"x": 5.0})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": INTEGER}, 5.0),
        ({"type": "array", "items": {"$ref": "#/$defs/row"}}, {"n": 5.0, "unknown": 1.5}),
        ({"type": "object", "additionalProperties": INTEGER}, 5.0),
    ],
    ids=["numbers", "rows", "properties"],
)
async def test_a_large_value_costs_a_few_calls_per_item(schema: Any, value: Any) -> None:
    integers = IntegerSchema(taking(schema, row={"type": "object", "properties": {"n": INTEGER}}))

    async def restore(size: int) -> None:
        inside: Any = [dict(value) if isinstance(value, dict) else value for _ in range(size)]
        if schema["type"] == "object":
            inside = {str(number): value for number in range(size)}
        integers.restore({"x": inside})

    await restore(1)  # fill the cache
    calls, _ = await count_calls(restore(1_000))
    assert calls <= 1_000 * 12 + 20
