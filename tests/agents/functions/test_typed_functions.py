"""Functions with typed parameters: arguments from a message, and rejections before a task exists."""

import enum
import io
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from apcore_a2a.agent import Call
from apcore_a2a.errors import ContentTypeNotSupportedError, InvalidParamsError
from apcore_a2a.protocol.model import ArtifactUpdate, ListTasks, Message, Part, Role, TaskState
from tests.conversations import contents, talk_to


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Box(msgspec.Struct):
    corner: Point
    label: str = ""


class Options(TypedDict, total=False):
    depth: int


class Pair(NamedTuple):
    left: int
    right: str


class Line(pydantic.BaseModel):
    start: int
    day: date | None = None


def message_of(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.USER, parts=parts)


async def result_of(function: Callable[..., Any], *parts: Part) -> Any:
    """Return the content of the first part of the answer."""
    async with talk_to(function) as user:
        task = await user.task(message_of(*parts))
    assert task.status.state is TaskState.COMPLETED, task
    return contents(task)[0][0]


async def refusal_of(function: Callable[..., Any], *parts: Part) -> InvalidParamsError:
    async with talk_to(function) as user:
        with pytest.raises(InvalidParamsError) as refused:
            await user.task(message_of(*parts))
        page = await user.engine.list_tasks(ListTasks(), user.context)
    assert page.total_size == 0
    return refused.value


async def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


async def test_data_becomes_the_arguments_and_missing_ones_keep_their_defaults() -> None:
    assert await result_of(add, Part(data={"a": 2, "b": 3})) == 5
    assert await result_of(add, Part(data={"a": 2})) == 3


async def test_integers_stay_exact_even_if_they_arrive_as_floats() -> None:
    large = 2**70
    assert await result_of(add, Part(data={"a": large, "b": 1})) == large + 1
    result = await result_of(add, Part(data={"a": 5.0, "b": 1.0}))
    assert (result, type(result)) == (6, int)


async def test_a_json_object_as_text_becomes_the_arguments() -> None:
    assert await result_of(add, Part(text='{"a": 2, "b": 3}')) == 5


