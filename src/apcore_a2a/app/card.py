"""Builds the card of an agent without one, and adds the fields of this server to every card."""

import logging
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from apcore_a2a import __version__
from apcore_a2a.agent import About, Agent, Caller
from apcore_a2a.agents.frameworks.recognition import framework_of
from apcore_a2a.agents.functions.agent import SkillAgent
from apcore_a2a.agents.functions.signature import docstring_of, name_of
from apcore_a2a.agents.functions.skill import FunctionSkill, to_card_skill, to_params
from apcore_a2a.agents.skills import JSON, TEXT, describe_skills, without_skills
from apcore_a2a.auth.authenticator import Authenticator, security_schemes
from apcore_a2a.auth.scopes import SkillScopes
from apcore_a2a.errors import list_names
from apcore_a2a.protocol.card import (
    STATE_HISTORY,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentSkill,
    SecurityRequirement,
    SecurityScheme,
)
from apcore_a2a.protocol.lifecycle import STATE_TRANSITIONS
from apcore_a2a.settings import Settings

logger = logging.getLogger(__name__)

KeyMaterial = str | Path | Mapping[str, Any]
"""A private key: the path of a file, or the content of one: PEM, a JSON Web Key, a set of those."""
SigningKeySource = KeyMaterial | Callable[[], KeyMaterial]

_NAMELESS: Final = (list, tuple, set, frozenset, Mapping, SkillAgent)  # collections of functions
MAX_PARENTS: Final = 3  # directories in which a pyproject.toml is looked for
IDEMPOTENCY: Final = AgentExtension(
    uri="urn:apcore:a2a:idempotency-key:1",
    description="A send repeated with the same Idempotency-Key header answers with the same task",
)

PASSED_STATES: Final = AgentExtension(
    uri=STATE_HISTORY,
    description=f"The metadata of a task says in {STATE_TRANSITIONS} which states it has passed through, and when",
)


def describe_agent(
    agent: Agent, target: Any, settings: Settings, *, show: Callable[[FunctionSkill], bool] | None = None
) -> AgentCard:
    """Return a card for an agent that has none, with the name and docstring of its function, module or class.

    Args:
        target: The object given to `serve`. Any: it may be anything.
        show: Selects the skills that the card shows and names. None selects all.
    """
    about = about_of(agent)
    if about is not None:
        return _describe(about, target, settings)
    skills: tuple[AgentSkill, ...] = ()
    extensions: tuple[AgentExtension, ...] = ()
    if isinstance(agent, SkillAgent):
        shown = [skill for skill in agent.skills if show is None or show(skill)]
        skills = tuple(map(to_card_skill, shown))
        extensions = (describe_skills({skill.id: to_params(skill) for skill in shown}),)
    name = settings.name or _name_of(agent, target, skills)
    description = settings.description or _first_line(target) or _summary(name, skills)
    if not isinstance(agent, SkillAgent):  # the agent itself is the only skill
        skills = (AgentSkill(id=name, name=name, description=description, tags=()),)
    modes = (TEXT, JSON)
    return AgentCard(
        name=name,
        description=description,
        version=settings.version or _project_version(target),
        supported_interfaces=(),
        capabilities=AgentCapabilities(streaming=True, extensions=extensions),
        default_input_modes=modes,
        default_output_modes=modes,
        skills=skills,
    )


def about_of(agent: Agent) -> About | None:
    """Return the `about` of an agent, or None if it has none."""
    about = getattr(agent, "about", None)
    if isinstance(about, About):
        return about
    return None


def _describe(about: About, target: Any, settings: Settings) -> AgentCard:
    """Return the card of an agent that has an `about`."""
    name = settings.name or about.name or "agent"
    description = settings.description or about.description or _summary(name, about.skills)
    itself = AgentSkill(id=name, name=name, description=description, tags=())
    return AgentCard(
        name=name,
        description=description,
        version=settings.version or about.version or _project_version(target),
        supported_interfaces=(),
        capabilities=AgentCapabilities(streaming=True, extensions=about.extensions),
        default_input_modes=about.input_modes or (TEXT, JSON),
        default_output_modes=about.output_modes or (TEXT, JSON),
        skills=about.skills or (itself,),
    )


def _name_of(agent: Agent, target: Any, skills: tuple[AgentSkill, ...]) -> str:
    if not isinstance(target, _NAMELESS):
        return name_of(target).rpartition(".")[2]  # the last part of the name of a module
    # Named after its skill only if the agent has no other one. An agent with one visible and one hidden skill would
    # otherwise have different names for different readers.
    if len(skills) == 1 and isinstance(agent, SkillAgent) and len(agent.skills) == 1:
        return skills[0].id
    return "agent"


def _first_line(target: Any) -> str:
    if isinstance(target, _NAMELESS):  # the docstring of `list` does not describe its functions
        return ""
    docstring = getattr(target, "__doc__", None)
    if callable(target):
        docstring = docstring_of(target)
    return str(docstring or "").strip().partition("\n")[0]


def _summary(name: str, skills: tuple[AgentSkill, ...]) -> str:
    if len(skills) > 1:
        return f"Agent with {len(skills)} skills: {list_names(skill.id for skill in skills)}"
    return f"The agent {name}"


