"""Reads the skills of a remote agent's card, and makes them safe for local programs.

Invariant: text from a remote agent is untrusted. It is sanitized and truncated, and schemas lose dangerous keywords.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from apcore_a2a.agents.schema import Schema, inline
from apcore_a2a.clean_text import clean_text
from apcore_a2a.protocol.card import SKILLS_EXTENSION, AgentCard, AgentSkill

MAX_TEXT: Final = 1000
MAX_TAG: Final = 64
MAX_TAGS: Final = 20
MAX_SKILLS: Final = 500
# The annotations that a remote agent may set. It cannot declare that its skill needs no approval.
FLAGS: Final = frozenset({"readonly", "destructive", "idempotent", "open_world"})
REQUIRES_APPROVAL: Final = "requires_approval"
FREE_FORM: Final[Schema] = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": True}
# Keywords with a regular expression. One chosen by a remote agent could take arbitrarily long to match.
EXPRESSIONS: Final = frozenset({"pattern", "patternProperties"})


class RemoteSkill(Struct, frozen=True, kw_only=True):
    """A skill of a remote agent, and its unique name in this program."""

    local_name: str
    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    input_schema: Schema
    output_schema: Schema
    is_free_form: bool
    """Whether the agent does not describe the skill's input."""
    streams: bool
    requires_approval: bool
    """Whether the agent announces that it asks for an approval before the skill runs."""
    annotations: dict[str, bool]


def read_skills(card: AgentCard, to_local_name: Callable[[str], str]) -> Iterator[RemoteSkill]:
    """Yield the skills of a card, with their schemas if our extension describes them.

    Args:
        card: The card of the remote agent.
        to_local_name: Returns a name for the id of a skill. A name that is taken gets a number.
    """
    described = _read_extension(card)
    taken: set[str] = set()
    for skill in card.skills[:MAX_SKILLS]:
        name = _make_unique(to_local_name(skill.id), taken)
        taken.add(name)
        about = described.get(skill.id)
        if not isinstance(about, dict):  # another implementation, or an invalid extension
            about = {}
        yield _read_skill(skill, name, about, streaming=bool(card.capabilities.streaming))


def _read_extension(card: AgentCard) -> Mapping[str, object]:
    """Return the skill descriptions of our extension by skill id. Only agents served by apcore-a2a have it."""
    for extension in card.capabilities.extensions:
        if extension.uri != SKILLS_EXTENSION:
            continue
        skills = (extension.params or {}).get("skills")
        if isinstance(skills, dict):
            return skills
    return {}


def _read_skill(skill: AgentSkill, local_name: str, about: dict[str, Any], *, streaming: bool) -> RemoteSkill:
    input_schema = FREE_FORM
    is_free_form = not isinstance(about.get("inputSchema"), dict)
    if not is_free_form:
        input_schema = sanitize_schema(about["inputSchema"])
    name = clean(skill.name)
    # apcore and the frameworks reject tools without a description.
    description = clean(skill.description) or name or f"The skill {clean(skill.id)} of a remote agent"
    flags = _read_flags(about.get("annotations"))
    return RemoteSkill(
        local_name=local_name,
        id=skill.id,
        name=name,
        description=description,
        tags=tuple(clean(tag, MAX_TAG) for tag in skill.tags[:MAX_TAGS]),
        input_schema=input_schema,
        output_schema=sanitize_schema(about.get("outputSchema")),
        is_free_form=is_free_form,
        # Our extension lists the skills that stream. Of an agent without it, every skill may.
        streams=streaming and (not about or about.get("streaming") is True),
        requires_approval=flags.pop(REQUIRES_APPROVAL, False),
        annotations=flags,
    )


def _read_flags(annotations: object) -> dict[str, bool]:
    flags: dict[str, bool] = {}
    if isinstance(annotations, dict):
        for name in (*FLAGS, REQUIRES_APPROVAL):
            value = annotations.get(name)
            if isinstance(value, bool):
                flags[name] = value
    return flags


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """Return remote text without control and direction characters, truncated."""
    return clean_text(text, limit).strip()


def _make_unique(name: str, taken: set[str]) -> str:
    unique = name
    number = 2
    while unique in taken:
        unique = f"{name}_{number}"
        number += 1
    return unique


# ---- schemas ---------------------------------------------------------------------------------------------------------


def sanitize_schema(schema: object) -> Schema:
    """Return a remote schema without references and regular expressions, or {} if it is not a schema."""
    if not isinstance(schema, dict):
        return {}
    sanitized: Schema = _without_expressions(inline(schema))
    return sanitized


def _without_expressions(node: Any) -> Any:  # Any: JSON
    if isinstance(node, list):
        return [_without_expressions(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in EXPRESSIONS:
            continue
        if keyword == "properties" and isinstance(value, dict):
            # These keys are names of properties: one of them may be "pattern".
            kept[keyword] = {name: _without_expressions(each) for name, each in value.items()}
        else:
            kept[keyword] = _without_expressions(value)
    return kept
