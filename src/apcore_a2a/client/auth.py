"""Client credentials (bearer tokens, API keys, OAuth 2.0 access tokens), and the origins to which they may be sent."""

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import SplitResult, quote_plus, urlencode, urlsplit
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.failures import MAX_TEXT
from apcore_a2a.client.transport import HttpRequest, HttpResponse
from apcore_a2a.errors import A2AError, InvalidParamsError, ParseError, UnauthenticatedError
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import decode

# ---- addresses and origins ------------------------------------------------------------------------------------------
# Invariant: only the origin that the caller named and the origins that the caller allowed are trusted. An address from
# a card is untrusted data until it is checked.

WELL_KNOWN: Final = ("/.well-known/agent-card.json", "/.well-known/agent.json")  # A2A 0.3 and later, 0.2
_PORTS: Final = {"http": 80, "https": 443}
_GRPC_SCHEMES: Final = {"grpc://": "http://", "grpcs://": "https://"}  # which some agents write
# Only these. 127.0.0.2 is this machine too, but another server may be bound to it.
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def check_url(url: str) -> str:
    """Return the address without a trailing slash.

    Raises:
        ValueError: the address is not an http or https address, or has a fragment, a user name or a control character.
            Only the address of a card may have a query.
    """
    parts = _split(url)
    if parts.fragment:
        raise ValueError(f"Not the address of an agent: {url!r} has a fragment")
    if _names_card(parts):  # hosts of several agents choose one by a query: /.well-known/agent-card.json?assistant_id=…
        return url
    if parts.query:
        raise ValueError(
            f"Not the address of an agent: {url!r} has a query. Only the address of a card may have one, such as "
            "https://agents.example/.well-known/agent-card.json?assistant_id=7"
        )
    return url.rstrip("/")


def _names_card(parts: SplitResult) -> bool:
    return parts.path.endswith(".json")


def origin(url: str) -> str:
    """Return scheme, host and port of an http address in canonical form. Equal results mean one origin.

    The loopback names count as one host: a caller of `localhost` reaches a server that advertises 127.0.0.1.
    """
    parts = _split(url)
    host = "localhost" if parts.hostname in _LOOPBACK else parts.hostname
    port = parts.port or _PORTS[parts.scheme]
    return f"{parts.scheme}://{host}:{port}"


def _split(url: str) -> SplitResult:
    # urlsplit silently drops line ends and tabs. The address that was checked would differ from the one that is called.
    for char in url:
        if char <= " " or char == "\x7f":
            raise ValueError(f"Not an http or https address: {url!r}")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"Not an http or https address: {url!r}")
    # "http://agent.example@evil.example/" is an address of evil.example, and a secret in an address ends up in logs.
    # For the same reason the error text does not repeat the address.
    if "@" in parts.netloc:
        raise ValueError("An address must not carry a user name or password. Pass auth= instead")
    _ = parts.port  # the property parses the port, and raises ValueError if it is out of range
    return parts


class TrustedOrigins:
    """The origins that the client may call and that receive its credentials."""

    def __init__(self, url: str, allowed: Iterable[str] = ()) -> None:
        self._scheme = _split(url).scheme
        self._origins = {origin(url)}
        for address in allowed:
            self._origins.add(origin(address))

    def __contains__(self, url: object) -> bool:
        if not isinstance(url, str):
            return False
        try:
            return origin(url) in self._origins
        except ValueError:  # a card may contain anything, and text that is not an address is not a trusted origin
            return False

    def complete(self, target: str) -> str:
        """Return the URL of a gRPC target, which A2A 1.0 writes as host:port, without saying whether it uses TLS.

        A trusted origin with that host and port decides, or otherwise the scheme of the agent's own address.
        """
        for scheme, other in _GRPC_SCHEMES.items():
            if target.startswith(scheme):
                return other + target.removeprefix(scheme)
        if "://" in target:
            return target
        for scheme in (self._scheme, *_PORTS):
            url = f"{scheme}://{target}"
            if url in self:
                return url
        return f"{self._scheme}://{target}"


def card_urls(url: str) -> tuple[str, ...]:
    """Return the URLs to try for the card: the address itself if it names a JSON file, else the well-known paths."""
    if _names_card(urlsplit(url)):
        return (url,)
    return tuple(url + place for place in WELL_KNOWN)


# ---- credentials ----------------------------------------------------------------------------------------------------
# Invariant: secrets are in private attributes only, and appear in no repr, log or error.