@pytest.mark.parametrize(
    ("annotation", "sent", "expected"),
    [
        (int, 5, 5),
        (float, 5, 5.0),
        (bool, True, True),
        (str | None, None, None),
        (Literal["a", "b"], "b", "b"),
        (Literal[1, 2], 1.0, 1),
        (Color, "red", Color.RED),
        (list[int], [1.0, 2], [1, 2]),
        (dict[str, int], {"x": 1.0}, {"x": 1}),
        (dict[int, str], {"1": "x"}, {1: "x"}),
        (set[str], ["a"], {"a"}),
        (tuple[int, str], [1.0, "x"], (1, "x")),
        (Point, {"x": 1.0}, Point(1)),
        (list[Box], [{"corner": {"x": 1, "y": 2.0}}], [Box(Point(1, 2))]),
        (Options, {"depth": 3.0}, {"depth": 3}),
        (Pair, [1.0, "x"], Pair(1, "x")),
        (Line, {"start": 1.0, "day": "2026-01-02"}, Line(start=1, day=date(2026, 1, 2))),
        (list[Line] | None, [{"start": 1}], [Line(start=1)]),
        (datetime, "2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001  # as it was sent
        (timedelta, "PT90S", timedelta(seconds=90)),
        (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
        (Decimal, "1.50", Decimal("1.50")),
        (bytes, "AP8=", b"\x00\xff"),
        (Annotated[int, msgspec.Meta(ge=1)], 1, 1),
        (Any, {"free": [1]}, {"free": [1]}),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_value_is_converted_to_the_type_of_its_parameter(
    annotation: Any, sent: object, expected: object
) -> None:
    got: list[object] = []

    async def take(value, more=0):  # type: ignore[no-untyped-def]  # the annotations are those of the case
        got.append(value)

    take.__annotations__ = {"value": annotation, "more": int}
    await result_of_nothing(take, Part(data={"value": sent}))
    assert got == [expected]
    assert repr(got) == repr([expected])  # 5 is not 5.0


async def result_of_nothing(function: Callable[..., Any], *parts: Part) -> None:
    async with talk_to(function) as user:
        task = await user.task(message_of(*parts))
    assert task.status.state is TaskState.COMPLETED, task


@pytest.mark.parametrize(
    ("annotation", "sent", "field", "complaint"),
    [
        (int, "5", "value", "Expected `int`, got `str`"),
        (int, 5.5, "value", "Expected `int`, got `float`"),
        (int, True, "value", "Expected `int`, got `bool`"),
        (bool, 1, "value", "Expected `bool`, got `int`"),
        (float, "1.5", "value", "Expected `float`, got `str`"),
        (list[int], [1, "x"], "value.1", "Expected `int`, got `str`"),
        (Box, {"corner": {"x": "1"}}, "value.corner.x", "Expected `int`, got `str`"),
        (Box, {}, "value", "Object missing required field `corner`"),
        (dict[str, int], {"x": "y"}, "value", "Expected `int`, got `str`"),
        (dict[str, list[int]], {"x": [1, "y"]}, "value.1", "Expected `int`, got `str`"),
        (dict[int, int], {"x": 1}, "value", "Expected `int`, got `str`"),
        (Literal["a"], "b", "value", "Invalid enum value 'b'"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "value", "Expected `int` >= 1"),
        (Line, {"start": "1"}, "value.start", "Input should be a valid integer"),
        (list[Line], [{"start": 1}, {}], "value.1.start", "Field required"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_invalid_value_is_rejected_with_its_field(
    annotation: Any, sent: object, field: str, complaint: str
) -> None:
    async def take(value, more=0):  # type: ignore[no-untyped-def]  # the annotations are those of the case
        raise AssertionError("must not be called")

    take.__annotations__ = {"value": annotation, "more": int}
    error = await refusal_of(take, Part(data={"value": sent}))
    assert [(each.field, each.message) for each in error.violations] == [(field, complaint)]


async def test_all_invalid_fields_are_named_at_once() -> None:
    error = await refusal_of(add, Part(data={"b": "x", "c": 1}))
    assert [(each.field, each.code) for each in error.violations] == [
        ("a", "missing"),
        ("b", "invalid"),
        ("c", "unexpected"),
    ]
    assert str(error).startswith("Invalid parameters: a: Field required; b: Expected `int`, got `str`; c: ")


async def test_a_long_invalid_value_is_truncated_in_the_error() -> None:
    async def take(mode: Literal["a"], more: int = 0) -> None: ...

    error = await refusal_of(take, Part(data={"mode": "x" * 100_000}))
    assert len(str(error)) < 500


async def test_the_number_of_named_fields_is_limited() -> None:
    many = {f"{'x' * 1000}{number}": 1 for number in range(10_000)}
    error = await refusal_of(add, Part(data=many))
    assert len(error.violations) == 50
    assert sum(len(each.field) + len(each.message) for each in error.violations) < 20_000


async def test_text_that_is_not_json_is_rejected_with_the_names_of_the_inputs() -> None:
    error = await refusal_of(add, Part(text="two and three"))
    assert str(error) == "Skill add takes a JSON object with a, b"
    assert [each.message for each in error.violations] == ["Skill add takes a JSON object with a, b"]


# ---- text and files --------------------------------------------------------------------------------------------------


async def translate(text: str, to: str = "en") -> str:
    return f"{to}: {text}"


async def test_text_fills_the_only_required_parameter_if_that_is_a_string() -> None:
    assert await result_of(translate, Part(text="ciao")) == "en: ciao"
    assert await result_of(translate, Part(text='{"text": "ciao", "to": "de"}')) == "de: ciao"
    assert await result_of(translate, Part(data={"to": "fr"}), Part(text="ciao")) == "fr: ciao"


async def look(prompt: str, image: bytes, detail: int = 1) -> str:
    return f"{prompt} {len(image)} {detail}"


async def test_a_file_fills_the_parameter_that_takes_bytes() -> None:
    file = Part(raw=b"123", media_type="image/png")
    assert await result_of(look, Part(text="What is it?"), file) == "What is it? 3 1"
    assert await result_of(look, file, Part(text="What is it?")) == "What is it? 3 1"
    assert await result_of(look, Part(data={"prompt": "Hm", "detail": 2}), file) == "Hm 3 2"


async def test_a_file_url_is_rejected_if_the_content_is_needed() -> None:
    async with talk_to(look) as user:
        with pytest.raises(ContentTypeNotSupportedError, match="takes the content of files, not URLs"):
            await user.task(message_of(Part(url="https://example.com/a.png"), Part(text="What is it?")))


# ---- kinds of functions ----------------------------------------------------------------------------------------------


def blocking(a: int, b: int) -> int:
    return a * b


def generating(a: int, *, times: int) -> Iterator[str]:
    for _ in range(times):
        yield str(a)


async def streaming(a: int, times: int) -> AsyncIterator[str]:
    for _ in range(times):
        yield str(a)


def by_place(a: int = 1, b: int = 2, /) -> list[int]:
    return [a, b]


async def with_call(a: int, call: Call, message: Message) -> str:
    return f"{a} {call.caller.id} {message.message_id}"


async def with_call_or_none(a: int, call: Call | None = None) -> str:
    return f"{a} {call is not None}"


class Counter:
    def __init__(self, start: int) -> None:
        self.start = start

    def __call__(self, by: int) -> int:
        return self.start + by


@pytest.mark.parametrize(
    ("function", "data", "expected"),
    [
        (blocking, {"a": 2, "b": 3}, 6),
        (by_place, {"b": 3}, [1, 3]),
        (with_call, {"a": 2}, "2 anonymous m"),
        (with_call_or_none, {"a": 2}, "2 True"),
        (Counter(2), {"by": 3}, 5),
    ],
)
async def test_every_kind_of_function_can_be_typed(function: Any, data: Any, expected: object) -> None:
    assert await result_of(function, Part(data=data)) == expected


@pytest.mark.parametrize("function", [generating, streaming])
async def test_a_typed_generator_streams(function: Any) -> None:
    async with talk_to(function) as user:
        events = await user.stream(message_of(Part(data={"a": 7, "times": 3})))
    assert [event.text for event in events if isinstance(event, ArtifactUpdate)] == ["7", "7", "7"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Point(1, 2), {"x": 1, "y": 2}),
        (Box(Point(1)), {"corner": {"x": 1, "y": 0}, "label": ""}),
        (Line(start=1, day=date(2026, 1, 2)), {"start": 1, "day": "2026-01-02"}),
        (Color.RED, "red"),
        ([Decimal("1.5"), UUID(int=1)], ["1.5", "00000000-0000-0000-0000-000000000001"]),
    ],
)
async def test_a_result_becomes_data(value: object, expected: object) -> None:
    async def give(which: int) -> object:
        return value

    assert await result_of(give, Part(data={"which": 0})) == expected


async def test_an_open_file_becomes_a_file_with_its_name_and_is_closed(tmp_path: Any) -> None:
    path = tmp_path / "report.pdf"
    path.write_bytes(b"%PDF-1.7")
    opened: list[io.IOBase] = []

    def report(pages: int) -> io.IOBase:
        opened.append(path.open("rb"))
        return opened[-1]

    async def memory(pages: int) -> io.IOBase:
        return io.BytesIO(b"\x89PNG\r\n\x1a\n")

    async with talk_to(report) as user:
        task = await user.task(message_of(Part(data={"pages": 1})))
    assert [(file.raw, file.filename, file.media_type) for file in task.files] == [
        (b"%PDF-1.7", "report.pdf", "application/pdf")
    ]
    assert opened[0].closed
    async with talk_to(memory) as user:
        task = await user.task(message_of(Part(data={"pages": 1})))
    assert [(file.filename, file.media_type) for file in task.files] == [("", "image/png")]
