"""Reads how a function is called, and its JSON Schemas, from its signature, types and docstring."""

import dataclasses
import inspect
import io
import re
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from types import NoneType, SimpleNamespace, UnionType
from typing import IO, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.agent import Call, ModelUsage, Remember, ToolCalled, ToolDone
from apcore_a2a.agents.content import text_of
from apcore_a2a.agents.input_cost import MAX_ERRORS, TOO_MANY_ERRORS, InputCost
from apcore_a2a.agents.inputs import IntegerSchema
from apcore_a2a.agents.schema import Schema, inline
from apcore_a2a.errors import Violation
from apcore_a2a.protocol.model import ArtifactUpdate, Message, Part, StatusUpdate, Task, check_finite, encode
from apcore_a2a.protocol.questions import Question

# The parameters of a function: the message, the call, or inputs.
#
# Typed parameters are inputs: they are filled by name, and the input of a client is checked against their types. A
# function that takes only a message (`text: str`, `message: Message`, no type) receives it unchanged.
#
# Invariant: the annotations decide, once, when the function is served. A function that cannot be called is rejected
# then.

ReadArgument = Callable[[Call, Message], object]
"""Returns the argument for a parameter, given the call and the message with the inputs.

`FunctionSkill.input_message` chooses that message: `call.message`, or the task's first message if `call.message` is an
answer to a question."""

# The arguments of parameters that are not inputs, by annotation.
INJECTED: Final[dict[object, ReadArgument]] = {
    Message: lambda call, asked: asked,
    Call: lambda call, asked: call,
    str: lambda call, asked: text_of(asked),
}
_INJECTED_NAMES: Final = re.compile(r"\b(Message|Call)\b")  # our types, which may be imported under TYPE_CHECKING only
_UNRESOLVED: Final = (NameError, AttributeError)  # raised for an annotation with an unknown name
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)  # parameters that receive nothing
_FILES: Final = (bytes, bytearray, io.IOBase, IO)
# Return types that are parts or events instead of values. They have no schema.
_EVENTS: Final = (
    Message,
    Part,
    StatusUpdate,
    ArtifactUpdate,
    Task,
    Remember,
    Question,
    ToolCalled,
    ToolDone,
    ModelUsage,
    NoneType,
)


class Input(Struct, frozen=True):
    """A parameter that a client fills in."""

    name: str
    type: Any
    default: Any = inspect.Parameter.empty
    is_composed: bool = False
    """Whether its type contains classes of the application."""

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Signature(Struct, frozen=True):
    """How a function is called."""

    injected: dict[str, ReadArgument]
    """The arguments that are not inputs, by parameter."""
    inputs: tuple[Input, ...]
    """The inputs, filled by a client. Empty if the function takes the message unchanged."""
    positional: dict[str, Any]
    """The positional-only parameters, in order, with their defaults."""
    takes_call: bool
    return_type: Any
    """The return annotation. Any if there is none."""

    @property
    def takes_only_text(self) -> bool:
        """Whether the function receives only the text of a message."""
        return not self.inputs and set(self.injected.values()) == {INJECTED[str]}


def read_signature(function: Callable[..., Any]) -> Signature:
    """Return how to call a function.

    Raises:
        TypeError: The function cannot be called with messages. The text says why.
    """
    name = name_of(function)
    try:
        signature = inspect.signature(function)
    except ValueError as error:  # raised for some functions written in C
        raise TypeError(f"{name} cannot be served: its parameters are unknown") from error
    hints = _read_hints(function)
    parameters = [each for each in signature.parameters.values() if each.kind not in _VARIADIC]
    _refuse_unresolved_types(name, parameters, hints)
    inputs = tuple(_check_input(name, each) for each in _find_inputs(parameters, hints))
    injected = _find_injected(name, parameters, hints, inputs)
    return Signature(
        injected=injected,
        inputs=inputs,
        positional={each.name: each.default for each in parameters if each.kind is each.POSITIONAL_ONLY},
        takes_call=INJECTED[Call] in injected.values(),
        return_type=hints.get("return", Any),
    )


