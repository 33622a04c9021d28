"""What a function takes, read once from its signature, its types and its docstring."""

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

from apcore_a2a.agent import Call, Remember
from apcore_a2a.agents.content import text_of
from apcore_a2a.agents.inputs import IntegerSchema
from apcore_a2a.agents.schema import Schema, inline
from apcore_a2a.errors import Violation
from apcore_a2a.protocol.model import ArtifactUpdate, Message, Part, StatusUpdate, Task, check_finite, encode

# What a function asks for: the message, the call, or inputs of its own.
#
# A function whose parameters have types is called by their names: they are its inputs, and what a client sends is
# checked against them. One that asks for a message only (`text: str`, `message: Message`, no type) gets it as it came.
#
# Rule: the annotations decide, once, when the function is served; whatever cannot be called is refused then.

ReadArgument = Callable[[Call, Message], object]
"""Reads an argument from a call and the message that asks for it, which is an earlier one where the call is a reply."""

# What a parameter gets that is no input, by its annotation.
GIVEN: Final[dict[object, ReadArgument]] = {
    Message: lambda call, asked: asked,
    Call: lambda call, asked: call,
    str: lambda call, asked: text_of(asked),
}
_GIVEN_NAMES: Final = re.compile(r"\b(Message|Call)\b")  # ours, which may be imported for type checkers alone
_NOT_THERE: Final = (NameError, AttributeError)  # what an annotation raises that names nothing
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)  # they are left empty
_FILES: Final = (bytes, bytearray, io.IOBase, IO)
# What a function may answer that is no value of its own: it has no schema.
_EVENTS: Final = (Message, Part, StatusUpdate, ArtifactUpdate, Task, Remember, NoneType)


class Input(Struct, frozen=True):
    """A parameter that a client fills in."""

    name: str
    type: Any
    default: Any = inspect.Parameter.empty
    is_composed: bool = False
    """Whether there are classes of the user's in it."""

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Signature(Struct, frozen=True):
    """How a function is called."""

    given: dict[str, ReadArgument]
    """What we give it, by parameter."""
    inputs: tuple[Input, ...]
    """What a client gives it; nothing if the function takes a message as it comes."""
    positional: dict[str, Any]
    """The parameters that go by their place, in that order, with their defaults."""
    takes_call: bool
    answer: Any
    """The annotation of what it returns; Any if there is none."""

    @property
    def takes_only_text(self) -> bool:
        """Whether its text is all that the function gets of a message."""
        return not self.inputs and set(self.given.values()) == {GIVEN[str]}


def read_signature(function: Callable[..., Any]) -> Signature:
    """How to call a function.

    Raises:
        TypeError: there is no way; the text says why.
    """
    name = name_of(function)
    try:
        signature = inspect.signature(function)
    except ValueError as error:  # some functions written in C
        raise TypeError(f"{name} cannot be served: its parameters are unknown") from error
    hints = _read_hints(function)
    parameters = [each for each in signature.parameters.values() if each.kind not in _VARIADIC]
    _refuse_hidden_types(name, parameters, hints)
    inputs = tuple(_check_input(name, each) for each in _find_inputs(parameters, hints))
    given = _find_given(name, parameters, hints, inputs)
    return Signature(
        given=given,
        inputs=inputs,
        positional={each.name: each.default for each in parameters if each.kind is each.POSITIONAL_ONLY},
        takes_call=GIVEN[Call] in given.values(),
        answer=hints.get("return", Any),
    )


def _refuse_hidden_types(name: str, parameters: list[inspect.Parameter], hints: dict[str, Any]) -> None:
    """Refuse a parameter whose type Python cannot see: taken for one without, it would get a message."""
    for parameter in parameters:
        has_type = parameter.annotation is not parameter.empty
        if not has_type or parameter.name in hints or parameter.default is not parameter.empty:
            continue
        written = str(parameter.annotation)
        if not _GIVEN_NAMES.search(written):
            raise TypeError(
                f"{name} cannot be served: {written}, the type of {parameter.name}, is not known when it runs;"
                " import or define it in the module, and not under TYPE_CHECKING or in a function"
            )


