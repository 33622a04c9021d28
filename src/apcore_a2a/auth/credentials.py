"""What security schemes mean for a request: where its credentials stand, and how to ask for them.

Rule: a scheme is in OpenAPI's words, as authenticators and cards have it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Scheme = Mapping[str, Any]
AUTHORIZATION = "authorization"


def credential_headers(schemes: Sequence[Scheme]) -> frozenset[str]:
    """The headers, in lower case, in which a request may show who it is from."""
    names = {AUTHORIZATION}
    for scheme in schemes:
        name = _header_of_key(scheme)
        if name:
            names.add(name)
    return frozenset(names)


def shows_credentials(schemes: Sequence[Scheme], headers: Mapping[str, str]) -> bool:
    """Whether a request shows credentials of one of these kinds, be they good or bad."""
    word = headers.get(AUTHORIZATION, "").partition(" ")[0].lower()
    for scheme in schemes:
        if _header_of_key(scheme) in headers:
            return True
        if word and word == _authorization_word(scheme).lower():
            return True
    return False


def challenge(schemes: Sequence[Scheme], headers: Mapping[str, str]) -> bytes:
    """The value of WWW-Authenticate: one challenge for each kind of credentials (RFC 9110 §11.6.1)."""
    challenges: list[str] = []
    for scheme in schemes:
        word = _authorization_word(scheme)
        name = _header_of_key(scheme)
        if name:
            text = f'ApiKey header="{scheme["name"]}"'
        elif word == "Bearer" and AUTHORIZATION in headers:
            # RFC 6750 §3.1: no error code for a request that showed nothing; and never why a token is invalid.
            text = 'Bearer error="invalid_token"'
        elif word == "Basic":
            text = 'Basic realm="agent"'  # RFC 7617 §2: it must have one, or browsers do not ask
        else:
            text = word
        if text and text not in challenges:
            challenges.append(text)
    return (", ".join(challenges) or "Bearer").encode("latin-1", "replace")


def _authorization_word(scheme: Scheme) -> str:
    """The word that stands before such credentials in Authorization; empty if they do not stand there."""
    match scheme.get("type"):
        case "http":
            return str(scheme.get("scheme", "")).capitalize()
        case "oauth2" | "openIdConnect":
            return "Bearer"
    return ""


def _header_of_key(scheme: Scheme) -> str:
    """The header of an API key, in lower case; empty if the scheme is another, or the key stands elsewhere."""
    if scheme.get("type") == "apiKey" and scheme.get("in") == "header":
        return str(scheme.get("name", "")).lower()
    return ""
