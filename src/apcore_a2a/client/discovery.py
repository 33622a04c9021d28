"""The card of a remote agent: fetched, verified, cached, and revalidated with its ETag.

Invariants: one fetch at a time, however many calls wait for it. A card is not used before its signature is verified.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.auth import TrustedOrigins, card_urls, origin
from apcore_a2a.client.bindings import Binding, ChosenInterface, Exchange, prepare_jsonrpc, prepare_rest
from apcore_a2a.client.failures import MAX_TEXT
from apcore_a2a.client.options import ClientSettings
from apcore_a2a.client.transport import HttpRequest, HttpResponse
from apcore_a2a.errors import (
    A2ADiscoveryError,
    ExtensionSupportRequiredError,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
    ParseError,
)
from apcore_a2a.protocol.card import AgentCard, AgentInterface
from apcore_a2a.protocol.decoding import check, decode
from apcore_a2a.protocol.dialect import DIALECTS, VERSION_HEADER, Dialect
from apcore_a2a.protocol.model import Operation, Value
from apcore_a2a.protocol.v03 import jsonrpc as v03

MAX_CARD: Final = 1024 * 1024
_MAX_AGE: Final = re.compile(r"\bmax-age=(\d{1,9})\b")
_BODY: Final = msgspec.json.Decoder(dict[str, Any])
_NOT_MODIFIED: Final = 304

logger = logging.getLogger(__name__)

Fetch = Callable[[HttpRequest], Awaitable[HttpResponse]]


class Discovery:
    """The client's knowledge of its agent: the card and the chosen interface."""

    def __init__(
        self, url: str, settings: ClientSettings, *, ttl: float, fetch: Fetch, grpc_obstacle: str = ""
    ) -> None:
        self._urls = card_urls(url)
        self._grpc_obstacle = grpc_obstacle  # why gRPC cannot be used, if it cannot
        self._settings = settings
        self._ttl = ttl
        self._fetch = fetch
        self.trusted = TrustedOrigins(url, settings.allow_origins)
        self._verifier = settings.verifier()
        self._public: AgentCard | None = None
        self._extended: AgentCard | None = None
        self._interface: ChosenInterface | None = None
        self._fresh_until = 0.0  # on the time.monotonic clock
        self._fetches = 0
        # If-None-Match and If-Modified-Since for the last card, which came from the first of `_urls`.
        self._conditions: dict[str, str] = {}
        self._lock = asyncio.Lock()

    @property
    def known_card(self) -> AgentCard | None:
        """The cached card, fresh or stale."""
        return self._extended or self._public

    async def card(self, *, refresh: bool = False) -> AgentCard:
        """Return the card. Fetch it if it is missing or stale."""
        if refresh or self._public is None or time.monotonic() >= self._fresh_until:
            seen = self._fetches
            async with self._lock:
                if self._fetches == seen:  # otherwise another call fetched it while this one waited
                    await self._update()
        assert self.known_card is not None
        return self.known_card

    async def interface(self) -> ChosenInterface:
        """Return the interface to call. It is chosen again whenever the card changes."""
        card = await self.card()
        if self._interface is None:
            self._interface = choose_interface(card, self._settings, self.trusted, self._grpc_obstacle)
        return self._interface

    def pass_over_grpc(self, reason: str) -> bool:
        """Choose another interface than those of gRPC, from now on. Return whether there is one."""
        assert self.known_card is not None
        try:
            chosen = choose_interface(self.known_card, self._settings, self.trusted, reason)
        except (A2ADiscoveryError, ExtensionSupportRequiredError):
            return False
        if not self._grpc_obstacle:  # otherwise another call has done it
            text = "the agent offers gRPC first, but cannot be called over it; %s is used instead. %s"
            logger.warning(text, chosen.binding, reason, extra={"url": chosen.url, "binding": chosen.binding})
        self._grpc_obstacle = reason
        self._interface = chosen
        return True

    def use_extended_card(self, extended: AgentCard) -> None:
        """Use the extended card instead of the public one, until the public card has a new version (1.0 §3.1.11)."""
        self._extended = extended
        self._interface = None  # the extended card may offer other interfaces

    async def _update(self) -> None:
        url, response = await self._find()
        if response.status != _NOT_MODIFIED:
            card = self._parse(response.body, url)
            if self._extended is not None and self._extended.version != card.version:
                self._extended = None
            self._public = card
            self._interface = None
            self._try_first(url)
            self._conditions = _conditions(response.headers)
        # The agent may shorten the caller's card_ttl, but not lengthen it.
        self._fresh_until = time.monotonic() + min(self._ttl, _max_age(response.headers))
        self._fetches += 1

    def _try_first(self, url: str) -> None:
        others = [other for other in self._urls if other != url]
        self._urls = (url, *others)

    async def _find(self) -> tuple[str, HttpResponse]:
        """Return the first URL that has a card, and its response."""
        headers = {"Accept": "application/json", VERSION_HEADER: self._settings.version or "1.0"}
        conditions = self._conditions
        response = HttpResponse(0, {})
        for url in self._urls:
            try:
                response = await self._fetch(HttpRequest("GET", url, headers | conditions))
            except InvalidAgentResponseError as error:
                raise A2ADiscoveryError(f"The agent card at {url} cannot be read: {error}", url=url) from error
            if response.status == 200:
                return url, response
            # An unsolicited 304 would leave the client without a card.
            if response.status == _NOT_MODIFIED and conditions:
                return url, response
            conditions = {}  # they are valid for the first URL only
            # Try the next URL only if this one does not exist. Some hosts answer 403 or 405 for a missing path.
            if response.status not in (403, 404, 405, 410):
                break
        raise A2ADiscoveryError(
            f"No agent card: HTTP {response.status} from {url}{_hint(response)}", url=url, status=response.status
        )

    def _parse(self, body: bytes, url: str) -> AgentCard:
        """Decode and verify the card in the body."""
        try:
            check(body)
            card = v03.decode_card(body)  # despite its name it reads cards of 0.3, of 1.0, and of both
            # The body as received: the signed payload may have fields that the model does not know.
            raw = decode(body, _BODY)
        except ParseError as error:
            raise A2ADiscoveryError(f"Invalid JSON in the agent card at {url}", url=url) from error
        except (InvalidParamsError, InvalidRequestError) as error:
            raise A2ADiscoveryError(f"The agent card at {url} is not an agent card: {error}", url=url) from error
        self.verify(card, raw, url)
        return card

    def verify(self, card: AgentCard, body: Mapping[str, Any], url: str) -> None:
        """Reject a card whose signatures do not satisfy the caller's policy."""
        if self._verifier is not None:
            self._verifier.check(card, body, url)


