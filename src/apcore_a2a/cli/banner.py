"""What a person sees when the agent starts: where it is, what it can do, and what is unsafe about it."""

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from apcore_a2a import __version__
from apcore_a2a.app.application import Application

MAX_SKILLS = 12


def show(app: Application, *, reload: bool = False) -> None:
    """Print the banner to standard error."""
    console = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
    settings, card = app.settings, app.cards.card
    here = (
        settings.url
        or f"http://{'localhost' if settings.host in ('0.0.0.0', '::') else settings.host}:{settings.port}/"
    )
    console.print(Text.assemble((card.name, "bold"), f" {card.version}  ", (f"apcore-a2a {__version__}", "dim")))
    facts = Table.grid(padding=(0, 2))
    facts.add_row(Text("agent", style="dim"), f"{here}  (A2A 1.0 and 0.3, JSON-RPC and REST)")
    facts.add_row(Text("card", style="dim"), f"{here.rstrip('/')}/.well-known/agent-card.json")
    if settings.explorer:
        facts.add_row(Text("explorer", style="dim"), f"{here.rstrip('/')}{settings.explorer_prefix}/")
    facts.add_row(Text("skills", style="dim"), _skills([skill.id for skill in card.skills]))
    facts.add_row(Text("auth", style="dim"), "JWT bearer" if card.security_schemes else "none")
    facts.add_row(Text("store", style="dim"), settings.store or "memory (tasks are lost when this process ends)")
    if reload:
        facts.add_row(Text("reload", style="dim"), "on: changed modules are taken in again")
    console.print(facts)
    for warning in warnings(app):
        console.print(Text.assemble(("warning ", "yellow"), warning))


def _skills(ids: list[str]) -> str:
    shown = ", ".join(ids[:MAX_SKILLS])
    return f"{len(ids)}: {shown}{', …' if len(ids) > MAX_SKILLS else ''}"


def warnings(app: Application) -> list[str]:
    """What an operator should know before anybody else finds out."""
    settings = app.settings
    found = []
    if not app.cards.card.security_schemes and settings.host not in ("127.0.0.1", "localhost", "::1"):
        found.append(
            f"anybody who can reach {settings.host}:{settings.port} can run every skill: no authentication is set"
        )
    if "*" in settings.cors_origins:
        found.append("CORS is open to every origin")
    if settings.push_notifications:
        found.append("webhooks are not available yet: --push-notifications has no effect")
    return found
