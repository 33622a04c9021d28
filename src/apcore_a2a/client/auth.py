"""How the client shows who it is: tokens, keys, and tokens that OAuth gives."""

import asyncio
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote_plus, urlencode
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.address import TrustedOrigins
from apcore_a2a.client.failures import MAX_TEXT
from apcore_a2a.client.transport import HttpRequest, HttpResponse
from apcore_a2a.errors import InvalidParamsError, ParseError, UnauthenticatedError
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import decode

# Who the client is to a remote agent. Rule: secrets live in private fields and appear in no repr, log or error.

TokenProvider = Callable[[], Awaitable[str]]


class AuthContext(Struct, frozen=True):
    """What an `Auth` may use to make its headers."""

    card: AgentCard | None
    """None while the card itself is being fetched."""
    trusted: TrustedOrigins
    send: Callable[[HttpRequest], Awaitable[HttpResponse]]
    """Send a request that carries no credentials of ours."""


class Auth(Protocol):
    """Makes the headers that authenticate a request."""

    async def headers(self, context: AuthContext) -> Mapping[str, str]: ...

    def renew(self) -> bool:
        """The agent refused the credentials: forget what was cached. Whether the next ones may differ."""
        ...


class BearerAuth:
    """A bearer token, or an async function that gives the current one at each request.

    Example:
        >>> BearerAuth("secret")
        BearerAuth(…)
    """

    def __init__(self, token: str | TokenProvider) -> None:
        if isinstance(token, str):
            check_header(token)  # now, where the caller sees who passed it; not at the first request
        self._token = token

    async def headers(self, context: AuthContext) -> Mapping[str, str]:
        if isinstance(self._token, str):
            token = self._token
        else:
            token = check_header(await self._token())
        # A bare token has no space; whoever writes one names the scheme as well, "Bearer …" or another.
        if " " not in token:
            token = f"Bearer {token}"
        return {"Authorization": token}

    def renew(self) -> bool:
        return not isinstance(self._token, str)  # a fixed token stays refused; a provider may have a new one

    def __repr__(self) -> str:
        return "BearerAuth(…)"


