"""The keys that signatures are checked with, and which algorithms each of them is for.

Rule: a key is for the algorithms of its own kind and of nothing else; a token names a key and an algorithm, and is
taken at its word only where the two fit. What cannot be trusted to sign (a short RSA key, a secret that was published)
is no key.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from msgspec import Struct

logger = logging.getLogger(__name__)

MIN_SECRET: Final = 32  # bytes; RFC 7518 §3.2 asks for as many as the hash of HS256 has
MIN_DIFFERENT: Final = 8  # of the bytes of a secret; 32 random ones have about 30
MIN_RSA_BITS: Final = 2048  # RFC 7518 §3.3
MAX_KEYS: Final = 100  # of a set; issuers have two or three
_PEM: Final = "-----BEGIN "
_PUBLIC: Final = ("LS0tLS1CRUdJ", "ssh-", "ecdsa-")  # PEM that somebody put into base64, and OpenSSH's own form
_AROUND: Final = "\ufeff \t\r\n\"'"  # what editors, shells and triple quotes leave around a key

Key = OctKey | RSAKey | ECKey | OKPKey
_KINDS: Final[dict[str, type[Key]]] = {"oct": OctKey, "RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
_SECRET: Final = frozenset({"HS256", "HS384", "HS512"})
_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_BY_CURVE: Final = {
    "P-256": frozenset({"ES256"}),
    "P-384": frozenset({"ES384"}),
    "P-521": frozenset({"ES512"}),
    "Ed25519": frozenset({"EdDSA", "Ed25519"}),
}
ALGORITHMS: Final = _SECRET.union(_RSA, *_BY_CURVE.values())
# The parameters of a private key (RFC 7518 §6.2.2, 6.3.2): whoever publishes one has lost it.
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


class VerificationKey(Struct, frozen=True):
    """One key, and what it may have signed with."""

    key: Key
    algorithms: frozenset[str]
    kid: str = ""


class VerificationKeys:
    """The keys of one issuer.

    A single key is used for every token, whatever `kid` it names. Of several, the token's `kid` names one; a token that
    names none is checked only if a single key fits its algorithm.
    """

    def __init__(self, keys: Sequence[VerificationKey], *, is_set: bool) -> None:
        self._keys = tuple(keys)
        self._is_set = is_set

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, kid: object) -> bool:
        """Whether there is a key of this name."""
        return any(key.kid == kid for key in self._keys)

    def find(self, kid: object, algorithm: object) -> VerificationKey | None:
        """The key that a token of this header must have been signed with; None if there is none, or more than one."""
        if not isinstance(algorithm, str):
            return None
        fitting: list[VerificationKey] = []
        for key in self._keys:
            is_named = not self._is_set or kid is None or key.kid == kid
            if is_named and algorithm in key.algorithms:
                fitting.append(key)
        if len(fitting) != 1:
            return None
        return fitting[0]

    def restrict(self, algorithms: Sequence[str]) -> "VerificationKeys":
        """The same keys, for no other algorithms than these."""
        kept: list[VerificationKey] = []
        for key in self._keys:
            common = key.algorithms & set(algorithms)
            if common:
                kept.append(VerificationKey(key.key, common, key.kid))
        return VerificationKeys(kept, is_set=self._is_set)


def import_keys(key: str | bytes | Mapping[str, Any]) -> VerificationKeys:
    """The key, or the keys, that an operator configured: a secret, a public key, a JWK or a JWK set.

    Raises:
        ValueError: it is no key, or a weak one; the text says what to use.
    """
    if isinstance(key, Mapping):
        return _import_mapping(key)
    secret = key.encode() if isinstance(key, str) else key
    text = secret.decode("utf-8", "replace").strip(_AROUND)
    if text.startswith(("https://", "http://")):  # which everybody knows
        raise ValueError("the key is an address: to fetch the keys that are published there, use jwks_url, or issuer")
    if '"kty"' in text:
        return _import_mapping(_read_json(text))
    public = _import_public(text)
    if public is not None:
        return VerificationKeys([_to_verification_key(public, {})], is_set=False)
    _check_secret(secret)
    return VerificationKeys([_to_verification_key(OctKey.import_key(secret), {})], is_set=False)


def _import_mapping(key: Mapping[str, Any]) -> VerificationKeys:
    if "keys" not in key:
        return VerificationKeys([_import_configured(key)], is_set=False)
    if not isinstance(key["keys"], Sequence):
        raise ValueError("a JWK set is an object with a list of keys")
    # A set as a provider publishes it has keys for encryption, too: who saved it need not take them out.
    signing = [jwk for jwk in key["keys"] if not _is_for_encryption(jwk)]
    if not signing:
        raise ValueError("the JWK set has no key to check a signature with")
    return VerificationKeys([_import_configured(jwk) for jwk in signing], is_set=True)


def _is_for_encryption(jwk: object) -> bool:
    return isinstance(jwk, Mapping) and jwk.get("use") == "enc"


def _import_configured(jwk: object) -> VerificationKey:
    if not isinstance(jwk, Mapping):
        raise ValueError("a JWK set is an object with a list of keys")
    try:
        return _to_verification_key(_import_jwk(jwk), jwk)
    except (JoseError, TypeError) as error:  # whose texts may quote the key
        raise ValueError(f"the JWK {jwk.get('kid', '')!r} cannot be used: {type(error).__name__}") from error


def _read_json(text: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError("the key looks like a JSON Web Key, and is no JSON") from error


def import_published_keys(document: object) -> VerificationKeys:
    """The keys of a JWK set that was fetched: those that can be used; the others are left out, with a warning.

    Raises:
        ValueError: it is no JWK set, or none of its keys can be used.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("keys"), list):
        raise ValueError("it is no JSON Web Key Set")
    if len(document["keys"]) > MAX_KEYS:
        raise ValueError(f"it has more than {MAX_KEYS} keys")
    keys: list[VerificationKey] = []
    for jwk in document["keys"]:
        try:
            keys.append(_import_published(jwk))
        except (JoseError, ValueError, TypeError, KeyError) as error:
            # Usual: providers publish keys for encryption in the same set.
            logger.debug("key of a JWK set not used", extra={"reason": f"{type(error).__name__}: {error}"})
    if not keys:
        raise ValueError("none of its keys can be used to check a signature")
    return VerificationKeys(keys, is_set=True)


