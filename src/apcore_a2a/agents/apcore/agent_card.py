"""The agent card, as far as it follows from the modules.

Rule: what the ACL keeps from strangers is on no card for strangers. Where there is an extended card, what needs an
approval is on that one only; where there is none, it is on the public card, or nobody would find it.
"""

from collections.abc import Callable
from typing import Final

import apcore
import msgspec

from apcore_a2a.agents.apcore.registry import ModuleInfo, Modules
from apcore_a2a.agents.apcore.skills import JSON, to_params, to_skill
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentExtension

EXTENSION: Final = "urn:apcore:a2a:modules:1"


def build_card(
    modules: Modules,
    *,
    name: str = "",
    description: str = "",
    version: str = "",
    show: Callable[[ModuleInfo], bool] | None = None,
) -> AgentCard:
    """The card of the modules as they are now. The server adds where it is reached, and what it can do besides.

    Args:
        show: Which of the skills to show; all when None.
    """
    shown = [module for module in modules if module.is_skill and (show is None or show(module))]
    params = {"skills": {module.id: msgspec.to_builtins(to_params(module)) for module in shown}}
    about = AgentExtension(uri=EXTENSION, description="Schemas and annotations of the skills", params=params)
    project = _project(modules)
    count = f"{len(shown)} skill{'' if len(shown) == 1 else 's'}"
    return AgentCard(
        name=name or project("name") or "apcore-agent",
        description=description or project("description") or f"apcore agent with {count}",
        version=version or project("version") or "0.0.0",
        supported_interfaces=(),
        capabilities=AgentCapabilities(streaming=hasattr(modules.executor, "stream"), extensions=(about,)),
        default_input_modes=(JSON,),
        default_output_modes=(JSON,),
        skills=tuple(map(to_skill, shown)),
    )


def _project(modules: Modules) -> Callable[[str], str]:
    """What apcore's configuration says of the project; empty where it says nothing."""
    config = getattr(modules.executor, "_config", None) or getattr(modules.registry, "_config", None) or {}
    return lambda field: str(config.get(f"project.{field}") or "")


def is_open(module: ModuleInfo, modules: Modules) -> bool:
    """Whether the ACL lets anybody call the module."""
    return not modules.denies(module.id, apcore.Context.create)


def is_free(module: ModuleInfo) -> bool:
    """Whether the module runs without asking somebody first."""
    return module.annotations is None or not module.annotations.requires_approval
