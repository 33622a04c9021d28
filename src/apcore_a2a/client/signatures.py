"""Verifies agent card signatures: JWS over the card's canonical form (A2A 1.0 §8.4), with keys that the caller pinned.

Invariants: keys come only from the caller. `jku` and the unprotected header are not read. Only signed content is used.
"""

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.registry import HeaderParameter
from msgspec import Struct

from apcore_a2a.errors import A2ADiscoveryError, CardRewrittenError, InvalidParamsError, ParseError
from apcore_a2a.protocol.card import AgentCard, AgentCardSignature
from apcore_a2a.protocol.card_forms import canonicalize, forms_to_check, unaddressed_payload
from apcore_a2a.protocol.decoding import decode

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
MAX_PAYLOAD: Final = 4 * 1024 * 1024  # base64 bytes of the largest card that a client reads
MAX_SIGNATURES: Final = 10  # a card may list thousands, and each is verified against four forms


def _anything(value: object) -> None:
    """Accept any value of a header that is not read: a2a-sdk writes `"jku": null`."""


class _Registry(jws.JWSRegistry):
    """The limits for signatures of cards. The library's own limits are for tokens, and too small for a large card."""

    max_header_length = 8 * 1024
    max_payload_length = MAX_PAYLOAD


_REGISTRY: Final = _Registry(
    {"jku": HeaderParameter("not read", _anything)}, algorithms=ALGORITHMS, strict_check_header=False
)


class _Header(Struct, frozen=True):
    kid: str


_HEADER: Final = msgspec.json.Decoder(_Header)


class CardVerifier:
    """Verifies cards with a set of public keys.

    Args:
        keys: A JSON Web Key Set, each key with its `kid`. A key may have an expiry time (`exp`, seconds since 1970).
        required: Whether a card without any signature is rejected.
        allows_rewritten: Whether a card is accepted whose addresses were changed after it was signed.
    """

    def __init__(self, keys: Mapping[str, Any], *, required: bool, allows_rewritten: bool = False) -> None:
        self._required = required
        self._allows_rewritten = allows_rewritten
        self._keys: dict[str, tuple[Key, float]] = {}
        entries = keys.get("keys", [keys])
        if not isinstance(entries, list):
            raise ValueError("keys= must be a JSON Web Key Set: an object with a list of keys")
        for entry in entries:
            self._pin(entry)

    def _pin(self, entry: object) -> None:
        # A shared secret ("oct") proves nothing: each verifier of the card could sign as well.
        if not isinstance(entry, dict) or entry.get("kty") == "oct" or not entry.get("kid"):
            raise ValueError("A pinned key must be public and have a kid")
        try:
            key = JWKRegistry.import_key(dict(entry))
            expires = float(entry.get("exp", "inf"))
        except (JoseError, TypeError, ValueError) as error:
            raise ValueError(f"The pinned key {entry['kid']!r} cannot be used: {error}") from error
        self._keys[entry["kid"]] = (key, expires)

    def check(self, card: AgentCard, body: Mapping[str, Any], url: str) -> None:
        """Reject a card without a valid signature. `body` is the decoded card as it was received."""
        if not card.signatures:
            if not self._required:
                return
            raise A2ADiscoveryError(f"The agent card at {url} is not signed, and signatures are required", url=url)
        try:
            payloads = [canonicalize(form) for form in forms_to_check(card, body)]
        except ValueError as error:
            raise A2ADiscoveryError(f"The agent card at {url} has no canonical form: {error}", url=url) from error
        # One valid signature is enough (§8.4.3): a card has several during a key rotation.
        if self._has_signature(card, payloads):
            return
        if not self._has_signature(card, [unaddressed_payload(card)]):
            raise A2ADiscoveryError(f"No signature of the agent card at {url} is valid with the pinned keys", url=url)
        if not self._allows_rewritten:
            raise CardRewrittenError(
                f"The addresses in the agent card at {url} were changed after it was signed, as gateways do. "
                "The rest is as signed",
                url=url,
            )

    def _has_signature(self, card: AgentCard, payloads: list[bytes]) -> bool:
        return any(self._verify(signature, payloads) for signature in card.signatures[:MAX_SIGNATURES])

    def _verify(self, signature: AgentCardSignature, payloads: list[bytes]) -> bool:
        try:
            # Only the protected header is signed, `signature.header` is not.
            header = decode(_unbase64(signature.protected), _HEADER)
        except (ParseError, InvalidParamsError, ValueError):
            return False
        if header.kid not in self._keys:
            return False
        key, expires = self._keys[header.kid]
        if time.time() >= expires:  # §8.4.3: expired keys MUST NOT be used
            return False
        return any(_is_valid(signature, payload, key) for payload in payloads)


def _is_valid(signature: AgentCardSignature, payload: bytes, key: Key) -> bool:
    encoded = urlsafe_b64encode(payload).rstrip(b"=").decode()
    token = f"{signature.protected}.{encoded}.{signature.signature}"
    try:
        jws.deserialize_compact(token, key, registry=_REGISTRY)
    except (JoseError, TypeError, ValueError):  # the library assumes valid types in the header
        return False
    return True


def _unbase64(text: str) -> bytes:
    # JWS omits the padding (RFC 7515 §2), but Python requires it.
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
