"""Functions as skills: `describe` reads one, `@skill` marks one, `collect` finds those of a module or object.

Invariant: inputs are read and checked before a task exists, and the error names every wrong field.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

import msgspec
from msgspec import Struct

from apcore_a2a.agent import Call
from apcore_a2a.agents.functions.signature import (
    Signature,
    docstring_of,
    input_schema,
    name_of,
    output_schema,
    read_docstring,
    read_signature,
    returns_files,
    to_value,
    to_violations,
)
from apcore_a2a.agents.input_cost import InputCost, refuse_collisions
from apcore_a2a.agents.inputs import IntegerSchema, fill_in, read_inputs, refuse_inputs
from apcore_a2a.agents.schema import Schema, file_field, inline
from apcore_a2a.agents.skills import FILE, MAX_EXAMPLES, TEXT, Annotations, Example, describe_call, modes, to_title
from apcore_a2a.errors import InvalidParamsError, Violation, unknown_options
from apcore_a2a.protocol.card import AgentSkill
from apcore_a2a.protocol.lifecycle import StreamFinal
from apcore_a2a.protocol.model import Message, Part, Role, encode

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class FunctionSkill(Struct, frozen=True, kw_only=True):
    """The description of a function as a skill. A schema is empty if unknown, and never contains a `$ref`."""

    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    examples: tuple[Any, ...]
    annotations: Annotations | None
    stream_final: StreamFinal | None
    input_schema: Schema
    integers: IntegerSchema
    cost: InputCost
    output_schema: Schema
    streams: bool
    signature: Signature

    @property
    def is_repeatable(self) -> bool:
        return self.annotations is not None and (self.annotations.idempotent or self.annotations.readonly)

    @property
    def requires_approval(self) -> bool:
        return self.annotations is not None and self.annotations.requires_approval

    def read_arguments(self, call: Call) -> Arguments:
        """Return the positional and the keyword arguments for a call of the function.

        Raises:
            InvalidParamsError: The inputs do not fit the parameters. The error names the fields.
            ContentTypeNotSupportedError: The input is a file, and the function takes none.
        """
        asked = self.input_message(call)
        values: dict[str, Any] = {}
        if self.signature.inputs:
            values = self._read_values(asked)
        for name, read in self.signature.injected.items():
            values[name] = read(call, asked)
        positional = [values.pop(name, default) for name, default in self.signature.positional.items()]
        return tuple(positional), values

    def input_message(self, call: Call) -> Message:
        """Return the message with the inputs. If this one answers a question, that is the first message of the task."""
        if call.resumed and (self.signature.inputs or paused_run(call) is not None):
            return user_messages(call)[0]
        return call.message

    def has_text(self, call: Call) -> bool:
        """Whether the message with the inputs has a text part, which may be empty."""
        return any(isinstance(part.text, str) for part in self.input_message(call).parts)

    def shown_inputs(self, call: Call) -> dict[str, Any] | None:
        """Return the inputs as the caller sent them, for the approval of the call. None if the skill has none."""
        if not self.signature.inputs:
            return None
        asked = self.input_message(call)
        inputs, rest = self._read_inputs(asked)
        fill_in(inputs, rest, self)
        return inputs

    def _read_values(self, asked: Message) -> dict[str, Any]:
        inputs, rest = self._read_inputs(asked)
        fill_in(inputs, rest, self)
        violations: list[Violation] = []
        values: dict[str, Any] = {}
        for each in self.signature.inputs:
            if each.name not in inputs:
                if each.is_required:
                    violations.append(Violation(each.name, "Field required", "missing"))
                continue
            try:
                values[each.name] = to_value(inputs.pop(each.name), each.type, composed=each.is_composed)
            except msgspec.ValidationError as error:
                violations += to_violations(each.name, error)
        violations += [Violation(name, "There is no such field", "unexpected") for name in inputs]
        if violations:
            raise refuse_inputs(violations)
        return values

    def _read_inputs(self, asked: Message) -> tuple[dict[str, Any], tuple[Part, ...]]:
        try:
            inputs, rest = read_inputs(asked.parts, self)
        except InvalidParamsError as error:
            # The requirements fix the text, which is written for modules. The violation says what to send instead.
            if not error.violations:
                raise
            raise InvalidParamsError(error.violations[0].message, error.violations) from error
        refuse_collisions(inputs)
        return inputs, rest


class AskedQuestion(Struct, frozen=True):
    """A question of `Call.ask`. A repeated run accepts its answer only for a question with the same digest."""

    digest: str
    answer: int
    """The index of the message that answers the question, among the user's messages of the task."""


