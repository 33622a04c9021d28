"""Names the skills of a remote agent as apcore modules, and gives their schemas the form that apcore takes."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import apcore
from pydantic import BaseModel, ConfigDict

from apcore_a2a.agents.schema import Schema
from apcore_a2a.client.skills import FREE_FORM, RemoteSkill, read_skills
from apcore_a2a.protocol.card import AgentCard

MAX_ID: Final = 128  # the limit of apcore 0.6.0
# Reserved words: in apcore 0.6.0 for every part of an id, in the newest version for the first part.
RESERVED: Final = frozenset({"system", "internal", "core", "apcore", "plugin", "schema", "acl"})


def name_modules(card: AgentCard, prefix: str) -> Iterator[RemoteSkill]:
    """Yield the skills of a card. Their local names are the ids of their modules."""
    return read_skills(card, lambda skill_id: to_module_id(prefix, skill_id))


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
    return module_id[: MAX_ID - 4].rstrip("._")  # room for the number that makes it unique


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