def _refuse_unresolved_types(name: str, parameters: list[inspect.Parameter], hints: dict[str, Any]) -> None:
    """Raise TypeError for a parameter whose type cannot be resolved: without a type it would receive a message."""
    for parameter in parameters:
        has_type = parameter.annotation is not parameter.empty
        if not has_type or parameter.name in hints or parameter.default is not parameter.empty:
            continue
        written = str(parameter.annotation)
        if not _INJECTED_NAMES.search(written):
            raise TypeError(
                f"{name} cannot be served: {written}, the type of {parameter.name}, is not known at run time:"
                " import or define it in the module, and not under TYPE_CHECKING or in a function"
            )


def _find_inputs(parameters: list[inspect.Parameter], hints: dict[str, Any]) -> tuple[Input, ...]:
    """Return the parameters that a client fills in. Empty if the function takes the message unchanged."""
    found: list[Input] = []
    for parameter in parameters:
        if parameter.name not in hints:
            if parameter.default is parameter.empty and parameter.name != "call":
                return ()  # without a type it receives the message
            continue
        hint = hints[parameter.name]
        if hint not in (Call, Message):
            found.append(Input(parameter.name, hint, parameter.default))
    if all(each.type is Any for each in found):
        return ()
    if len(found) == 1 and found[0].type is str and found[0].is_required:
        return ()  # a single string receives the whole text of the message
    return tuple(found)


def _find_injected(
    name: str, parameters: list[inspect.Parameter], hints: dict[str, Any], inputs: tuple[Input, ...]
) -> dict[str, ReadArgument]:
    """Return the arguments of the other parameters. One with a default keeps it, unless its type is Call or Message."""
    of_client = {each.name for each in inputs}
    injected: dict[str, ReadArgument] = {}
    untyped = 0
    for parameter in parameters:
        if parameter.name in of_client:
            continue
        hint = hints.get(parameter.name, Any)
        if parameter.default is not parameter.empty and hint not in (Call, Message):
            continue
        if hint is Any:
            # By name, else by position: the message first, then the call.
            hint = Message
            if parameter.name == "call" or (injected and INJECTED[Call] not in injected.values()):
                hint = Call
            untyped += 1
        if hint not in INJECTED:
            raise TypeError(
                f"{name} cannot be served: {parameter.name} has a type and another parameter has none;"
                " give all of them types, or take (message), (message, call) or (call)"
            )
        injected[parameter.name] = INJECTED[hint]
    if untyped > 2:
        raise TypeError(
            f"{name} cannot be served: without types it may take (message), (message, call) or (call), and no more"
        )
    return injected


def _check_input(name: str, each: Input) -> Input:
    try:
        _, definitions = schemas_of([each.type])
    except TypeError as error:
        reason = str(error).splitlines()[-1]  # the lines before it are advice about schemas
        raise TypeError(f"{name} cannot be served: JSON has no form for {each.name}: {reason}") from error
    return replace(each, is_composed=bool(definitions))