def _hint(response: HttpResponse) -> str:
    if response.status == 401:
        return ". Pass auth="
    if response.is_redirect:
        return ". Redirects are not followed"
    return ""


def _conditions(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of the next conditional request (1.0 §8.6.2)."""
    conditions: dict[str, str] = {}
    if "etag" in headers:
        conditions["If-None-Match"] = headers["etag"]
    if "last-modified" in headers:
        conditions["If-Modified-Since"] = headers["last-modified"]
    return conditions


def _max_age(headers: Mapping[str, str]) -> float:
    control = headers.get("cache-control", "").lower()
    if "no-store" in control or "no-cache" in control:
        return 0.0
    age = _MAX_AGE.search(control)
    if age is None:
        return float("inf")  # no directive: the caller's card_ttl decides
    return float(age[1])


# ---- choice of the interface ----------------------------------------------------------------------------------------
# Invariant: the client uses the first interface, in the card's order, that it supports (1.0 §8.3.2) and may call.

GRPC: Final = "GRPC"


def _prepare_grpc(interface: ChosenInterface, operation: Operation, request: Value) -> Exchange:
    from apcore_a2a.client.grpc import prepare_grpc  # loads the tables of message types, which only gRPC needs

    return prepare_grpc(interface, operation, request)


BINDINGS: Final[dict[str, Binding]] = {"JSONRPC": prepare_jsonrpc, "HTTP+JSON": prepare_rest, GRPC: _prepare_grpc}
# 0.2 differs from 0.3 only in the card. An interface of a 1.0 card without a version is a 1.0 interface.
SUPPORTED: Final[dict[str, Dialect]] = {**DIALECTS, "0.2": DIALECTS["0.3"], "": DIALECTS["1.0"]}


def choose_interface(
    card: AgentCard, settings: ClientSettings, trusted: TrustedOrigins, grpc_obstacle: str = ""
) -> ChosenInterface:
    """Return the interface to use. An interface of gRPC is passed over if there is an obstacle to using it.

    Raises:
        ExtensionSupportRequiredError: the agent requires an extension that the caller did not declare.
        A2ADiscoveryError: no interface is usable. The text lists the interfaces and the reason.
    """
    extensions = tuple(settings.extensions)
    # Checked before anything is sent: the agent would reject the request too, but after it had read the message.
    for extension in card.capabilities.extensions:
        if extension.required and extension.uri not in extensions:
            raise ExtensionSupportRequiredError(clean_line(extension.uri, MAX_TEXT))
    elsewhere: list[AgentInterface] = []
    for interface, dialect in _find_supported(card, settings):
        if interface.protocol_binding == GRPC:
            if grpc_obstacle:
                continue
            interface = replace(interface, url=trusted.complete(interface.url))
        if interface.url in trusted:
            return ChosenInterface(interface.url, interface.protocol_binding, dialect, interface.tenant, extensions)
        elsewhere.append(interface)
    if elsewhere:
        raise A2ADiscoveryError(_name_origins(elsewhere))
    raise A2ADiscoveryError(_compare_offer(card, settings, grpc_obstacle))


def _find_supported(card: AgentCard, settings: ClientSettings) -> Iterator[tuple[AgentInterface, Dialect]]:
    for interface in card.supported_interfaces:
        # The patch number does not change the protocol (1.0 §3.6): "1.0.1" is 1.0.
        version = ".".join(interface.protocol_version.split(".")[:2])
        dialect = SUPPORTED.get(version)
        if dialect is None or interface.protocol_binding not in BINDINGS:
            continue
        if settings.binding not in (None, interface.protocol_binding):
            continue
        if settings.version not in (None, dialect.VERSION):
            continue
        yield interface, dialect


def _name_origins(elsewhere: list[AgentInterface]) -> str:
    origins = {_show_origin(interface.url) for interface in elsewhere}
    shown = ", ".join(sorted(origins))
    return f"The agent card points to another origin, {shown}. If you trust that origin, pass allow_origins="


def _show_origin(url: str) -> str:
    """Return the origin, as `allow_origins` takes it. An address without an origin is returned whole, in quotes."""
    try:
        return clean_line(origin(url), MAX_TEXT)
    except ValueError:
        return repr(clean_line(url, MAX_TEXT))


def _compare_offer(card: AgentCard, settings: ClientSettings, grpc_obstacle: str) -> str:
    offers = ", ".join(f"{item.protocol_binding} {item.protocol_version}" for item in card.supported_interfaces)
    shown = clean_line(offers, MAX_TEXT) or "no interface"
    usable = "JSONRPC, HTTP+JSON or GRPC"
    hint = ""
    if grpc_obstacle:
        usable = "JSONRPC or HTTP+JSON"
        if any(item.protocol_binding == GRPC for item in card.supported_interfaces):
            hint = f". {grpc_obstacle}"
    wanted = f"{settings.binding or usable}, A2A {settings.version or '1.0 or 0.3'}"
    return f"The agent offers {shown}, but this client is set to {wanted}{hint}"
