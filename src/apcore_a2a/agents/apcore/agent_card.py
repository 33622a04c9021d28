"""The agent card, as far as it follows from the modules.

Rule: what the ACL keeps from strangers is on no card for strangers. Where there is an extended card, what needs an
approval is on that one only; where there is none, it is on the public card, or nobody would find it.
"""

from collections.abc import Callable
from typing import Any, Final

import apcore

from apcore_a2a import __version__
from apcore_a2a.agent import Caller
from apcore_a2a.agents.apcore.context import to_identity
from apcore_a2a.agents.apcore.modules import ModuleInfo, Modules
from apcore_a2a.agents.apcore.skills import to_params, to_skill
from apcore_a2a.agents.skill_card import JSON, describe_skills
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentSkill

STRANGER: Final = Caller()


def build_card(modules: Modules, *, show: Callable[[ModuleInfo], bool] | None = None) -> AgentCard:
    """The card of the modules as they are now. The server adds where it is reached, and what it can do besides.

    Args:
        show: Which of the skills to show; all when None.
    """
    skills: list[AgentSkill] = []
    described: dict[str, Any] = {}  # what A2A has no field for, by skill
    for module in modules:
        if module.is_skill and (show is None or show(module)):
            skills.append(to_skill(module))
            described[module.id] = to_params(module)
    about = describe_skills(described)
    return AgentCard(
        name=_read_project(modules, "name") or "apcore-agent",
        description=_read_project(modules, "description") or _count(skills),
        version=_read_project(modules, "version") or __version__,
        supported_interfaces=(),
        capabilities=AgentCapabilities(streaming=hasattr(modules.executor, "stream"), extensions=(about,)),
        default_input_modes=(JSON,),
        default_output_modes=(JSON,),
        skills=tuple(skills),
    )


def _read_project(modules: Modules, field: str) -> str:
    """What apcore's configuration says of the project; empty where it says nothing."""
    if modules.config is None:
        return ""
    return str(modules.config.get(f"project.{field}") or "")


def _count(skills: list[AgentSkill]) -> str:
    if len(skills) == 1:
        return "apcore agent with 1 skill"
    return f"apcore agent with {len(skills)} skills"


def is_open(module: ModuleInfo, modules: Modules, caller: Caller = STRANGER) -> bool:
    """Whether the ACL lets this caller call the module; anybody, if none is named."""

    def make_context() -> Any:  # Any: apcore is untyped
        return apcore.Context.create(identity=to_identity(caller))

    return not modules.would_deny(module.id, make_context)
