"""The options that the commands share. Invariant: only this module reads them, into typed values.

The first name of an option is that of the a2a-cli specification (§7.2). Every value can also come from `A2ACLI_<FLAG>`.
"""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar

import click
import msgspec
from click.core import ParameterSource
from msgspec import Struct

from apcore_a2a.client.options import BindingName, Version

Function = TypeVar("Function", bound=Callable[..., Any])

PREFIX: Final = "A2ACLI_"
BINDINGS: Final[dict[str, BindingName]] = {
    "jsonrpc": "JSONRPC",
    "rest": "HTTP+JSON",
    "http+json": "HTTP+JSON",
    "grpc": "GRPC",
}
POLL_INTERVAL: Final = 2.0  # seconds, as recommended by a2a-cli §9.3; the client library starts with less
FORMATS: Final = ("text", "json", "raw")
Output = Literal["text", "json", "raw", "answer"]
"""The forms of results. `answer` is the one for people, which no option selects."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)")
NOT_JSON: Final = (msgspec.DecodeError, UnicodeError, RecursionError)  # the errors of msgspec for invalid JSON
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # a token of RFC 9110 §5.6.2
_UNITS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


# ---- types ----------------------------------------------------------------------------------------------------------
# The help shows a function's name in capitals as the name of the value: `--timeout DURATION`. Hence the nouns.


def duration(value: str | float) -> float:
    """Parse seconds, or a number with a unit: 500ms, 30s, 2m, 1h."""
    found = _DURATION.fullmatch(str(value).strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 30, 500ms, 30s or 2m.")
    return float(found[1]) * _UNITS[found[2]]


def json_object(value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except NOT_JSON as error:
        raise click.BadParameter(f"not a JSON object: {error}") from error


def header(value: str) -> tuple[str, str]:
    name, colon, content = value.partition(":")
    name = name.strip()
    content = content.strip()
    # A line end in the value would begin another header, or the body.
    if not colon or not HEADER_NAME.fullmatch(name) or not content.isprintable():
        raise click.BadParameter(f"{value!r} is not NAME:VALUE on one line.")
    return name, content


def output_format(value: str) -> str:
    """Parse an output format. The error for another value names the option for directories."""
    if value not in FORMATS:
        raise click.BadParameter(f"{value!r} is not {', '.join(FORMATS)}. To save artifacts, use --save DIR.")
    return value


# ---- options --------------------------------------------------------------------------------------------------------


def env_option(*names: str, **attributes: Any) -> Callable[[Function], Function]:
    """Return an option that can also be set in the environment, by the name of its first long flag."""
    long_names = [name for name in names if name.startswith("--")]
    variable = PREFIX + long_names[0].strip("-").upper().replace("-", "_")
    return click.option(*names, envvar=variable, **attributes)


def combine(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Combine decorators into one. The first one is the outermost."""

    def decorate(function: Function) -> Function:
        # The innermost decorator is applied first. click lists options from the outermost one.
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def example(*commands: str) -> str:
    """Format examples for the end of a help text. The control character keeps their lines apart."""
    title = "Example:" if len(commands) == 1 else "Examples:"
    return "\n  ".join([f"\b\n{title}", *commands])


save_option: Final = click.option(
    "--save", metavar="DIR", type=click.Path(file_okay=False), help="Save artifacts to this directory."
)
poll_interval_option: Final = env_option(
    "--poll-interval",
    type=duration,
    default=POLL_INTERVAL,
    show_default=True,
    help="Interval for polling a task, in seconds or with a unit.",
)
printing_options: Final = combine(
    env_option(
        "--output",
        "-o",
        type=output_format,
        metavar="[text|json|raw]",
        help="Output format: labelled lines, JSON, or only the answer.  [default: at a terminal the answer and a line "
        "with the ids, otherwise text]",
    ),
    click.option("--json", "as_json", is_flag=True, help="Short for --output json."),
    env_option("--verbose", is_flag=True, help="Include history and metadata in the output."),
    env_option(
        "--debug", is_flag=True, help="Print HTTP requests and responses on standard error, with secrets masked."
    ),
)
connecting_options: Final = combine(
    env_option(
        "--agent-card",
        "-a",
        "--url",
        "-u",
        metavar="AGENT",
        help="Agent to call: its address, its card's address, or a card file.",
    ),
    env_option("--bearer", "--token", help="Bearer token. Arguments are visible to other users: prefer A2ACLI_BEARER."),
    env_option("--api-key", help="API key, sent as the agent's card specifies. Prefer A2ACLI_API_KEY."),
    env_option("--basic", metavar="NAME:PASSWORD", help="Name and password (HTTP Basic). Prefer A2ACLI_BASIC."),
    env_option("--client-id", help="Client id for OAuth 2.0 client credentials, with the card's token endpoint."),
    env_option("--client-secret", help="Secret of that client. Prefer A2ACLI_CLIENT_SECRET."),
    env_option(
        "--svc-param",
        "--header",
        "-H",
        multiple=True,
        type=header,
        metavar="NAME:VALUE",
        help="HTTP header to add to each request. May be repeated.",
    ),
    env_option(
        "--a2a-version",
        "--version-a2a",
        type=click.Choice(["1.0", "0.3"]),
        help="Protocol version.  [default: the card's order]",
    ),
    env_option(
        "--transport",
        "--binding",
        multiple=True,
        type=click.Choice(list(BINDINGS), case_sensitive=False),
        help="Preferred binding. Repeat it to list several in order.  [default: the card's order]",
    ),
    env_option("--timeout", type=duration, help="Time limit: 30, 500ms, 2m. Without a unit in seconds."),
    env_option(
        "--extension",
        multiple=True,
        metavar="URI",
        help="URI of a protocol extension that you support. May be repeated.",
    ),
    env_option(
        "--allow-origin",
        multiple=True,
        metavar="URL",
        help="Trust another origin that the card points to. May be repeated.",
    ),
    env_option(
        "--keys",
        type=click.Path(exists=True, dir_okay=False),
        help="JWKS file with the key that verifies the card's signature.",
    ),
    env_option("--insecure", is_flag=True, help="Do not verify TLS certificates. For development only."),
)
common_options: Final = combine(connecting_options, printing_options)


