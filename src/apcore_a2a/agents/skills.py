"""Skills, of functions and modules alike: what the card says besides A2A's own fields, and which a message names."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.agent import Call
from apcore_a2a.agents.schema import Schema, text_field
from apcore_a2a.errors import InvalidParamsError, Violation
from apcore_a2a.protocol.card import AgentExtension, advise

# What a card says of a skill besides A2A's own fields, be it a function or an apcore module: schemas and effects.
#
# Rule: A2A has no field for these, so they are in the params of one extension, by the id of the skill.

EXTENSION: Final = "urn:apcore:a2a:modules:1"
JSON: Final = "application/json"
TEXT: Final = "text/plain"
FILE: Final = "application/octet-stream"  # of any kind
MAX_EXAMPLES: Final = 10


class Annotations(Struct, frozen=True, kw_only=True):
    """What a skill says about its effects; the defaults are apcore's."""

    readonly: bool = False
    destructive: bool = False
    idempotent: bool = False
    requires_approval: bool = False
    open_world: bool = True


class Example(Struct, frozen=True):
    title: str = ""
    inputs: Any = None


def to_title(skill_id: str) -> str:
    """A name for people, of a skill that has none of its own.

    Example:
        >>> to_title("math.add_numbers")
        'Math Add Numbers'
    """
    return skill_id.replace(".", " ").replace("_", " ").title()


def modes(schema: Schema) -> tuple[str, ...]:
    """The media types that fit a schema."""
    if not schema:
        return (TEXT,)
    if text_field(schema) is None:
        return (JSON,)
    return (JSON, TEXT)


def describe_call(
    input_schema: Schema, output_schema: Schema, examples: Sequence[Example], annotations: Annotations | None
) -> dict[str, Any]:
    """What a client that knows the extension is told of a skill: enough to build a form and to judge the risk."""
    params: dict[str, Any] = {
        "annotations": msgspec.to_builtins(annotations),
        "inputSchema": input_schema,
        "outputSchema": output_schema,
        "examples": [{"name": each.title, "input": each.inputs} for each in examples[:MAX_EXAMPLES]],
    }
    # What is empty says nothing, and cards with many skills are large as it is.
    for name in list(params):
        if not params[name]:
            del params[name]
    return params


def describe_skills(described: dict[str, dict[str, Any]]) -> AgentExtension:
    """The extension with what is told of each skill, by its id."""
    return AgentExtension(
        uri=EXTENSION,
        description="Schemas and annotations of the skills",
        params={"skills": msgspec.to_builtins(described)},
    )


def without_skills(extension: AgentExtension, hidden: Container[str]) -> AgentExtension:
    """The extension without what is told of some skills; any other as it is."""
    if extension.uri != EXTENSION:
        return extension
    params = extension.params or {}
    told = {skill_id: told for skill_id, told in params.get("skills", {}).items() if skill_id not in hidden}
    return replace(extension, params={**params, "skills": told})


# ---- which skill a message names ------------------------------------------------------------------------------------
# Which skill a message is for, as far as the message says it, and what is answered when it does not.

SKILL_ID: Final = "skillId"
FIELD: Final = "metadata.skillId"
MISSING: Final = "Missing required parameter: metadata.skillId"
NO_TEXT: Final = "expected string"


def named_skill(call: Call) -> str:
    """The id of the skill that the message names, else the request; empty if neither does."""
    return first_skill_id(call.message.metadata, call.request.metadata)


def first_skill_id(*metadata: Mapping[str, Any] | None) -> str:
    """The first id that is named; empty if there is none.

    Raises:
        InvalidParamsError: what stands there is no text. To run another skill in its place would be worse.
    """
    for each in metadata:
        skill = (each or {}).get(SKILL_ID)
        if skill is None or skill == "":
            continue
        if not isinstance(skill, str):
            raise InvalidParamsError(f"Invalid parameter {FIELD}: {NO_TEXT}", [Violation(FIELD, NO_TEXT)])
        return skill
    return ""


def missing_skill(known: Iterable[str]) -> InvalidParamsError:
    """The error for a message that could be for any of several skills."""
    return InvalidParamsError(MISSING, [Violation(FIELD, f"{MISSING}; {advise(known)}", "required")])
