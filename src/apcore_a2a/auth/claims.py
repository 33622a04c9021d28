"""From the claims of a token to a caller.

Rule: a claim is what its type says, or the token is refused. Nobody is called `['ada']` or has the role `{'a': 1}`
because that is how Python writes a list or an object.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from apcore_a2a.agent import Caller
from apcore_a2a.auth.authenticator import SYSTEM, outside_type, to_names


class ClaimMapping(Struct, frozen=True, kw_only=True):
    """Which claims of a token say who the caller is.

    A name is that of a claim; one with dots is a path, where no claim has the whole name: Keycloak keeps the roles of a
    realm under `realm_access.roles`. One name may stand where several may.

    Example:
        >>> from apcore_a2a import ClaimMapping
        >>> ClaimMapping(roles="groups").roles
        'groups'
    """

    id: str = "sub"
    type: str = "type"
    roles: str = "roles"
    scopes: Sequence[str] = ("scope", "scp")
    """The claims that hold OAuth 2.0 scopes, as a list or as words in one text; all of them count."""
    attributes: Sequence[str] | None = None
    """The claims kept as attributes; all but the registered ones when None."""


class TokenRefused(ValueError):
    """A token is not valid; the text says why in words of ours, so that it may be logged."""


_REGISTERED: Final = frozenset({"iss", "sub", "aud", "exp", "nbf", "iat", "jti"})


def to_caller(claims: Mapping[str, Any], names: ClaimMapping) -> Caller:
    """The caller that the claims of a checked token name.

    Raises:
        TokenRefused: a claim is not what it should be; the text names the claim, never its value.
    """
    kind = _find(claims, names.type)
    if kind == SYSTEM:  # apcore's ACL trusts it
        raise TokenRefused(f"{names.type} must not be {SYSTEM!r}")
    scopes: set[str] = set()
    for name in to_names(names.scopes):
        scopes.update(_to_words(name, _find(claims, name)))
    return Caller(
        id=_to_id(names.id, _find(claims, names.id)),
        type=outside_type(_to_text(names.type, kind)),
        issuer=_to_text("iss", claims.get("iss")),
        roles=_to_roles(names.roles, _find(claims, names.roles)),
        scopes=tuple(sorted(scopes)),
        attributes=_pick_attributes(claims, names.attributes),
    )


def _find(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by name, or by path; None if there is none."""
    # The longest name first: a claim may be called https://example.com/roles, and a client of Keycloak's has.dots.
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
        return str(claim)  # many databases number their users
    if isinstance(claim, str) and claim:
        return claim
    raise TokenRefused(f"{name} must be a text or a whole number")


def _to_text(name: str, claim: object) -> str:
    if claim is None:
        return ""
    if isinstance(claim, str):
        return claim
    raise TokenRefused(f"{name} must be a text")


def _to_roles(name: str, claim: object) -> tuple[str, ...]:
    if claim is None:
        return ()
    if not isinstance(claim, list):
        claim = [claim]  # some issuers write a single role without the list
    roles: list[str] = []
    for role in claim:
        if isinstance(role, bool) or not isinstance(role, str | int):
            raise TokenRefused(f"{name} must be texts or whole numbers")
        if role != "":
            roles.append(str(role))
    return tuple(roles)


def _to_words(name: str, claim: object) -> list[str]:
    """Scopes: RFC 6749 §3.3 has them in one text, with spaces between them; some issuers write a list."""
    if claim is None:
        return []
    if isinstance(claim, str):
        return claim.split()
    if isinstance(claim, list) and all(isinstance(word, str) for word in claim):
        return claim
    raise TokenRefused(f"{name} must be a text or a list of texts")


def _pick_attributes(claims: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """The claims of these names that the token has; all but the registered ones when None."""
    if names is None:
        names = list(claims.keys() - _REGISTERED)
    attributes: dict[str, Any] = {}
    for name in to_names(names):
        if name in claims:
            attributes[name] = claims[name]
    return attributes
