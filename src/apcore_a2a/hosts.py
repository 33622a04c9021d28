"""Platforms that run agents: the contract of each, and the variables in which they publish the address of an agent.

Invariant: a profile only sets defaults. What the operator sets overrides it.
"""

from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from apcore_a2a.protocol.card import CardInterfaces

HostProfileName = Literal["none", "agentcore", "cloudrun", "agentgateway", "wso2"]

EVERY_ADDRESS: Final = ("0.0.0.0/0", "::/0")
THIS_MACHINE: Final = ("127.0.0.0/8", "::1")


class HostProfile(Struct, frozen=True, kw_only=True):
    """The contract of a platform: what it expects of a server, and what a server may rely on there."""

    port: int | None = None
    """The port that the platform calls. None: any port."""
    forwarders: tuple[str, ...] = ()
    """Networks from which only the platform's own proxy connects. Its X-Forwarded-* headers are read. A client
    certificate that it forwards is not, because it may come from the client."""
    has_browsers: bool = True
    """Whether a browser may run on the machine of the agent, so that the Host of a loopback connection is checked."""
    card_interfaces: CardInterfaces = "all"
    rpc_path: str = ""
    """A second path of the JSON-RPC binding, which is the one in the card. Empty: only the usual path."""
    rest_path: str = ""
    """A second prefix of the paths of the REST binding, which is the one in the card."""
    rest: bool = True
    """Whether the paths of the REST binding reach the agent. If not, the card does not list it."""
    grpc: bool | None = None
    """Whether gRPC reaches the agent. None: unknown."""
    answers_ping: bool = False
    """Whether GET /ping reports if the agent is busy."""


PROFILES: Final[Mapping[HostProfileName, HostProfile]] = {
    "none": HostProfile(),
    # AWS Bedrock AgentCore Runtime calls 0.0.0.0:9000 in a virtual machine of its own, and polls /ping. Of all other
    # paths, it has only POST / and the card.
    "agentcore": HostProfile(port=9000, has_browsers=False, rest=False, grpc=False, answers_ping=True),
    # Cloud Run terminates TLS. Only its front end connects to the container, with HTTP/1.1 unless configured otherwise.
    "cloudrun": HostProfile(port=8080, forwarders=EVERY_ADDRESS, has_browsers=False, grpc=False),
    # agentgateway rewrites `supportedInterfaces` of a card, or else `url`, not both. It often runs beside the agent. In
    # place of the host:port of gRPC it writes a URL, which gRPC clients do not accept.
    "agentgateway": HostProfile(forwarders=THIS_MACHINE, card_interfaces="1.0", grpc=False),
    # The gateway of WSO2 serves A2A 1.0 only, below these two paths, and puts its own address into the card.
    "wso2": HostProfile(card_interfaces="1.0", rpc_path="/rpc", rest_path="/rest", grpc=False),
}


def default_options(name: object, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the options of `serve` that a profile sets, by name. A platform may choose the port by PORT.

    Example:
        >>> default_options("cloudrun", {"PORT": "8081"})
        {'port': 8081, 'grpc': False}
    """
    profile = PROFILES.get(name)  # type: ignore[call-overload]  # any value: the settings reject it later
    if profile is None:
        return {}
    options: dict[str, object] = {}
    if profile.port is not None:
        options["port"] = profile.port
        chosen = environ.get("PORT", "")
        if name == "cloudrun" and chosen.isdecimal():
            options["port"] = int(chosen)
    if profile.grpc is not None:
        options["grpc"] = profile.grpc
    if profile.card_interfaces != "all":
        options["card_interfaces"] = profile.card_interfaces
    return options


# ---- the public address ---------------------------------------------------------------------------------------------

# What each platform documents: the variables that must be set, and the address that they form.
_ADDRESSES: Final = (
    (("AGENTCORE_RUNTIME_URL",), "{AGENTCORE_RUNTIME_URL}"),  # AWS Bedrock AgentCore
    (("RENDER_EXTERNAL_URL",), "{RENDER_EXTERNAL_URL}"),
    (("RAILWAY_PUBLIC_DOMAIN",), "https://{RAILWAY_PUBLIC_DOMAIN}"),
    (("KOYEB_PUBLIC_DOMAIN",), "https://{KOYEB_PUBLIC_DOMAIN}"),
    (("FLY_APP_NAME",), "https://{FLY_APP_NAME}.fly.dev"),
    (  # Azure Container Apps. CONTAINER_APP_HOSTNAME is the name of one revision
        ("CONTAINER_APP_NAME", "CONTAINER_APP_ENV_DNS_SUFFIX"),
        "https://{CONTAINER_APP_NAME}.{CONTAINER_APP_ENV_DNS_SUFFIX}",
    ),
    (("WEBSITE_HOSTNAME",), "https://{WEBSITE_HOSTNAME}"),  # Azure App Service
    (("SPACE_HOST",), "https://{SPACE_HOST}"),  # Hugging Face Spaces
)
ADDRESS_VARIABLES: Final = tuple(variable for variables, _ in _ADDRESSES for variable in variables)


class PublishedAddress(Struct, frozen=True):
    """The public address that a platform publishes in the environment."""

    url: str
    variables: tuple[str, ...]


def published_address(environ: Mapping[str, str]) -> PublishedAddress | None:
    """Return the public address of the agent on the platform that runs it, or None if no variable has one.

    Example:
        >>> published_address({"FLY_APP_NAME": "math"}).url
        'https://math.fly.dev'
    """
    for variables, form in _ADDRESSES:
        if not all(environ.get(variable) for variable in variables):
            continue
        url = form.format_map(environ)
        # Local emulators set the same variables to localhost and a port.
        host = urlsplit(url).hostname or ""
        if urlsplit(url).scheme in ("http", "https") and "." in host:
            return PublishedAddress(url, variables)
    return None
