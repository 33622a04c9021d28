"""From what a user has to the parts of an application: which agent, which card.

Rule: apcore is recognised by its methods, never by its types, so that any version and any look-alike will do.
"""

from collections.abc import Callable

from apcore_a2a.agent import Agent, Caller
from apcore_a2a.agents.functions.agent import SkillAgent
from apcore_a2a.agents.functions.skill import FunctionSkill
from apcore_a2a.app.application import Parts
from apcore_a2a.app.card import complete, describe_agent, visible_to, warn_of_unused
from apcore_a2a.auth.authenticator import Authenticator
from apcore_a2a.auth.scopes import SkillScopes
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.settings import Settings

BuildCard = Callable[..., AgentCard]
"""Makes a card of the skills for which a predicate says so; of all without one."""


def is_apcore(target: object) -> bool:
    """Whether this is a Registry, an Executor or an APCore client."""
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
    """The agent and the card of whatever `target` is."""
    if is_apcore(target):
        if request_context_builder is not None:
            raise TypeError(f"request_context_builder is for executors of A2A, and {type(target).__name__} is none")
        from apcore_a2a.app.modules import compose_modules  # apcore takes half a second: only for those who use it

        return compose_modules(target, card, settings, auth)
    if isinstance(target, Agent) and request_context_builder is None:
        agent = target
    else:
        from apcore_a2a.agents.as_agent import as_agent

        agent = as_agent(target, request_context_builder=request_context_builder, default_skill=settings.default_skill)
    if settings.default_skill and (agent is target or not isinstance(agent, SkillAgent)):
        raise ValueError(f"default_skill is for what has several skills, and this {type(target).__name__} has not")

    def build(show: Callable[[FunctionSkill], bool] | None = None) -> AgentCard:
        return complete(card or describe_agent(agent, target, settings, show=show), settings, auth)

    if auth is None:  # there is no extended card, so everything is on this one
        return Parts(agent=agent, card=build())
    return _for_callers(agent, build, SkillScopes(settings.skill_scopes), auth)


def _for_callers(agent: Agent, build: BuildCard, scopes: SkillScopes, auth: Authenticator) -> Parts:
    """The parts where each caller is shown what they may call."""
    warn_of_unused(scopes, [skill.id for skill in build().skills])

    def build_extended(caller: Caller) -> AgentCard:
        shown = build(lambda skill: scopes.permits(caller, skill.id))
        return visible_to(shown, caller, scopes)  # a card that somebody brought shows all that it shows

    return Parts(
        agent=_discreet(agent, scopes),
        card=build(lambda skill: not skill.requires_approval),
        auth=auth,
        extended_card=build_extended,
    )


def _discreet(agent: Agent, scopes: SkillScopes) -> Agent:
    """An agent whose errors name to a caller only what the cards would show them."""

    def is_visible(caller: Caller, skill: FunctionSkill) -> bool:
        return scopes.permits(caller, skill.id) and (caller.is_authenticated or not skill.requires_approval)

    if isinstance(agent, SkillAgent):
        return agent.with_visibility(is_visible)
    return agent
