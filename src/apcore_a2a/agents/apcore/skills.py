"""A module as a skill of the agent card. Rule: the id is the module's; `display` may override what people read."""

from typing import Any

from apcore_a2a.agents.apcore.modules import ModuleInfo
from apcore_a2a.agents.skill_card import MAX_EXAMPLES, describe_call, modes, to_title
from apcore_a2a.protocol.card import AgentSkill
from apcore_a2a.protocol.model import encode


def to_skill(module: ModuleInfo) -> AgentSkill:
    """What others read about a module: `display.a2a` before `display` before the module's own words."""
    display = {**module.display, **(module.display.get("a2a") or {})}
    description = display.get("description") or module.description
    if display.get("guidance"):
        description += f"\n\nGuidance: {display['guidance']}"  # as apcore's other adapters write it
    return AgentSkill(
        id=module.id,
        name=display.get("alias") or to_title(module.id),
        description=description,
        tags=tuple(display.get("tags") or module.tags),
        examples=tuple(encode(example.inputs).decode() for example in module.examples[:MAX_EXAMPLES]),
        input_modes=modes(module.input_schema),
        output_modes=modes(module.output_schema),
    )


def to_params(module: ModuleInfo) -> dict[str, Any]:
    """What a client that knows apcore is told besides: enough to build a form and to judge the risk."""
    params = describe_call(module.input_schema, module.output_schema, module.examples, module.annotations)
    if module.streams:
        params["streaming"] = True
    if module.version:
        params["version"] = module.version
    return params
