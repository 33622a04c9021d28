"""Makes an agent of apcore modules. Its card is rebuilt when the registry changes."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

from apcore_a2a.agent import Caller
from apcore_a2a.agents.apcore.agent import ModuleAgent, build_card, is_open
from apcore_a2a.agents.apcore.executor import open_modules
from apcore_a2a.agents.apcore.modules import ModuleInfo, Modules
from apcore_a2a.app.application import Application, Parts
from apcore_a2a.app.card import complete, visible_to, warn_of_unused
from apcore_a2a.auth.authenticator import Authenticator
from apcore_a2a.auth.scopes import SkillScopes
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.settings import Settings

logger = logging.getLogger(__name__)

NO_MODULES: Final = "Registry contains zero modules; at least one module is required to serve an A2A agent"


UNREAD_CONFIG: Final = (
    "the agent card has a default name, because apcore does not show the configuration (project.name) of this object. "
    "Pass name=, description= and version=, or serve an APCore client"
)


def compose_modules(target: object, card: AgentCard | None, settings: Settings, auth: Authenticator | None) -> Parts:
    """Return the agent that runs these modules, and its card, which is rebuilt when the registry changes."""
    modules = open_modules(target)
    if next(iter(modules), None) is None:
        raise ValueError(NO_MODULES)
    if card is None and modules.config is None and not settings.name:
        logger.warning(UNREAD_CONFIG, extra={"source": type(target).__name__})

    def is_public(module: ModuleInfo) -> bool:
        return is_open(module, modules) and (auth is None or not module.requires_approval)

    def build(*, show: Callable[[ModuleInfo], bool] = is_public) -> AgentCard:
        if card is not None:
            return complete(card, settings, auth)
        return complete(build_card(modules, show=show), settings, auth)

    scopes = SkillScopes(settings.skill_scopes)
    warn_of_unused(scopes, [module.id for module in modules])

    def build_extended(caller: Caller) -> AgentCard:
        whole = build(show=lambda module: is_open(module, modules, caller) and scopes.permits(caller, module.id))
        return visible_to(whole, caller, scopes)  # a card given by the user is not made of the selected modules

    agent = ModuleAgent(modules, default_skill=settings.default_skill, approvals_by_caller=settings.approvals_by_caller)
    parts = Parts(agent=agent, card=build(), auth=auth, count_modules=modules.__len__)
    if auth is not None:
        # It shows each authenticated caller the modules that this caller may call.
        parts.extended_card = build_extended
    if card is None:
        parts.list_skills = lambda: [module.id for module in modules if module.is_skill]
    parts.on_open = lambda app: watch(modules, build, app)
    return parts


def watch(modules: Modules, build: Callable[[], AgentCard], app: Application) -> None:
    """Rebuild the application's card when the registry changes, from any thread.

    The card is built on the thread that made the change. If that is the thread of the event loop, a worker thread
    builds the card, so that requests are served meanwhile.
    """
    loop = asyncio.get_running_loop()
    loop_thread = threading.current_thread()
    building = threading.Lock()  # otherwise an older card could replace a newer one

    def rebuild() -> None:
        with building:
            try:
                card = build()
            except Exception:  # the change may be incomplete, and the next one builds the card again
                logger.exception("agent card not rebuilt")
                return
            logger.debug("agent card rebuilt", extra={"skills": len(card.skills)})
            if not loop.is_closed():
                loop.call_soon_threadsafe(app.cards.replace, card)

    def changed() -> None:
        if threading.current_thread() is loop_thread:
            loop.run_in_executor(None, rebuild)
        else:
            rebuild()

    modules.watch(changed)
