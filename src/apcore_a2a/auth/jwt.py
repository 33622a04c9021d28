"""Bearer tokens that are JWTs.

Rule: the algorithm is ours to choose, never the token's; a token that does not expire is refused; nothing of a token
is ever logged or answered.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey
from msgspec import Struct

from apcore_a2a.agent import Caller
from apcore_a2a.auth.authenticator import BEARER, outside_type

logger = logging.getLogger(__name__)

MAX_TOKEN: Final = 16 * 1024  # characters; more is not worth a signature check
LEEWAY: Final = 30  # seconds two clocks may differ
_PEM: Final = "-----BEGIN "


class ClaimMapping(Struct, frozen=True, kw_only=True):
    """Which claims of a token say who the caller is.

    Example:
        >>> from apcore_a2a import ClaimMapping
        >>> ClaimMapping(roles="groups").roles
        'groups'
    """

    id: str = "sub"
    type: str = "type"
    roles: str = "roles"
    attributes: Sequence[str] | None = None
    """The claims kept as attributes; all but the registered ones when None."""


_DEFAULT: Final = ClaimMapping()
_REGISTERED: Final = frozenset({"iss", "sub", "aud", "exp", "nbf", "iat", "jti"})


class TokenChecks(TypedDict, total=False):
    """What a token must say, besides who its bearer is.

    Example:
        >>> from apcore_a2a import JWTAuthenticator
        >>> checks: TokenChecks = {"issuer": "https://idp.example", "audience": "agents", "leeway": 0}
        >>> auth = JWTAuthenticator("a secret of at least thirty-two characters", **checks)
    """

    audience: str | None
    issuer: str | None
    require_claims: Sequence[str] | None
    leeway: int
    """Seconds that the issuer's clock may differ from ours; 30 unless said, and 0 takes a token by its word."""


