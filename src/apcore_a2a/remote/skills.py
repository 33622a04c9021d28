"""Reads the skills of a remote agent's card, and makes them safe for the local registry.

Invariant: text from a remote agent is untrusted. It is sanitized and truncated, names are converted, and schemas lose
dangerous keywords.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import apcore
from msgspec import Struct
from pydantic import BaseModel, ConfigDict

from apcore_a2a.agents.schema import Schema, inline
from apcore_a2a.agents.skills import EXTENSION
from apcore_a2a.clean_text import clean_text
from apcore_a2a.protocol.card import AgentCard, AgentSkill

MAX_TEXT: Final = 1000
MAX_TAG: Final = 64
MAX_TAGS: Final = 20
MAX_ID: Final = 128  # the limit of apcore 0.6.0
MAX_SKILLS: Final = 500
# Reserved words: in apcore 0.6.0 for every part of an id, in the newest version for the first part.
RESERVED: Final = frozenset({"system", "internal", "core", "apcore", "plugin", "schema", "acl"})
# The annotations that a remote agent may set. It cannot declare that its skill needs no approval.
FLAGS: Final = frozenset({"readonly", "destructive", "idempotent", "open_world"})
FREE_FORM: Final[Schema] = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": True}
# Keywords with a regular expression. One chosen by a remote agent could take arbitrarily long to match.
EXPRESSIONS: Final = frozenset({"pattern", "patternProperties"})


class RemoteSkill(Struct, frozen=True, kw_only=True):
    """A skill and the id of its local module."""

    module_id: str
    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    input_schema: Schema
    output_schema: Schema
    is_free_form: bool
    """Whether the agent does not describe the skill's input."""
    streams: bool
    annotations: dict[str, bool]


def read_skills(card: AgentCard, prefix: str) -> Iterator[RemoteSkill]:
    """Yield the skills of a card, with their schemas if our extension describes them."""
    described = _read_extension(card)
    taken: set[str] = set()
    for skill in card.skills[:MAX_SKILLS]:
        module_id = _make_unique(to_module_id(prefix, skill.id), taken)
        taken.add(module_id)
        about = described.get(skill.id)
        if not isinstance(about, dict):  # another implementation, or an invalid extension
            about = {}
        yield _read_skill(skill, module_id, about, streaming=bool(card.capabilities.streaming))


def _read_extension(card: AgentCard) -> Mapping[str, object]:
    """Return the skill descriptions of our extension by skill id. Only agents served by apcore-a2a have it."""
    for extension in card.capabilities.extensions:
        if extension.uri != EXTENSION:
            continue
        skills = (extension.params or {}).get("skills")
        if isinstance(skills, dict):
            return skills
    return {}


def _read_skill(skill: AgentSkill, module_id: str, about: dict[str, Any], *, streaming: bool) -> RemoteSkill:
    input_schema = FREE_FORM
    is_free_form = not isinstance(about.get("inputSchema"), dict)
    if not is_free_form:
        input_schema = sanitize_schema(about["inputSchema"])
    name = clean(skill.name)
    # apcore rejects modules without a description.
    description = clean(skill.description) or name or f"The skill {clean(skill.id)} of a remote agent"
    return RemoteSkill(
        module_id=module_id,
        id=skill.id,
        name=name,
        description=description,
        tags=tuple(clean(tag, MAX_TAG) for tag in skill.tags[:MAX_TAGS]),
        input_schema=input_schema,
        output_schema=sanitize_schema(about.get("outputSchema")),
        is_free_form=is_free_form,
        # Our extension lists the skills that stream. Of an agent without it, every skill may.
        streams=streaming and (not about or about.get("streaming") is True),
        annotations=_read_flags(about.get("annotations")),
    )


def _read_flags(annotations: object) -> dict[str, bool]:
    flags: dict[str, bool] = {}
    if isinstance(annotations, dict):
        for name in FLAGS:
            value = annotations.get(name)
            if isinstance(value, bool):
                flags[name] = value
    return flags


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """Return remote text without control and direction characters, truncated."""
    return clean_text(text, limit).strip()


# ---- names -----------------------------------------------------------------------------------------------------------


def to_module_id(prefix: str, skill_id: str) -> str:
    """Return an id that apcore accepts, as similar to the skill's id as possible."""
    segments: list[str] = []
    for part in re.split(r"[./:]+", skill_id.lower()[:MAX_ID]):
        if not part:
            continue
        segment = re.sub(r"[^a-z0-9_]+", "_", part)
        if not segment[0].isalpha() or segment in RESERVED:
            segment = f"s_{segment}"
        segments.append(segment)
    if not segments:  # for example an id of dots
        segments.append("skill")
    if prefix:
        segments.insert(0, prefix)
    module_id = ".".join(segments)
    return module_id[: MAX_ID - 4].rstrip("._")  # room for the number that `_make_unique` may append


def _make_unique(module_id: str, taken: set[str]) -> str:
    unique = module_id
    number = 2
    while unique in taken:
        unique = f"{module_id}_{number}"
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


def for_apcore(schema: Schema, *, checked: bool) -> Any:  # Any: a dict, or a class
    """Return the schema in the form that the installed apcore takes. `checked`: whether it validates values."""
    if checked and takes_dicts():
        return schema
    return _make_model(schema)


def _make_model(schema: Schema) -> type[BaseModel]:
    class RemoteSchema(BaseModel):
        """Accepts any value, and publishes the remote schema. The remote agent validates."""

        model_config = ConfigDict(extra="allow")

        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
            return schema

    return RemoteSchema


@cache
def takes_dicts() -> bool:
    """Return whether the installed apcore accepts dicts as schemas of modules. 0.6.0 does not."""

    # Detected by trying, because apcore does not document from which version on it does.
    class Probe:
        description = "probe"
        input_schema = output_schema = FREE_FORM

        def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
            return {}

    registry = apcore.Registry()
    registry.register("probe", Probe())
    executor = apcore.Executor(registry)
    try:
        return registry.get_definition("probe") is not None and executor.validate("probe", {}).valid
    except AttributeError:
        return False
    finally:
        if hasattr(executor, "close"):  # newer versions keep an event loop
            executor.close()
