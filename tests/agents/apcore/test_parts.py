"""Conversion of parts to inputs and of outputs to parts: no value is lost or shared, all are JSON."""

import dataclasses
import enum
import json
import math
import pathlib
from collections import OrderedDict
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel

from apcore_a2a.agents.apcore.call import copy_output, output_parts, to_inputs
from apcore_a2a.agents.apcore.modules import ModuleInfo
from apcore_a2a.agents.content import MAGIC
from apcore_a2a.agents.schema import inline
from apcore_a2a.errors import ContentTypeNotSupportedError, InvalidAgentResponseError, InvalidParamsError
from apcore_a2a.protocol.model import Part, TaskState, encode
from tests.agents.apcore.running import Pair, Returns, agent_of, call_of, modules_of, run
from tests.requirements import requirement


class Text(BaseModel):
    text: str


class File(BaseModel):
    uri: str | None = None
    bytes: str | None = None
    name: str = ""
    mimeType: str = ""


class Picture(BaseModel):
    picture: File
    width: int = 100


class MaybePicture(BaseModel):
    picture: File | None = None


class Word(RootModel[str]):
    pass


def taking(model: type[BaseModel] | None) -> ModuleInfo:
    found = modules_of(a__module=Returns({}, input_schema=model)).find("a.module")
    assert found is not None
    return found


def inputs_of(model: type[BaseModel] | None, *parts: Part) -> Any:
    return to_inputs(parts, taking(model))[0]


# Inputs


@requirement("FR-MSG-003")
def test_data_is_the_input() -> None:
    assert inputs_of(Pair, Part(data={"a": 1, "b": 2})) == {"a": 1, "b": 2}


@requirement("FR-MSG-003")
@pytest.mark.parametrize("text", ['{"a": 1, "b": 2}', ' {"a":1,"b":2}\n'])
def test_text_with_a_json_object_is_the_input(text: str) -> None:
    assert inputs_of(Pair, Part(text=text)) == {"a": 1, "b": 2}


@given(st.integers())
def test_integers_in_text_stay_exact(number: int) -> None:
    assert inputs_of(Pair, Part(text=f'{{"a": {number}}}')) == {"a": number}


@requirement("FR-MSG-003")
@pytest.mark.parametrize(
    "text",
    ["add 1 and 2", "", "[1, 2]", "3", "{", '{"a": NaN}', "[" * 100_000, '{"a":' * 65 + "1" + "}" * 65, '"\\ud800"'],
)
def test_text_that_is_not_a_json_object_is_rejected(text: str) -> None:
    with pytest.raises(InvalidParamsError, match=r"^Invalid JSON in TextPart$"):
        inputs_of(Pair, Part(text=text))


@pytest.mark.parametrize("data", [[1, 2], 3, "text", None, True])
def test_data_that_is_not_an_object_is_rejected(data: object) -> None:
    with pytest.raises(InvalidParamsError, match="must be a JSON object"):
        inputs_of(Pair, Part(data=data))


@requirement("FR-MSG-003")
def test_text_is_the_input_of_a_module_that_takes_a_string() -> None:
    assert inputs_of(Word, Part(text='{"": 1}')) == '{"": 1}'


@requirement("FR-MSG-003")
@pytest.mark.parametrize("text", ["hello", "3", "[1]", '{"other": 1}', "{not json"])
def test_text_fills_the_only_property_if_that_is_a_string(text: str) -> None:
    assert inputs_of(Text, Part(text=text)) == {"text": text}


def test_text_that_names_the_only_property_is_read_as_json() -> None:
    assert inputs_of(Text, Part(text='{"text": "hello"}')) == {"text": "hello"}


@pytest.mark.parametrize(
    ("text", "inputs"), [("hello", {"text": "hello"}), ('{"any": 1}', {"any": 1}), ("3", {"text": "3"})]
)
def test_peer_weakness_19_text_reaches_a_module_without_a_schema(text: str, inputs: object) -> None:
    assert inputs_of(None, Part(text=text)) == inputs


@requirement("FR-MSG-003")
def test_a_file_by_reference_is_a_dict() -> None:
    part = Part(url="https://example.com/cat.png", filename="cat.png", media_type="image/png")
    file = {"uri": "https://example.com/cat.png", "name": "cat.png", "mimeType": "image/png"}
    assert inputs_of(File, part) == file
    assert inputs_of(Picture, part) == {"picture": file}
    assert inputs_of(MaybePicture, part) == {"picture": file}
    assert inputs_of(None, part) == file


def test_a_file_by_value_is_a_dict_with_base64() -> None:
    part = Part(raw=b"\x00\xff", media_type="image/png")
    assert inputs_of(Picture, part) == {"picture": {"bytes": "AP8=", "name": "", "mimeType": "image/png"}}


def test_a_file_is_rejected_by_a_module_that_takes_none() -> None:
    with pytest.raises(ContentTypeNotSupportedError, match="takes no files"):
        inputs_of(Pair, Part(raw=b"\x00"))


@requirement("FR-MSG-003")
@pytest.mark.parametrize(
    ("model", "chosen"), [(Pair, 1), (Text, 0), (Picture, 1), (File, 1), (None, 0)], ids=lambda value: str(value)
)
def test_peer_weakness_18_of_several_parts_the_first_that_fits_is_read(model: Any, chosen: int) -> None:
    parts = (Part(text="hello"), Part(data={"a": 1}), Part(url="https://example.com/"))
    _, rest = to_inputs(parts, taking(model))
    assert rest == tuple(part for index, part in enumerate(parts) if index != chosen)


@requirement("FR-MSG-003")
def test_a_message_without_parts_is_rejected() -> None:
    with pytest.raises(InvalidParamsError, match=r"^Message must contain at least one Part$"):
        inputs_of(Pair)