TokenProvider = Callable[[], Awaitable[str]]


class AuthContext(Struct, frozen=True):
    """What an `Auth` may use to build its headers."""

    card: AgentCard | None
    """None while the card itself is being fetched."""
    trusted: TrustedOrigins
    send: Callable[[HttpRequest], Awaitable[HttpResponse]]
    """Send a request without the client's credentials."""


class Auth(Protocol):
    """Builds the headers that authenticate a request."""

    async def headers(self, context: AuthContext) -> Mapping[str, str]: ...

    def renew(self) -> bool:
        """Drop cached credentials after the agent rejected them. Return whether the next credentials may differ."""
        ...


class BearerAuth:
    """A bearer token, or an async function that returns the current token for each request.

    Example:
        >>> BearerAuth("secret")
        BearerAuth(…)
    """

    def __init__(self, token: str | TokenProvider) -> None:
        if isinstance(token, str):
            check_header(token)  # fail here, where the traceback shows the caller, not at the first request
        self._token = token

    async def headers(self, context: AuthContext) -> Mapping[str, str]:
        if isinstance(self._token, str):
            token = self._token
        else:
            token = check_header(await self._token())
        # A bare token contains no space. A value with a space includes its scheme: "Bearer …" or another.
        if " " not in token:
            token = f"Bearer {token}"
        return {"Authorization": token}

    def renew(self) -> bool:
        return not isinstance(self._token, str)  # a fixed token stays rejected, a provider may return a new one

    def __repr__(self) -> str:
        return "BearerAuth(…)"


class ApiKeyAuth:
    """An API key in a header of its own.

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


class BasicAuth:
    """A name and a password (HTTP Basic, RFC 7617).

    Example:
        >>> BasicAuth("ada", "secret")
        BasicAuth('ada', …)
    """

    def __init__(self, name: str, password: str) -> None:
        if ":" in name:
            raise ValueError("The name of HTTP Basic credentials must not contain a colon")
        self._name = name
        self._header = f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"

    async def headers(self, context: AuthContext) -> Mapping[str, str]:
        return {"Authorization": self._header}

    def renew(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"BasicAuth({self._name!r}, …)"


def to_auth(auth: "str | TokenProvider | Auth | None") -> Auth | None:
    """Convert the value of `auth=` to an Auth: a header value ("Bearer …"), a bare token, a provider, or an Auth."""
    if isinstance(auth, str) or callable(auth):
        return BearerAuth(auth)
    return auth


def check_header(text: str) -> str:
    """Reject text that would end one header line and begin another. The error omits the text: it is secret."""
    if not text or not text.isprintable():
        raise ValueError("A credential must not be empty or contain line ends or other control characters")
    return text


# ---- oauth ----------------------------------------------------------------------------------------------------------
# OAuth 2.0 client credentials (RFC 6749 §4.4), with the token endpoint of the agent's card.
#
# Invariant: the client secret goes to a token endpoint named by a card only if the caller trusts that endpoint's
# origin.

EARLY: Final = 30.0  # seconds before expiry at which a token is renewed: requests take time, and clocks differ
DEFAULT_LIFE: Final = 300.0  # RFC 6749 §5.1 makes `expires_in` optional


class _Source(NamedTuple):
    """A token endpoint and the scopes to request. It is the cache key, so no agent receives the token of another."""

    url: str
    scopes: tuple[str, ...] = ()


class _Cached(NamedTuple):
    """An authorization header and its expiry on the time.monotonic clock, which cannot be set."""

    header: str
    until: float


class _Token(Struct, frozen=True):
    access_token: str
    token_type: str = "Bearer"
    expires_in: float = DEFAULT_LIFE

    @property
    def header(self) -> str:
        # The token type is case-insensitive (RFC 6749 §5.1): token endpoints return "bearer", and agents expect
        # "Bearer".
        if self.token_type.lower() == "bearer":
            return f"Bearer {self.access_token}"
        return f"{self.token_type} {self.access_token}"


# Not strict: some servers send `expires_in` as a string.
_TOKEN: Final = msgspec.json.Decoder(_Token, strict=False)


class OAuth2ClientCredentials:
    """Fetches tokens with a client id and secret, and caches each until shortly before it expires.

    Args:
        token_url: The token endpoint. By default that of the card's `clientCredentials` flow, which must then be on the
            agent's own origin or on one of `allow_origins`.
        scopes: The scopes to request. By default those that the card requires.
        audience: The `audience` parameter of the token request, for endpoints that require it (Auth0 does).

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
        if isinstance(scopes, str):  # the OAuth form, separated by spaces: not an iterable of letters
            scopes = scopes.split()
        self._id = client_id
        self._secret = client_secret
        self._url = token_url
        self._audience = audience
        self._scopes = None if scopes is None else tuple(scopes)  # None: the card's scopes, (): no scopes
        self._tokens: dict[_Source, _Cached] = {}
        # One lock for each event loop: two `Client` objects, each with its own loop, may share these credentials.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def headers(self, context: AuthContext) -> Mapping[str, str]:
        if context.card is None and (not self._url or self._scopes is None):
            return {}  # the card, which is still to be fetched, names the token endpoint or the scopes
        source = self._choose_source(context)
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:  # one token request, however many calls wait for it
            cached = self._tokens.get(source)
            if cached is None or time.monotonic() >= cached.until:
                cached = await self._fetch(source, context)
                self._tokens[source] = cached
            return {"Authorization": cached.header}

    def renew(self) -> bool:
        self._tokens.clear()
        return True

    def _choose_source(self, context: AuthContext) -> _Source:
        """Return the endpoint and the scopes: the caller's values, or the card's where the caller gave none."""
        flow = _find_flow(context.card)
        url = self._url
        if not url:
            if flow is None:
                raise UnauthenticatedError("The agent card names no OAuth 2.0 client credentials flow. Pass token_url=")
            url = _check_trusted(flow.url, context)
        scopes = self._scopes
        if scopes is None:
            scopes = () if flow is None else flow.scopes
        return _Source(url, scopes)

    async def _fetch(self, source: _Source, context: AuthContext) -> _Cached:
        # RFC 6749 §2.3.1: id and secret are form-encoded before they are joined, so that a colon in one of them is
        # safe.
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
        # At least one second, so that the waiting calls can use a token that lives for less than EARLY.
        lifetime = max(1.0, token.expires_in - EARLY)
        return _Cached(token.header, time.monotonic() + lifetime)

    def __repr__(self) -> str:
        return f"OAuth2ClientCredentials({self._id!r}, …)"


