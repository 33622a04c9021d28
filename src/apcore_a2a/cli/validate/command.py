"""`validate`: checks an agent's card and answers against the specification, with the clause of each rule.

Invariant: it always ends with a report. Findings are kept as they arrive, and each call has a share of the time.
"""

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from apcore_a2a.cli import options, output, rendering
from apcore_a2a.cli.completion import complete_skill
from apcore_a2a.cli.connection import RecordingTransport, open_recorded_client, run_to_exit_code
from apcore_a2a.cli.failures import EXIT_FAILED, Failure, explain
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.cli.validate.card_checks import Finding, Result, Rule, check_card, check_signature
from apcore_a2a.cli.validate.probes import ProbeMessage, converse, probe
from apcore_a2a.client import A2AClient
from apcore_a2a.client.channel import find_grpc_obstacle
from apcore_a2a.client.discovery import GRPC
from apcore_a2a.client.options import BINDING_NAMES, BindingName
from apcore_a2a.errors import A2ADiscoveryError, A2AError, UnauthenticatedError, list_names
from apcore_a2a.protocol.card import AgentCard

LABELS: Final[dict[Result, str]] = {"pass": "Pass", "fail": "Fail", "warn": "Warn", "skip": "Skip"}
TIME_LIMIT: Final = 60.0  # seconds, for about twenty calls over each binding
# A call may take an eighth of the time limit and a message a sixth, so that one that hangs leaves time for the others.
# The agent processes the message six times: twice over each binding.
CALLS: Final = 8
MESSAGES: Final = 6
HAS_CARD: Final = Rule("card.found", "8.2", "The agent has a card")
TESTABLE: Final = Rule("card.speaks", "5.2", "The agent can be tested")
ANSWERS: Final = Rule("agent.answers", "3.1", "The agent answers each call in time")


@click.command("validate", epilog=options.example("apcore-a2a validate http://localhost:8000 --message hello"))
@click.option("--message", metavar="TEXT", help="Also send this message, once as a stream. The agent will process it.")
@click.option("--skill", shell_complete=complete_skill, help="Skill to invoke with the message.")
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT")
def command(message: str | None, skill: str | None, **given: Any) -> int:
    """Check an agent against the A2A specification 1.0. Exits with 1 if it breaks a rule.

    It reads the card and sends requests to each interface. They give the agent no work, unless --message is used.
    """
    common, _ = options.read_common(given)
    return validate_agent(common, message=message, skill=skill)


def validate_agent(
    common: CommonOptions, *, behaviour: bool = True, message: str | None = None, skill: str | None = None
) -> int:
    """Check an agent, print a report, and return the exit code.

    Args:
        common: The common options.
        behaviour: Whether to call the agent, instead of only reading its card.
        message: A message for the agent to process, if any.
        skill: The skill to invoke with the message.
    """
    limit = common.timeout or TIME_LIMIT

    async def check_and_report() -> int:
        report = ValidationReport()
        try:
            async with asyncio.timeout(limit):
                await _check(common, Selection(behaviour, message, skill), report, limit)
        except TimeoutError:
            text = f"the checks did not finish within {limit:g} seconds. Rules that are not listed were not tested"
            report.found += ANSWERS.judge([text])
        except click.ClickException:
            raise  # a usage error, not an error of the agent
        except Exception as error:  # whatever an agent's answers make our code raise: the caller asked for a report
            report.fail(error, with_credentials=common.has_credentials)
        _print_report(common, report.found)
        return report.exit_code

    # The time limit is that of the checks above. The report is printed after it, and has none.
    return run_to_exit_code(replace(common, timeout=None), check_and_report, time_limit=None)


class Selection(NamedTuple):
    """The checks to run besides those of the card."""

    behaviour: bool
    message: str | None
    skill: str | None


