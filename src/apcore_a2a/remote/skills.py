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

from apcore_a2a.agents.apcore.agent_card import EXTENSION
from apcore_a2a.agents.apcore.schema import Schema, inline
from apcore_a2a.protocol.card import AgentCard, AgentSkill

MAX_TEXT: Final = 1000
MAX_ID: Final = 128  # apcore 0.6.0's
MAX_SKILLS: Final = 500
RESERVED: Final = frozenset({"system", "internal", "core", "apcore", "plugin", "schema", "acl"})
FREE_FORM: Final[Schema] = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": True}
# Keywords with a regular expression of the agent's choice: it could keep us busy for as long as it likes.
EXPRESSIONS: Final = frozenset({"pattern", "patternProperties"})
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


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
    streams: bool
    annotations: dict[str, bool]


def read_skills(card: AgentCard, prefix: str) -> Iterator[RemoteSkill]:
    """The skills of a card; those that our extension describes, with their schemas."""
    described = _described(card)
    taken: set[str] = set()
    for skill in card.skills[:MAX_SKILLS]:
        module_id = _unique(to_module_id(prefix, skill.id), taken)
        taken.add(module_id)
        yield _read_skill(skill, module_id, described.get(skill.id), bool(card.capabilities.streaming))


def _read_skill(skill: AgentSkill, module_id: str, about: object, streaming: bool) -> RemoteSkill:
    params = about if isinstance(about, dict) else {}
    given = params.get("inputSchema")
    flags = params.get("annotations")
    return RemoteSkill(
        module_id=module_id,
        id=skill.id,
        name=clean(skill.name),
        description=clean(skill.description) or clean(skill.name) or f"The skill {clean(skill.id)} of a remote agent",
        tags=tuple(clean(tag, 64) for tag in skill.tags[:20]),
        input_schema=tame(given) if isinstance(given, dict) else FREE_FORM,
        output_schema=tame(params.get("outputSchema")),
        is_free_form=not isinstance(given, dict),
        streams=streaming and (not params or params.get("streaming") is True),
        annotations={name: value for name, value in _items(flags) if name in FLAGS and isinstance(value, bool)},
    )


# What a remote agent may say of its skill's effects. That it needs no approval is not its to say.
FLAGS: Final = frozenset({"readonly", "destructive", "idempotent", "open_world"})


def _described(card: AgentCard) -> Mapping[str, object]:
    for extension in card.capabilities.extensions:
        skills = (extension.params or {}).get("skills") if extension.uri == EXTENSION else None
        if isinstance(skills, dict):
            return skills
    return {}


def _items(value: object) -> Iterator[tuple[Any, Any]]:
    yield from value.items() if isinstance(value, dict) else ()


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """Remote text without control and direction characters, and not without end."""
    kept = _CONTROL.sub("", text[: 2 * limit])
    return kept[:limit].strip()


def to_module_id(prefix: str, skill_id: str) -> str:
    """An id that apcore takes, as like the skill's own as can be."""
    segments = [segment for segment in re.split(r"[./:]+", skill_id.lower()[:MAX_ID]) if segment] or ["skill"]
    plain = [re.sub(r"[^a-z0-9_]+", "_", segment) for segment in segments]
    sound = [name if name[0].isalpha() and name not in RESERVED else f"s_{name}" for name in plain]
    return ".".join([*([prefix] if prefix else []), *sound])[: MAX_ID - 4].rstrip("._")


def _unique(module_id: str, taken: set[str]) -> str:
    number, wanted = 2, module_id
    while module_id in taken:
        module_id, number = f"{wanted}_{number}", number + 1
    return module_id


def tame(schema: object) -> Schema:
    """A remote schema without references and regular expressions."""
    if not isinstance(schema, dict):
        return {}
    tamed: Schema = _tame(inline(schema))
    return tamed


def _tame(node: Any) -> Any:  # Any: JSON
    if isinstance(node, list):
        return [_tame(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {name: _tame(each) for name, each in value.items()}  # names of properties, not keywords
        if key == "properties" and isinstance(value, dict)
        else _tame(value)
        for key, value in node.items()
        if key not in EXPRESSIONS
    }


def for_apcore(schema: Schema, *, checked: bool) -> Any:  # Any: a dict, or a class
    """The schema in the form that the installed apcore takes; `checked` if it should hold values against it."""
    return schema if checked and takes_dicts() else _model(schema)


def _model(given: Schema) -> type[BaseModel]:
    class RemoteSchema(BaseModel):
        """Takes anything, and says what the remote agent takes: the agent itself checks."""

        model_config = ConfigDict(extra="allow")

        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
            return given

    return RemoteSchema


@cache
def takes_dicts() -> bool:
    """Whether the installed apcore can describe and check modules whose schemas are dicts; 0.6.0 cannot."""

    class Probe:
        description = "probe"
        input_schema = output_schema = FREE_FORM

        def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
            return {}

    registry = apcore.Registry()
    registry.register("probe", Probe())
    try:
        return registry.get_definition("probe") is not None and apcore.Executor(registry).validate("probe", {}).valid
    except AttributeError:
        return False
