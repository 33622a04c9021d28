"""The conversion of exceptions to error codes, messages and exit codes (a2a-cli specification, §11.4 and §11.6).

Invariant: an error that the A2A protocol defines is reported under its A2A name. Other errors are reported under a code
of the a2a-cli specification, except that an overloaded agent is reported under `OVERLOADED`, a code of this project.
"""

import os
import re
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
    AgentError,
    CardRewrittenError,
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
from apcore_a2a.protocol.card import AgentCard, advise

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_AUTH: Final = 4
EXIT_TIMEOUT: Final = 5
EXIT_INTERRUPTED: Final = 130  # as shells report a process that SIGINT ended: 128 + 2

# Appendix D has exactly these: a tool must not define further names that begin with A2ACLI_ERR_.
USAGE: Final = "A2ACLI_ERR_USAGE"
CARD_NOT_FOUND: Final = "A2ACLI_ERR_CARD_NOT_FOUND"
CARD_INVALID: Final = "A2ACLI_ERR_CARD_INVALID"
UNREACHABLE: Final = "A2ACLI_ERR_UNREACHABLE"
CREDENTIALS_MISSING: Final = "A2ACLI_ERR_CREDENTIALS_MISSING"
AUTH_FAILED: Final = "A2ACLI_ERR_AUTH_FAILED"
TIMEOUT: Final = "A2ACLI_ERR_TIMEOUT"
INTERNAL: Final = "A2ACLI_ERR_INTERNAL"
OVERLOADED: Final = "APCORE_ERR_OVERLOADED"  # neither the protocol nor the specification names it

# All others exit with 1. So does CARD_INVALID, because the card was reached (Appendix D).
EXITS: Final = {
    USAGE: EXIT_USAGE,
    CARD_NOT_FOUND: EXIT_UNREACHABLE,
    UNREACHABLE: EXIT_UNREACHABLE,
    CREDENTIALS_MISSING: EXIT_AUTH,
    AUTH_FAILED: EXIT_AUTH,
    TIMEOUT: EXIT_TIMEOUT,
}
AUTH_HINT: Final = "Pass --token, --api-key, --basic or --client-id, or set A2ACLI_BEARER, A2ACLI_API_KEY, …"
HINTS: Final[dict[type[Exception], str]] = {
    TaskNotFoundError: "apcore-a2a task list shows your tasks at this agent, --debug the exchange",
    TaskNotCancelableError: "The task has already ended. apcore-a2a task get shows its state",
    UnsupportedOperationError: "apcore-a2a card shows what this agent supports",
    VersionNotSupportedError: "Choose a version that the agent supports with --a2a-version",
    ExtensionSupportRequiredError: "If you support the extension, declare it with --extension",
}
# The library's texts name arguments. A user of the command line needs the flags instead.
_FLAGS_FOR_ARGUMENTS: Final = (
    ("Pass auth=", "Pass --token"),
    ("pass allow_origins=", "pass --allow-origin"),
    ("Pass timeout=", "Pass --timeout"),
)
# Errors of the protocol are reported by their A2A names, which are mostly those of our classes.
_A2A_NAMES: Final = {ParseError: "JSONParseError", A2AError: "InternalError", AgentError: "InternalError"}
_SKILL_NOT_FOUND: Final = re.compile(r"skill not found: (\S+)", re.IGNORECASE)


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
    """Convert an exception to a failure.

    Args:
        error: What a command raised.
        with_credentials: Whether the caller passed credentials. A 401 then means wrong ones instead of missing ones.
    """
    match error:
        case TimeoutError():
            return Failure(TIMEOUT, str(error) or "The time limit has passed", hint="Wait longer with --timeout")
        case click.ClickException():
            return Failure(USAGE, error.format_message())
        case A2AError():
            return _explain_a2a(error, with_credentials)
        case ValueError():
            # The library rejects an argument by ValueError, and each argument was an option of the caller.
            return Failure(USAGE, _message_for_people(str(error)))
    # Only the type: the text of an unexpected exception may contain a path or a secret.
    text = f"Internal error: {type(error).__name__}"
    return Failure(INTERNAL, text, hint="Run the command with --debug, and report the error")


