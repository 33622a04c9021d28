"""Authentication by JWT bearer tokens.

Invariant: a token can only select among the configured keys and algorithms, or the published keys of the configured
issuer. Keys and URLs of keys in its header are ignored. A token without an expiry is rejected. This module logs no part
of a token, and returns its claims only as a `Caller`.
"""

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack

import msgspec
from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, ClaimError, JoseError
from msgspec import Struct

from apcore_a2a.agent import Caller
from apcore_a2a.auth.authenticator import BEARER, SYSTEM, to_names, unreserved_type
from apcore_a2a.auth.keys import ALGORITHMS, IssuerKeys, VerificationKeys, import_keys
from apcore_a2a.errors import A2AError, OverloadedError
from apcore_a2a.log_throttle import LogThrottle
from apcore_a2a.protocol.decoding import check_and_decode, decode

logger = logging.getLogger(__name__)

# ---- claims ---------------------------------------------------------------------------------------------------------
# The conversion of the claims of a token to a `Caller`.
#
# Invariant: a claim that is read as id, type, issuer, role or scope makes the token invalid if it has an unexpected
# type. Of these claims, only integers are converted with `str`. A list would become an id such as "['ada']", and an
# object a role such as "{'a': 1}".


class ClaimMapping(Struct, frozen=True, kw_only=True):
    """The names of the claims that describe the caller.

    A name with dots is a path if no claim has the whole name: Keycloak keeps the roles of a realm under
    `realm_access.roles`. `scopes` and `attributes` take several names, or a single one as a string.

    Example:
        >>> from apcore_a2a import ClaimMapping
        >>> ClaimMapping(roles="groups").roles
        'groups'
    """

    id: str = "sub"
    type: str = "type"
    roles: str = "roles"
    scopes: Sequence[str] = ("scope", "scp")
    """The claims that hold OAuth 2.0 scopes, as a list or as words in one string. The caller has the scopes of all."""
    attributes: Sequence[str] | None = None
    """The claims that become attributes of the caller. None selects all except the registered ones."""


class TokenRefused(ValueError):
    """A token is not valid. The text says why without quoting the token, so that it can be logged."""


_REGISTERED: Final = frozenset({"iss", "sub", "aud", "exp", "nbf", "iat", "jti"})


def to_caller(claims: Mapping[str, Any], names: ClaimMapping) -> Caller:
    """Return the caller that the claims of a verified token describe.

    Raises:
        TokenRefused: a claim has the wrong type. The text names the claim, never its value.
    """
    kind = _find(claims, names.type)
    if kind == SYSTEM:  # apcore's ACL trusts it
        raise TokenRefused(f"{names.type} must not be {SYSTEM!r}")
    scopes: set[str] = set()
    for name in to_names(names.scopes):
        scopes.update(_to_words(name, _find(claims, name)))
    return Caller(
        id=_to_id(names.id, _find(claims, names.id)),
        type=unreserved_type(_to_text(names.type, kind)),
        issuer=_to_text("iss", claims.get("iss")),
        roles=_to_roles(names.roles, _find(claims, names.roles)),
        scopes=tuple(sorted(scopes)),
        attributes=_pick_attributes(claims, names.attributes),
    )


