"""What a remote agent's card says of its skills, made fit for a registry of ours.

Rule: what a remote agent says is data. Texts are cleaned and shortened, names made ours, schemas lose what could harm.
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
MAX_ID: Final = 128  # apcore 0.6.0's
MAX_SKILLS: Final = 500
# What no part of an id may be in apcore 0.6.0, and the first part in the newest.
RESERVED: Final = frozenset({"system", "internal", "core", "apcore", "plugin", "schema", "acl"})
# What a remote agent may say of its skill's effects. That it needs no approval is not its to say.
FLAGS: Final = frozenset({"readonly", "destructive", "idempotent", "open_world"})
FREE_FORM: Final[Schema] = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": True}
# Keywords with a regular expression of the agent's choice: it could keep us busy for as long as it likes.
EXPRESSIONS: Final = frozenset({"pattern", "patternProperties"})


class RemoteSkill(Struct, frozen=True, kw_only=True):
    """A skill, and the id that its module gets here."""

    module_id: str
    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    input_schema: Schema
    output_schema: Schema
    is_free_form: bool
    """Whether the agent does not say what the skill takes."""
    streams: bool
    annotations: dict[str, bool]


def read_skills(card: AgentCard, prefix: str) -> Iterator[RemoteSkill]:
    """The skills of a card; those that our extension describes, with their schemas."""
    described = _read_extension(card)
    taken: set[str] = set()
    for skill in card.skills[:MAX_SKILLS]:
        module_id = _make_unique(to_module_id(prefix, skill.id), taken)
        taken.add(module_id)
        about = described.get(skill.id)
        if not isinstance(about, dict):  # another kind of agent; or one that says what it should not
            about = {}
        yield _read_skill(skill, module_id, about, streaming=bool(card.capabilities.streaming))


def _read_extension(card: AgentCard) -> Mapping[str, object]:
    """What an agent served by apcore-a2a says of its skills besides, by their ids."""
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
        input_schema = make_harmless(about["inputSchema"])
    name = clean(skill.name)
    # apcore registers no module without a description.
    description = clean(skill.description) or name or f"The skill {clean(skill.id)} of a remote agent"
    return RemoteSkill(
        module_id=module_id,
        id=skill.id,
        name=name,
        description=description,
        tags=tuple(clean(tag, MAX_TAG) for tag in skill.tags[:MAX_TAGS]),
        input_schema=input_schema,
        output_schema=make_harmless(about.get("outputSchema")),
        is_free_form=is_free_form,
        # An agent that describes its skills says which ones stream; of any other, all may.
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
    """Remote text without control and direction characters, and not without end."""
    return clean_text(text, limit).strip()


# ---- names -----------------------------------------------------------------------------------------------------------


def to_module_id(prefix: str, skill_id: str) -> str:
    """An id that apcore takes, as like the skill's own as can be."""
    segments: list[str] = []
    for part in re.split(r"[./:]+", skill_id.lower()[:MAX_ID]):
        if not part:
            continue
        segment = re.sub(r"[^a-z0-9_]+", "_", part)
        if not segment[0].isalpha() or segment in RESERVED:
            segment = f"s_{segment}"
        segments.append(segment)
    if not segments:  # an id of dots, say
        segments.append("skill")
    if prefix:
        segments.insert(0, prefix)
    module_id = ".".join(segments)
    return module_id[: MAX_ID - 4].rstrip("._")  # room for the number that `_make_unique` may add


def _make_unique(module_id: str, taken: set[str]) -> str:
    unique = module_id
    number = 2
    while unique in taken:
        unique = f"{module_id}_{number}"
        number += 1
    return unique


# ---- schemas ---------------------------------------------------------------------------------------------------------


def make_harmless(schema: object) -> Schema:
    """A remote schema without references and regular expressions; nothing if it is no schema."""
    if not isinstance(schema, dict):
        return {}
    harmless: Schema = _without_expressions(inline(schema))
    return harmless


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
            # The keys in here are names of properties: one may well be called "pattern".
            kept[keyword] = {name: _without_expressions(each) for name, each in value.items()}
        else:
            kept[keyword] = _without_expressions(value)
    return kept


def for_apcore(schema: Schema, *, checked: bool) -> Any:  # Any: a dict, or a class
    """The schema in the form that the installed apcore takes; `checked` if it should hold values against it."""
    if checked and takes_dicts():
        return schema
    return _make_model(schema)


def _make_model(schema: Schema) -> type[BaseModel]:
    class RemoteSchema(BaseModel):
        """Takes anything, and says what the remote agent takes: the agent itself checks."""

        model_config = ConfigDict(extra="allow")

        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
            return schema

    return RemoteSchema


@cache
def takes_dicts() -> bool:
    """Whether the installed apcore can describe and check modules whose schemas are dicts; 0.6.0 cannot."""

    # Found out by trying: which version learned it is not written anywhere.
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
        if hasattr(executor, "close"):  # newer ones keep an event loop
            executor.close()
