"""What a command says when it fails, and its exit code: one table, as the a2a-cli specification has it (§11.4, §11.6).

Rule: an error that the protocol names keeps its name; only what happens outside of a request has a code of ours.
"""

import os
import traceback
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import click
import msgspec
from msgspec import Struct

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli.rendering import escape_json
from apcore_a2a.errors import (
    WIRE,
    A2AConnectionError,
    A2ADiscoveryError,
    A2AError,
    A2AServerError,
    ExtensionSupportRequiredError,
    OverloadedError,
    ParseError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
    wire,
)

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_AUTH, EXIT_TIMEOUT, EXIT_INTERRUPTED = 1, 2, 3, 4, 5, 130

USAGE: Final = "A2ACLI_ERR_USAGE"
CARD_NOT_FOUND: Final = "A2ACLI_ERR_CARD_NOT_FOUND"
CARD_INVALID: Final = "A2ACLI_ERR_CARD_INVALID"
UNREACHABLE: Final = "A2ACLI_ERR_UNREACHABLE"
CREDENTIALS_MISSING: Final = "A2ACLI_ERR_CREDENTIALS_MISSING"
AUTH_FAILED: Final = "A2ACLI_ERR_AUTH_FAILED"
TIMEOUT: Final = "A2ACLI_ERR_TIMEOUT"
INTERNAL: Final = "A2ACLI_ERR_INTERNAL"
OVERLOADED: Final = "APCORE_ERR_OVERLOADED"  # the protocol has no name for it, and neither has the specification

EXITS: Final = {
    USAGE: EXIT_USAGE,
    CARD_NOT_FOUND: EXIT_UNREACHABLE,
    UNREACHABLE: EXIT_UNREACHABLE,
    CREDENTIALS_MISSING: EXIT_AUTH,
    AUTH_FAILED: EXIT_AUTH,
    TIMEOUT: EXIT_TIMEOUT,
}
AUTH_HINT: Final = "Pass --token or --api-key, or set A2ACLI_BEARER or A2ACLI_API_KEY"
HINTS: Final[dict[type[Exception], str]] = {
    TaskNotFoundError: "apcore-a2a task list shows the tasks that this agent keeps for you; --debug shows the exchange",
    TaskNotCancelableError: "The task has ended already; apcore-a2a task get shows how",
    UnsupportedOperationError: "apcore-a2a card shows what this agent can do",
    VersionNotSupportedError: "Choose a version that the agent speaks with --a2a-version",
    ExtensionSupportRequiredError: "If you can do what the extension asks, name it with --extension",
}
# The library speaks to programmers; a person at a terminal has flags instead of arguments.
_FLAGS: Final = (
    ("pass auth=", "pass --token"),
    ("pass allow_origins=", "pass --allow-origin"),
    ("pass timeout= to wait longer", "--timeout waits longer"),
)
_CODES: Final = {ParseError: "JSONParseError", A2AError: "InternalError"}  # where A2A's name is not our class's


class Failure(Struct, frozen=True, rename="camel"):
    """The error envelope (specification, Appendix B)."""

    code: str
    message: str
    hint: str | None = None
    a2a_code: int | None = None

    @property
    def exit_code(self) -> int:
        return EXITS.get(self.code, EXIT_FAILED)


def explain(error: BaseException, *, with_credentials: bool = False) -> Failure:
    """What to tell about an exception."""
    match error:
        case TimeoutError():
            return Failure(TIMEOUT, str(error) or "The time is up", "Wait longer with --timeout")
        case click.ClickException():
            return Failure(USAGE, error.format_message())
        case UnauthenticatedError():
            return _refused(_said(error), with_credentials)
        case A2ADiscoveryError():
            return _undiscovered(error, with_credentials)
        case A2AConnectionError():
            return Failure(UNREACHABLE, _said(error))
        case OverloadedError():
            return Failure(OVERLOADED, _said(error), f"Try again in {error.retry_after} s")
        case A2AServerError():
            return Failure(_CODES[A2AError], _said(error), None, error.code)
        case A2AError():
            kind = next(cls for cls in type(error).__mro__ if cls in WIRE)
            return Failure(_CODES.get(kind, kind.__name__), _said(error), HINTS.get(kind), wire(error).code)
        case ValueError():
            return Failure(USAGE, clean_line(str(error)))
    return Failure(INTERNAL, f"This should not happen: {type(error).__name__}", "Run it with --debug and report it")


def _said(error: A2AError) -> str:
    text = clean_line(error.message)
    for argument, flag in _FLAGS:
        text = text.replace(argument, flag)
    return text


def _refused(text: str, with_credentials: bool) -> Failure:
    if with_credentials:
        return Failure(AUTH_FAILED, text, "The agent does not accept these credentials")
    return Failure(CREDENTIALS_MISSING, text, AUTH_HINT)


def _undiscovered(error: A2ADiscoveryError, with_credentials: bool) -> Failure:
    if error.status in (401, 403):
        return _refused(_said(error), with_credentials)
    if error.status is not None:
        return Failure(CARD_NOT_FOUND, _said(error), "Is this the agent's address? A card's own address works, too")
    return Failure(CARD_INVALID, _said(error))


def report(failure: Failure, *, json: bool) -> int:
    """Say what failed: as an object on standard output, or to a person on standard error."""
    if json:
        click.echo(escape_json(msgspec.json.encode({"error": failure})))
    else:
        click.echo(f"Error: {failure.message} ({failure.code})", err=True)
        if failure.hint:
            click.echo(f"Hint: {failure.hint}", err=True)
    return failure.exit_code


def report_unexpected(error: Exception, *, json: bool, debug: bool) -> int:
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True)
    return report(explain(error), json=json)


def report_usage(error: click.ClickException, args: Sequence[str]) -> int:
    """Say that the call is wrong, before there are any options to look at."""
    failure = Failure(USAGE, error.format_message()) if isinstance(error, click.UsageError) else None
    if wants_json(args):
        return report(failure or Failure(INTERNAL, error.format_message()), json=True)
    error.show()
    return error.exit_code


def wants_json(args: Sequence[str]) -> bool:
    """Whether arguments that cannot be parsed ask for JSON nevertheless."""
    pairs = list(pairwise(args))
    asked = any((name, "json") in pairs for name in ("-o", "--output"))
    together = not {"--json", "-ojson", "--output=json"}.isdisjoint(args)
    return asked or together or os.environ.get("A2ACLI_OUTPUT") == "json"
