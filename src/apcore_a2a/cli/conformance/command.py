"""`validate`: an agent's card and answers held against the specification, with the clause that each rule comes from."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import click
import msgspec
from msgspec.structs import replace

from apcore_a2a.cli import options, output, rendering
from apcore_a2a.cli.conformance.card_checks import Finding, Result, Rule, check_card
from apcore_a2a.cli.conformance.probes import converse, probe
from apcore_a2a.cli.connection import guard, open_client
from apcore_a2a.cli.failures import EXIT_FAILED
from apcore_a2a.cli.options import Connection
from apcore_a2a.cli.transports import RecordingTransport
from apcore_a2a.client.options import BINDING_NAMES, BindingName
from apcore_a2a.client.transport import Transport
from apcore_a2a.errors import A2ADiscoveryError
from apcore_a2a.protocol.card import AgentCard

LABELS: Final[dict[Result, str]] = {"pass": "Pass", "fail": "Fail", "warn": "Warn", "skip": "Skip"}
WITHIN: Final = 60.0
SPEAKS: Final = Rule("card.speaks", "5.2", "The agent can be tried")


@click.command("validate", epilog=options.example("apcore-a2a validate http://localhost:8000 --message hello"))
@click.option("--message", metavar="TEXT", help="Also send this message, plainly and as a stream: the agent will work.")
@click.option("--skill", help="The skill that the message is for.")
@options.common
@click.argument("words", nargs=-1, metavar="AGENT")
def command(message: str | None, skill: str | None, **given: Any) -> int:
    """Check an agent against the A2A specification 1.0; exits with 1 if it breaks a rule.

    Its card is read, and on each of its interfaces requests are tried that cost the agent nothing.
    """
    connection, _ = options.read(given)
    return validate_agent(connection, message=message, skill=skill)


def validate_agent(
    connection: Connection, *, behaviour: bool = True, message: str | None = None, skill: str | None = None
) -> int:
    """Check, report, and answer the exit code."""

    async def work() -> int:
        found: list[Finding] = []
        bindings = await _check_card(connection, found)
        for binding in bindings if behaviour else ():
            await _check_behaviour(connection, binding, found, (message, skill))
        _report(connection, found)
        return EXIT_FAILED if any(finding.result == "fail" for finding in found) else 0

    return guard(connection, work, within=WITHIN)


async def _check_card(connection: Connection, found: list[Finding]) -> list[BindingName]:
    """Check the card; the bindings over which the agent can be tried."""
    recorders: list[RecordingTransport] = []
    async with open_client(connection, wrap=_recording(recorders)) as client:
        card: AgentCard | None = None
        try:
            card = await client.agent_card
        except A2ADiscoveryError as error:
            if error.status is not None:
                raise  # there is none
        found += check_card(recorders[0].last_json(), recorders[0].last_response.headers)
    if card is None:
        return []
    offered = [each.protocol_binding for each in card.supported_interfaces if each.protocol_version.startswith("1.")]
    chosen = [binding for binding in BINDING_NAMES if binding in offered]
    if not chosen:
        found.append(SPEAKS.skip("the card offers no JSONRPC or HTTP+JSON interface of A2A 1.0"))
    return [binding for binding in chosen if binding in (connection.transports or chosen)]


async def _check_behaviour(
    connection: Connection, binding: BindingName, found: list[Finding], message: tuple[str | None, str | None]
) -> None:
    text, skill = message
    recorders: list[RecordingTransport] = []
    async with open_client(replace(connection, version="1.0"), binding, wrap=_recording(recorders)) as client:
        results = [finding async for finding in probe(client, recorders[0])]
        if text is not None:
            results += [finding async for finding in converse(client, recorders[0], text, skill)]
    found += [replace(finding, id=f"{binding.lower()}:{finding.id}") for finding in results]


def _recording(recorders: list[RecordingTransport]) -> Callable[[Transport], Transport]:
    def wrap(transport: Transport) -> Transport:
        recorders.append(RecordingTransport(transport))
        return recorders[-1]

    return wrap


def _report(connection: Connection, found: list[Finding]) -> None:
    counts = Counter(finding.result for finding in found)
    report = {
        "agent": connection.agent,
        "a2aVersion": "1.0",
        "valid": not counts["fail"],
        "summary": {name: counts[name] for name in LABELS},
        "checks": found,
    }
    lines = [rendering.field(LABELS[each.result], f"{each.id} (A2A {each.clause}) {each.message}") for each in found]
    total = f"{counts['fail']} broken, {counts['warn']} warnings, {counts['pass']} kept, {counts['skip']} not tried"
    output.say(connection, msgspec.json.encode(report), [*lines, rendering.field("Result", total)])
