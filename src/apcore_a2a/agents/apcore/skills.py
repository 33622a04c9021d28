"""A module as a skill of the agent card. Rule: the id is the module's; `display` may override what people read."""

from typing import Any, Final

from apcore_a2a.agents.apcore.modules import ModuleInfo
from apcore_a2a.agents.schema import Schema, text_field
from apcore_a2a.protocol.card import AgentSkill
from apcore_a2a.protocol.model import encode

JSON: Final = "application/json"
TEXT: Final = "text/plain"
MAX_EXAMPLES: Final = 10


def to_skill(module: ModuleInfo) -> AgentSkill:
    """What others read about a module: `display.a2a` before `display` before the module's own words."""
    display = {**module.display, **(module.display.get("a2a") or {})}
    description = display.get("description") or module.description
    if display.get("guidance"):
        description += f"\n\nGuidance: {display['guidance']}"  # as apcore's other adapters write it
    name = display.get("alias")
    if not name:
        name = module.id.replace(".", " ").replace("_", " ").title()
    return AgentSkill(
        id=module.id,
        name=name,
        description=description,
        tags=tuple(display.get("tags") or module.tags),
        examples=tuple(encode(example.inputs).decode() for example in module.examples[:MAX_EXAMPLES]),
        input_modes=modes(module.input_schema),
        output_modes=modes(module.output_schema),
    )


def modes(schema: Schema) -> tuple[str, ...]:
    """The media types that fit a schema."""
    if not schema:
        return (TEXT,)
    if text_field(schema) is None:
        return (JSON,)
    return (JSON, TEXT)


def to_params(module: ModuleInfo) -> dict[str, Any]:
    """What a client that knows apcore is told besides: enough to build a form and to judge the risk."""
    params: dict[str, Any] = {
        "version": module.version,
        "streaming": module.streams,
        "annotations": module.annotations,
        "inputSchema": module.input_schema,
        "outputSchema": module.output_schema,
        "examples": [{"name": each.title, "input": each.inputs} for each in module.examples[:MAX_EXAMPLES]],
    }
    # What is empty says nothing, and cards with many skills are large as it is.
    for name in list(params):
        if not params[name]:
            del params[name]
    return params