class JWTAuthenticator:
    """Accepts `Authorization: Bearer <JWT>` signed with `key`.

    `key` is a shared secret, a PEM public key, or a JWK or JWK set as a mapping.

    Args:
        algorithms: Signature algorithms to accept; those that fit the key, if none are named.
        claim_mapping: Which claims say who the caller is.
        **checks: See `TokenChecks`: `audience`, `issuer`, `require_claims`, `leeway`.

    Raises:
        ValueError: the key or the algorithms cannot be used, or `leeway` is negative.

    Example:
        >>> from apcore_a2a import JWTAuthenticator
        >>> auth = JWTAuthenticator("a secret of at least thirty-two characters", issuer="https://idp.example")
        >>> auth.authenticate({}) is None
        True
    """

    def __init__(
        self,
        key: str | bytes | Mapping[str, Any],
        *,
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
        self._key = _import_key(key)
        # Fixed now, by us: a token that could choose its own would say "none", or HMAC with our public key.
        self._algorithms = list(algorithms or _algorithms(self._key))
        if not self._algorithms or "none" in self._algorithms:
            raise ValueError("algorithms must name at least one signature algorithm, and never 'none'")
        self._mapping = claim_mapping or _DEFAULT
        self._required = _required_claims(self._mapping.id, checks)

    def authenticate(self, headers: Mapping[str, str]) -> Caller | None:
        """The caller that a valid token names; None without one.

        Example:
            >>> from apcore_a2a import JWTAuthenticator
            >>> auth = JWTAuthenticator("a secret of at least thirty-two characters", leeway=0)
            >>> auth.authenticate({"authorization": "Bearer not-a-token"}) is None
            True
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN:
            return None
        try:
            claims = jwt.decode(token.strip(), self._key, algorithms=self._algorithms).claims
            # A registry for each token: it holds the time at which it was made.
            jwt.JWTClaimsRegistry(now=int(time.time()), leeway=self._leeway, **self._required).validate(claims)
            # Claims become a caller, who is stored and written: half a character ("\\ud800") or 5,000 lists in each
            # other would fail somewhere else, where nobody expects it.
            msgspec.json.encode(claims)
        # Not only JoseError: on tokens that are well signed but oddly shaped, the library stumbles in its own ways.
        except (JoseError, ValueError, TypeError, AttributeError, RecursionError) as error:
            # The name of the error alone: its text may repeat what the token says.
            logger.info("token refused", extra={"reason": type(error).__name__})
            return None
        return self._to_caller(claims)

    def _to_caller(self, claims: dict[str, Any]) -> Caller | None:
        names = self._mapping
        subject = claims.get(names.id)
        # Essential is not enough: 7, [] or "" would be there, and str() of them would be somebody's id.
        if not isinstance(subject, str) or not subject:
            return None
        return Caller(
            id=subject,
            type=outside_type(claims.get(names.type)),
            issuer=str(claims.get("iss") or ""),
            roles=_to_roles(claims.get(names.roles)),
            attributes=_pick_attributes(claims, names.attributes),
        )

    def security_schemes(self) -> list[dict[str, Any]]:
        """What the agent card says of these tokens, in OpenAPI's words.

        Example:
            >>> from apcore_a2a import JWTAuthenticator
            >>> JWTAuthenticator("a secret of at least thirty-two characters").security_schemes()
            [{'type': 'http', 'scheme': 'bearer', 'bearerFormat': 'JWT'}]
        """
        return [{**BEARER, "bearerFormat": "JWT"}]


def _required_claims(subject: str, checks: TokenChecks) -> dict[str, Any]:
    """In joserfc's words: an essential claim must be there, one with a value must have that value."""
    required: dict[str, Any] = {subject: {"essential": True}}
    for name in checks.get("require_claims") or ():
        required[name] = {"essential": True}
    # After the caller's own names, so that a name of theirs cannot make these weaker.
    required["exp"] = {"essential": True}
    issuer = checks.get("issuer")
    if issuer is not None:
        required["iss"] = {"essential": True, "value": issuer}
    audience = checks.get("audience")
    if audience is not None:
        required["aud"] = {"essential": True, "value": audience}
    return required


def _to_roles(claim: object) -> tuple[str, ...]:
    if not claim:
        return ()
    if isinstance(claim, list | tuple):
        return tuple(str(role) for role in claim)
    return (str(claim),)  # some issuers write a single role without the list


def _pick_attributes(claims: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """The claims of these names that the token has; all but the registered ones when None."""
    if names is None:
        names = list(claims.keys() - _REGISTERED)
    attributes: dict[str, Any] = {}
    for name in names:
        if name in claims:
            attributes[name] = claims[name]
    return attributes


Key = OctKey | RSAKey | ECKey | OKPKey | KeySet
_KINDS: Final[dict[str, type[OctKey | RSAKey | ECKey | OKPKey]]] = {
    "oct": OctKey,
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}


def _import_key(key: str | bytes | Mapping[str, Any]) -> Key:
    if isinstance(key, Mapping):
        if "keys" in key:
            return KeySet.import_key_set({"keys": list(key["keys"])})
        return _KINDS[key["kty"]].import_key(dict(key))
    text = key.decode() if isinstance(key, bytes) else key
    if not text.startswith(_PEM):
        return OctKey.import_key(text)
    # A PEM block says "PUBLIC KEY", not of which kind: they are tried one after the other.
    for kind in (RSAKey, ECKey, OKPKey):
        try:
            return kind.import_key(text)
        except (JoseError, ValueError, TypeError):
            continue
    raise ValueError("the PEM key is neither RSA, EC nor Ed25519")


def _algorithms(key: Key) -> Sequence[str]:
    """What a key of this kind signs with: an RSA public key is never taken for an HMAC secret."""
    match key:
        case OctKey():
            return ("HS256", "HS384", "HS512")
        case RSAKey():
            return ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
        case ECKey():
            return ("ES256", "ES384", "ES512")
        case OKPKey():
            return ("EdDSA", "Ed25519")
        case _:  # a set, maybe of several kinds: none of the shared-secret algorithms, whatever is in it
            return ("RS256", "PS256", "ES256", "EdDSA")