def _read_token(response: HttpResponse, url: str) -> _Token:
    if response.status != 200:
        raise UnauthenticatedError(f"The token endpoint {url} rejected the client credentials: HTTP {response.status}")
    try:
        token = decode(response.body, _TOKEN)
        check_header(token.header)  # the token becomes a header value: a line end in it would begin another header
        return token
    except (ParseError, InvalidParamsError, ValueError) as error:
        raise UnauthenticatedError(f"The token endpoint {url} returned no valid access token") from error


def _find_flow(card: AgentCard | None) -> _Source | None:
    """Return the token endpoint of the card's client credentials flow and the scopes that the card requires for it."""
    if card is None:
        return None
    for name, scheme in (card.security_schemes or {}).items():
        match scheme:
            case {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": str(url)}}}}:
                return _Source(url, _required_scopes(card, name))
    return None


def _required_scopes(card: AgentCard, scheme: str) -> tuple[str, ...]:
    # Security requirements are alternatives. The first one that lists scopes for this scheme is used.
    for requirement in card.security_requirements:
        scopes = requirement.get("schemes", {}).get(scheme, {}).get("list")
        if scopes:
            return tuple(scopes)
    return ()


def _check_trusted(url: str, context: AuthContext) -> str:
    if url not in context.trusted:
        raise UnauthenticatedError(
            f"The agent card names a token endpoint on another origin, {clean_line(url, MAX_TEXT)}. "
            "Pass token_url=, or add its origin to allow_origins="
        )
    return url


# ---- the security schemes of a card ---------------------------------------------------------------------------------
# Invariant: an agent receives only the credential that its card asks for.

# Headers that a card cannot name for an API key. They have another meaning for this connection, for the message, or for
# the browser of the Explorer, which adds some of them to each request.
_RESERVED_HEADERS: Final = frozenset(
    "a2a-extensions a2a-version accept accept-charset accept-encoding accept-language age alt-used authority baggage"
    " cache-control connection content-disposition content-encoding content-language content-length content-location"
    " content-range content-type cookie cookie2 date dnt expect forwarded from host idempotency-key if-match"
    " if-modified-since if-none-match if-range if-unmodified-since keep-alive last-event-id link max-forwards origin"
    " pragma priority proxy-authenticate proxy-authorization proxy-connection purpose range referer save-data server"
    " set-cookie set-cookie2 te trace traceparent tracestate trailer transfer-encoding upgrade user-agent via"
    " www-authenticate x-a2a-extensions x-requested-with".split()
)
_RESERVED_PREFIXES: Final = ("sec-", "proxy-", "access-control-", "x-forwarded-", "x-http-method", ":")
_TOKEN_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")  # RFC 9110 §5.6.2: the name of a header or cookie


class CardAuth:
    """Credentials of several kinds, of which the client sends those that the agent's card asks for.

    The first security requirement of the card that these credentials satisfy decides. If the card has no requirements,
    each of its security schemes counts as one. If it has no schemes either, the first of the credentials is sent.

    Args:
        token: A bearer token, for bearer, OAuth 2.0 and OpenID Connect schemes.
        api_key: An API key, sent in the header or cookie that the card names.
        basic: A name and a password, or `BasicAuth`.
        client: Id and secret of an OAuth 2.0 client, or `OAuth2ClientCredentials`.

    Example:
        >>> CardAuth(token="secret", api_key="secret")
        CardAuth(token=…, api_key=…)
    """

    def __init__(
        self,
        *,
        token: str = "",
        api_key: str = "",
        basic: tuple[str, str] | BasicAuth | None = None,
        client: tuple[str, str] | OAuth2ClientCredentials | None = None,
    ) -> None:
        self._token = BearerAuth(token) if token else None
        self._api_key = check_header(api_key) if api_key else ""
        self._basic = BasicAuth(*basic) if isinstance(basic, tuple) else basic
        self._client = OAuth2ClientCredentials(*client) if isinstance(client, tuple) else client

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "CardAuth":
        """Return the credentials in the variables of the command line.

        These are A2ACLI_BEARER, A2ACLI_API_KEY, A2ACLI_BASIC (`name:password`), A2ACLI_CLIENT_ID and
        A2ACLI_CLIENT_SECRET.

        Example:
            >>> CardAuth.from_environment({"A2ACLI_API_KEY": "secret"})
            CardAuth(api_key=…)
        """
        basic: tuple[str, str] | None = None
        if environ.get("A2ACLI_BASIC"):
            name, _, password = environ["A2ACLI_BASIC"].partition(":")
            basic = (name, password)
        client: tuple[str, str] | None = None
        if environ.get("A2ACLI_CLIENT_ID"):
            client = (environ["A2ACLI_CLIENT_ID"], environ.get("A2ACLI_CLIENT_SECRET", ""))
        return cls(
            token=environ.get("A2ACLI_BEARER", ""),
            api_key=environ.get("A2ACLI_API_KEY", ""),
            basic=basic,
            client=client,
        )

    async def headers(self, context: AuthContext) -> Mapping[str, str]:
        card = context.card
        if card is None:
            # The card, which names the scheme, is still to be fetched. Hosts that protect cards ask for a token.
            return await _headers_of([self._token or self._client], context)
        schemes = card.security_schemes or {}
        alternatives = _alternatives(card)
        if not alternatives:
            key = ApiKeyAuth(self._api_key) if self._api_key else None
            return await _headers_of([self._token or self._client or key or self._basic], context)
        for names in alternatives:
            chosen = [self._choose(schemes.get(name, {})) for name in names]
            if all(is_satisfied for is_satisfied, _ in chosen):
                return await _headers_of([auth for _, auth in chosen], context)
        raise UnauthenticatedError(f"{name_schemes(card)}. {self!r} contains none of these. Pass auth=")

    def _choose(self, scheme: dict[str, Any]) -> tuple[bool, Auth | None]:
        """Return whether the credentials satisfy a scheme, and the one to send."""
        match scheme:
            case {"mtlsSecurityScheme": _}:
                return True, None  # the certificate of the connection, which only the transport knows
            case {"apiKeySecurityScheme": dict(asked)} if self._api_key:
                return True, _key_auth(self._api_key, asked)
            case {"httpAuthSecurityScheme": {"scheme": str(name)}} if name.lower() == "basic":
                return self._basic is not None, self._basic
            case {"httpAuthSecurityScheme": {"scheme": str(name)}} if name.lower() != "bearer":
                return False, None
            case {"oauth2SecurityScheme": {"flows": {"clientCredentials": _}}} if self._client is not None:
                return True, self._client
            case {"httpAuthSecurityScheme": _} | {"oauth2SecurityScheme": _} | {"openIdConnectSecurityScheme": _}:
                auth = self._token or self._client
                return auth is not None, auth
        return False, None

    def renew(self) -> bool:
        return self._client is not None and self._client.renew()

    def __repr__(self) -> str:
        given = {"token": self._token, "api_key": self._api_key, "basic": self._basic, "client": self._client}
        return f"CardAuth({', '.join(f'{name}=…' for name, value in given.items() if value)})"


class _Cookie:
    """An API key in a cookie."""

    def __init__(self, name: str, key: str) -> None:
        self._header = f"{name}={key}"

    async def headers(self, context: AuthContext) -> Mapping[str, str]:
        return {"Cookie": self._header}

    def renew(self) -> bool:
        return False


def _key_auth(key: str, asked: Mapping[str, Any]) -> Auth:
    """Return the key in the header or cookie of an API key scheme."""
    name = str(asked.get("name") or "")
    location = str(asked.get("location", "header"))
    # The card chooses the name. It must not be able to add a second header.
    if not _TOKEN_NAME.fullmatch(name):
        shown = clean_line(name, MAX_TEXT)
        raise A2AError(f"The agent wants its API key as {shown!r}, which is not a valid header or cookie name")
    match location:
        case "header" if not may_hold_key(name):
            raise A2AError(f"The agent wants its API key in the header {name!r}, which has another meaning")
        case "header":
            return ApiKeyAuth(key, header=name)
        case "cookie":
            return _Cookie(name, key)
    # A2A 1.0 §4.5.2 also has `query`. A key in an address ends up in logs and in error texts, so it is not sent.
    shown = clean_line(location, MAX_TEXT)
    raise A2AError(f"The agent expects the API key in the {shown}, which this client does not support")


def may_hold_key(header: str) -> bool:
    """Return whether a card may name this header for an API key.

    Example:
        >>> may_hold_key("X-API-Key"), may_hold_key("Cookie"), may_hold_key("Host"), may_hold_key("Sec-Fetch-Site")
        (True, False, False, False)
    """
    name = header.lower()
    if name in _RESERVED_HEADERS or name.startswith(_RESERVED_PREFIXES):
        return False
    return _TOKEN_NAME.fullmatch(name) is not None


async def _headers_of(auths: Iterable[Auth | None], context: AuthContext) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for auth in auths:
        if auth is not None:
            found.update(await auth.headers(context))
    return found


def _alternatives(card: AgentCard) -> list[list[str]]:
    """Return the security requirements of a card, each a list of schemes, those that require nothing at the end."""
    alternatives = [list(requirement.get("schemes", {})) for requirement in card.security_requirements]
    if not alternatives:
        alternatives = [[name] for name in card.security_schemes or {}]
    return sorted(alternatives, key=lambda names: not names)


def name_schemes(card: AgentCard) -> str:
    """Return a sentence that names the credentials that a card asks for, or an empty string if it names none.

    Example:
        >>> scheme = {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}
        >>> name_schemes(AgentCard(name="a", supported_interfaces=(), security_schemes={"key": scheme}))
        "The agent card asks for an API key in the header 'X-Key' (scheme 'key')"
    """
    schemes = card.security_schemes or {}
    offers: list[str] = []
    for names in _alternatives(card):
        parts = [f"{_describe(schemes.get(name, {}))} (scheme {name!r})" for name in names]
        if parts:
            offers.append(" and ".join(parts))
    if not offers:
        return ""
    return clean_line(f"The agent card asks for {', or '.join(offers)}", MAX_TEXT)


def _describe(scheme: Mapping[str, Any]) -> str:
    match scheme:
        case {"apiKeySecurityScheme": dict(asked)}:
            return f"an API key in the {asked.get('location', 'header')} {asked.get('name')!r}"
        case {"httpAuthSecurityScheme": {"scheme": str(name)}} if name.lower() == "basic":
            return "a name and a password (HTTP Basic)"
        case {"httpAuthSecurityScheme": {"scheme": str(name)}} if name.lower() != "bearer":
            return f"HTTP credentials of the type {name}"
        case {"httpAuthSecurityScheme": _}:
            return "a bearer token"
        case {"oauth2SecurityScheme": {"flows": {"clientCredentials": _}}}:
            return "an OAuth 2.0 token, or the id and secret of a client"
        case {"oauth2SecurityScheme": _}:
            return "an OAuth 2.0 token"
        case {"openIdConnectSecurityScheme": _}:
            return "an OpenID Connect token"
        case {"mtlsSecurityScheme": _}:
            return "a client certificate"
    return "credentials of an unknown type"