class PausedRun(Struct, frozen=True, kw_only=True, tag_field="waits", tag="function"):
    """The state of a paused run, stored with its task. The tag distinguishes it from a memo of the function itself."""

    approval_id: str = ""
    """The id of the pending approval. Empty once it was given."""
    questions: list[AskedQuestion] = []
    """The questions of `Call.ask` so far, in order. The last one waits for its answer."""
    artifact_ids: list[str] = []
    """The ids of the artifacts of the run. A repeated call replaces these artifacts."""


def paused_run(call: Call) -> PausedRun | None:
    """Return the paused run of a task that waited for an approval or an answer to `Call.ask`, or None."""
    if not isinstance(call.memo, dict) or call.memo.get("waits") != "function":
        return None
    return msgspec.convert(call.memo, PausedRun)


def user_messages(call: Call) -> list[Message]:
    """Return the messages of the user in this task, that of this call last."""
    said = [message for message in call.task.history if message.role is Role.USER]
    if not any(message.message_id == call.message.message_id for message in said):
        said.append(call.message)  # it is added to the task when the run begins
    return said


def describe(function: Callable[..., Any], *, skill_id: str = "") -> FunctionSkill:
    """Describe a function as a skill.

    Raises:
        TypeError: The function cannot be called with messages. The text says why.
    """
    signature = read_signature(function)
    mark = mark_of(function) or SkillMark()
    docstring = docstring_of(function)
    skill_id = skill_id or mark.id or name_of(function)
    schema: Schema = {}
    if signature.inputs:
        schema = input_schema(signature.inputs, docstring)
    name = mark.name or to_title(skill_id)
    return FunctionSkill(
        id=skill_id,
        name=name,
        description=mark.description or read_docstring(docstring).description or f"The skill {name}",
        tags=mark.tags,
        examples=mark.examples,
        annotations=mark.annotations,
        stream_final=mark.stream_final,
        input_schema=inline(schema),
        integers=IntegerSchema(schema),
        cost=InputCost(schema),
        output_schema=inline(output_schema(signature.return_type)),
        streams=_is_generator(function),
        signature=signature,
    )


def _is_generator(function: Any) -> bool:
    for target in (function, getattr(function, "__call__", None)):  # noqa: B004  # for objects with such a __call__
        if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
            return True
    return False


# ---- on the card -----------------------------------------------------------------------------------------------------


def to_card_skill(skill: FunctionSkill) -> AgentSkill:
    texts: list[str] = []
    for example in skill.examples[:MAX_EXAMPLES]:
        if isinstance(example, str):
            texts.append(example)
        else:
            texts.append(encode(example).decode())
    return AgentSkill(
        id=skill.id,
        name=skill.name,
        description=skill.description,
        tags=skill.tags,
        examples=tuple(texts),
        input_modes=_input_modes(skill.input_schema),
        output_modes=_output_modes(skill),
    )


def _input_modes(schema: Schema) -> tuple[str, ...]:
    if file_field(schema) is None:
        return modes(schema)
    return (*modes(schema), FILE)


def _output_modes(skill: FunctionSkill) -> tuple[str, ...]:
    if returns_files(skill.signature.return_type):
        return (FILE,)
    if skill.output_schema.get("type") == "string":  # a returned string becomes a text part
        return (TEXT,)
    return modes(skill.output_schema)


