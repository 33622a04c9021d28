"""Who the client is to a remote agent. Rule: secrets live in private fields and appear in no repr, log or error."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from msgspec import Struct

from apcore_a2a.client.address import TrustedOrigins
from apcore_a2a.client.transport import HttpRequest, HttpResponse
from apcore_a2a.protocol.card import AgentCard

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