def _find(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by name or by path, or None."""
    # Names may contain dots, so the longest name is tried first. A claim can be called `https://example.com/roles`, and
    # a Keycloak client in `resource_access` can be called `has.dots`.
    if name in claims:
        return claims[name]
    outer = name
    while "." in outer:
        outer = outer.rpartition(".")[0]
        inner = claims.get(outer)
        if isinstance(inner, Mapping):
            return _find(inner, name[len(outer) + 1 :])
    return None


def _to_id(name: str, claim: object) -> str:
    if isinstance(claim, int) and not isinstance(claim, bool):
        return str(claim)  # many databases have integers as user ids
    if isinstance(claim, str) and claim:
        return claim
    raise TokenRefused(f"{name} must be a string or an integer")


def _to_text(name: str, claim: object) -> str:
    if claim is None:
        return ""
    if isinstance(claim, str):
        return claim
    raise TokenRefused(f"{name} must be a string")


def _to_roles(name: str, claim: object) -> tuple[str, ...]:
    if claim is None:
        return ()
    if not isinstance(claim, list):
        claim = [claim]  # some issuers write a single role without a list
    roles: list[str] = []
    for role in claim:
        if isinstance(role, bool) or not isinstance(role, str | int):
            raise TokenRefused(f"{name} must be strings or integers")
        if role != "":
            roles.append(str(role))
    return tuple(roles)


def _to_words(name: str, claim: object) -> list[str]:
    """Return the scopes of a claim: one string with spaces (RFC 6749 §3.3), or a list, as some issuers write."""
    if claim is None:
        return []
    if isinstance(claim, str):
        return claim.split()
    if isinstance(claim, list) and all(isinstance(word, str) for word in claim):
        return claim
    raise TokenRefused(f"{name} must be a string or a list of strings")


def _pick_attributes(claims: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Return the claims with these names. None selects all except the registered ones."""
    if names is None:
        names = list(claims.keys() - _REGISTERED)
    attributes: dict[str, Any] = {}
    for name in to_names(names):
        if name in claims:
            attributes[name] = claims[name]
    return attributes


# ---- jwt ------------------------------------------------------------------------------------------------------------

MAX_TOKEN: Final = 16 * 1024  # characters; longer tokens are rejected before the signature check
LEEWAY: Final = 30  # seconds of allowed clock skew
# RFC 8725 §3.11: a token that is signed for another purpose (logout, proof of possession) is not an access token.
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_DEFAULT: Final = ClaimMapping()
_CLAIMS: Final = msgspec.json.Decoder(dict[str, Any])
# Not only JoseError: the library raises other exceptions for correctly signed tokens with unexpected values.
_BAD_TOKEN: Final = (JoseError, A2AError, ValueError, TypeError, AttributeError, RecursionError)


class UnknownKey(TokenRefused):
    """A token names an unknown key or algorithm, or several keys match it."""


class TokenChecks(TypedDict, total=False):
    """The checks of the claims of a token besides those that describe the caller.

    Example:
        >>> from apcore_a2a import JWTAuthenticator
        >>> checks: TokenChecks = {"issuer": "https://idp.example", "audience": "agents", "leeway": 0}
        >>> auth = JWTAuthenticator("a secret of at least thirty-two characters", **checks)
    """

    audience: str | Sequence[str] | None
    """The accepted audiences. The token must name one of them."""
    issuer: str | None
    require_claims: Sequence[str] | None
    leeway: int
    """Allowed clock skew in seconds. The default is 30, and 0 allows none."""


class JWTAuthenticator:
    """Accepts `Authorization: Bearer <JWT>`, signed with your own key or with those of an identity provider.

    The keys are one of these: `key`, which is a shared secret, a PEM public key, or a JWK or JWK set as a mapping; the
    set that is published at `jwks_url`; or, without both, the set that the OpenID Connect discovery document of
    `issuer` names. Published keys are fetched when the agent starts and every ten minutes, and again when a token is
    signed with an unknown key, at most once a minute. If the provider fails, the keys fetched last stay valid.

    Args:
        key: Your own key.
        jwks_url: The URL of the issuer's keys: https, or http on this machine.
        algorithms: The accepted signature algorithms. Without it, all that match the keys.
        claim_mapping: The claims that describe the caller.
        **checks: See `TokenChecks`: `audience`, `issuer`, `require_claims`, `leeway`.

    Raises:
        ValueError: there is no key, or it cannot be used, or `leeway` is negative.

    Example:
        >>> from apcore_a2a import JWTAuthenticator
        >>> auth = JWTAuthenticator(issuer="https://idp.example/realms/main", audience="agents")
        >>> auth = JWTAuthenticator("a secret of at least thirty-two characters", issuer="https://idp.example")
        >>> auth.authenticate({}) is None
        True
    """

    def __init__(
        self,
        key: str | bytes | Mapping[str, Any] | None = None,
        *,
        jwks_url: str | None = None,
        algorithms: Sequence[str] | None = None,
        claim_mapping: ClaimMapping | None = None,
        **checks: Unpack[TokenChecks],
    ) -> None:
        unknown = sorted(checks.keys() - TokenChecks.__annotations__.keys())
        if unknown:
            raise TypeError(f"JWTAuthenticator has no parameter {', '.join(unknown)}")
        self._leeway = checks.get("leeway", LEEWAY)
        if self._leeway < 0:
            raise ValueError(f"leeway must be a number of seconds, 0 or more, not {self._leeway}")
        # Fixed here: a token that could choose its algorithm would choose "none", or HMAC with the public key.
        if algorithms is not None and (not algorithms or "none" in algorithms):
            raise ValueError("algorithms must name at least one signature algorithm, and never 'none'")
        self._algorithms = None if algorithms is None else to_names(algorithms)
        misspelt = sorted(set(self._algorithms or ()) - ALGORITHMS)
        if misspelt:
            raise ValueError(f"algorithms names {misspelt[0]!r}; there are {', '.join(sorted(ALGORITHMS))}")
        self._mapping = claim_mapping or _DEFAULT
        self._issuer = checks.get("issuer")
        self._required = _required_claims(self._mapping.id, checks)
        self._refusals = LogThrottle()
        self._keys: VerificationKeys | None = None
        self._issuer_keys: IssuerKeys | None = None
        self._discovers = False
        self._choose_keys(key, jwks_url, checks.get("issuer"))
        self._checked = TokenCache()

    def _choose_keys(
        self, key: str | bytes | Mapping[str, Any] | None, jwks_url: str | None, issuer: str | None
    ) -> None:
        if key is not None:
            if jwks_url:
                raise ValueError("give either key or jwks_url, not both")
            self._keys = self._restrict(import_keys(key))
            if not len(self._keys):
                raise ValueError("none of the algorithms fits the key")
        elif jwks_url or issuer:
            self._discovers = not jwks_url
            self._issuer_keys = IssuerKeys(jwks_url=jwks_url or "", issuer=issuer or "")
        else:
            raise ValueError("give a key, a jwks_url, or an issuer whose keys can be found by OpenID Connect discovery")

    def _restrict(self, keys: VerificationKeys) -> VerificationKeys:
        if self._algorithms is None:
            return keys
        return keys.restrict(self._algorithms)

    # ---- start and shutdown ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start fetching the issuer's keys. The application calls this when it starts.

        Example:
            >>> import asyncio
            >>> auth = JWTAuthenticator("a secret of at least thirty-two characters")
            >>> asyncio.run(auth.open())  # its key is given: nothing to do
        """
        if self._issuer_keys is None:
            return
        self._issuer_keys.open()
        if "aud" not in self._required:
            logger.warning("tokens of the issuer for any audience are accepted: set an audience")
        if "iss" not in self._required:
            logger.warning("tokens signed with these keys may name any issuer: set an issuer")

    async def close(self) -> None:
        """Stop fetching keys. The application calls this when it ends.

        Example:
            >>> import asyncio
            >>> auth = JWTAuthenticator(issuer="https://idp.example")
            >>> asyncio.run(auth.close())
        """
        if self._issuer_keys is not None:
            await self._issuer_keys.close()

    # ---- authentication of a request ---------------------------------------------------------------------------------

    def authenticate(self, headers: Mapping[str, str]) -> Any:  # Any: as Authenticator.authenticate
        """Return the caller of a valid token, or None.

        With the keys of an issuer, the result is an awaitable if the token is not cached, because its key may have to
        be fetched.

        Raises:
            OverloadedError: there are no keys yet. The awaitable raises it as well.

        Example:
            >>> from apcore_a2a import JWTAuthenticator
            >>> auth = JWTAuthenticator("a secret of at least thirty-two characters", leeway=0)
            >>> auth.authenticate({"authorization": "Bearer not-a-token"}) is None
            True
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN:
            return None
        digest = digest_of(token)
        if self._issuer_keys is None:
            assert self._keys is not None  # __init__ sets one of the two
            return self._find_cached(digest) or self._check(token, digest, self._keys)
        return self._find_cached(digest, self._issuer_keys.generation) or self._check_with_issuer(
            token, digest, self._issuer_keys
        )

    def _find_cached(self, digest: bytes, generation: int = 0) -> Caller | None:
        return self._checked.find(digest, time.time(), generation)

    async def _check_with_issuer(self, token: str, digest: bytes, issuer: IssuerKeys) -> Caller | None:
        kid, claimed_issuer = _peek(token)
        if self._issuer is not None and claimed_issuer != self._issuer:
            # The claim is not verified yet. But no key could make this token valid, so none is fetched for it.
            logger.info("token refused", extra={"reason": "it does not name the issuer"})
            return None
        if issuer.current is None or _lacks_key(token, kid, issuer.current):
            await issuer.fetch_again()
        if issuer.current is None:
            raise OverloadedError("Authentication is not available; try again later", retry_after=5)
        self._find_cached(digest, issuer.generation)  # clears the cache if the keys have changed
        return self._check(token, digest, self._restrict(issuer.current))

    def _check(self, token: str, digest: bytes, keys: VerificationKeys) -> Caller | None:
        """Return the caller of a token and cache it. Return None, and log the reason, if the token is not valid."""
        now = time.time()
        try:
            claims = _verify(token, keys)
            self._check_claims(claims, int(now))
            caller = to_caller(claims, self._mapping)
        except _BAD_TOKEN as error:
            reason = _reason(error)
            if self._refusals.is_due(reason):
                logger.info("token refused", extra={"reason": reason})
            return None
        until = claims["exp"] + self._leeway  # `validate` has checked that it is a number
        self._checked.add(digest, caller, until=until, now=now, size=len(token))
        return caller

    def _check_claims(self, claims: dict[str, Any], now: int) -> None:
        subject = claims.get("sub")
        if isinstance(subject, int) and not isinstance(subject, bool):
            claims = {**claims, "sub": str(subject)}  # the library requires a string; `to_caller` accepts an integer
        # A registry for each token, because it holds the time of its creation.
        jwt.JWTClaimsRegistry(now=now, leeway=self._leeway, **self._required).validate(claims)

    # ---- the agent card ----------------------------------------------------------------------------------------------

    def security_schemes(self) -> list[dict[str, Any]]:
        """Return the security schemes of the agent card, as OpenAPI writes them.

        Example:
            >>> from apcore_a2a import JWTAuthenticator
            >>> JWTAuthenticator("a secret of at least thirty-two characters").security_schemes()
            [{'type': 'http', 'scheme': 'bearer', 'bearerFormat': 'JWT'}]
        """
        schemes: list[dict[str, Any]] = [{**BEARER, "bearerFormat": "JWT"}]
        if self._discovers and self._issuer_keys is not None:
            schemes.append({"type": "openIdConnect", "openIdConnectUrl": self._issuer_keys.discovery_url})
        return schemes


def _verify(token: str, keys: VerificationKeys) -> dict[str, Any]:
    """Return the claims of a token that one of the keys has signed.

    Raises:
        TokenRefused, JoseError: no key has signed it, or it is not an access token.
        A2AError: its claims are not JSON that is accepted from clients.
    """
    header = jws.extract_compact(token.encode()).headers()
    key = keys.find(header.get("kid"), header.get("alg"))
    if key is None:
        raise UnknownKey("no key of that name and algorithm")
    if "crit" in header:  # RFC 7515 §4.1.11: a critical header that is not supported makes the token invalid
        raise TokenRefused("it has critical headers, and none are supported")
    if str(header.get("typ", "JWT")).lower() not in _TYPES:
        raise TokenRefused("its type is not that of an access token")
    # RFC 7515 §4: other header parameters are ignored, also keys and URLs of keys.
    registry = jws.JWSRegistry(algorithms=[*key.algorithms], strict_check_header=False)
    payload = jws.deserialize_compact(token, key.key, registry=registry).payload
    # Decoded as strictly as a request, because claims become a caller, which is stored and logged. A lone surrogate,
    # NaN or 5,000 nested lists would raise later, in code that does not expect it.
    return check_and_decode(payload, _CLAIMS)


def _peek(token: str) -> tuple[object, object]:
    """Return the key id and the issuer in a token that is not verified yet, each None if missing."""
    try:
        found = jws.extract_compact(token.encode())
        return found.headers().get("kid"), decode(found.payload, _CLAIMS).get("iss")
    except _BAD_TOKEN:
        return None, None


def _lacks_key(token: str, kid: object, keys: VerificationKeys) -> bool:
    """Return whether a token is signed with a key that is not among these, as after a rotation."""
    if kid is not None:
        return not keys.has(kid)
    try:  # it names no key: only its signature can tell
        _verify(token, keys)
    except (UnknownKey, BadSignatureError):
        return True
    except _BAD_TOKEN:  # no other key would make the token valid
        return False
    return False


def _reason(error: Exception) -> str:
    """Return why a token was rejected, for the log: names of errors and claims, and no content of the token."""
    if isinstance(error, TokenRefused):
        return str(error)
    if isinstance(error, ClaimError):
        return f"{type(error).__name__}: {error.claim}"
    return type(error).__name__


def _required_claims(subject: str, checks: TokenChecks) -> dict[str, Any]:
    """Return the required claims for joserfc: an essential claim must exist, and a value must be equal."""
    required: dict[str, Any] = {}
    if "." not in subject:  # the library knows no paths. `to_caller` rejects a token without the claim
        required[subject] = {"essential": True}
    for name in to_names(checks.get("require_claims") or ()):
        required[name] = {"essential": True}
    # After `require_claims`, so that a name there cannot weaken these.
    required["exp"] = {"essential": True}
    issuer = checks.get("issuer")
    if issuer is not None:
        required["iss"] = {"essential": True, "value": issuer}
    audience = checks.get("audience")
    if isinstance(audience, str):
        required["aud"] = {"essential": True, "value": audience}
    elif audience is not None:
        if not audience:
            raise ValueError("audience is empty; omit it to accept tokens for any audience")
        required["aud"] = {"essential": True, "values": list(audience)}
    return required


# ---- token cache ----------------------------------------------------------------------------------------------------
# Verified tokens are cached, because most callers send the same token many times.
#
# Invariant: a token is cached by its digest, for at most a minute and never beyond its expiry.

MAX_SECONDS: Final = 60.0
MAX_CHARACTERS: Final = (
    4 * 1024 * 1024
)  # of all cached tokens together. A `Caller` takes about as much memory as its token


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class _CachedToken(Struct, frozen=True):
    caller: Caller
    until: float
    size: int


class TokenCache:
    """The callers of verified tokens, by the digest of the token. If there are too many, the oldest are evicted."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._checked: dict[bytes, _CachedToken] = {}  # oldest first
        self._characters = 0
        self._max_characters = max_characters
        self._generation = 0

    def find(self, digest: bytes, now: float, generation: int) -> Caller | None:
        """Return the caller if the token is cached and was verified with the keys of this generation."""
        if generation != self._generation:  # a key may have been removed, which invalidates its tokens
            self._checked.clear()
            self._characters = 0
            self._generation = generation
            return None
        checked = self._checked.get(digest)
        if checked is None:
            return None
        if checked.until <= now:
            self._forget(digest)
            return None
        return checked.caller

    def add(self, digest: bytes, caller: Caller, *, until: float, now: float, size: int) -> None:
        """Cache the caller of a token. `size` is that of the token."""
        if size > self._max_characters:
            return
        if digest in self._checked:
            self._forget(digest)
        self._checked[digest] = _CachedToken(caller, min(until, now + MAX_SECONDS), size)
        self._characters += size
        while self._characters > self._max_characters:
            self._forget(next(iter(self._checked)))

    def _forget(self, digest: bytes) -> None:
        self._characters -= self._checked.pop(digest).size