def to_params(skill: FunctionSkill) -> dict[str, Any]:
    """Return the entry of a function in the card extension."""
    examples = [Example(inputs=example) for example in skill.examples if not isinstance(example, str)]
    params = describe_call(skill.input_schema, skill.output_schema, examples, skill.annotations)
    if skill.streams:
        params["streaming"] = True
    return params


# ---- skills ---------------------------------------------------------------------------------------------------------
# Marks functions with `@skill`, and finds the functions in a list, a dict, a module or an object.
#
# Invariant: objects of the application do not change, except that the mark is an attribute of the function.

F = TypeVar("F", bound=Callable[..., Any])

MARK: Final = "__a2a_skill__"
MAX_ID: Final = 256


class SkillOptions(TypedDict, total=False):
    """The options of `@skill`. The function itself provides those that are left out.

    Example:
        >>> options: SkillOptions = {"id": "math.add", "tags": ["math"], "annotations": {"readonly": True}}
    """

    id: str
    name: str
    description: str
    tags: Iterable[str]
    examples: Iterable[str | Mapping[str, Any]]
    """Texts to send, or inputs by name."""
    annotations: Mapping[str, bool]
    """The effects: readonly, destructive, idempotent, requires_approval, open_world."""
    stream_final: StreamFinal
    """How a text that the function yields in pieces ends: append, replace or status. The default is the server's."""


class SkillMark(Struct, frozen=True, kw_only=True):
    """The checked options of `@skill` on a function."""

    id: str = ""
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[Any, ...] = ()
    annotations: Annotations | None = None
    stream_final: StreamFinal | None = None


@overload
def skill(function: F, /) -> F: ...


@overload
def skill(**options: Unpack[SkillOptions]) -> Callable[[F], F]: ...


def skill(function: Any = None, /, **options: Unpack[SkillOptions]) -> Any:
    """Mark a function as a skill, with details that its signature and docstring do not contain.

    The function itself is not changed. In a module or class with marked functions, only those are skills.

    Args:
        function: The function, if the decorator has no options: `@skill`.
        **options: See `SkillOptions`.

    Raises:
        TypeError: An option has the wrong type, or an annotation is unknown.

    Example:
        >>> from apcore_a2a import skill
        >>> @skill(id="math.add", tags=["math"], examples=[{"a": 1, "b": 2}], annotations={"readonly": True})
        ... def add(a: int, b: int) -> int:
        ...     '''Adds two numbers.'''
        ...     return a + b
        >>> add(1, 2)
        3
    """
    mark = _check(options)

    def put(function: Any) -> Any:
        try:
            setattr(function, MARK, mark)
        except AttributeError as error:
            text = f"{name_of(function)} cannot be marked: give it an id with serve({{'id': function}}) instead"
            raise TypeError(text) from error
        return function

    if function is None:
        return put
    if not callable(function):
        raise TypeError(f"@skill marks functions, not a {type(function).__name__}: @skill(id=…) names one")
    return put(function)


def mark_of(function: Any) -> SkillMark | None:
    """Return the mark of a function, or None."""
    mark = getattr(function, MARK, None)
    if isinstance(mark, SkillMark):
        return mark
    return None


def _check(options: SkillOptions) -> SkillMark:
    given: dict[str, Any] = {**options}
    for name in ("tags", "examples"):
        if isinstance(given.get(name), str):  # it would become a list of letters
            raise TypeError(f"@skill: {name} must be a list of strings, not a string")
        given[name] = tuple(given.get(name, ()))
    unknown = given.keys() - set(SkillMark.__struct_fields__)
    if unknown:
        raise TypeError(f"@skill has {unknown_options(unknown, SkillMark.__struct_fields__)}")
    annotations = given.get("annotations")
    if annotations is not None:
        wrong = set(annotations) - set(Annotations.__struct_fields__)
        if wrong:
            known = ", ".join(Annotations.__struct_fields__)
            raise TypeError(f"@skill: there is no annotation {', '.join(sorted(wrong))}; there are {known}")
    try:
        mark = msgspec.convert(given, SkillMark)
    except msgspec.ValidationError as error:
        raise TypeError(f"@skill: {error}") from error
    if mark.id:
        _check_id(mark.id)
    return mark


