"""The commands `card` and `skills`, which show an agent's card."""

from typing import Any

import click
import msgspec

from apcore_a2a.cli import options, output, rendering
from apcore_a2a.cli.connection import run_with_client
from apcore_a2a.cli.main import DefaultGroup
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.client import A2AClient
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.model import encode


@click.group("card", cls=DefaultGroup, default="get")
def group() -> None:
    """An agent's card. `card AGENT` is short for `card get AGENT`."""


@group.command("get", epilog=options.example("apcore-a2a card http://localhost:8000"))
@click.option("--extended", is_flag=True, help="Show the extended card, for authenticated callers.")
@click.option("--validate", is_flag=True, help="Check the card against the specification instead of showing it.")
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT")
def get(extended: bool, validate: bool, **given: Any) -> int:
    """Show an agent's card. AGENT is a host name, the address of an agent or of its card, or a card file."""
    common, _ = options.read_common(given)
    if validate:
        from apcore_a2a.cli.validate.command import validate_agent  # `card` alone does not need the rules

        return validate_agent(common, behaviour=False)

    async def work(client: A2AClient) -> None:
        card = await _fetch_card(client, extended=extended)
        lines = rendering.card_lines(card, signatures=_signatures(card, common))
        output.print_result(common, encode(card), lines)

    return run_with_client(common, work, calls_agent=extended)


async def _fetch_card(client: A2AClient, *, extended: bool) -> AgentCard:
    if extended:
        return await client.extended_card()
    return await client.agent_card


def _signatures(card: AgentCard, common: CommonOptions) -> str:
    """Return whether the signatures are verified, not verified, or absent (a2a-cli §10.1)."""
    if not card.signatures:
        return "none"
    # With keys, the client has rejected every card without a valid signature.
    if common.keys_file:
        return f"{len(card.signatures)}, verified"
    return f"{len(card.signatures)}, not verified (--keys FILE verifies them)"


@click.command("skills", epilog=options.example("apcore-a2a skills http://localhost:8000"))
@click.option("--extended", is_flag=True, help="Read the extended card, for authenticated callers.")
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT")
def skills(extended: bool, **given: Any) -> int:
    """List an agent's skills."""
    common, _ = options.read_common(given)

    async def work(client: A2AClient) -> None:
        card = await _fetch_card(client, extended=extended)
        lines: list[str] = []
        for skill in card.skills:
            lines += rendering.skill_lines(skill, card)
        output.print_result(common, msgspec.json.encode({"skills": card.skills}), lines)

    return run_with_client(common, work, calls_agent=extended)
