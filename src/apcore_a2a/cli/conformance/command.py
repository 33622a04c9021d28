"""`validate`: an agent's card and answers held against the specification, with the clause that each rule comes from."""

from collections import Counter
from typing import Any, Final

import click
import msgspec
from msgspec.structs import replace

from apcore_a2a.cli import options, output, rendering
from apcore_a2a.cli.conformance.card_checks import Finding, Result, Rule, check_card
from apcore_a2a.cli.conformance.probes import converse, probe
from apcore_a2a.cli.connection import open_recorded_client, run_to_exit_code
from apcore_a2a.cli.failures import EXIT_FAILED
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.client.options import BINDING_NAMES, BindingName
from apcore_a2a.errors import A2ADiscoveryError
from apcore_a2a.protocol.card import AgentCard

LABELS: Final[dict[Result, str]] = {"pass": "Pass", "fail": "Fail", "warn": "Warn", "skip": "Skip"}
WITHIN: Final = 60.0
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
    """Check, report, and answer the exit code."""

    async def work() -> int:
        found: list[Finding] = []
        bindings = await _check_card(common, found)
        for binding in bindings if behaviour else ():
            await _check_behaviour(common, binding, found, (message, skill))
        _report(common, found)
        return EXIT_FAILED if any(finding.result == "fail" for finding in found) else 0

    return run_to_exit_code(common, work, time_limit=WITHIN)


async def _check_card(common: CommonOptions, found: list[Finding]) -> list[BindingName]:
    """Check the card; the bindings over which the agent can be tried."""
    async with open_recorded_client(common) as (client, recorder):
        card: AgentCard | None = None
        try:
            card = await client.agent_card
        except A2ADiscoveryError as error:
            if error.status is not None:
                raise  # there is none
        found += check_card(recorder.last_json(), recorder.last_response.headers)
    if card is None:
        return []
    offered = [each.protocol_binding for each in card.supported_interfaces if each.protocol_version.startswith("1.")]
    chosen = [binding for binding in BINDING_NAMES if binding in offered]
    if not chosen:
        found.append(SPEAKS.skip("the card offers no JSONRPC or HTTP+JSON interface of A2A 1.0"))
    return [binding for binding in chosen if binding in (common.bindings or chosen)]


async def _check_behaviour(
    common: CommonOptions, binding: BindingName, found: list[Finding], message: tuple[str | None, str | None]
) -> None:
    text, skill = message
    async with open_recorded_client(replace(common, version="1.0"), binding) as (client, recorder):
        results = [finding async for finding in probe(client, recorder)]
        if text is not None:
            results += [finding async for finding in converse(client, recorder, text, skill)]
    found += [replace(finding, id=f"{binding.lower()}:{finding.id}") for finding in results]


def _report(common: CommonOptions, found: list[Finding]) -> None:
    counts = Counter(finding.result for finding in found)
    report = {
        "agent": common.agent,
        "a2aVersion": "1.0",
        "valid": not counts["fail"],
        "summary": {name: counts[name] for name in LABELS},
        "checks": found,
    }
    lines = [rendering.field(LABELS[each.result], f"{each.id} (A2A {each.clause}) {each.message}") for each in found]
    total = f"{counts['fail']} broken, {counts['warn']} warnings, {counts['pass']} kept, {counts['skip']} not tried"
    output.say(common, msgspec.json.encode(report), [*lines, rendering.field("Result", total)])
