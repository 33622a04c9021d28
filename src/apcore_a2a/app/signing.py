"""Signed cards: JWS over the canonical form of the card (A2A 1.0 §8.4), and the public keys that verify them.

Invariant: a private key is read and checked once, at the start, and never leaves this module.
"""

import hashlib
import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.app.card import SigningKeySource
from apcore_a2a.http.card import JWKS_PATH
from apcore_a2a.protocol.card import AgentCard, AgentCardSignature
from apcore_a2a.protocol.card_forms import payloads_03, payloads_1, unaddressed_payload
from apcore_a2a.protocol.model import encode

logger = logging.getLogger(__name__)

MAX_KEYS: Final = 4  # a rotation needs two
MIN_RSA_BITS: Final = 2048
MAX_REMEMBERED: Final = 1_000  # cached signatures: each caller may have an extended card of its own
_RSA_ALGORITHMS: Final[tuple[str, ...]] = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVE_ALGORITHMS: Final[dict[str, tuple[str, ...]]] = {
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA", "Ed25519"),
}
"""The algorithms for a key on each curve. The first is used unless the key names another."""
_HINT: Final = "give a private key: PEM, a JSON Web Key, or a set of those"


def _unaddressed(card: AgentCard) -> list[bytes]:
    return [unaddressed_payload(card)]


_PAYLOADS: Final[dict[str, tuple[Callable[[AgentCard], list[bytes]], ...]]] = {
    # The last signature tells a card whose addresses a gateway has changed from a forged one.
    "1.0": (payloads_1, _unaddressed),
    "0.3": (payloads_03,),
    "hybrid": (payloads_1, payloads_03, _unaddressed),  # a client of each version verifies its half
}


class SigningKey(Struct, frozen=True):
    """A private key with its algorithm and its key id."""

    key: ECKey | RSAKey | OKPKey
    algorithm: str
    kid: str

    def public(self) -> dict[str, Any]:
        """Return the public key as a JSON Web Key."""
        return {**self.key.as_dict(private=False), "kid": self.kid, "alg": self.algorithm, "use": "sig"}


class JWSCardSigner:
    """Signs cards with all its keys, so that clients can verify them with either key during a rotation."""

    def __init__(self, keys: list[SigningKey]) -> None:
        self._keys = keys
        self._signed: dict[bytes, AgentCardSignature] = {}

    @property
    def jwks(self) -> bytes:
        """The public keys, as a JSON Web Key Set."""
        return encode({"keys": [key.public() for key in self._keys]})

    def sign(self, card: AgentCard, form: str, base: str) -> AgentCard:
        """Return the card with its signatures as a card of that form (1.0, 0.3 or hybrid), served at `base`."""
        try:
            payloads = _payloads(card, form)
        except ValueError as error:  # it is served without signatures. A client that requires them rejects it
            logger.error("card not signed", extra={"reason": str(error)})
            return card
        jku = base.rstrip("/") + JWKS_PATH
        signatures: list[AgentCardSignature] = []
        for key in self._keys:
            signatures += [self._sign(payload, key, jku) for payload in payloads]
        return replace(card, signatures=(*card.signatures, *signatures))

    def check(self, card: AgentCard) -> None:
        """Check that the card can be signed.

        Raises:
            ValueError: the card has no canonical form.
        """
        try:
            _payloads(card, "hybrid")
        except ValueError as error:
            raise ValueError(f"card_signing_key: the card cannot be signed: {error}") from error

    def _sign(self, payload: bytes, key: SigningKey, jku: str) -> AgentCardSignature:
        # Cached, because an RSA signature takes a millisecond, and so that an unchanged card keeps its signature.
        name = hashlib.sha256(b"\n".join([key.kid.encode(), jku.encode(), payload])).digest()
        if name not in self._signed:
            if len(self._signed) >= MAX_REMEMBERED:
                self._signed.clear()
            self._signed[name] = _make_signature(payload, key, {"jku": jku})
        return self._signed[name]