def _find_inputs(parameters: list[inspect.Parameter], hints: dict[str, Any]) -> tuple[Input, ...]:
    """The parameters that a client fills in; none if the function takes its message as it comes."""
    found: list[Input] = []
    for parameter in parameters:
        if parameter.name not in hints:
            if parameter.default is parameter.empty and parameter.name != "call":
                return ()  # it has no type, so it is the message
            continue
        hint = hints[parameter.name]
        if hint not in (Call, Message):
            found.append(Input(parameter.name, hint, parameter.default))
    if all(each.type is Any for each in found):
        return ()
    if len(found) == 1 and found[0].type is str and found[0].is_required:
        return ()  # its text is all of the message's
    return tuple(found)


def _find_given(
    name: str, parameters: list[inspect.Parameter], hints: dict[str, Any], inputs: tuple[Input, ...]
) -> dict[str, ReadArgument]:
    """What the other parameters get. One with a default is left to it, unless it asks for the call or the message."""
    of_client = {each.name for each in inputs}
    given: dict[str, ReadArgument] = {}
    untyped = 0
    for parameter in parameters:
        if parameter.name in of_client:
            continue
        hint = hints.get(parameter.name, Any)
        if parameter.default is not parameter.empty and hint not in (Call, Message):
            continue
        if hint is Any:
            # By its name, else by its place: the message first, then the call.
            hint = Message
            if parameter.name == "call" or (given and GIVEN[Call] not in given.values()):
                hint = Call
            untyped += 1
        if hint not in GIVEN:
            raise TypeError(
                f"{name} cannot be served: {parameter.name} has a type and another parameter has none;"
                " give all of them types, or ask for (message), (message, call) or (call)"
            )
        given[parameter.name] = GIVEN[hint]
    if untyped > 2:
        raise TypeError(
            f"{name} cannot be served: without types it may ask for (message), (message, call) or (call), and no more"
        )
    return given


def _check_input(name: str, each: Input) -> Input:
    try:
        _, definitions = schemas_of([each.type])
    except TypeError as error:
        reason = str(error).splitlines()[-1]  # before it stands what one could do in a schema
        raise TypeError(f"{name} cannot be served: JSON has no form for {each.name}: {reason}") from error
    return replace(each, is_composed=bool(definitions))


