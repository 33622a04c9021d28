"""Makes the parts of an application from a served object: the agent and its card.

Invariant: apcore objects are recognised by their methods, never by their types, so that any version of apcore and any
object with the same methods works.
"""

from collections.abc import Callable

from apcore_a2a.agent import Agent, Caller
from apcore_a2a.agents.frameworks.framework_agent import FrameworkOptions
from apcore_a2a.agents.functions.agent import SkillAgent
from apcore_a2a.agents.functions.skill import FunctionSkill
from apcore_a2a.agents.mcp.targets import is_mcp_server
from apcore_a2a.app.application import Parts
from apcore_a2a.app.card import complete, describe_agent, visible_to, warn_of_unused
from apcore_a2a.auth.authenticator import Authenticator
from apcore_a2a.auth.scopes import SkillScopes
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.settings import Settings

BuildCard = Callable[..., AgentCard]
"""Builds a card of the skills that a predicate selects. Without a predicate, of all skills."""


def is_apcore(target: object) -> bool:
    """Return whether this is a Registry, an Executor or an APCore client."""
    is_registry = hasattr(target, "list") and hasattr(target, "get_definition")
    is_executor = hasattr(target, "call_async")
    is_client = hasattr(target, "registry") and hasattr(target, "executor")
    return is_registry or is_executor or is_client


def compose(
    target: object,
    card: AgentCard | None,
    settings: Settings,
    auth: Authenticator | None,
    *,
    request_context_builder: object = None,
) -> Parts:
    """Return the agent and the card of `target`."""
    if is_apcore(target):
        if request_context_builder is not None:
            raise TypeError(f"request_context_builder is for executors of A2A, and {type(target).__name__} is not one")
        from apcore_a2a.app.modules import compose_modules  # here, because importing apcore takes half a second

        return compose_modules(target, card, settings, auth)
    if isinstance(target, Agent) and request_context_builder is None:
        agent = target
    else:
        from apcore_a2a.agents.as_agent import as_agent

        agent = as_agent(
            target,
            request_context_builder=request_context_builder,
            default_skill=settings.default_skill,
            frameworks=_framework_options(settings),
        )
    has_skills = isinstance(agent, SkillAgent) or is_mcp_server(target)
    if settings.default_skill and (agent is target or not has_skills):
        raise ValueError(f"default_skill is for several functions or modules, not for this {type(target).__name__}")

    def build(show: Callable[[FunctionSkill], bool] | None = None) -> AgentCard:
        return complete(card or describe_agent(agent, target, settings, show=show), settings, auth)

    if auth is None:  # there is no extended card, so this one shows all skills
        parts = Parts(agent=agent, card=build(), build_card=build)
    else:
        parts = _for_callers(agent, build, SkillScopes(settings.skill_scopes), auth)
    parts.lifespan = getattr(agent, "lifespan", None)
    return parts


def _framework_options(settings: Settings) -> FrameworkOptions:
    return FrameworkOptions(
        show_tools=settings.show_tools, allow_urls=settings.allow_urls, allow_tracing=settings.allow_tracing
    )


def _for_callers(agent: Agent, build: BuildCard, scopes: SkillScopes, auth: Authenticator) -> Parts:
    """Return the parts of an agent with authentication: each caller sees the skills that it may call."""
    if getattr(agent, "lifespan", None) is None:  # otherwise the skills may not be known yet
        warn_of_unused(scopes, [skill.id for skill in build().skills])

    def build_public() -> AgentCard:
        return build(lambda skill: not skill.requires_approval)

    def build_extended(caller: Caller) -> AgentCard:
        shown = build(lambda skill: scopes.permits(caller, skill.id))
        return visible_to(shown, caller, scopes)  # a card given by the user is not made of the selected skills

    return Parts(
        agent=_with_visible_skills(agent, scopes),
        card=build_public(),
        build_card=build_public,
        list_skills=lambda: [skill.id for skill in build().skills],
        auth=auth,
        extended_card=build_extended,
    )


def _with_visible_skills(agent: Agent, scopes: SkillScopes) -> Agent:
    """Return an agent whose errors name only the skills that the cards show to the caller."""

    def is_visible(caller: Caller, skill: FunctionSkill) -> bool:
        return scopes.permits(caller, skill.id) and (caller.is_authenticated or not skill.requires_approval)

    if isinstance(agent, SkillAgent):
        return agent.with_visibility(is_visible)
    return agent