def _project_version(target: object) -> str:
    """Return the version of the target's package or project, else that of this package.

    It is the `__version__` of the package, the version with which the package is installed, or the one in the
    `pyproject.toml` beside the source file or up to two directories above.
    """
    if isinstance(target, list | tuple) and target:
        target = target[0]
    elif isinstance(target, dict) and target:
        target = next(iter(target.values()))
    framework = framework_of(target)
    if framework is not None and framework.defines(type(target)):
        return __version__  # the framework's version says nothing about the agent
    module = str(getattr(target, "__module__", None) or getattr(target, "__name__", ""))  # a module has no `__module__`
    package = module.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(version, str) and version:
        return version
    return _installed_version(package) or _version_beside(module) or __version__


def _installed_version(package: str) -> str:
    if package not in sys.modules or package in sys.stdlib_module_names:  # the name may be that of another project
        return ""
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _version_beside(module: str) -> str:
    """Return the version in the nearest `pyproject.toml`. Empty if there is none, or no version in it."""
    source = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(source, str) or "site-packages" in source:
        return ""
    for directory in list(Path(source).resolve().parents)[:MAX_PARENTS]:
        try:
            project = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError):  # it cannot be read, or is not TOML: the start does not depend on it
            return ""
        version = (project.get("project") or {}).get("version")
        return version if isinstance(version, str) else ""
    return ""


def complete(card: AgentCard, settings: Settings, auth: Authenticator | None) -> AgentCard:
    """Return the card with the name, description and version of the settings, and with the fields of this server.

    These are the push notification capability, the extensions, and the security schemes.
    """
    extensions = [*card.capabilities.extensions, *settings.extensions, IDEMPOTENCY]
    if settings.state_history:
        extensions.append(PASSED_STATES)
    capabilities = replace(
        card.capabilities,
        push_notifications=settings.push_notifications,
        extended_agent_card=auth is not None,
        extensions=tuple(extensions),
    )
    card = replace(
        card,
        name=settings.name or card.name,
        description=settings.description or card.description,
        version=settings.version or card.version,
        capabilities=capabilities,
    )
    if auth is None:
        return card
    schemes: dict[str, SecurityScheme] = {}
    for scheme in security_schemes(auth):
        schemes[_new_name(scheme, schemes)] = _to_scheme(scheme)
    return replace(
        card,
        security_schemes=schemes,
        security_requirements=_requirements(schemes),
        skills=_with_scopes(card.skills, schemes, SkillScopes(settings.skill_scopes)),
    )


def _requirements(schemes: Iterable[str], scopes: Iterable[str] = ()) -> tuple[SecurityRequirement, ...]:
    """Return one requirement for each scheme: any of them is enough (1.0 §4.4.1). An empty list requires no scope."""
    listed = sorted(scopes)
    return tuple({"schemes": {name: {"list": listed}}} for name in schemes)


def _with_scopes(skills: Iterable[AgentSkill], schemes: Iterable[str], scopes: SkillScopes) -> tuple[AgentSkill, ...]:
    """Return the skills, each with the scopes that it requires."""
    shown: list[AgentSkill] = []
    for skill in skills:
        required = scopes.required(skill.id)
        if required:
            skill = replace(skill, security_requirements=_requirements(schemes, required))
        shown.append(skill)
    return tuple(shown)


def visible_to(card: AgentCard, caller: Caller, scopes: SkillScopes) -> AgentCard:
    """Return the card without the skills for which the caller lacks a scope."""
    hidden = {skill.id for skill in card.skills if not scopes.permits(caller, skill.id)}
    if not hidden:
        return card
    skills = tuple(skill for skill in card.skills if skill.id not in hidden)
    extensions = tuple(without_skills(extension, hidden) for extension in card.capabilities.extensions)
    return replace(card, skills=skills, capabilities=replace(card.capabilities, extensions=extensions))


def warn_of_unused(scopes: SkillScopes, skills: Iterable[str]) -> None:
    """Log the patterns that match no skill, because they may be misspelt and protect nothing."""
    for pattern in scopes.unused(skills):
        logger.warning("skill_scopes has a pattern that matches no skill", extra={"pattern": pattern})


_MEMBERS: Final = {
    "http": "httpAuthSecurityScheme",
    "apiKey": "apiKeySecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}


def _new_name(scheme: dict[str, Any], taken: dict[str, SecurityScheme]) -> str:
    """Return a name for a scheme on the card: its kind, with a number from the second of its kind on."""
    # For an HTTP scheme the name of the scheme, because "bearer" says more than "http".
    kind = str(scheme.get("scheme") or scheme.get("type"))
    name = kind
    number = 1
    while name in taken:
        number += 1
        name = f"{kind}{number}"
    return name


def _to_scheme(scheme: dict[str, Any]) -> SecurityScheme:
    """Convert a security scheme of OpenAPI to the form of A2A 1.0.

    Raises:
        ValueError: its type is not one of OpenAPI. The text names it.
    """
    fields = dict(scheme)
    kind = fields.pop("type", None)
    if kind not in _MEMBERS:
        known = ", ".join(_MEMBERS)
        raise ValueError(f"auth declares a security scheme of the unknown type {kind!r}; the types are {known}")
    if "in" in fields:  # OpenAPI's name for the place of an API key
        fields["location"] = fields.pop("in")
    return {_MEMBERS[kind]: fields}
