"""Signatures of agent cards: JWS over the card's canonical form (A2A 1.0 §8.4), checked with keys the caller pinned.

Rule: keys come from the caller alone; `jku` and the unprotected header are never read. What was signed is all we use.
"""

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.client.jcs import canonicalize
from apcore_a2a.errors import A2ADiscoveryError
from apcore_a2a.protocol.card import AgentCard, AgentCardSignature
from apcore_a2a.protocol.model import encode

ALGORITHMS: Final = [
    "ES256",
    "ES384",
    "ES512",
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "Ed25519",
    "EdDSA",
]
MAX_SIGNATURES: Final = 10
# Fields of security schemes and requirements that are neither REQUIRED nor `optional` in the protocol's own definition.
_IMPLICIT: Final = frozenset({"description", "bearerFormat", "oauth2MetadataUrl", "refreshUrl", "pkceRequired", "list"})
_FREE_FORM: Final = ("securitySchemes", "securityRequirements")


class _Header(Struct, frozen=True):
    kid: str


_HEADER: Final = msgspec.json.Decoder(_Header)


class CardVerifier:
    """Checks cards against a set of public keys.

    Args:
        keys: A JSON Web Key Set, each key with its `kid`. A key may say when it expires (`exp`, seconds since 1970).
        required: Whether a card without any signature is refused.
    """

    def __init__(self, keys: Mapping[str, Any], *, required: bool) -> None:
        self._required = required
        self._keys: dict[str, tuple[Key, float]] = {}
        for entry in keys.get("keys", [keys]):
            if entry.get("kty") == "oct" or not entry.get("kid"):
                raise ValueError("A pinned key must be public and have a kid")
            self._keys[entry["kid"]] = (JWKRegistry.import_key(dict(entry)), float(entry.get("exp", "inf")))

    def check(self, card: AgentCard, body: Mapping[str, Any], url: str) -> None:
        """Refuse a card that is not signed as it should be. `body` is the card as it came, decoded."""
        if not card.signatures:
            if not self._required:
                return
            raise A2ADiscoveryError(f"The agent card at {url} is not signed, and signatures are required", url=url)
        try:
            payloads = [canonicalize(form) for form in _signed_forms(card, body)]
        except ValueError as error:
            raise A2ADiscoveryError(f"The agent card at {url} has no canonical form: {error}", url=url) from error
        if not any(self._holds(signature, payloads) for signature in card.signatures[:MAX_SIGNATURES]):
            raise A2ADiscoveryError(f"No signature of the agent card at {url} holds with the pinned keys", url=url)

    def _holds(self, signature: AgentCardSignature, payloads: list[bytes]) -> bool:
        try:
            header = _HEADER.decode(_unbase64(signature.protected))
        except (msgspec.MsgspecError, ValueError):
            return False
        key, expires = self._keys.get(header.kid, (None, 0.0))
        if key is None or time.time() >= expires:
            return False
        return any(_is_valid(signature, payload, key) for payload in payloads)


def _is_valid(signature: AgentCardSignature, payload: bytes, key: Key) -> bool:
    token = f"{signature.protected}.{urlsafe_b64encode(payload).rstrip(b'=').decode()}.{signature.signature}"
    try:
        jws.deserialize_compact(token, key, algorithms=ALGORITHMS)
    except (JoseError, ValueError):
        return False
    return True


def _signed_forms(card: AgentCard, body: Mapping[str, Any]) -> Iterator[object]:
    """The forms that signers sign: what §8.4.1 asks for, and what is found in the wild.

    Each determines the card we use, so a signature over any of them is a signature over that card.
    """
    # The model's own JSON follows §8.4.1: REQUIRED fields stay, optional ones stay if they were set, defaults go.
    # Security is free-form in the model, so there it is done by hand.
    standard = msgspec.json.decode(encode(replace(card, signatures=())))
    for holder in (standard, *standard["skills"]):
        holder.update({name: _without_defaults(holder[name]) for name in _FREE_FORM if name in holder})
    received = {name: value for name, value in body.items() if name != "signatures"}
    yield standard
    yield _without_empty(standard)  # a2a-sdk leaves out empty REQUIRED fields as well
    yield received  # a card of 0.3, or of a version newer than this one
    yield _without_empty(received)


def _without_defaults(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_defaults(item) for name, item in value.items() if item or name not in _IMPLICIT}


def _without_empty(value: Any) -> Any:
    if isinstance(value, list):
        kept = [cleaned for item in value if (cleaned := _without_empty(item)) is not None]
        return kept or None
    if isinstance(value, dict):
        members = {name: cleaned for name, item in value.items() if (cleaned := _without_empty(item)) is not None}
        return members or None
    return None if value == "" else value


def _unbase64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
