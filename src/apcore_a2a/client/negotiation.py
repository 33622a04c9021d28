"""Which of a card's interfaces the client uses.

Rule: the first, in the card's order, that it speaks (1.0 §8.3.2) and may call.
"""

from collections.abc import Iterator
from typing import Final

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.address import TrustedOrigins, origin
from apcore_a2a.client.binding import Binding, ChosenInterface
from apcore_a2a.client.failures import MAX_TEXT
from apcore_a2a.client.jsonrpc import prepare_jsonrpc
from apcore_a2a.client.options import ClientSettings
from apcore_a2a.client.rest import prepare_rest
from apcore_a2a.errors import A2ADiscoveryError, ExtensionSupportRequiredError
from apcore_a2a.protocol.card import AgentCard, AgentInterface
from apcore_a2a.protocol.dialect import DIALECTS, Dialect

BINDINGS: Final[dict[str, Binding]] = {"JSONRPC": prepare_jsonrpc, "HTTP+JSON": prepare_rest}
# 0.2 differs from 0.3 in the card alone; a 1.0 interface without a version is a 1.0 interface.
SPOKEN: Final[dict[str, Dialect]] = {**DIALECTS, "0.2": DIALECTS["0.3"], "": DIALECTS["1.0"]}


def choose_interface(card: AgentCard, settings: ClientSettings, trusted: TrustedOrigins) -> ChosenInterface:
    """The interface to use.

    Raises:
        ExtensionSupportRequiredError: the agent requires an extension that the caller did not declare.
        A2ADiscoveryError: no interface fits; the text says which there are, and why not.
    """
    extensions = tuple(settings.extensions)
    # Refused before anything leaves: the agent would refuse it, too, but after it had read the message.
    for extension in card.capabilities.extensions:
        if extension.required and extension.uri not in extensions:
            raise ExtensionSupportRequiredError(clean_line(extension.uri, MAX_TEXT))
    elsewhere: list[AgentInterface] = []
    for interface, dialect in _find_spoken(card, settings):
        if interface.url in trusted:
            return ChosenInterface(interface.url, interface.protocol_binding, dialect, interface.tenant, extensions)
        elsewhere.append(interface)
    if elsewhere:
        raise A2ADiscoveryError(_say_where(elsewhere))
    raise A2ADiscoveryError(_say_what_is_offered(card, settings))


def _find_spoken(card: AgentCard, settings: ClientSettings) -> Iterator[tuple[AgentInterface, Dialect]]:
    for interface in card.supported_interfaces:
        # The patch number says nothing about the protocol (1.0 §3.6): "1.0.1" is 1.0.
        version = ".".join(interface.protocol_version.split(".")[:2])
        dialect = SPOKEN.get(version)
        if dialect is None or interface.protocol_binding not in BINDINGS:
            continue
        if settings.binding not in (None, interface.protocol_binding):
            continue
        if settings.version not in (None, dialect.VERSION):
            continue
        yield interface, dialect


def _say_where(elsewhere: list[AgentInterface]) -> str:
    places = {_show_origin(interface.url) for interface in elsewhere}
    shown = ", ".join(sorted(places))
    return f"The agent card points to {shown}, not to where it came from; if you trust that, pass allow_origins="


def _show_origin(url: str) -> str:
    """The origin, which is what `allow_origins` takes; all of it, quoted, if it has none."""
    try:
        return clean_line(origin(url), MAX_TEXT)
    except ValueError:
        return repr(clean_line(url, MAX_TEXT))


def _say_what_is_offered(card: AgentCard, settings: ClientSettings) -> str:
    offers = ", ".join(f"{item.protocol_binding} {item.protocol_version}" for item in card.supported_interfaces)
    shown = clean_line(offers, MAX_TEXT) or "no interface"
    wanted = f"{settings.binding or 'JSONRPC or HTTP+JSON'}, A2A {settings.version or '1.0 or 0.3'}"
    return f"The agent offers {shown}; this client was to use {wanted}"