def _read_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations, without those that only a type checker can resolve."""
    target: Any = function
    if isinstance(function, partial):
        target = function.func
    if not inspect.isroutine(target):  # an object with `__call__`
        target = type(target).__call__
    try:
        found = get_type_hints(target, include_extras=True)
    except _UNRESOLVED:
        found = _read_resolvable_hints(target)
    return {name: _without_none(hint) for name, hint in found.items()}


def _read_resolvable_hints(target: Any) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    names = getattr(inspect.unwrap(target), "__globals__", {})
    for name, annotation in target.__annotations__.items():
        alone: Any = SimpleNamespace(__annotations__={name: annotation})  # Any: it need not be a function
        try:
            hints |= get_type_hints(alone, names, include_extras=True)
        except _UNRESOLVED:
            continue
    return hints


def _without_none(hint: Any) -> Any:
    """Return `Call` for `Call | None`, and `Message` for `Message | None`. Others are returned as they are."""
    choices = [choice for choice in _choices(hint) if choice is not NoneType]
    if len(choices) == 1 and choices[0] in (Call, Message) and len(choices) < len(_choices(hint)):
        return choices[0]
    return hint


def name_of(function: Any) -> str:
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def docstring_of(function: Any) -> str | None:
    if isinstance(function, partial):  # its own docstring is that of `partial`
        return docstring_of(function.func)
    if inspect.isroutine(function):
        return inspect.getdoc(function)
    return inspect.getdoc(type(function).__call__) or inspect.getdoc(type(function))


# ---- schemas ---------------------------------------------------------------------------------------------------------


def input_schema(inputs: tuple[Input, ...], docstring: str | None) -> Schema:
    """Return the schema of an object with one property per input, described by the docstring."""
    described = read_docstring(docstring).parameters
    schemas, definitions = schemas_of([each.type for each in inputs])
    properties: dict[str, Schema] = {}
    for each, schema in zip(inputs, schemas, strict=True):
        properties[each.name] = {**schema, **_default_of(each)}
        if each.name in described:
            properties[each.name]["description"] = described[each.name]
    whole: Schema = {
        "type": "object",
        "properties": properties,
        "required": [each.name for each in inputs if each.is_required],
        "additionalProperties": False,
    }
    if definitions:
        whole["$defs"] = definitions
    return whole


def _default_of(each: Input) -> Schema:
    if each.is_required:
        return {}
    try:
        default = msgspec.to_builtins(each.default, str_keys=True)
        check_finite(default)
    except (TypeError, ValueError, RecursionError):  # a default without a JSON form is not on the card
        return {}
    return {"default": default}


def output_schema(return_type: Any) -> Schema:
    """Return the schema of the results of a function. Empty if it is unknown, as for files and events."""
    choices = [choice for choice in _choices(_yielded_type(return_type)) if choice not in _EVENTS]
    if not choices or any(choice in (Any, bytes, bytearray) for choice in choices):
        return {}
    try:
        schemas, definitions = schemas_of([Union[tuple(choices)]])  # noqa: UP007  # the list is computed
    except TypeError:  # an unknown class: the value shows whether it has a JSON form
        return {}
    schema = schemas[0]
    if definitions:
        schema = {**schema, "$defs": definitions}
    return schema


def returns_files(return_type: Any) -> bool:
    """Whether all results of a function are files."""
    choices = [choice for choice in _choices(_yielded_type(return_type)) if choice is not NoneType]
    return bool(choices) and all(isinstance(choice, type) and issubclass(choice, _FILES) for choice in choices)


def may_be_message(return_type: Any) -> bool:
    return Message in _choices(return_type)


def _choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, UnionType):
        return get_args(annotation)
    return (annotation,)


def _yielded_type(return_type: Any) -> Any:
    """Return the type that a generator yields. Any other annotation is returned as it is."""
    origin = get_origin(return_type)
    streams = isinstance(origin, type) and (
        issubclass(origin, AsyncIterable | Iterator | Generator) or origin is Iterable
    )
    if streams:
        return get_args(return_type)[0]
    return return_type


# ---- typed values ---------------------------------------------------------------------------------------------------
# Converts Python annotations to JSON Schema, and JSON to values of these types.
#
# msgspec supports the types of the standard library, dataclasses, typed dicts, named tuples and its own structs. Models
# of pydantic are recognized by their methods, so pydantic need not be installed.
#
# Invariant: conversion is strict. A string is not accepted as a number, nor a number as a string.

MAX_TYPES: Final = 1_000  # types of the application that the caches hold
_PLAIN: Final = (str, int, float, bytes, NoneType)
# How a msgspec error names the place in a value: "… - at `$.rows[0].name`", "… - at `key` in `$.rows`".
_PLACE: Final = re.compile(r" - at (?:`key` in )?`\$(?P<path>.*)`$", re.DOTALL)
_STEP: Final = re.compile(r"\[\.\.\.\]|\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")  # the first is an unnamed key of a dict


def schemas_of(types: Sequence[Any]) -> tuple[list[Schema], dict[str, Schema]]:
    """Return the schema of each type, and the definitions that the schemas refer to.

    Raises:
        TypeError: A type has no JSON form. The text says which one.
    """
    schemas, definitions = msgspec.json.schema_components(types, schema_hook=_model_schema)
    return list(schemas), definitions


def to_value(data: Any, annotation: Any, *, composed: bool) -> Any:
    """Convert JSON data to a value of a type.

    Args:
        composed: Whether the value may contain dataclasses.

    Raises:
        msgspec.ValidationError: The data do not fit the type.
    """
    value = msgspec.convert(data, annotation, strict=True, str_keys=True, dec_hook=_read_model)
    if composed:
        _complete(value)
    return value


def _complete(value: Any) -> None:
    """Set omitted fields of dataclasses to their defaults.

    msgspec does not set them on the instance: they are read from the class, and would be missing in its JSON.
    """
    if isinstance(value, dict):
        inside: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    else:
        inside = _completed_fields(value)
    for each in inside:
        if not isinstance(each, _PLAIN):
            _complete(each)


def _completed_fields(value: Any) -> list[Any]:
    """Set missing defaults of a dataclass, and return the field values of a struct or dataclass. Empty for others."""
    kind: Any = type(value)  # Any: mypy does not treat a type as hashable
    names = _field_names(kind)
    found = [getattr(value, name) for name in names]
    # A class with slots has no `__dict__`, and no class-level defaults.
    if dataclasses.is_dataclass(kind) and hasattr(value, "__dict__"):
        for name, held in zip(names, found, strict=True):
            vars(value).setdefault(name, held)  # a frozen class rejects setattr
    return found


@lru_cache(MAX_TYPES)
def _field_names(kind: type) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return ()


def to_violations(name: str, error: msgspec.ValidationError) -> list[Violation]:
    """Return the violations of an input, with dotted fields as for modules (`rows.0.name`)."""
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
    # A pydantic model lists all its errors.
    violations: list[Violation] = []
    for item in found():
        field = ".".join([*steps, *map(str, item["loc"])])
        violations.append(Violation(field, item["msg"], item["type"]))
    return violations


# ---- models of pydantic ----------------------------------------------------------------------------------------------


def _model_schema(annotation: type) -> Schema:
    if not hasattr(annotation, "model_json_schema"):
        raise NotImplementedError
    return inline(_own_schema(annotation))


def _read_model(annotation: type, data: Any) -> Any:
    # Any: a class with `model_json_schema` has this method as well. Strict mode accepts date strings only in JSON.
    model: Any = annotation
    _cost(annotation).refuse_if_too_complex(data)
    restored = _integers(annotation).restore(data)
    try:
        return model.model_validate_json(encode(restored), strict=True)
    except ValueError as error:
        count = getattr(error, "error_count", int)()
        if count <= MAX_ERRORS:
            raise
    raise ValueError(TOO_MANY_ERRORS.format(count))  # the text of the other one takes seconds


def _own_schema(annotation: Any) -> Schema:
    return dict(annotation.model_json_schema())


@lru_cache(MAX_TYPES)
def _integers(annotation: type) -> IntegerSchema:
    return IntegerSchema(_own_schema(annotation))


@lru_cache(MAX_TYPES)
def _cost(annotation: type) -> InputCost:
    return InputCost(_own_schema(annotation))


# ---- docstrings -----------------------------------------------------------------------------------------------------
# Reads docstrings in Google style: the description, and a text for each parameter.

_SECTION: Final = re.compile(r"^(?P<name>[A-Z][A-Za-z ]*):\s*$")
_PARAMETERS: Final = ("Args", "Arguments", "Parameters")
_PARAMETER: Final = re.compile(r"^\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")


class Documentation(Struct, frozen=True):
    description: str = ""
    parameters: dict[str, str] = {}


def read_docstring(docstring: str | None) -> Documentation:
    r"""Return the description and the parameter texts of a docstring.

    Example:
        >>> read_docstring("Adds.\n\nArgs:\n    a: The first number,\n        of two.\n    b (int): The other.")
        Documentation(description='Adds.', parameters={'a': 'The first number, of two.', 'b': 'The other.'})
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    description: list[str] = []
    section = ""
    in_section: dict[str, list[str]] = {}
    for line in lines:
        header = _SECTION.match(line)
        if header is not None:
            section = header["name"]
        elif section:
            in_section.setdefault(section, []).append(line)
        else:
            description.append(line)
    parameters: dict[str, str] = {}
    for name in _PARAMETERS:
        parameters |= _read_parameters(in_section.get(name, []))
    return Documentation("\n".join(description).strip(), parameters)


def _read_parameters(lines: list[str]) -> dict[str, str]:
    """Return the parameters of a section. Each begins at the indentation of the first, and continues further in."""
    found: dict[str, list[str]] = {}
    name = ""
    margin: int | None = None
    for line in lines:
        text = line.strip()
        if not text:
            continue
        indent = len(line) - len(line.lstrip())
        if margin is None:
            margin = indent
        begins = _PARAMETER.match(text)
        if indent <= margin and begins is not None:
            name = begins["name"]
            found[name] = [begins["text"]]
        elif name:
            found[name].append(text)
    return {name: " ".join(texts).strip() for name, texts in found.items()}
