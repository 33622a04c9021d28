"""Annotations of Python as JSON Schema, and JSON as values of these types.

msgspec knows the types of the standard library, dataclasses, typed dicts, named tuples and its own structs. Models of
pydantic are known by their methods: who uses one has it installed, and nobody else needs it.

Rule: strict. A text is no number and a number no text, whatever Python would make of them.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from apcore_a2a.agents.integers import IntegerSchema
from apcore_a2a.agents.schema import Schema, inline
from apcore_a2a.errors import Violation
from apcore_a2a.protocol.model import encode

MAX_MODELS: Final = 1_000  # of pydantic, whose schemas are kept
# How msgspec says where in a value it has found something wrong: "… - at `$.rows[0].name`", "… - at `key` in `$.rows`".
_PLACE: Final = re.compile(r" - at (?:`key` in )?`\$(?P<path>.*)`$", re.DOTALL)
_STEP: Final = re.compile(r"\[\.\.\.\]|\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")  # the first: some key of a dict


def schemas_of(types: Sequence[Any]) -> tuple[list[Schema], dict[str, Schema]]:
    """The schema of each type, and the definitions that they refer to.

    Raises:
        TypeError: JSON has no form for one of them; the text says which.
    """
    schemas, definitions = msgspec.json.schema_components(types, schema_hook=_model_schema)
    return list(schemas), definitions


def to_value(data: Any, annotation: Any, *, composed: bool) -> Any:
    """The value of a type that JSON stands for.

    Args:
        composed: Whether there may be dataclasses in it.

    Raises:
        msgspec.ValidationError: it stands for none.
    """
    value = msgspec.convert(data, annotation, strict=True, str_keys=True, dec_hook=_read_model)
    if composed:
        _complete(value)
    return value


def _complete(value: Any) -> None:
    """Give dataclasses the defaults that msgspec leaves to their classes: it would not write them back as JSON."""
    match value:
        case dict():
            inside: Iterable[Any] = value.values()
        case list() | tuple() | set() | frozenset():
            inside = value
        case msgspec.Struct():
            inside = [getattr(value, name) for name in value.__struct_fields__]
        case _ if dataclasses.is_dataclass(value):
            inside = _completed_fields(value)
        case _:
            return
    for each in inside:
        _complete(each)


def _completed_fields(value: Any) -> list[Any]:
    own = getattr(value, "__dict__", None)  # with slots there is none, and no default of a class either
    found: list[Any] = []
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        if own is not None:
            own.setdefault(field.name, held)  # past a class that is frozen
        found.append(held)
    return found


def to_violations(name: str, error: msgspec.ValidationError) -> list[Violation]:
    """What is wrong with an input, and where: with dots, as of modules (`rows.0.name`)."""
    text = str(error)
    steps = [name]
    place = _PLACE.search(text)
    if place is not None:
        text = text[: place.start()]
        found_steps = _STEP.finditer(place["path"])
        steps += [step[step.lastgroup] for step in found_steps if step.lastgroup is not None]
    found = getattr(error.__cause__, "errors", None)
    if found is None:
        return [Violation(".".join(steps), text)]
    # A model of pydantic: it names all that is wrong with it.
    violations: list[Violation] = []
    for item in found():
        field = ".".join([*steps, *map(str, item["loc"])])
        violations.append(Violation(field, item["msg"], item["type"]))
    return violations


# ---- what msgspec does not know: models of pydantic ------------------------------------------------------------------


def _model_schema(annotation: type) -> Schema:
    if not hasattr(annotation, "model_json_schema"):
        raise NotImplementedError
    return inline(_own_schema(annotation))


def _read_model(annotation: type, data: Any) -> Any:
    # Any: what has `model_json_schema` has this one, too. From JSON, because only there a date may be a text.
    model: Any = annotation
    restored = _integers(annotation).restore(data)
    return model.model_validate_json(encode(restored), strict=True)


def _own_schema(annotation: Any) -> Schema:
    return dict(annotation.model_json_schema())


@lru_cache(MAX_MODELS)
def _integers(annotation: type) -> IntegerSchema:
    return IntegerSchema(_own_schema(annotation))
