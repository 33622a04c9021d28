"""Functions with random signatures and values through a socket: results are equal, invalid values are rejected."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apcore_a2a import A2AClient, InvalidParamsError
from tests.interaction.serving import serving


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: float = 0.5


class Size(TypedDict):
    width: int


class Pair(NamedTuple):
    left: int
    right: str


class Line(msgspec.Struct):
    start: int
    label: str = "none"


class Model(pydantic.BaseModel):
    count: int
    day: date | None = None


class Kind(NamedTuple):
    """A type, values that may be sent for it with their results, and values that must be rejected."""

    annotation: Any
    right: st.SearchStrategy[tuple[Any, Any]]
    wrong: st.SearchStrategy[Any]


def same(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return values.map(lambda value: (value, value))


# As official clients send numbers: as a double, if a double can hold the value.
as_doubles = st.integers(-(2**53), 2**53).map(lambda number: (float(number), number))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
fractions = numbers.filter(lambda number: not number.is_integer())

PLAIN = [
    Kind(int, same(st.integers()) | as_doubles, texts | st.booleans() | st.none() | fractions),
    Kind(str, same(texts), st.integers() | st.none()),
    Kind(bool, same(st.booleans()), st.integers() | texts | st.none()),
    Kind(float, same(numbers), texts | st.booleans() | st.none()),
    Kind(Literal["a", "b"], same(st.sampled_from(["a", "b"])), st.just("c") | st.integers()),
    Kind(Literal[6, 7], same(st.sampled_from([6, 7])) | st.just((7.0, 7)), st.just("b") | st.integers(8)),
    Kind(Color, same(st.sampled_from(["red", "blue"])), st.just("green") | st.integers()),
    Kind(
        Point,
        st.tuples(st.integers(), numbers).map(lambda xy: ({"x": xy[0], "y": xy[1]}, {"x": xy[0], "y": xy[1]}))
        | as_doubles.map(lambda pair: ({"x": pair[0]}, {"x": pair[1], "y": 0.5})),
        st.just({"y": 1.5}) | texts.map(lambda text: {"x": text}) | st.integers(),
    ),
    Kind(
        Size,
        as_doubles.map(lambda pair: ({"width": pair[0]}, {"width": pair[1]})),
        st.just({}) | texts.map(lambda text: {"width": text}),
    ),
    Kind(
        Pair,
        st.tuples(as_doubles, texts).map(lambda pair: ([pair[0][0], pair[1]], [pair[0][1], pair[1]])),
        st.just([1]) | st.just({"left": 1, "right": "x"}),
    ),
    Kind(
        Line,
        as_doubles.map(lambda pair: ({"start": pair[0]}, {"start": pair[1], "label": "none"})),
        st.just({}) | texts.map(lambda text: {"start": 1, "label": 1}),
    ),
    Kind(
        Model,
        st.tuples(as_doubles, st.dates()).map(
            lambda pair: (
                {"count": pair[0][0], "day": pair[1].isoformat()},
                {"count": pair[0][1], "day": pair[1].isoformat()},
            )
        ),
        st.just({}) | texts.map(lambda text: {"count": text}) | st.just({"count": 1, "day": 5}),
    ),
]


def list_of(kind: Kind) -> Kind:
    items = st.lists(kind.right, max_size=4)
    right = items.map(lambda pairs: ([pair[0] for pair in pairs], [pair[1] for pair in pairs]))
    return Kind(list[kind.annotation], right, kind.wrong.map(lambda value: [value]) | st.integers())  # type: ignore[name-defined]  # made here


def dict_of(kind: Kind) -> Kind:
    items = st.dictionaries(texts, kind.right, max_size=4)
    right = items.map(
        lambda pairs: ({key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()})
    )
    return Kind(dict[str, kind.annotation], right, kind.wrong.map(lambda value: {"key": value}) | texts)  # type: ignore[name-defined]  # made here


def optional(kind: Kind) -> Kind:
    return Kind(
        kind.annotation | None, kind.right | st.just((None, None)), kind.wrong.filter(lambda value: value is not None)
    )


kinds = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: inner.map(list_of) | inner.map(dict_of),
    max_leaves=3,
)


def make_function(annotations: list[Any]) -> Callable[..., Any]:
    """Return a function with these parameter types that returns its arguments."""
    names = [f"p{number}" for number in range(len(annotations))]
    namespace: dict[str, Any] = {}
    exec(f"async def gives_back({', '.join(names)}, last: int = 7):\n    return [{', '.join(names)}, last]", namespace)
    function: Callable[..., Any] = namespace["gives_back"]
    function.__annotations__ |= dict(zip(names, annotations, strict=True)) | {"last": int}
    return function


class Sent(NamedTuple):
    annotations: list[Any]
    right: dict[str, Any]
    expected: list[Any]
    wrong: dict[str, Any]


@st.composite
def calls(draw: st.DrawFn) -> Sent:
    chosen = draw(st.lists(kinds | st.sampled_from(PLAIN).map(optional), min_size=1, max_size=4))
    right: dict[str, Any] = {}
    wrong: dict[str, Any] = {}
    expected: list[Any] = []
    for number, kind in enumerate(chosen):
        sent, back = draw(kind.right)
        right[f"p{number}"] = sent
        expected.append(back)
        wrong[f"p{number}"] = draw(kind.wrong)
    return Sent([kind.annotation for kind in chosen], right, [*expected, 7], wrong)


async def call_through_a_socket(sent: Sent) -> None:
    async with (
        serving(make_function(sent.annotations), card=None) as url,
        A2AClient(url) as client,
    ):
        task = await client.send_message({**sent.right})
        assert repr(task.data) == repr(sent.expected)  # 5 is not 5.0
        for name, value in sent.wrong.items():
            with pytest.raises(InvalidParamsError) as refusal:
                await client.send_message({**sent.right, name: value})
            fields = {violation.field.partition(".")[0] for violation in refusal.value.violations}
            assert fields == {name}
        missing = dict(sent.right)
        del missing["p0"]
        with pytest.raises(InvalidParamsError) as refusal:
            await client.send_message({**missing, "last": 1, "more": 1})
        assert {violation.field for violation in refusal.value.violations} == {"p0", "more"}
        assert (await client.list_tasks()).total_size == 1  # the rejected message has created no task


@settings(max_examples=200, deadline=None)
@given(calls())
async def test_any_function_receives_exactly_the_sent_values(sent: Sent) -> None:
    await call_through_a_socket(sent)