def _explain_a2a(error: A2AError, with_credentials: bool) -> Failure:
    text = _message_for_people(error.message)
    match error:
        case UnauthenticatedError():
            return _not_authenticated(text, with_credentials)
        case A2ADiscoveryError():
            return _no_card(error, text, with_credentials)
        case A2AConnectionError():
            return Failure(UNREACHABLE, text)
        case OverloadedError():
            return Failure(OVERLOADED, text, hint=f"Try again in {error.retry_after} s")
        case A2AServerError():
            # The code is not in the protocol's table. It is the agent's own, and is passed on.
            return Failure(_A2A_NAMES[A2AError], text, a2a_code=error.code)
    kind = _class_in_protocol(error)
    name = _A2A_NAMES.get(kind, kind.__name__)
    return Failure(name, text, hint=HINTS.get(kind), a2a_code=wire(error).code)


def _class_in_protocol(error: A2AError) -> type[A2AError]:
    """Return the class of the error, or its nearest base class that the protocol knows."""
    for kind in type(error).__mro__:
        if kind in WIRE:
            return kind
    return A2AError


def _message_for_people(message: str) -> str:
    text = clean_line(message)  # an agent may have written it
    for argument, flag in _FLAGS_FOR_ARGUMENTS:
        text = text.replace(argument, flag)
    return text


def _not_authenticated(text: str, with_credentials: bool) -> Failure:
    if with_credentials:
        return Failure(AUTH_FAILED, text, hint="The agent does not accept these credentials")
    return Failure(CREDENTIALS_MISSING, text, hint=AUTH_HINT)


def _no_card(error: A2ADiscoveryError, text: str, with_credentials: bool) -> Failure:
    if error.status in (401, 403):
        return _not_authenticated(text, with_credentials)
    if isinstance(error, CardRewrittenError):
        hint = "If that is your gateway, call the agent without --keys, or without the gateway"
        return Failure(CARD_INVALID, text, hint=hint)
    # With a status there was a response without a card. Without a status there was a card that cannot be used.
    if error.status is not None:
        hint = "Is this the agent's address? The address of its card works too"
        return Failure(CARD_NOT_FOUND, text, hint=hint)
    return Failure(CARD_INVALID, text)


def is_about_skill(error: A2AError) -> bool:
    """Return whether an agent of any implementation reports a missing or unknown skill."""
    text = error.message.lower()
    return "skillid" in text or "skill not found" in text


def skill_hint(error: A2AError, card: AgentCard) -> str:
    """Return the hint that names matching skills."""
    asked = _SKILL_NOT_FOUND.search(error.message)
    advice = advise([clean_line(skill.id) for skill in card.skills], asked[1] if asked else "")
    if not advice:
        return "Choose a skill with --skill"
    return f"Choose a skill with --skill: {advice}"


def report(failure: Failure, *, json: bool) -> int:
    """Print a failure: as an object on standard output, or for a person on standard error."""
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
    """Report a usage error, before any options are parsed."""
    if not wants_json(args):
        error.show()
        return error.exit_code
    code = INTERNAL
    if isinstance(error, click.UsageError):
        code = USAGE
    return report(Failure(code, error.format_message()), json=True)


def wants_json(args: Sequence[str]) -> bool:
    """Return whether arguments that cannot be parsed ask for JSON. If so, the error is printed as JSON."""
    if os.environ.get("A2ACLI_OUTPUT") == "json":
        return True
    for argument in args:
        if argument in ("--json", "-ojson", "--output=json"):
            return True
    return ("-o", "json") in pairwise(args) or ("--output", "json") in pairwise(args)