def _check_id(skill_id: Any) -> None:
    if not isinstance(skill_id, str) or not 0 < len(skill_id) <= MAX_ID or not skill_id.isprintable():
        raise TypeError(f"a skill's id is a text of at most {MAX_ID} characters, not {skill_id!r}")


# ---- finding functions -----------------------------------------------------------------------------------------------


def is_collection(target: object) -> bool:
    """Whether an object contains functions and is not a function itself."""
    if isinstance(target, list | tuple | set | frozenset | Mapping | ModuleType):
        return True
    return not callable(target) and next(_methods_of(target), None) is not None


def collect(target: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions of a function, list, dict, module or object, by skill id.

    Raises:
        TypeError: An item is not a function.
        ValueError: There is no function, or two have the same id.
    """
    found: dict[str, Callable[..., Any]] = {}
    for skill_id, function in _pairs(target):
        _check_id(skill_id)
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"{skill_id} is not a function but a {type(function).__name__}")
        if skill_id in found:
            raise ValueError(f"two skills have the id {skill_id}: give one another with @skill(id=…)")
        found[skill_id] = function
    if not found:
        raise ValueError(f"{_kind_of(target)} has no function to serve: its public functions become skills")
    return found


def _pairs(target: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(target, Mapping):
        yield from target.items()
    elif isinstance(target, list | tuple | set | frozenset):
        for item in target:
            if not callable(item) and not is_collection(item):
                raise TypeError(f"a {type(item).__name__} is not a function: {item!r}")
            yield from _pairs(item)
    elif callable(target):
        yield _id_of(target), target
    else:
        for function in _chosen(target):
            yield _id_of(function), function


def _id_of(function: Any) -> str:
    mark = mark_of(function)
    if mark is not None and mark.id:
        return mark.id
    name = name_of(function)
    if name == "<lambda>":
        raise TypeError("a lambda has no name: give it an id with serve({'id': function})")
    return name


def _chosen(target: Any) -> list[Any]:
    """Return the marked functions of a module or an object, or the public ones if none is marked."""
    if isinstance(target, ModuleType):
        functions = list(_functions_of(target))
    else:
        functions = list(_methods_of(target))
    marked = [function for function in functions if mark_of(function) is not None]
    return marked or functions


def _functions_of(module: ModuleType) -> Iterator[Any]:
    """Yield the public functions of a module: those in `__all__`, or without it those that the module defines."""
    names = getattr(module, "__all__", None)
    for name, value in vars(module).items():
        if not inspect.isfunction(value):
            continue
        if names is not None:
            is_public = name in names
        else:
            is_public = not name.startswith("_") and value.__module__ == module.__name__
        if is_public:
            yield value


def _methods_of(target: Any) -> Iterator[Any]:
    """Yield the public methods of an object, in the order of their definition, without evaluating properties."""
    seen: set[str] = set()
    for base in reversed(type(target).__mro__):
        if base.__module__ == "builtins":
            continue
        for name, value in vars(base).items():
            is_method = inspect.isfunction(value) or isinstance(value, staticmethod | classmethod)
            if not is_method or name.startswith("_") or name in seen:
                continue
            seen.add(name)
            method = getattr(target, name)
            if callable(method):  # a subclass may have replaced it by another value
                yield method


def _kind_of(target: Any) -> str:
    if isinstance(target, ModuleType):
        return f"module {target.__name__}"
    return f"a {type(target).__name__}"
