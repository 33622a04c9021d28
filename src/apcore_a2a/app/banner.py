"""The banner at the start of an agent: its address, its skills, and warnings about what is unsafe."""

import logging
import sys
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from apcore_a2a import __version__
from apcore_a2a.app.application import Application
from apcore_a2a.app.site import Site
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.settings import Settings
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.web import hide_password, is_loopback

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


def show_any(app: Application | Site, listening: str, *, settings: Settings | None = None, reload: str = "") -> None:
    """Print the banner of one agent, or of several."""
    if isinstance(app, Application):
        show(app, listening, settings=settings, reload=reload)
        return
    settings = settings or app.settings
    console = _console()
    console.print(Text.assemble((f"{len(app.agents)} agents", "bold"), "  ", (f"apcore-a2a {__version__}", "dim")))
    console.print(_table(_facts_of_site(app, settings, listening, reload)))
    for warning in _warnings_of_site(app, settings, urlsplit(listening).port):
        console.print(Text.assemble(("warning ", "yellow"), warning))


def log_any(app: Application | Site, listening: str, *, settings: Settings, reload: str = "") -> None:
    """Write the facts of the banner of one agent, or of several, as log records."""
    if isinstance(app, Application):
        log(app, listening, settings=settings, reload=reload)
        return
    logger.info("agents started", extra=_facts_of_site(app, settings, listening, reload))
    for warning in _warnings_of_site(app, settings, urlsplit(listening).port):
        logger.warning("agent is not safe", extra={"reason": warning})


def _facts_of_site(site: Site, settings: Settings, listening: str, reload: str) -> dict[str, str]:
    root = _address(settings, listening).rstrip("/")
    facts = {"index": f"{root}/"}
    for path, agent in site.agents.items():
        card = agent.cards.card
        facts[path] = f"{root}{path}/  {card.name}, {_skills(agent)}"
    if reload:
        facts["reload"] = reload
    return facts


def _warnings_of_site(site: Site, settings: Settings, port: int | None) -> list[str]:
    found = []
    for path, agent in site.agents.items():
        found += [f"{path}: {warning}" for warning in warnings(agent, settings, port)]
    return found


def show(app: Application, listening: str, *, settings: Settings | None = None, reload: str = "") -> None:
    """Print the banner to standard error.

    Args:
        app: The agent.
        listening: The address of the socket.
        settings: The settings of the server, if they are not those of the application.
        reload: The text of the line "reload", which says what is reloaded. Empty if nothing is.
    """
    settings = settings or app.settings
    console = _console()
    console.print(_title(app.cards.card))
    console.print(_table(_facts(app, settings, listening, reload)))
    for warning in warnings(app, settings, urlsplit(listening).port):
        console.print(Text.assemble(("warning ", "yellow"), warning))


def log(app: Application, listening: str, *, settings: Settings, reload: str = "") -> None:
    """Write the facts of the banner as log records, for a JSON log, in which each line must be a record."""
    logger.info("agent started", extra=_facts(app, settings, listening, reload))
    for warning in warnings(app, settings, urlsplit(listening).port):
        logger.warning("agent is not safe", extra={"reason": warning})


def show_other(name: str, listening: str, settings: Settings, *, reload: str = "") -> None:
    """Print the banner of another ASGI application, of which only the address is known."""
    console = _console()
    console.print(Text.assemble((name, "bold"), "  ", (f"apcore-a2a {__version__}", "dim")))
    console.print(_table(_facts_of_other(settings, listening, reload)))


def log_other(name: str, listening: str, settings: Settings, *, reload: str = "") -> None:
    """Write the banner of another ASGI application as a log record."""
    facts = {"target": name, **_facts_of_other(settings, listening, reload)}
    logger.info("application started", extra=facts)


def _console() -> Console:
    # Without a terminal, do not wrap: in a log, an address must stay on its line.
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
        "agent": f"{address}  (A2A 1.0 and 0.3, {_bindings(settings)})",
        "card": f"{root}/.well-known/agent-card.json",
    }
    if settings.explorer:
        facts["explorer"] = f"{root}{settings.explorer_prefix}/"
    facts["skills"] = _skills(app)
    facts["auth"] = authentication
    facts["store"] = _store(app, settings)
    if reload:
        facts["reload"] = reload
    return facts


def _bindings(settings: Settings) -> str:
    if settings.grpc is False or find_spec("h2") is None:
        return "JSON-RPC and REST"
    return "JSON-RPC, REST and gRPC"


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
        table.add_row(Text(label, style="dim"), Text(value))  # no markup: an id may contain brackets
    return table


def _address(settings: Settings, listening: str) -> str:
    """Return the address of the agent: the public one if it is set, else one for a browser on this machine."""
    if settings.url:
        return settings.url
    host = settings.host
    if host in ANY_ADDRESS:
        host = "localhost"  # 0.0.0.0 is an address to bind, not one to call
    if ":" in host:
        host = f"[{host}]"
    socket = urlsplit(listening)  # the port of the settings may be 0
    return f"{socket.scheme}://{host}:{socket.port}/"


def _skills(app: Application) -> str:
    """Return the number of skills and the first ids. If the public card shows fewer, with how many it shows."""
    ids = app.skill_ids()
    text = f"{len(ids)}: {', '.join(ids[:MAX_SKILLS])}"
    if len(ids) > MAX_SKILLS:
        text += ", …"
    shown = len(app.cards.card.skills)
    if shown != len(ids):
        text += f" ({shown} on the public card)"
    return text


def _title(card: AgentCard) -> Text:
    """Return the name of the agent with its own version, if it has one, and the version of this package."""
    title = Text(card.name, style="bold")
    if card.version != __version__:
        title.append(f" {card.version}", style="not bold")
    return title.append(f"  apcore-a2a {__version__}", style="not bold dim")


def warnings(app: Application, settings: Settings, port: int | None) -> list[str]:
    """Return what is unsafe about the agent, one sentence each."""
    found = []
    if not app.cards.card.security_schemes and not is_loopback(settings.host):
        found.append(f"every client that reaches {settings.host}:{port} can run every skill: no authentication is set")
    if "*" in settings.cors_origins:
        found.append("CORS is open to every origin")
    if settings.push_notifications and settings.allow_insecure_webhooks:
        found.append("webhooks may use plain HTTP and private addresses: --allow-insecure-webhooks is set")
    return found