class ValidationReport:
    """The findings so far. There is always a report to print, whatever the agent does."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self._failure: Failure | None = None

    @property
    def exit_code(self) -> int:
        if self._failure is not None:
            return self._failure.exit_code
        if any(finding.result == "fail" for finding in self.found):
            return EXIT_FAILED
        return 0

    def fail(self, error: Exception, *, with_credentials: bool) -> None:
        """Record that the agent or its card is not available, and set the exit code accordingly."""
        self._failure = explain(error, with_credentials=with_credentials)
        text = self._failure.message
        if self._failure.hint:
            text = f"{text}. {self._failure.hint}"
        rule = ANSWERS if self.found else HAS_CARD
        self.found += rule.judge([text])


async def _check(common: CommonOptions, selection: Selection, report: ValidationReport, limit: float) -> None:
    bindings = await _check_card(common, report, limit / CALLS)
    if not selection.behaviour:
        return
    for binding in bindings:
        # The rules are those of 1.0. An agent that also supports 0.3 must not be tested with it, whatever its card
        # prefers.
        of_1_0 = replace(common, version="1.0")
        async with open_recorded_client(of_1_0, binding, timeout=limit / CALLS) as (client, recorder):
            if binding == GRPC:
                obstacle = await _find_obstacle(client)
                if obstacle:
                    report.found.append(TESTABLE.skip(f"over gRPC: {obstacle}"))
                    continue
            await _check_behaviour(client, recorder, selection, report, limit / MESSAGES)


async def _find_obstacle(client: A2AClient) -> str:
    """Return why the interface cannot be called. Most servers have gRPC at another port, which is not trusted."""
    try:
        await client.interface
    except A2ADiscoveryError as error:
        return str(error)
    return ""


async def _check_card(common: CommonOptions, report: ValidationReport, timeout: float) -> list[BindingName]:
    """Check the card. Return the bindings over which the agent can be tested."""
    async with open_recorded_client(common, timeout=timeout) as (client, recorder):
        card: AgentCard | None = None
        refused: A2ADiscoveryError | None = None
        try:
            card = await client.agent_card
        except A2ADiscoveryError as error:
            if error.status is not None or not recorder.last_response.body:
                raise  # there is no card
            # There is a card that our client cannot use. The caller wants to know which rules it breaks.
            refused = error
        body = recorder.last_json()
        report.found += check_card(body, recorder.last_response.headers, common.agent)
        report.found.append(check_signature(body, with_keys=common.keys_file is not None, refused=refused))
    if card is None:
        return []
    bindings = _bindings_to_try(common, card)
    if bindings is None:
        report.found.append(TESTABLE.skip(f"the card offers no interface of A2A 1.0 with {list_names(BINDING_NAMES)}"))
        return []
    obstacle = find_grpc_obstacle(None)
    if GRPC in bindings and obstacle:
        report.found.append(TESTABLE.skip(f"over gRPC: {obstacle}"))
        bindings.remove(GRPC)
    return bindings


def _bindings_to_try(common: CommonOptions, card: AgentCard) -> list[BindingName] | None:
    """Return the A2A 1.0 bindings that the card offers and the caller wants, or None if the card offers none."""
    offered = set()
    for interface in card.supported_interfaces:
        if interface.protocol_version.startswith("1."):
            offered.add(interface.protocol_binding)
    if offered.isdisjoint(BINDING_NAMES):
        return None
    wanted = common.bindings or BINDING_NAMES
    return [binding for binding in BINDING_NAMES if binding in offered and binding in wanted]


async def _check_behaviour(
    client: A2AClient, recorder: RecordingTransport, selection: Selection, report: ValidationReport, patience: float
) -> None:
    binding = ""
    try:
        binding = (await client.interface).protocol_binding.lower()
        checks = [probe(client, recorder)]
        if selection.message is not None:
            checks.append(converse(client, recorder, ProbeMessage(selection.message, selection.skill, patience)))
        for check in checks:
            async with aclosing(check) as findings:
                async for finding in findings:
                    # An agent may follow a rule over one binding and break it over another.
                    report.found.append(replace(finding, id=f"{binding}:{finding.id}"))
    except UnauthenticatedError:
        raise  # it applies to every binding, and the error says what to pass
    except A2AError as error:  # the agent cannot be called over this binding, but perhaps over another
        report.found += ANSWERS.judge([f"{binding} {type(error).__name__}: {error}".strip()])


def _print_report(common: CommonOptions, found: list[Finding]) -> None:
    counts = Counter(finding.result for finding in found)
    report = {
        "agent": common.agent,
        "a2aVersion": "1.0",
        "valid": not counts["fail"],
        "summary": {name: counts[name] for name in LABELS},  # all four, even if 0
        "checks": found,
    }
    lines = []
    for finding in found:
        text = f"{finding.id} (A2A {finding.clause}) {finding.message}"
        lines.append(rendering.field(LABELS[finding.result], text))
    total = f"{counts['fail']} failed, {counts['warn']} warnings, {counts['pass']} passed, {counts['skip']} skipped"
    lines.append(rendering.field("Result", total))
    output.print_result(common, msgspec.json.encode(report), lines)