def _read_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, without those that name what only a type checker can see."""
    target: Any = function
    if isinstance(function, partial):
        target = function.func
    if not inspect.isroutine(target):  # an object with `__call__`
        target = type(target).__call__
    try:
        found = get_type_hints(target, include_extras=True)
    except _NOT_THERE:
        found = _read_hints_that_are_there(target)
    return {name: _given_or_same(hint) for name, hint in found.items()}


def _read_hints_that_are_there(target: Any) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    names = getattr(inspect.unwrap(target), "__globals__", {})
    for name, annotation in target.__annotations__.items():
        alone: Any = SimpleNamespace(__annotations__={name: annotation})  # Any: it need not be a function
        try:
            hints |= get_type_hints(alone, names, include_extras=True)
        except _NOT_THERE:
            continue
    return hints


def _given_or_same(hint: Any) -> Any:
    """`Call` for `Call | None`, of a function that is also called by others, who have none; anything else as it is."""
    choices = [choice for choice in _choices(hint) if choice is not NoneType]
    if len(choices) == 1 and choices[0] in (Call, Message) and len(choices) < len(_choices(hint)):
        return choices[0]
    return hint


def name_of(function: Any) -> str:
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def docstring_of(function: Any) -> str | None:
    if isinstance(function, partial):  # which has a docstring about partials
        return docstring_of(function.func)
    if inspect.isroutine(function):
        return inspect.getdoc(function)
    return inspect.getdoc(type(function).__call__) or inspect.getdoc(type(function))


# ---- schemas ---------------------------------------------------------------------------------------------------------


def input_schema(inputs: tuple[Input, ...], docstring: str | None) -> Schema:
    """The schema of an object with a property for each input, described as the docstring describes it."""
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
    except (TypeError, ValueError, RecursionError):  # a default of its own kind is Python's business
        return {}
    return {"default": default}


def output_schema(answer: Any) -> Schema:
    """The schema of what a function gives; empty where there is nothing to say, as of files and of events."""
    choices = [choice for choice in _choices(_unstreamed(answer)) if choice not in _EVENTS]
    if not choices or any(choice in (Any, bytes, bytearray) for choice in choices):
        return {}
    try:
        schemas, definitions = schemas_of([Union[tuple(choices)]])  # noqa: UP007  # of a list made here
    except TypeError:  # a class of its own: whether JSON has a form for it is seen when it is there
        return {}
    schema = schemas[0]
    if definitions:
        schema = {**schema, "$defs": definitions}
    return schema


def gives_files(answer: Any) -> bool:
    """Whether all that a function gives is files."""
    choices = [choice for choice in _choices(_unstreamed(answer)) if choice is not NoneType]
    return bool(choices) and all(isinstance(choice, type) and issubclass(choice, _FILES) for choice in choices)


def may_be_message(answer: Any) -> bool:
    return Message in _choices(answer)


def _choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, UnionType):
        return get_args(annotation)
    return (annotation,)


def _unstreamed(answer: Any) -> Any:
    """What a generator yields; anything else as it is."""
    origin = get_origin(answer)
    streams = isinstance(origin, type) and (
        issubclass(origin, AsyncIterable | Iterator | Generator) or origin is Iterable
    )
    if streams:
        return get_args(answer)[0]
    return answer


# ---- typed values ---------------------------------------------------------------------------------------------------
# Annotations of Python as JSON Schema, and JSON as values of these types.
#
# msgspec knows the types of the standard library, dataclasses, typed dicts, named tuples and its own structs. Models of
# pydantic are known by their methods: who uses one has it installed, and nobody else needs it.
#
# Rule: strict. A text is no number and a number no text, whatever Python would make of them.

MAX_TYPES: Final = 1_000  # of the user's, about which something is kept
_PLAIN: Final = (str, int, float, bytes, NoneType)
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
    """What is in the fields of a struct or a dataclass; nothing of anything else."""
    kind: Any = type(value)  # Any: it is a type, which mypy does not take for hashable
    names = _field_names(kind)
    found = [getattr(value, name) for name in names]
    # With slots there is no `__dict__`, and no default of a class either.
    if dataclasses.is_dataclass(kind) and hasattr(value, "__dict__"):
        for name, held in zip(names, found, strict=True):
            vars(value).setdefault(name, held)  # past a class that is frozen
    return found


@lru_cache(MAX_TYPES)
def _field_names(kind: type) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return ()


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


@lru_cache(MAX_TYPES)
def _integers(annotation: type) -> IntegerSchema:
    return IntegerSchema(_own_schema(annotation))


# ---- docstrings -----------------------------------------------------------------------------------------------------
# What a docstring in Google's style says: the description, and a text for each parameter.

_SECTION: Final = re.compile(r"^(?P<name>[A-Z][A-Za-z ]*):\s*$")
_PARAMETERS: Final = ("Args", "Arguments", "Parameters")
_PARAMETER: Final = re.compile(r"^\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")


class Documentation(Struct, frozen=True):
    description: str = ""
    parameters: dict[str, str] = {}


def read_docstring(docstring: str | None) -> Documentation:
    r"""The parts of a docstring that others may want to read.

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
    """The parameters of a section: each begins where the first one does, and goes on further in."""
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