class ApiKeyAuth:
    """A key in a header of its own.

    Example:
        >>> ApiKeyAuth("secret", header="X-API-Key")
        ApiKeyAuth(…, header='X-API-Key')
    """

    def __init__(self, key: str, *, header: str = "X-API-Key") -> None:
        self._key = check_header(key)
        self._header = check_header(header)

    async def headers(self, context: AuthContext) -> Mapping[str, str]:
        return {self._header: self._key}

    def renew(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"ApiKeyAuth(…, header={self._header!r})"


def to_auth(auth: "str | TokenProvider | Auth | None") -> Auth | None:
    """What the caller gave as `auth=`: a header value such as "Bearer …", a bare token, a provider, or an Auth."""
    if isinstance(auth, str) or callable(auth):
        return BearerAuth(auth)
    return auth


def check_header(text: str) -> str:
    """Refuse what would end a header line and begin another; the text itself is a secret and is not repeated."""
    if not text or not text.isprintable():
        raise ValueError("A credential must not be empty or contain line ends or other control characters")
    return text


# ---- oauth ----------------------------------------------------------------------------------------------------------
# OAuth 2.0 client credentials (RFC 6749 §4.4), with the token endpoint of the agent's card.
#
# Rule: a card that names a token endpoint elsewhere is asking for our secret. It gets it only where the caller agreed.

EARLY: Final = 30.0  # seconds before its end that a token counts as old: requests take time, and clocks differ
DEFAULT_LIFE: Final = 300.0  # RFC 6749 §5.1 lets a server leave out how long its token lives


class _Source(NamedTuple):
    """Where a token comes from and what it is for: the token of one agent is never shown to another."""

    url: str
    scopes: tuple[str, ...] = ()


class _Cached(NamedTuple):
    """A token, ready to be sent, and until when; on time.monotonic's clock, which nobody can set."""

    header: str
    until: float


class _Token(Struct, frozen=True):
    access_token: str
    token_type: str = "Bearer"
    expires_in: float = DEFAULT_LIFE

    @property
    def header(self) -> str:
        # The type has no case (RFC 6749 §5.1): token endpoints say "bearer", and agents look for "Bearer".
        if self.token_type.lower() == "bearer":
            return f"Bearer {self.access_token}"
        return f"{self.token_type} {self.access_token}"


# Not strict: some servers write how long a token lives as a text.
_TOKEN: Final = msgspec.json.Decoder(_Token, strict=False)


class OAuth2ClientCredentials:
    """Fetches tokens with a client id and secret, and keeps each until shortly before it expires.

    Args:
        token_url: The token endpoint. Left out, it is the one of the card's `clientCredentials` flow, which must then
            be on the agent's own origin or on one of `allow_origins`.
        scopes: Left out, those that the card asks for.
        audience: Whom the token is for, where the endpoint wants to be told so (Auth0's does).

    Example:
        >>> OAuth2ClientCredentials("my-app", "secret")
        OAuth2ClientCredentials('my-app', …)
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str,
        *,
        token_url: str = "",
        scopes: Iterable[str] | None = None,
        audience: str = "",
    ) -> None:
        if isinstance(scopes, str):  # as OAuth writes them, and not a list of letters
            scopes = scopes.split()
        self._id = client_id
        self._secret = client_secret
        self._url = token_url
        self._audience = audience
        self._scopes = None if scopes is None else tuple(scopes)  # None is "the card's", () is "none"
        self._tokens: dict[_Source, _Cached] = {}
        # One for each event loop: two clients without await, which have a loop each, may share these credentials.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def headers(self, context: AuthContext) -> Mapping[str, str]:
        if context.card is None and (not self._url or self._scopes is None):
            return {}  # the card says where tokens come from, or for what, and it is still to be fetched
        source = self._choose_source(context)
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:  # one request for a token, however many calls wait for it
            cached = self._tokens.get(source)
            if cached is None or time.monotonic() >= cached.until:
                cached = await self._fetch(source, context)
                self._tokens[source] = cached
            return {"Authorization": cached.header}

    def renew(self) -> bool:
        self._tokens.clear()
        return True

    def _choose_source(self, context: AuthContext) -> _Source:
        """Where the caller said, for what the caller said; what was left open, the card says."""
        flow = _find_flow(context.card)
        url = self._url
        if not url:
            if flow is None:
                raise UnauthenticatedError("The agent card names no OAuth 2.0 client credentials flow; pass token_url=")
            url = _check_trusted(flow.url, context)
        scopes = self._scopes
        if scopes is None:
            scopes = () if flow is None else flow.scopes
        return _Source(url, scopes)

    async def _fetch(self, source: _Source, context: AuthContext) -> _Cached:
        # RFC 6749 §2.3.1: both are form-encoded before they are joined, so that a colon in one of them does no harm.
        pair = f"{quote_plus(self._id)}:{quote_plus(self._secret)}".encode()
        form = {"grant_type": "client_credentials"}
        if source.scopes:
            form["scope"] = " ".join(source.scopes)
        if self._audience:
            form["audience"] = self._audience
        headers = {
            "Authorization": f"Basic {b64encode(pair).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        response = await context.send(HttpRequest("POST", source.url, headers, urlencode(form).encode()))
        token = _read_token(response, source.url)
        lifetime = max(1.0, token.expires_in - EARLY)  # one that lives for less still serves this moment's calls
        return _Cached(token.header, time.monotonic() + lifetime)

    def __repr__(self) -> str:
        return f"OAuth2ClientCredentials({self._id!r}, …)"


def _read_token(response: HttpResponse, url: str) -> _Token:
    if response.status != 200:
        raise UnauthenticatedError(f"The token endpoint {url} refused the client credentials: HTTP {response.status}")
    try:
        token = decode(response.body, _TOKEN)
        check_header(token.header)  # it becomes a header of ours: a line end in it would begin another
        return token
    except (ParseError, InvalidParamsError, ValueError) as error:
        raise UnauthenticatedError(f"The token endpoint {url} answered with something that is no token") from error


def _find_flow(card: AgentCard | None) -> _Source | None:
    """The token endpoint of the card's client credentials flow, and the scopes that the card requires for it."""
    if card is None:
        return None
    for name, scheme in (card.security_schemes or {}).items():
        match scheme:
            case {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": str(url)}}}}:
                return _Source(url, _required_scopes(card, name))
    return None


def _required_scopes(card: AgentCard, scheme: str) -> tuple[str, ...]:
    # Requirements are alternatives: the first that asks for scopes of this scheme will do.
    for requirement in card.security_requirements:
        scopes = requirement.get("schemes", {}).get(scheme, {}).get("list")
        if scopes:
            return tuple(scopes)
    return ()


def _check_trusted(url: str, context: AuthContext) -> str:
    if url not in context.trusted:
        raise UnauthenticatedError(
            f"The agent card names a token endpoint elsewhere, {clean_line(url, MAX_TEXT)}; "
            "pass token_url=, or add its origin to allow_origins="
        )
    return url
