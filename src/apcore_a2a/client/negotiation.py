"""Which of a card's interfaces the client uses. Rule: the first, in the card's order, that it speaks and may call."""

from collections.abc import Iterator
from typing import Final

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.address import TrustedOrigins, origin
from apcore_a2a.client.binding import Binding, ChosenInterface
from apcore_a2a.client.failures import MAX_TEXT
from apcore_a2a.client.jsonrpc import exchange as jsonrpc_exchange
from apcore_a2a.client.options import ClientSettings
from apcore_a2a.client.rest import exchange as rest_exchange
from apcore_a2a.errors import A2ADiscoveryError, ExtensionSupportRequiredError
from apcore_a2a.protocol.card import AgentCard, AgentInterface
from apcore_a2a.protocol.dialect import DIALECTS, Dialect

BINDINGS: Final[dict[str, Binding]] = {"JSONRPC": jsonrpc_exchange, "HTTP+JSON": rest_exchange}
# 0.2 differs from 0.3 in the card alone; a 1.0 interface without a version is a 1.0 interface.
SPOKEN: Final[dict[str, Dialect]] = {**DIALECTS, "0.2": DIALECTS["0.3"], "": DIALECTS["1.0"]}


def choose_interface(card: AgentCard, settings: ClientSettings, trusted: TrustedOrigins) -> ChosenInterface:
    """The interface to use.

    Raises:
        ExtensionSupportRequiredError: the agent requires an extension that the caller did not declare.
        A2ADiscoveryError: no interface fits; the text says which there are, and why not.
    """
    extensions = tuple(settings.extensions)
    for extension in card.capabilities.extensions:
        if extension.required and extension.uri not in extensions:
            raise ExtensionSupportRequiredError(clean_line(extension.uri, MAX_TEXT))
    spoken = list(_spoken(card, settings))
    for interface, dialect in spoken:
        if interface.url in trusted:
            return ChosenInterface(interface.url, interface.protocol_binding, dialect, interface.tenant, extensions)
    raise A2ADiscoveryError(_why_none(card, settings, [interface for interface, _ in spoken]))


def _spoken(card: AgentCard, settings: ClientSettings) -> Iterator[tuple[AgentInterface, Dialect]]:
    for interface in card.supported_interfaces:
        dialect = SPOKEN.get(".".join(interface.protocol_version.split(".")[:2]))
        if dialect is None or interface.protocol_binding not in BINDINGS:
            continue
        if settings.binding in (None, interface.protocol_binding) and settings.version in (None, dialect.VERSION):
            yield interface, dialect


def _why_none(card: AgentCard, settings: ClientSettings, foreign: list[AgentInterface]) -> str:
    if foreign:
        places = ", ".join(sorted({_place(interface.url) for interface in foreign}))
        return f"The agent card points to {places}, not to where it came from; if you trust that, pass allow_origins="
    offers = ", ".join(f"{item.protocol_binding} {item.protocol_version}" for item in card.supported_interfaces)
    wanted = f"{settings.binding or 'JSONRPC or HTTP+JSON'}, A2A {settings.version or '1.0 or 0.3'}"
    return f"The agent offers {clean_line(offers, MAX_TEXT) or 'no interface'}; this client was to use {wanted}"


def _place(url: str) -> str:
    try:
        return clean_line(origin(url), MAX_TEXT)
    except ValueError:
        return repr(clean_line(url, MAX_TEXT))
