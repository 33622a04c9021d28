"""What is told when the agent starts: where it is, what it can do, and what is unsafe about it."""

import logging
import sys
from typing import Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from apcore_a2a import __version__
from apcore_a2a.app.application import Application
from apcore_a2a.settings import Settings, hide_password
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.web import is_loopback

logger = logging.getLogger(__name__)

MAX_SKILLS: Final = 12
NO_WIDTH: Final = 1000  # characters
ANY_ADDRESS: Final = ("0.0.0.0", "::")

_KINDS: Final = {
    "bearer": "JWT bearer",
    "apiKey": "API key",
    "openIdConnect": "OpenID Connect",
    "mutualTLS": "certificate",
}


def show(app: Application, listening: str, *, settings: Settings | None = None, reload: str = "") -> None:
    """Print the banner to standard error.

    Args:
        app: The agent.
        listening: The address of the socket.
        settings: Those it is served with, if they are not the application's own.
        reload: What is taken in again when it changes, in words.
    """
    settings = settings or app.settings
    console = _console()
    card = app.cards.card
    console.print(Text.assemble((card.name, "bold"), f" {card.version}  ", (f"apcore-a2a {__version__}", "dim")))
    console.print(_table(_facts(app, settings, listening, reload)))
    for warning in warnings(app, settings, urlsplit(listening).port):
        console.print(Text.assemble(("warning ", "yellow"), warning))


def log(app: Application, listening: str, *, settings: Settings, reload: str = "") -> None:
    """The same as records of the log, for a log that programs read: a line of the banner would be no record."""
    logger.info("agent started", extra=_facts(app, settings, listening, reload))
    for warning in warnings(app, settings, urlsplit(listening).port):
        logger.warning("agent is not safe", extra={"reason": warning})


def show_other(name: str, listening: str, settings: Settings, *, reload: str = "") -> None:
    """The same for an application that is not ours, of which little is known."""
    console = _console()
    console.print(Text.assemble((name, "bold"), "  ", (f"apcore-a2a {__version__}", "dim")))
    console.print(_table(_facts_of_other(settings, listening, reload)))


def log_other(name: str, listening: str, settings: Settings, *, reload: str = "") -> None:
    """The same as a record of the log."""
    facts = {"target": name, **_facts_of_other(settings, listening, reload)}
    logger.info("application started", extra=facts)


def _console() -> Console:
    # Without a terminal there is no width to wrap at: in a log, an address must stay on its line.
    if sys.stderr.isatty():
        return Console(stderr=True, highlight=False)
    return Console(stderr=True, highlight=False, soft_wrap=True, width=NO_WIDTH)


def _facts_of_other(settings: Settings, listening: str, reload: str) -> dict[str, str]:
    facts = {"application": _address(settings, listening)}
    if reload:
        facts["reload"] = reload
    return facts


def _facts(app: Application, settings: Settings, listening: str, reload: str) -> dict[str, str]:
    card = app.cards.card
    address = _address(settings, listening)
    root = address.rstrip("/")
    authentication = ", ".join(_KINDS.get(name, name) for name in card.security_schemes or ()) or "none"
    facts = {
        "agent": f"{address}  (A2A 1.0 and 0.3, JSON-RPC and REST)",
        "card": f"{root}/.well-known/agent-card.json",
    }
    if settings.explorer:
        facts["explorer"] = f"{root}{settings.explorer_prefix}/"
    facts["skills"] = _skills([skill.id for skill in card.skills])
    facts["auth"] = authentication
    facts["store"] = _store(app, settings)
    if reload:
        facts["reload"] = reload
    return facts


def _store(app: Application, settings: Settings) -> str:
    if settings.store:
        return hide_password(settings.store)
    store = app.engine.store
    if isinstance(store, InMemoryTaskStore):
        return "memory (tasks are lost when this process ends)"
    return type(store).__name__


def _table(facts: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, value in facts.items():
        table.add_row(Text(label, style="dim"), Text(value))  # not markup: an id may have brackets
    return table


def _address(settings: Settings, listening: str) -> str:
    """Where a person on this machine finds the agent, unless the operator said where everybody does."""
    if settings.url:
        return settings.url
    host = settings.host
    if host in ANY_ADDRESS:
        host = "localhost"  # one can listen at 0.0.0.0, but not call it
    if ":" in host:
        host = f"[{host}]"
    socket = urlsplit(listening)  # the port of the settings may be 0
    return f"{socket.scheme}://{host}:{socket.port}/"


def _skills(ids: list[str]) -> str:
    text = f"{len(ids)}: {', '.join(ids[:MAX_SKILLS])}"
    if len(ids) > MAX_SKILLS:
        text += ", …"
    return text


def warnings(app: Application, settings: Settings, port: int | None) -> list[str]:
    """What an operator should know before anybody else finds out."""
    found = []
    if not app.cards.card.security_schemes and not is_loopback(settings.host):
        found.append(f"anybody who can reach {settings.host}:{port} can run every skill: no authentication is set")
    if "*" in settings.cors_origins:
        found.append("CORS is open to every origin")
    if settings.push_notifications and settings.allow_insecure_webhooks:
        found.append("webhooks may be plain HTTP and point into this network: --allow-insecure-webhooks is set")
    return found
