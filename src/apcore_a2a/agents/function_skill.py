"""A function, described once: what it takes, what it gives, and what its card says.

Rule: what a client sends is read and checked here, before a task exists; every field that is wrong is named.
"""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from apcore_a2a.agent import Call
from apcore_a2a.agents.docstrings import read_docstring
from apcore_a2a.agents.inputs import fill_in, read_inputs, refuse_inputs
from apcore_a2a.agents.integers import IntegerSchema
from apcore_a2a.agents.schema import Schema, file_field, inline
from apcore_a2a.agents.signatures import (
    Signature,
    docstring_of,
    gives_files,
    input_schema,
    name_of,
    output_schema,
    read_signature,
)
from apcore_a2a.agents.skill_card import (
    FILE,
    MAX_EXAMPLES,
    TEXT,
    Annotations,
    Example,
    describe_call,
    modes,
    to_title,
)
from apcore_a2a.agents.skills import SkillMark, mark_of
from apcore_a2a.agents.typed_values import to_value, to_violations
from apcore_a2a.errors import InvalidParamsError, Violation
from apcore_a2a.protocol.card import AgentSkill
from apcore_a2a.protocol.model import Message, Part, Role, encode

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class FunctionSkill(Struct, frozen=True, kw_only=True):
    """A function as others see it. A schema is empty where there is nothing to say, and never holds a `$ref`."""

    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    examples: tuple[Any, ...]
    annotations: Annotations | None
    input_schema: Schema
    integers: IntegerSchema
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
        """What to call the function with: positional arguments, and others by name.

        Raises:
            InvalidParamsError: a client has not sent what the function takes; it names the fields.
            ContentTypeNotSupportedError: a file for a function that takes none.
        """
        asked = self.asking_message(call)
        values: dict[str, Any] = {}
        if self.signature.inputs:
            values = self._read_values(asked)
        for name, read in self.signature.given.items():
            values[name] = read(call, asked)
        positional = [values.pop(name, default) for name, default in self.signature.positional.items()]
        return tuple(positional), values

    def asking_message(self, call: Call) -> Message:
        """The message with the inputs: of a task that goes on, its first one. A reply answers a question."""
        if call.resumed and (self.signature.inputs or what_was_waited_for(call) is not None):
            return user_messages(call)[0]
        return call.message

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
            return read_inputs(asked.parts, self)
        except InvalidParamsError as error:
            # The text is the requirements', who think of modules; the violation says what to send instead.
            if not error.violations:
                raise
            raise InvalidParamsError(error.violations[0].message, error.violations) from error


class Waiting(Struct, frozen=True, kw_only=True, tag_field="waits", tag="function"):
    """What is kept with a task that waits for its user. The tag tells it from what a function keeps by itself."""

    approval_id: str = ""
    """Of the approval that it waits for; empty once that was given."""
    approval_messages: int = 0
    """How many of the user's messages were about the approval."""
    artifact_ids: list[str] = []
    """What the function has made; called again, it makes it anew."""


def what_was_waited_for(call: Call) -> Waiting | None:
    """What the task of a call has waited for, if it was for an approval or an answer to `Call.ask`."""
    if not isinstance(call.memo, dict) or call.memo.get("waits") != "function":
        return None
    return msgspec.convert(call.memo, Waiting)


def user_messages(call: Call) -> list[Message]:
    """What the user has said in the task, the message of this call last."""
    said = [message for message in call.task.history if message.role is Role.USER]
    if not any(message.message_id == call.message.message_id for message in said):
        said.append(call.message)  # it is not in the task before its run begins
    return said


def describe(function: Callable[..., Any], *, skill_id: str = "") -> FunctionSkill:
    """A function as a skill.

    Raises:
        TypeError: there is no way to call it; the text says why.
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
        input_schema=inline(schema),
        integers=IntegerSchema(schema),
        output_schema=inline(output_schema(signature.answer)),
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
    if gives_files(skill.signature.answer):
        return (FILE,)
    if skill.output_schema.get("type") == "string":  # a text that is returned is a text part
        return (TEXT,)
    return modes(skill.output_schema)


def to_params(skill: FunctionSkill) -> dict[str, Any]:
    """What the card's extension says of a function."""
    examples = [Example(inputs=example) for example in skill.examples if not isinstance(example, str)]
    params = describe_call(skill.input_schema, skill.output_schema, examples, skill.annotations)
    if skill.streams:
        params["streaming"] = True
    return params