# ---- values ---------------------------------------------------------------------------------------------------------


class CommonOptions(Struct, frozen=True, kw_only=True):
    """The common options: the agent to call, the credentials, the connection, and the output format."""

    agent: str
    """As the user wrote it: a host, an address, or the path of a card. Printed commands repeat it in this form."""
    bearer: str | None = None
    api_key: str | None = None
    basic: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    headers: dict[str, str] = {}
    version: Version | None = None
    bindings: tuple[BindingName, ...] = ()
    timeout: float | None = None
    poll_interval: float = POLL_INTERVAL
    extensions: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    keys_file: str | None = None
    insecure: bool = False
    output: Output = "text"
    verbose: bool = False
    debug: bool = False

    @property
    def json(self) -> bool:
        return self.output == "json"

    @property
    def prints_answer(self) -> bool:
        """Whether only the answer goes to standard output."""
        return self.output in ("raw", "answer")

    @property
    def has_credentials(self) -> bool:
        return bool(self.bearer or self.api_key or self.basic or self.client_id)


def read_common(given: dict[str, Any], *names: str) -> tuple[CommonOptions, list[str]]:
    """Return the common options and the command's own arguments, called `names`.

    A name in brackets is optional, and after "..." the command checks the number of arguments itself.

    Raises:
        click.UsageError: an argument is missing, or there is one too many.
    """
    agent, words = _choose_agent(given["agent_card"], list(given["words"]))
    _check_count(words, names)
    bindings = [BINDINGS[name.lower()] for name in given["transport"]]
    common = CommonOptions(
        agent=agent,
        bearer=given["bearer"],
        api_key=given["api_key"],
        basic=given["basic"],
        client_id=given["client_id"],
        client_secret=given["client_secret"],
        headers=dict(given["svc_param"]),
        version=given["a2a_version"],
        bindings=tuple(bindings),
        timeout=given["timeout"],
        poll_interval=given.get("poll_interval") or POLL_INTERVAL,  # not every command has the option
        extensions=given["extension"],
        allowed_origins=given["allow_origin"],
        keys_file=given["keys"],
        insecure=given["insecure"],
        output=_choose_output(given),
        verbose=given["verbose"],
        debug=given["debug"],
    )
    return common, words


def _choose_output(given: dict[str, Any]) -> Output:
    """Return the form of results. The form for people needs a terminal, and scripts always receive the same form."""
    if given["as_json"]:
        return "json"
    chosen: Output | None = given["output"]
    if chosen is not None:
        return chosen
    if sys.stdout.isatty() and not given["verbose"]:
        return "answer"
    return "text"


def _choose_agent(option: str | None, words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the agent (from the flag, the first argument or the environment) and the remaining words."""
    context = click.get_current_context()
    # `option` may come from the environment. Then it is a default that an address on the command line overrides.
    by_flag = context.get_parameter_source("agent_card") is ParameterSource.COMMANDLINE
    is_address = bool(words) and words[0].startswith(("http://", "https://"))
    if option and (by_flag or not is_address):
        return option, list(words)
    if not words:
        raise click.UsageError(
            "Missing agent. Pass its address as the first argument, with --agent-card, or in A2ACLI_AGENT_CARD.",
            context,
        )
    return words[0], list(words[1:])


def _check_count(words: Sequence[str], names: Sequence[str]) -> None:
    # click cannot check this, because it depends on options and environment whether the first word is the agent.
    required = [name for name in names if not name.startswith(("[", "."))]
    if len(words) < len(required):
        raise click.UsageError(f"Missing argument {required[len(words)]}.", click.get_current_context())
    if len(words) > len(names) and "..." not in names:
        raise click.UsageError(f"Unexpected argument: {words[len(names)]}", click.get_current_context())
