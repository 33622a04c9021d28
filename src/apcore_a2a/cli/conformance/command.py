"""`validate`: an agent's card and answers held against the specification, with the clause that each rule comes from."""

from collections import Counter
from typing import Any, Final

import click
import msgspec
from msgspec.structs import replace

from apcore_a2a.cli import options, output, rendering
from apcore_a2a.cli.conformance.card_checks import check_card
from apcore_a2a.cli.conformance.probes import converse, probe
from apcore_a2a.cli.conformance.rules import Finding, Result, Rule
from apcore_a2a.cli.connection import open_recorded_client, run_to_exit_code
from apcore_a2a.cli.failures import EXIT_FAILED
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.client.options import BINDING_NAMES, BindingName
from apcore_a2a.errors import A2ADiscoveryError
from apcore_a2a.protocol.card import AgentCard

LABELS: Final[dict[Result, str]] = {"pass": "Pass", "fail": "Fail", "warn": "Warn", "skip": "Skip"}
TIME_LIMIT: Final = 60.0  # seconds, for some twenty calls over each binding
SPEAKS: Final = Rule("card.speaks", "5.2", "The agent can be tried")


@click.command("validate", epilog=options.example("apcore-a2a validate http://localhost:8000 --message hello"))
@click.option("--message", metavar="TEXT", help="Also send this message, plainly and as a stream: the agent will work.")
@click.option("--skill", help="The skill that the message is for.")
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT")
def command(message: str | None, skill: str | None, **given: Any) -> int:
    """Check an agent against the A2A specification 1.0; exits with 1 if it breaks a rule.

    Its card is read, and on each of its interfaces requests are tried that cost the agent nothing.
    """
    common, _ = options.read_common(given)
    return validate_agent(common, message=message, skill=skill)


def validate_agent(
    common: CommonOptions, *, behaviour: bool = True, message: str | None = None, skill: str | None = None
) -> int:
    """Check, report, and answer the exit code.

    Args:
        common: What every command is told.
        behaviour: Whether the agent is called, or only its card is looked at.
        message: A message for the agent to work on, if there is to be one.
        skill: The skill that the message is for.
    """

    async def check_and_report() -> int:
        found, bindings = await _check_card(common)
        if behaviour:
            for binding in bindings:
                found += await _check_behaviour(common, binding, message=message, skill=skill)
        counts = Counter(finding.result for finding in found)
        _print_report(common, found, counts)
        if counts["fail"]:
            return EXIT_FAILED
        return 0

    return run_to_exit_code(common, check_and_report, time_limit=TIME_LIMIT)


async def _check_card(common: CommonOptions) -> tuple[list[Finding], list[BindingName]]:
    """What is found about the card, and the bindings over which the agent can be tried."""
    async with open_recorded_client(common) as (client, recorder):
        card: AgentCard | None = None
        try:
            card = await client.agent_card
        except A2ADiscoveryError as error:
            if error.status is not None:
                raise  # there is none
            # There is one that our client cannot use: which of the rules it breaks is what the caller wants to know.
        found = check_card(recorder.last_json(), recorder.last_response.headers)
    if card is None:
        return found, []
    bindings = _bindings_to_try(common, card)
    if bindings is None:
        found.append(SPEAKS.skip("the card offers no JSONRPC or HTTP+JSON interface of A2A 1.0"))
        return found, []
    return found, bindings


def _bindings_to_try(common: CommonOptions, card: AgentCard) -> list[BindingName] | None:
    """The bindings of A2A 1.0 that the card offers and the caller wants; None if the card offers none of ours."""
    offered = set()
    for interface in card.supported_interfaces:
        if interface.protocol_version.startswith("1."):
            offered.add(interface.protocol_binding)
    if offered.isdisjoint(BINDING_NAMES):
        return None
    wanted = common.bindings or BINDING_NAMES
    return [binding for binding in BINDING_NAMES if binding in offered and binding in wanted]


async def _check_behaviour(
    common: CommonOptions, binding: BindingName, *, message: str | None, skill: str | None
) -> list[Finding]:
    # The rules are those of 1.0: an agent that also speaks 0.3 must not be tried in it, whatever its card prefers.
    async with open_recorded_client(replace(common, version="1.0"), binding) as (client, recorder):
        found = await probe(client, recorder)
        if message is not None:
            found += await converse(client, recorder, message, skill)
    # An agent may keep a rule over one binding and break it over the other.
    return [replace(finding, id=f"{binding.lower()}:{finding.id}") for finding in found]


def _print_report(common: CommonOptions, found: list[Finding], counts: Counter[Result]) -> None:
    report = {
        "agent": common.agent,
        "a2aVersion": "1.0",
        "valid": not counts["fail"],
        "summary": {name: counts[name] for name in LABELS},  # all four, also those that are 0
        "checks": found,
    }
    lines = []
    for finding in found:
        text = f"{finding.id} (A2A {finding.clause}) {finding.message}"
        lines.append(rendering.field(LABELS[finding.result], text))
    total = f"{counts['fail']} broken, {counts['warn']} warnings, {counts['pass']} kept, {counts['skip']} not tried"
    lines.append(rendering.field("Result", total))
    output.print_result(common, msgspec.json.encode(report), lines)