def test_the_input_is_a_copy() -> None:
    data = {"list": [1]}
    inputs_of(None, Part(data=data))["list"].append(2)
    assert data == {"list": [1]}


def test_an_approval_token_is_removed() -> None:
    assert inputs_of(Pair, Part(data={"a": 1, "_approval_token": "x"})) == {"a": 1}
    assert inputs_of(Pair, Part(text='{"a": 1, "_approval_token": "x"}')) == {"a": 1}
    assert inputs_of(None, Part(data={"_approval_token": {"not": "text"}})) == {}


# Outputs


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


class Reading(BaseModel):
    when: datetime
    value: Decimal


WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OUTPUTS: list[tuple[Any, Any]] = [
    ({}, {}),
    ({"a": 1}, {"a": 1}),
    ({"a": None, "b": [1, 2.5, True]}, {"a": None, "b": [1, 2.5, True]}),
    ({"big": 2**60 + 1}, {"big": 2**60 + 1}),
    ({"when": WHEN, "day": date(2026, 1, 2)}, {"when": "2026-01-02T03:04:05Z", "day": "2026-01-02"}),
    ({"id": UUID(int=1), "price": Decimal("1.50")}, {"id": "00000000-0000-0000-0000-000000000001", "price": "1.50"}),
    ({"color": Color.RED, "point": Point(1), "set": {1}}, {"color": "red", "point": {"x": 1}, "set": [1]}),
    ({"path": pathlib.Path("a")}, {"path": "a"}),
    ({1: "one", Color.RED: 2}, {"1": "one", "red": 2}),
    (OrderedDict(a=1), {"a": 1}),
    (Reading(when=WHEN, value=Decimal("1.5")), {"when": "2026-01-02T03:04:05Z", "value": "1.5"}),
    ({"inner": Reading(when=WHEN, value=Decimal(1))}, {"inner": {"when": "2026-01-02T03:04:05Z", "value": "1"}}),
    ({"inner": {"bytes": b"\x00"}}, {"inner": {"bytes": "AA=="}}),
    ([1, {"two": 2}], [1, {"two": 2}]),
    (3, 3),
    (None, None),
]


@pytest.mark.parametrize(("output", "data"), OUTPUTS, ids=lambda value: repr(value)[:40])
def test_peer_weakness_20_a_value_becomes_data(output: Any, data: Any) -> None:
    (part,) = output_parts(copy_output(output))
    assert part.media_type == "application/json"
    assert json.loads(encode(part))["data"] == data


def test_text_becomes_text() -> None:
    assert output_parts(copy_output("hello")) == [Part(text="hello")]


@pytest.mark.parametrize(("magic", "kind"), [*MAGIC.items(), (b"", "application/octet-stream")])
def test_bytes_become_a_file_with_the_media_type_of_their_first_bytes(magic: bytes, kind: str) -> None:
    assert output_parts(copy_output(magic + b"...")) == [Part(raw=magic + b"...", media_type=kind)]


def test_bytes_in_an_object_become_files_beside_the_data() -> None:
    assert output_parts(copy_output({"picture": b"GIF89a", "width": 3, "raw": bytearray(b"\x00")})) == [
        Part(data={"width": 3, "raw": "AA=="}, media_type="application/json"),
        Part(raw=b"GIF89a", filename="picture", media_type="image/gif"),
    ]


def test_an_object_of_bytes_only_becomes_files_only() -> None:
    assert [part.filename for part in output_parts(copy_output({"a": b"1", "b": b"2"}))] == ["a", "b"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"deep": [{"er": value}]}])
def test_peer_weakness_20_nan_and_infinity_are_a_clear_failure(value: float, wrap: Any) -> None:
    with pytest.raises(InvalidAgentResponseError, match="NaN or infinity"):
        output_parts(copy_output(wrap(value)))


def circle() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


@pytest.mark.parametrize(
    "value", [object(), {"a": lambda: None}, circle(), {("a", "tuple"): 1}], ids=lambda value: type(value).__name__
)
def test_a_value_without_a_json_form_is_a_clear_failure(value: Any) -> None:
    with pytest.raises(InvalidAgentResponseError, match="no JSON form"):
        copy_output(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, min_size=0))
def test_json_crosses_unchanged_and_unshared(value: dict[str, Any]) -> None:
    (part,) = output_parts(copy_output(value))
    assert part.data == value
    assert part.data is not value


@pytest.mark.parametrize("output", [{}, {"a": 1}, {"picture": b"\x89PNG"}, None])
async def test_a_completed_task_has_one_artifact(output: Any) -> None:
    outcome = await run(agent_of(a__module=Returns(output)), call_of("go"))
    assert outcome.state is TaskState.COMPLETED
    assert len(outcome.task.artifacts) == 1
    assert outcome.parts


async def test_output_that_cannot_be_sent_fails_the_run() -> None:
    with pytest.raises(InvalidAgentResponseError, match="NaN"):
        await run(agent_of(a__module=Returns({"n": math.nan})), call_of("go"))


def test_a_schema_that_refers_to_itself_does_not_hang_the_reading() -> None:
    tree = {"$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}}, "$ref": "#/$defs/Node"}
    assert inline(tree) == {"properties": {"next": {}}}


def test_json_text_with_too_many_values_is_read_as_text() -> None:
    listed = "[" + "{}," * 50_000 + "{}]"
    many = f'{{"text":{listed}}}'
    assert inputs_of(Text, Part(text=many)) == {"text": many}
    few = '{"text":[{},{}]}'
    assert inputs_of(Text, Part(text=few)) == {"text": [{}, {}]}
