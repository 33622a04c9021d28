"""The options that the commands share, and what they mean. Rule: a flag is read here, once, into a typed value.

Names are those of the a2a-cli specification (§7.2) first; every value can also come from `A2ACLI_<FLAG>`.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec
from click.core import ParameterSource
from msgspec import Struct

from apcore_a2a.client.options import BindingName, Version

Function = TypeVar("Function", bound=Callable[..., Any])

PREFIX: Final = "A2ACLI_"
TRANSPORTS: Final[dict[str, BindingName]] = {
    "jsonrpc": "JSONRPC",
    "rest": "HTTP+JSON",
    "http+json": "HTTP+JSON",
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


def duration(value: str | float) -> float:
    """Seconds, or a number with a unit: 500ms, 30s, 2m, 1h."""
    found = _DURATION.fullmatch(str(value).strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 30, 500ms, 30s or 2m.")
    return float(found[1]) * _UNITS[found[2]]


def json_object(value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"not a JSON object: {error}") from error


def header(value: str) -> tuple[str, str]:
    name, colon, rest = (text.strip() for text in value.partition(":"))
    if not colon or not _HEADER.fullmatch(name) or not rest.isprintable():
        raise click.BadParameter(f"{value!r} is not NAME:VALUE on one line.")
    return name, rest


def output_format(value: str) -> str:
    """`text` or `json`; whoever means a directory is told where that goes."""
    if value not in ("text", "json"):
        raise click.BadParameter(f"{value!r} is neither text nor json; to save artifacts: --save DIR.")
    return value


def flag(*names: str, **attributes: Any) -> Callable[[Function], Function]:
    """An option that can also be set in the environment, under the name of its first long flag."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    return click.option(*names, envvar=PREFIX + long.strip("-").upper().replace("-", "_"), **attributes)


def chain(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def example(command: str) -> str:
    """An example for the end of a help text; the control character keeps its lines apart."""
    return f"\b\nExample:\n  {command}"


printing: Final = chain(
    flag(
        "--output",
        "-o",
        type=output_format,
        metavar="[text|json]",
        default="text",
        show_default=True,
        help="How to print the result.",
    ),
    click.option("--json", "as_json", is_flag=True, help="The same as --output json."),
    flag("--verbose", is_flag=True, help="Show everything that was exchanged, history and metadata, too."),
    flag("--debug", is_flag=True, help="Show the exchange itself on standard error; secrets are left out."),
)
connecting: Final = chain(
    flag("--agent-card", "-a", "--url", "-u", metavar="AGENT", help="The agent, instead of as the first argument."),
    flag("--bearer", "--token", help="Bearer token. Others can see arguments: prefer A2ACLI_BEARER."),
    flag("--api-key", help="API key, sent as the agent's card asks for it. Prefer A2ACLI_API_KEY."),
    flag(
        "--svc-param",
        "--header",
        "-H",
        multiple=True,
        type=header,
        metavar="NAME:VALUE",
        help="Service parameter: an HTTP header.",
    ),
    flag("--a2a-version", "--version-a2a", type=click.Choice(["1.0", "0.3"]), help="[default: as the card offers]"),
    flag(
        "--transport",
        "--binding",
        multiple=True,
        type=click.Choice(list(TRANSPORTS), case_sensitive=False),
        help="Preferred binding; several: in that order.  [default: the card's order]",
    ),
    flag("--timeout", type=duration, help="Give up after this long: 30, 500ms, 2m."),
    flag("--extension", multiple=True, metavar="URI", help="A protocol extension that you support."),
    flag("--allow-origin", multiple=True, metavar="URL", help="Another origin that the card may point to."),
    flag("--keys", type=click.Path(exists=True, dir_okay=False), help="JSON Web Key Set that signs the card."),
    flag("--insecure", is_flag=True, help="Do not verify TLS certificates. For development only."),
)
common: Final = chain(connecting, printing)


class Connection(Struct, frozen=True, kw_only=True):
    """Which agent to call, as whom, how, and how to print what it says."""

    agent: str
    bearer: str | None = None
    api_key: str | None = None
    headers: dict[str, str] = {}
    version: Version | None = None
    transports: tuple[BindingName, ...] = ()
    timeout: float | None = None
    poll_interval: float = 2.0
    extensions: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    keys: str | None = None
    insecure: bool = False
    json: bool = False
    verbose: bool = False
    debug: bool = False

    @property
    def has_credentials(self) -> bool:
        return bool(self.bearer or self.api_key)


def read(given: dict[str, Any], *names: str) -> tuple[Connection, list[str]]:
    """The connection and the command's own arguments, which `names` names; one in brackets may be missing.

    Raises:
        click.UsageError: an argument is missing, or one too many.
    """
    agent, words = _choose_agent(given["agent_card"], list(given["words"]))
    needed = [name for name in names if not name.startswith("[")]
    if len(words) < len(needed):
        raise click.UsageError(f"Missing argument {needed[len(words)]}.", click.get_current_context())
    if len(words) > len(names):
        raise click.UsageError(f"Unexpected argument: {words[len(names)]}", click.get_current_context())
    connection = Connection(
        agent=agent,
        bearer=given["bearer"],
        api_key=given["api_key"],
        headers=dict(given["svc_param"]),
        version=given["a2a_version"],
        transports=tuple(TRANSPORTS[name.lower()] for name in given["transport"]),
        timeout=given["timeout"],
        poll_interval=given.get("poll_interval") or 2.0,
        extensions=given["extension"],
        origins=given["allow_origin"],
        keys=given["keys"],
        insecure=given["insecure"],
        json=given["as_json"] or given["output"] == "json",
        verbose=given["verbose"],
        debug=given["debug"],
    )
    return connection, words


def _choose_agent(flagged: str | None, words: Sequence[str]) -> tuple[str, list[str]]:
    """A flag names the agent; else the first argument, unless the environment does and that is no address."""
    context = click.get_current_context()
    by_flag = context.get_parameter_source("agent_card") is ParameterSource.COMMANDLINE
    is_address = bool(words) and words[0].startswith(("http://", "https://"))
    if flagged and (by_flag or not is_address):
        return flagged, list(words)
    if not words:
        raise click.UsageError(
            "Which agent? Give its address as the first argument, or with --agent-card, or in A2ACLI_AGENT_CARD.",
            context,
        )
    return words[0], list(words[1:])