def _import_published(jwk: object) -> VerificationKey:
    if not isinstance(jwk, Mapping):
        raise TypeError("a key is not an object")
    if jwk.get("use", "sig") != "sig":
        raise ValueError("the key is not for signatures")
    if not isinstance(jwk.get("key_ops", []), list) or "verify" not in jwk.get("key_ops", ["verify"]):
        raise ValueError("the key is not for checking signatures")
    if not _PRIVATE.isdisjoint(jwk):
        raise ValueError("the key is not a public one")
    return _to_verification_key(_import_jwk(jwk), jwk)


def _import_jwk(jwk: Mapping[str, Any]) -> Key:
    kind = _KINDS.get(jwk.get("kty", ""))
    if kind is None:
        raise ValueError(f"the key has the unknown type {jwk.get('kty')!r}; the types are {', '.join(_KINDS)}")
    key = kind.import_key(dict(jwk))
    if isinstance(key, OctKey):
        _check_secret(key.raw_value)
    return key


def _import_public(text: str) -> Key | None:
    """The key in a text that is a public key, also without the first and the last line; None if it is a secret.

    A public key that was taken for a secret would let in whoever has read it.
    """
    if _PEM in text or text.startswith(_PUBLIC):
        return _import_pem(text.replace("\\n", "\n"))  # as it is written in files of environment variables
    try:
        # Keycloak shows the keys of a realm so.
        return _import_pem(f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    except ValueError:
        return None


def _import_pem(text: str) -> Key:
    # A PEM block says "PUBLIC KEY", not of which kind: they are tried one after the other.
    for kind in (RSAKey, ECKey, OKPKey):
        try:
            return kind.import_key(text)
        except (JoseError, ValueError, TypeError):
            continue
    raise ValueError("the PEM key is neither RSA, EC nor Ed25519")


def _check_secret(secret: bytes) -> None:
    if len(secret) < MIN_SECRET or len(set(secret)) < MIN_DIFFERENT:
        raise ValueError(
            f"the shared secret is weak, and whoever guesses it is whoever they like: use at least {MIN_SECRET} random "
            "characters, such as those that `openssl rand -hex 32` prints, or the public key of an issuer"
        )


def _to_verification_key(key: Key, jwk: Mapping[str, Any]) -> VerificationKey:
    """The key with the algorithms of its kind; with one alone, if the key itself says so (`alg`)."""
    algorithms = _algorithms(key)
    said = jwk.get("alg")
    if said is not None:
        algorithms &= {said}
    if not algorithms:
        raise ValueError("the key fits no signature algorithm")
    kid = jwk.get("kid")
    return VerificationKey(key, algorithms, kid if isinstance(kid, str) else "")


def _algorithms(key: Key) -> frozenset[str]:
    """What a key of this kind signs with: an RSA public key is never taken for an HMAC secret."""
    match key:
        case OctKey():
            return _SECRET
        case RSAKey():
            bits = key.public_key.key_size
            if bits < MIN_RSA_BITS:
                raise ValueError(f"the RSA key has {bits} bits: use one of at least {MIN_RSA_BITS}")
            return _RSA
        case _:
            return _BY_CURVE.get(key.curve_name, frozenset())
