"""OAuth 2.0 client credentials (RFC 6749 §4.4), with the token endpoint of the agent's card.

Rule: a card that names a token endpoint elsewhere is asking for our secret. It gets it only where the caller agreed.
"""

import asyncio
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote_plus, urlencode

import msgspec
from msgspec import Struct

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.auth import AuthContext, check_header
from apcore_a2a.client.failures import MAX_TEXT
from apcore_a2a.client.transport import HttpRequest, HttpResponse
from apcore_a2a.errors import UnauthenticatedError
from apcore_a2a.protocol.card import AgentCard

EARLY: Final = 30.0  # seconds before its end that a token counts as old: requests take time, and clocks differ
DEFAULT_LIFE: Final = 300.0


class _Source(NamedTuple):
    """Where a token comes from and what it is for: the token of one agent is never shown to another."""

    url: str
    scopes: tuple[str, ...] = ()


class _Cached(NamedTuple):
    header: str
    until: float


class _Token(Struct, frozen=True):
    access_token: str
    token_type: str = "Bearer"
    expires_in: float = DEFAULT_LIFE

    @property
    def header(self) -> str:
        kind = "Bearer" if self.token_type.lower() == "bearer" else self.token_type
        return f"{kind} {self.access_token}"


_TOKEN: Final = msgspec.json.Decoder(_Token)


class OAuth2ClientCredentials:
    """Fetches tokens with a client id and secret, and keeps each until shortly before it expires.

    Args:
        token_url: The token endpoint. Left out, it is the one of the card's `clientCredentials` flow, which must then
            be on the agent's own origin or on one of `allow_origins`.
        scopes: Left out, those that the card asks for.

    Example:
        >>> OAuth2ClientCredentials("my-app", "secret")
        OAuth2ClientCredentials('my-app', …)
    """

    def __init__(
        self, client_id: str, client_secret: str, *, token_url: str = "", scopes: Iterable[str] | None = None
    ) -> None:
        self._id, self._secret = client_id, client_secret
        self._url, self._scopes = token_url, None if scopes is None else tuple(scopes)
        self._tokens: dict[_Source, _Cached] = {}
        self._lock = asyncio.Lock()

    async def headers(self, context: AuthContext) -> Mapping[str, str]:
        if context.card is None and (not self._url or self._scopes is None):
            return {}  # the card says where tokens come from, or for what, and it is still to be fetched
        source = self._source(context)
        async with self._lock:  # one request for a token, however many calls wait for it
            cached = self._tokens.get(source)
            if cached is None or time.monotonic() >= cached.until:
                cached = self._tokens[source] = await self._fetch(source, context)
            return {"Authorization": cached.header}

    def renew(self) -> bool:
        self._tokens.clear()
        return True

    def _source(self, context: AuthContext) -> _Source:
        flow = _find_flow(context.card)
        if not self._url and flow is None:
            raise UnauthenticatedError("The agent card names no OAuth 2.0 client credentials flow; pass token_url=")
        url = self._url or _vet(flow.url if flow else "", context)
        return _Source(url, (flow.scopes if flow else ()) if self._scopes is None else self._scopes)

    async def _fetch(self, source: _Source, context: AuthContext) -> _Cached:
        url, scopes = source
        pair = f"{quote_plus(self._id)}:{quote_plus(self._secret)}".encode()
        form = {"grant_type": "client_credentials"} | ({"scope": " ".join(scopes)} if scopes else {})
        headers = {
            "Authorization": f"Basic {b64encode(pair).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        token = _read_token(await context.send(HttpRequest("POST", url, headers, urlencode(form).encode())), url)
        return _Cached(token.header, time.monotonic() + max(1.0, token.expires_in - EARLY))

    def __repr__(self) -> str:
        return f"OAuth2ClientCredentials({self._id!r}, …)"


def _read_token(response: HttpResponse, url: str) -> _Token:
    if response.status != 200:
        raise UnauthenticatedError(f"The token endpoint {url} refused the client credentials: HTTP {response.status}")
    try:
        token = _TOKEN.decode(response.body)
        check_header(token.header)
        return token
    except (msgspec.MsgspecError, ValueError) as error:
        raise UnauthenticatedError(f"The token endpoint {url} answered with something that is no token") from error


def _find_flow(card: AgentCard | None) -> _Source | None:
    """The token endpoint of the card's client credentials flow, and the scopes that the card requires for it."""
    if card is None:
        return None
    for name, scheme in (card.security_schemes or {}).items():
        match scheme:
            case {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": str(url)}}}}:
                wanted = (entry.get("schemes", {}).get(name, {}).get("list") for entry in card.security_requirements)
                return _Source(url, tuple(next(filter(None, wanted), ())))
    return None


def _vet(url: str, context: AuthContext) -> str:
    if url not in context.trusted:
        raise UnauthenticatedError(
            f"The agent card names a token endpoint elsewhere, {clean_line(url, MAX_TEXT)}; "
            "pass token_url=, or add its origin to allow_origins="
        )
    return url
