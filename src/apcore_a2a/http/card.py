"""Endpoints of the agent card: JSON at the well-known paths, and its signing keys.

Invariant: a card is encoded when it changes, not for each request.
"""

import hashlib
import logging
import time
from email.utils import formatdate
from typing import Final, Protocol
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import A2AError, ExtendedAgentCardNotConfiguredError, UnsupportedOperationError, wire
from apcore_a2a.http.asgi import Headers, Inbound, error_headers, inbound, internal, refuse_early, respond
from apcore_a2a.http.forwarded import Forwarded, PublicAddress, other_address, read_forwarded
from apcore_a2a.http.traffic import HTTP2_KEY
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCard, AgentInterface, CardInterfaces, CardMode
from apcore_a2a.protocol.model import GetExtendedCard, Operation
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.web import SAFE

logger = logging.getLogger(__name__)

CARD_PATH: Final = "/.well-known/agent-card.json"
OLD_CARD_PATH: Final = "/.well-known/agent.json"
JWKS_PATH: Final = "/.well-known/jwks.json"
EXTENDED_CARD_PATH: Final = "/agent/authenticatedExtendedCard"
MAX_AGE: Final = 300
_ENCODERS: Final = {"1.0": v1.encode_card, "0.3": v03.encode_card, "hybrid": v03.encode_hybrid_card}
MAX_CACHED: Final = 96  # forms at addresses. A server has few addresses, and invented ones must not fill the memory
MAX_INPUT: Final = 256  # bytes of a Host or a version in a key of a cache
# A proxy may report another address in these headers, so requests with one of them are examined in full.
_FORWARDING: Final = frozenset({b"forwarded", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-prefix"})

MAX_LOGGED: Final = 8  # lines about addresses

_Inputs = tuple[object, ...]
"""What a form depends on: path, prefix, scheme, Host, version, whether gRPC is offered, and the server's address."""


class _Form(Struct, frozen=True):
    """A card in one form (1.0, 0.3 or hybrid), or a key set: encoded, with its caching headers."""

    body: bytes
    headers: Headers
    etag: bytes
    modified: bytes

    def is_known(self, request: Inbound) -> bool:
        """Whether the client has this form in its cache. If-None-Match takes precedence over If-Modified-Since."""
        tags = request.headers.get(b"if-none-match")
        if tags is not None:
            return tags.strip() == b"*" or self.etag in tags
        return request.headers.get(b"if-modified-since") == self.modified


def _form(body: bytes, modified: float) -> _Form:
    etag = b'"' + hashlib.sha256(body).hexdigest()[:32].encode() + b'"'
    date = formatdate(modified, usegmt=True).encode()
    headers = (
        (b"cache-control", b"max-age=%d" % MAX_AGE),
        (b"etag", etag),
        (b"last-modified", date),
        (b"vary", b"A2A-Version"),
    )
    return _Form(body, headers, etag, date)


async def _send_form(form: _Form, request: Inbound, send: Send) -> None:
    if form.is_known(request):
        await send({"type": "http.response.start", "status": 304, "headers": [*form.headers, *SAFE]})
        await send({"type": "http.response.body", "body": b""})
    else:
        await respond(send, 200, form.body, cache=form.headers)  # the server omits the body for HEAD


class CardRules(Struct, frozen=True, kw_only=True):
    """The facts in a card about the server: its form, the versions that it lists, and the paths of the bindings."""

    mode: CardMode = "auto"
    interfaces: CardInterfaces = "all"
    rpc_path: str = ""
    rest_path: str = ""
    rest: bool = True
    """Whether the card lists the REST binding."""
    grpc: bool | None = None
    """Whether the card offers gRPC. None: if the server of the request has announced HTTP/2."""

    @property
    def form(self) -> CardMode:
        """The form of the card: one version alone has a form of its own."""
        if self.interfaces != "all":
            return self.interfaces
        return self.mode

    def interfaces_at(self, base: str, *, grpc: bool = False) -> tuple[AgentInterface, ...]:
        """Return the interfaces of this server: every binding and version at one address, the preferred one first."""
        root = base.rstrip("/")  # clients append paths, some without checking for a slash at the end
        rpc = f"{root}{self.rpc_path}" if self.rpc_path else base
        rest = f"{root}{self.rest_path}"
        if self.interfaces == "0.3":  # one address: gateways that rewrite `url` do not rewrite a list beside it
            return (AgentInterface(url=rpc, protocol_binding="JSONRPC", protocol_version="0.3"),)
        target = _grpc_target(base)
        # 1.0 has a bare target of gRPC, host:port. 0.3.0 §5.6 requires a URL.
        grpc_v1 = AgentInterface(url=target, protocol_binding="GRPC", protocol_version="1.0")
        grpc_v03 = AgentInterface(url=root, protocol_binding="GRPC", protocol_version="0.3")
        listed: list[AgentInterface] = []
        for version, grpc_interface in (("1.0", grpc_v1), ("0.3", grpc_v03)):
            listed.append(AgentInterface(url=rpc, protocol_binding="JSONRPC", protocol_version=version))
            if self.rest:
                listed.append(AgentInterface(url=rest, protocol_binding="HTTP+JSON", protocol_version=version))
            if grpc and target:
                listed.append(grpc_interface)
        return self.select(tuple(listed))

    def select(self, listed: tuple[AgentInterface, ...]) -> tuple[AgentInterface, ...]:
        """Return the interfaces of the versions that the card lists."""
        if self.interfaces == "all":
            return listed
        major = self.interfaces.partition(".")[0]
        return tuple(one for one in listed if one.protocol_version.partition(".")[0] == major)


def _grpc_target(base: str) -> str:
    """Return host:port, or an empty string for an address with a path: the paths of gRPC's methods are fixed."""
    parts = urlsplit(base)
    if parts.path.strip("/"):
        return ""
    if parts.port is not None:
        return parts.netloc
    return f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"


class CardSigner(Protocol):
    """Signs cards. A protocol, so that the signing module is imported only if a key is configured."""

    @property
    def jwks(self) -> bytes: ...
    def sign(self, card: AgentCard, form: str, base: str) -> AgentCard:
        """Return the card with signatures, for one form (1.0, 0.3, hybrid) and one address."""


class CardEndpoint:
    """Holds and serves the public card.

    The form "auto" serves what fits the request: the pure 1.0 card for `A2A-Version: 1.0`, the pure 0.3 card at the old
    path, otherwise a card that both generations of clients can read. Any other form serves that one alone.

    A card without interfaces gets those of this server, at the address that the client has used.

    A `signer` adds signatures to every card that is served here.
    """

    def __init__(
        self,
        card: AgentCard,
        *,
        address: PublicAddress | None = None,
        rules: CardRules | None = None,
        signer: CardSigner | None = None,
    ) -> None:
        self.card = card
        self.signer = signer
        self._public = address or PublicAddress(uses_host=signer is None)
        self._rules = rules or CardRules()
        self._modified = time.time()
        self._forms: dict[tuple[str, str, bool], _Form] = {}  # by the name of the form, address, and offer of gRPC
        self._answers: dict[_Inputs, _Form] = {}  # the same forms by what requests have in common
        self._logged: set[str] = set()  # addresses that clients have used, and that the card does not name

    def replace(self, card: AgentCard) -> None:
        """Serve another card from now on."""
        self.card = card
        self._modified = time.time()
        self._forms = {}
        self._answers = {}

    @property
    def cached_forms(self) -> int:
        return len(self._forms)

    @property
    def cached_answers(self) -> int:
        return len(self._answers)

    def at(self, card: AgentCard, scope: Scope, form: str) -> AgentCard:
        """Return a card with the address at which it is served, signed if there is a signer."""
        address = self._address(scope)
        listed = self._rules.select(card.supported_interfaces)
        if not card.supported_interfaces:
            listed = self._rules.interfaces_at(address, grpc=self._offers_grpc(scope))
        card = replace(card, supported_interfaces=listed)
        if self.signer is None:
            return card
        return self.signer.sign(card, form, address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = inbound(scope)
        inputs = self._inputs(scope, request)
        form = None if inputs is None else self._answers.get(inputs)
        if form is None:
            form = self._examine(scope, request)
            if inputs is not None:
                self._remember(inputs, form)
        await _send_form(form, request, send)

    def _inputs(self, scope: Scope, request: Inbound) -> _Inputs | None:
        """Return all that the form and the address depend on, or None for a request that is examined in full.

        Clients repeat the same few values. A lookup by them saves 45 % of the processor time of a request.
        """
        headers = request.headers
        host = headers.get(b"host", b"")
        version = headers.get(b"a2a-version", b"")
        if request.query or len(host) > MAX_INPUT or len(version) > MAX_INPUT:
            return None
        if not _FORWARDING.isdisjoint(headers):
            return None
        server = scope.get("server") or ()
        prefix = scope.get("root_path", "")
        scheme = scope.get("scheme", "")
        return scope["path"], prefix, scheme, host, version, self._offers_grpc(scope), *server

    def _remember(self, inputs: _Inputs, form: _Form) -> None:
        if len(self._answers) >= MAX_CACHED:
            self._answers.clear()
        self._answers[inputs] = form

    def _examine(self, scope: Scope, request: Inbound) -> _Form:
        """Return the card in the form and with the address for a request, and log an address that is not in it."""
        self._compare_address(scope, request)
        return self._encoded(scope, self._choose(scope["path"], request.version()))

    def _encoded(self, scope: Scope, form: str) -> _Form:
        """Return the card in a form, for the address of the request."""
        address = ""
        if not self.card.supported_interfaces or self.signer is not None:
            address = self._address(scope)
        key = (form, address, self._offers_grpc(scope))
        if key not in self._forms:
            if len(self._forms) >= MAX_CACHED:
                self._forms.clear()
            body = _ENCODERS[form](self.at(self.card, scope, form))
            self._forms[key] = _form(body, self._modified)
        return self._forms[key]

    def _offers_grpc(self, scope: Scope) -> bool:
        if self._rules.grpc is not None:
            return self._rules.grpc
        support = (scope.get("state") or {}).get(HTTP2_KEY)
        return support is not None and bool(support.is_installed)

    def _address(self, scope: Scope) -> str:
        return self._public.of(scope)

    def _compare_address(self, scope: Scope, request: Inbound) -> None:
        """Log if the card has another address than the one that the client has used: the next call may not arrive."""
        said = self.card.supported_interfaces[0].url if self.card.supported_interfaces else self._address(scope)
        used = other_address(said, scope)
        if not used or used in self._logged or len(self._logged) >= MAX_LOGGED:
            return
        self._logged.add(used)
        advice = "set --url (in Python: url=) to the public address"
        if not self._public.trusts_peer(scope) and read_forwarded(request.headers) != Forwarded():
            advice += ", or name the proxy in --trusted-proxies, or the platform in --host-profile"
        logger.warning(
            "the card names another address than a client has used", extra={"card": said, "used": used, "hint": advice}
        )

    def _choose(self, path: str, version: str) -> str:
        form = self._rules.form
        if form != "auto":
            return form
        if path.endswith(OLD_CARD_PATH):
            return "0.3"
        if version.startswith("1."):
            return "1.0"
        return "hybrid"


class ExtendedCardEndpoint:
    """GET /agent/authenticatedExtendedCard, from the requirements: the result of GetExtendedAgentCard."""

    def __init__(self, engine: Engine, cards: CardEndpoint) -> None:
        self._engine = engine
        self._cards = cards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = inbound(scope)
        try:
            dialect = request.dialect()
            context = request.context(dialect, "")
            card = await self._engine.handle(Operation.EXTENDED_CARD, GetExtendedCard(), context)
            body = dialect.encode_card(self._cards.at(card, scope, dialect.VERSION))
        except (UnsupportedOperationError, ExtendedAgentCardNotConfiguredError) as error:  # there is no extended card
            await refuse_early(scope, send, 404, error)
        except Exception as error:  # the outermost handler
            known = error if isinstance(error, A2AError) else internal(error)
            await refuse_early(scope, send, wire(known).http, known, error_headers(known))
        else:
            await respond(send, 200, body)


class KeysEndpoint:
    """GET /.well-known/jwks.json: the public keys that verify the signatures of the card."""

    def __init__(self, keys: bytes) -> None:
        self._form = _form(keys, time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send_form(self._form, inbound(scope), send)