def _make_signature(payload: bytes, key: SigningKey, more: dict[str, str]) -> AgentCardSignature:
    header = {"alg": key.algorithm, "typ": "JOSE", "kid": key.kid, **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # EdDSA has a newer name, which fewer verifiers support
        token = jws.serialize_compact(header, payload, key.key, algorithms=[key.algorithm])
    protected, _, signature = token.split(".")
    return AgentCardSignature(protected=protected, signature=signature)


def _payloads(card: AgentCard, form: str) -> list[bytes]:
    payloads: dict[bytes, None] = {}
    for payloads_of in _PAYLOADS[form]:
        payloads |= dict.fromkeys(payloads_of(card))
    return list(payloads)


# ---- keys ---------------------------------------------------------------------------------------------------------


def make_signer(source: SigningKeySource) -> JWSCardSigner:
    """Return a signer with the keys of a source.

    Raises:
        ValueError: a key cannot sign. The text says why.
    """
    material = source
    if callable(material):
        material = material()
    if isinstance(material, Path) or (isinstance(material, str) and _is_path(material)):
        material = _read_file(Path(material))
    if isinstance(material, str) and material.lstrip().startswith("{"):
        try:
            material = msgspec.json.decode(material, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ValueError(f"card_signing_key is not valid JSON; {_HINT}") from error
    if isinstance(material, str):
        return JWSCardSigner([_from_pem(material)])
    if not isinstance(material, Mapping):
        raise ValueError(f"card_signing_key is a {type(material).__name__}; {_HINT}")
    entries = material.get("keys", [material])
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_KEYS:
        raise ValueError(f"card_signing_key must hold between 1 and {MAX_KEYS} keys")
    return JWSCardSigner([_from_jwk(entry) for entry in entries])


def _is_path(text: str) -> bool:
    return "-----BEGIN" not in text and not text.lstrip().startswith("{")


def _read_file(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"card_signing_key: {path} cannot be read ({why})") from error


def _from_pem(text: str) -> SigningKey:
    if "ENCRYPTED" in text:
        raise ValueError("card_signing_key is encrypted; decrypt it, and make it readable by its owner only")
    for kind in (ECKey, RSAKey, OKPKey):
        try:
            key = kind.import_key(text)
        except (JoseError, ValueError, TypeError, AttributeError):  # another kind of key
            continue
        return _checked(key, {})
    raise ValueError(f"card_signing_key holds no usable key; {_HINT}")


def _from_jwk(entry: object) -> SigningKey:
    if not isinstance(entry, dict):
        raise ValueError(f"card_signing_key holds values that are not keys; {_HINT}")
    try:
        key = JWKRegistry.import_key(entry)
    except (JoseError, ValueError, TypeError, KeyError) as error:  # not repeated, because its text may quote the key
        raise ValueError(f"card_signing_key holds no usable key; {_HINT}") from error
    return _checked(key, entry)


def _checked(key: Any, entry: Mapping[str, Any]) -> SigningKey:  # Any: a key of any kind
    if not isinstance(key, ECKey | RSAKey | OKPKey):
        raise ValueError("card_signing_key is a shared secret: every verifier could sign with it")
    if not key.is_private:
        raise ValueError("card_signing_key is a public key; sign with the private one")
    if isinstance(key, RSAKey):
        if key.public_key.key_size < MIN_RSA_BITS:
            raise ValueError(f"card_signing_key is an RSA key of less than {MIN_RSA_BITS} bits")
        algorithms = _RSA_ALGORITHMS
    elif key.curve_name in _CURVE_ALGORITHMS:
        algorithms = _CURVE_ALGORITHMS[key.curve_name]
    else:
        known = ", ".join(_CURVE_ALGORITHMS)
        raise ValueError(f"card_signing_key is on the curve {key.curve_name}; use one of {known}")
    algorithm = str(entry.get("alg") or algorithms[0])
    if algorithm not in algorithms:
        raise ValueError(f"card_signing_key cannot sign with {algorithm[:20]!r}; it can with {', '.join(algorithms)}")
    return SigningKey(key, algorithm, str(entry.get("kid") or key.thumbprint()))
