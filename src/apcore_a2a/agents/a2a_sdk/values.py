"""JSON values and times as protobuf's well-known types, and back.

Rule: nothing is rounded. `Struct` and `Value` know no numbers but doubles: a whole number up to ±2^53 comes back as the
integer it was, and a number that no double can hold is refused.
"""

from contextlib import suppress
from datetime import UTC
from typing import Any, Final

import msgspec
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

EXACT: Final = 2**53  # beyond it, doubles skip whole numbers


def to_struct(data: dict[str, Any] | None) -> Struct | None:
    if data is None:
        return None
    return Struct(fields={name: to_value(item) for name, item in data.items()})


def to_value(data: Any) -> Value:
    match data:
        case None:
            return Value(null_value=0)  # type: ignore[arg-type]  # the stubs have no name for the enum's number
        case bool():  # before int, which a bool is, too
            return Value(bool_value=data)
        case str():
            return Value(string_value=data)
        case float():
            return Value(number_value=data)
        case int():
            return Value(number_value=_to_double(data))
        case dict():
            return Value(struct_value=to_struct(data))
        case list() | tuple():
            return Value(list_value=ListValue(values=map(to_value, data)))
        case _:
            return to_value(msgspec.to_builtins(data))  # what an agent may leave to msgspec: times, dataclasses


def _to_double(number: int) -> float:
    with suppress(OverflowError):
        if int(float(number)) == number:
            return float(number)
    raise ValueError("protobuf holds whole numbers exactly up to 2^53 only: send a larger one as a string")


def to_time(text: str) -> Timestamp | None:
    if not text:
        return None
    moment = Timestamp()
    moment.FromJsonString(text)
    return moment


def from_time(moment: Timestamp) -> str:
    text = moment.ToDatetime(tzinfo=UTC).isoformat(timespec="milliseconds")  # A2A 1.0 §5.6.1
    return text.replace("+00:00", "Z")


def from_struct(struct: Struct) -> dict[str, Any]:
    return {name: from_value(value) for name, value in struct.fields.items()}


def _from_double(number: float) -> int | float:
    """JSON makes no difference between 1 and 1.0, but Python does, and so do those who check schemas."""
    if number.is_integer() and abs(number) <= EXACT:
        return int(number)
    return number


def from_value(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            return _from_double(value.number_value)
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [from_value(item) for item in value.list_value.values]
        case _:  # null, or nothing at all
            return None
