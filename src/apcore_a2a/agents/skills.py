"""Skills of functions and modules: the card extension that describes them, and the skill id that a message names."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.agent import Call
from apcore_a2a.agents.schema import Schema, text_field
from apcore_a2a.errors import InvalidParamsError, Violation
from apcore_a2a.protocol.card import SKILLS_EXTENSION, AgentExtension, advise

# The schemas and annotations of a skill on the card. A2A has no field for these, so they are in the params of one
# extension, by skill id.

EXTENSION: Final = SKILLS_EXTENSION
JSON: Final = "application/json"
TEXT: Final = "text/plain"
FILE: Final = "application/octet-stream"  # a file of any type
MAX_EXAMPLES: Final = 10


class Annotations(Struct, frozen=True, kw_only=True):
    """The effects of a skill. The defaults are those of apcore."""

    readonly: bool = False
    destructive: bool = False
    idempotent: bool = False
    requires_approval: bool = False
    open_world: bool = True


class Example(Struct, frozen=True):
    title: str = ""
    inputs: Any = None


def to_title(skill_id: str) -> str:
    """Return a display name for a skill without one of its own.

    Example:
        >>> to_title("math.add_numbers")
        'Math Add Numbers'
    """
    return skill_id.replace(".", " ").replace("_", " ").title()


def modes(schema: Schema) -> tuple[str, ...]:
    """Return the media types that fit a schema."""
    if not schema:
        return (TEXT,)
    if text_field(schema) is None:
        return (JSON,)
    return (JSON, TEXT)


def describe_call(
    input_schema: Schema, output_schema: Schema, examples: Sequence[Example], annotations: Annotations | None
) -> dict[str, Any]:
    """Return the entry of a skill in the extension. A client can build a form from it, and judge the risk of a call."""
    params: dict[str, Any] = {
        "annotations": msgspec.to_builtins(annotations),
        "inputSchema": input_schema,
        "outputSchema": output_schema,
        "examples": [{"name": each.title, "input": each.inputs} for each in examples[:MAX_EXAMPLES]],
    }
    # Empty entries are left out, because cards with many skills are large anyway.
    for name in list(params):
        if not params[name]:
            del params[name]
    return params


def describe_skills(described: dict[str, dict[str, Any]]) -> AgentExtension:
    """Return the extension with the entries of the skills, by skill id."""
    return AgentExtension(
        uri=EXTENSION,
        description="Schemas and annotations of the skills",
        params={"skills": msgspec.to_builtins(described)},
    )


def without_skills(extension: AgentExtension, hidden: Container[str]) -> AgentExtension:
    """Return the extension without the entries of the hidden skills. Other extensions are returned as they are."""
    if extension.uri != EXTENSION:
        return extension
    params = extension.params or {}
    shown = {skill_id: entry for skill_id, entry in params.get("skills", {}).items() if skill_id not in hidden}
    return replace(extension, params={**params, "skills": shown})


# ---- the skill id of a message --------------------------------------------------------------------------------------
# Reads the skill id from the metadata, and makes the error for a message without one.

SKILL_ID: Final = "skillId"
FIELD: Final = "metadata.skillId"
MISSING: Final = "Missing required parameter: metadata.skillId"
NO_TEXT: Final = "expected string"


def named_skill(call: Call) -> str:
    """Return the skill id in the metadata of the message, else of the request. Empty if neither names one."""
    return first_skill_id(call.message.metadata, call.request.metadata)


def first_skill_id(*metadata: Mapping[str, Any] | None) -> str:
    """Return the first skill id in these metadata. Empty if there is none.

    Raises:
        InvalidParamsError: The skill id is not a string. The sender has named a skill, so the default skill does not
            run instead.
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
    """Return the error for a message without a skill id, when there are several skills."""
    return InvalidParamsError(MISSING, [Violation(FIELD, f"{MISSING}; {advise(known)}", "required")])
