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
BINDINGS: Final[dict[str, BindingName]] = {
    "jsonrpc": "JSONRPC",
    "rest": "HTTP+JSON",
    "http+json": "HTTP+JSON",
}
POLL_INTERVAL: Final = 2.0  # seconds, as a2a-cli §9.3 recommends; the client as a library begins with less
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)")
NOT_JSON: Final = (msgspec.DecodeError, UnicodeError, RecursionError)  # what msgspec raises about what is none
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # a token of RFC 9110 §5.6.2
_UNITS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


# ---- types ----------------------------------------------------------------------------------------------------------
# Help shows a function's name in capitals as the name of the value: `--timeout DURATION`. Hence nouns.


def duration(value: str | float) -> float:
    """Seconds, or a number with a unit: 500ms, 30s, 2m, 1h."""
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
    """`text` or `json`; whoever means a directory is told where that goes."""
    if value not in ("text", "json"):
        raise click.BadParameter(f"{value!r} is neither text nor json; to save artifacts: --save DIR.")
    return value


# ---- options --------------------------------------------------------------------------------------------------------


def env_option(*names: str, **attributes: Any) -> Callable[[Function], Function]:
    """An option that can also be set in the environment, under the name of its first long flag."""
    long_names = [name for name in names if name.startswith("--")]
    variable = PREFIX + long_names[0].strip("-").upper().replace("-", "_")
    return click.option(*names, envvar=variable, **attributes)


def combine(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several decorators as one, in the order in which they would stand above a function."""

    def decorate(function: Function) -> Function:
        # The decorator that stands lowest is applied first; click lists options from the top.
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def example(command: str) -> str:
    """An example for the end of a help text; the control character keeps its lines apart."""
    return f"\b\nExample:\n  {command}"


save_option: Final = click.option(
    "--save", metavar="DIR", type=click.Path(file_okay=False), help="Save artifacts in this directory."
)
poll_interval_option: Final = env_option(
    "--poll-interval", type=duration, default=POLL_INTERVAL, show_default=True, help="Seconds between two looks."
)
printing_options: Final = combine(
    env_option(
        "--output",
        "-o",
        type=output_format,
        metavar="[text|json]",
        default="text",
        show_default=True,
        help="How to print the result.",
    ),
    click.option("--json", "as_json", is_flag=True, help="The same as --output json."),
    env_option("--verbose", is_flag=True, help="Show everything that was exchanged, history and metadata, too."),
    env_option("--debug", is_flag=True, help="Show the exchange itself on standard error; secrets are left out."),
)
connecting_options: Final = combine(
    env_option(
        "--agent-card", "-a", "--url", "-u", metavar="AGENT", help="The agent, instead of as the first argument."
    ),
    env_option("--bearer", "--token", help="Bearer token. Others can see arguments: prefer A2ACLI_BEARER."),
    env_option("--api-key", help="API key, sent as the agent's card asks for it. Prefer A2ACLI_API_KEY."),
    env_option(
        "--svc-param",
        "--header",
        "-H",
        multiple=True,
        type=header,
        metavar="NAME:VALUE",
        help="Service parameter: an HTTP header.",
    ),
    env_option(
        "--a2a-version", "--version-a2a", type=click.Choice(["1.0", "0.3"]), help="[default: as the card offers]"
    ),
    env_option(
        "--transport",
        "--binding",
        multiple=True,
        type=click.Choice(list(BINDINGS), case_sensitive=False),
        help="Preferred binding; several: in that order.  [default: the card's order]",
    ),
    env_option("--timeout", type=duration, help="Give up after this long: 30, 500ms, 2m."),
    env_option("--extension", multiple=True, metavar="URI", help="A protocol extension that you support."),
    env_option("--allow-origin", multiple=True, metavar="URL", help="Another origin that the card may point to."),
    env_option("--keys", type=click.Path(exists=True, dir_okay=False), help="JSON Web Key Set that signs the card."),
    env_option("--insecure", is_flag=True, help="Do not verify TLS certificates. For development only."),
)
common_options: Final = combine(connecting_options, printing_options)


# ---- values ---------------------------------------------------------------------------------------------------------


class CommonOptions(Struct, frozen=True, kw_only=True):
    """What every command that calls an agent is told: which agent, as whom, how; and how to print what it says."""

    agent: str
    """As the caller wrote it: a host, an address, the path of a card. What we print for copying repeats it so."""
    bearer: str | None = None
    api_key: str | None = None
    headers: dict[str, str] = {}
    version: Version | None = None
    bindings: tuple[BindingName, ...] = ()
    timeout: float | None = None
    poll_interval: float = POLL_INTERVAL
    extensions: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    keys_file: str | None = None
    insecure: bool = False
    json: bool = False
    verbose: bool = False
    debug: bool = False

    @property
    def has_credentials(self) -> bool:
        return bool(self.bearer or self.api_key)


def read_common(given: dict[str, Any], *names: str) -> tuple[CommonOptions, list[str]]:
    """The common options and the command's own arguments, which `names` names; one in brackets may be missing.

    Raises:
        click.UsageError: an argument is missing, or one too many.
    """
    agent, words = _choose_agent(given["agent_card"], list(given["words"]))
    _check_count(words, names)
    bindings = [BINDINGS[name.lower()] for name in given["transport"]]
    common = CommonOptions(
        agent=agent,
        bearer=given["bearer"],
        api_key=given["api_key"],
        headers=dict(given["svc_param"]),
        version=given["a2a_version"],
        bindings=tuple(bindings),
        timeout=given["timeout"],
        poll_interval=given.get("poll_interval") or POLL_INTERVAL,  # not every command has the option
        extensions=given["extension"],
        allowed_origins=given["allow_origin"],
        keys_file=given["keys"],
        insecure=given["insecure"],
        json=given["as_json"] or given["output"] == "json",
        verbose=given["verbose"],
        debug=given["debug"],
    )
    return common, words


def _choose_agent(option: str | None, words: Sequence[str]) -> tuple[str, list[str]]:
    """A flag names the agent; else the first argument, unless the environment does and that is no address."""
    context = click.get_current_context()
    # `option` may come from the environment, where it is a default that an address on the command line overrules.
    by_flag = context.get_parameter_source("agent_card") is ParameterSource.COMMANDLINE
    is_address = bool(words) and words[0].startswith(("http://", "https://"))
    if option and (by_flag or not is_address):
        return option, list(words)
    if not words:
        raise click.UsageError(
            "Which agent? Give its address as the first argument, or with --agent-card, or in A2ACLI_AGENT_CARD.",
            context,
        )
    return words[0], list(words[1:])


def _check_count(words: Sequence[str], names: Sequence[str]) -> None:
    # click cannot check this: whether the first word is the agent depends on the options and the environment.
    required = [name for name in names if not name.startswith("[")]
    if len(words) < len(required):
        raise click.UsageError(f"Missing argument {required[len(words)]}.", click.get_current_context())
    if len(words) > len(names):
        raise click.UsageError(f"Unexpected argument: {words[len(names)]}", click.get_current_context())
