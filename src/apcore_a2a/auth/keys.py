"""The keys that verify tokens: configured ones, and those that an issuer publishes, which are fetched and cached."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from msgspec import Struct

from apcore_a2a.auth.authenticator import PeriodicWork
from apcore_a2a.web import is_loopback

logger = logging.getLogger(__name__)

# ---- keys -----------------------------------------------------------------------------------------------------------
# The keys that verify signatures, and the algorithms of each.
#
# Invariant: a key is used only with the algorithms of its kind. The key and the algorithm that a token names must
# match. An untrustworthy key (a short RSA key, a published secret) is rejected.

MIN_SECRET: Final = 32  # bytes; RFC 7518 §3.2 requires as many as the hash of HS256 has
MIN_DIFFERENT: Final = 8  # different bytes of a secret; 32 random ones have about 30
MIN_RSA_BITS: Final = 2048  # RFC 7518 §3.3
MAX_KEYS: Final = 100  # of a set; issuers have two or three
_PEM: Final = "-----BEGIN "
_PUBLIC: Final = ("LS0tLS1CRUdJ", "ssh-", "ecdsa-")  # PEM encoded as base64, and the format of OpenSSH
_AROUND: Final = "\ufeff \t\r\n\"'"  # characters that editors, shells and triple quotes leave around a key

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
# The parameters of a private key (RFC 7518 §6.2.2, 6.3.2). A published private key is compromised.
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


class VerificationKey(Struct, frozen=True):
    """One key, and the algorithms of the signatures that it may verify."""

    key: Key
    algorithms: frozenset[str]
    kid: str = ""


class VerificationKeys:
    """The keys of one issuer.

    A single key verifies every token, whatever its `kid`. In a set, the token's `kid` names the key. A token without a
    `kid` is verified only if exactly one key matches its algorithm.
    """

    def __init__(self, keys: Sequence[VerificationKey], *, is_set: bool) -> None:
        self._keys = tuple(keys)
        self._is_set = is_set

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, kid: object) -> bool:
        """Return whether there is a key with this id."""
        return any(key.kid == kid for key in self._keys)

    def find(self, kid: object, algorithm: object) -> VerificationKey | None:
        """Return the key for a token with this header, or None if there is none, or more than one."""
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
        """Return the same keys, restricted to these algorithms."""
        kept: list[VerificationKey] = []
        for key in self._keys:
            common = key.algorithms & set(algorithms)
            if common:
                kept.append(VerificationKey(key.key, common, key.kid))
        return VerificationKeys(kept, is_set=self._is_set)


def import_keys(key: str | bytes | Mapping[str, Any]) -> VerificationKeys:
    """Return the configured keys: of a secret, a public key, a JWK or a JWK set.

    Raises:
        ValueError: it is not a key, or a weak one. The text says what to use.
    """
    if isinstance(key, Mapping):
        return _import_mapping(key)
    secret = key.encode() if isinstance(key, str) else key
    text = secret.decode("utf-8", "replace").strip(_AROUND)
    if text.startswith(("https://", "http://")):  # an address is not a secret
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
    # The published set of a provider may contain keys for encryption. They are skipped, so a saved copy works as is.
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
    except (JoseError, TypeError) as error:  # their texts may quote the key
        raise ValueError(f"the JWK {jwk.get('kid', '')!r} cannot be used: {type(error).__name__}") from error


def _read_json(text: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError("the key looks like a JSON Web Key, and is not valid JSON") from error


def import_published_keys(document: object) -> VerificationKeys:
    """Return the usable keys of a fetched JWK set. The others are left out, and logged.

    Raises:
        ValueError: it is not a JWK set, or none of its keys can be used.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("keys"), list):
        raise ValueError("it is not a JSON Web Key Set")
    if len(document["keys"]) > MAX_KEYS:
        raise ValueError(f"it has more than {MAX_KEYS} keys")
    keys: list[VerificationKey] = []
    for jwk in document["keys"]:
        try:
            keys.append(_import_published(jwk))
        except (JoseError, ValueError, TypeError, KeyError) as error:
            # This is usual: providers publish keys for encryption in the same set.
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
    """Return the public key in a text, or None if the text is a secret. A PEM key may lack its first and last line.

    If a public key were used as a shared secret, every reader of it could sign tokens.
    """
    if _PEM in text or text.startswith(_PUBLIC):
        return _import_pem(text.replace("\\n", "\n"))  # as in files of environment variables
    try:
        # As Keycloak shows the keys of a realm.
        return _import_pem(f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    except ValueError:
        return None


def _import_pem(text: str) -> Key:
    # A PEM block says "PUBLIC KEY", but not which kind: try one after the other.
    for kind in (RSAKey, ECKey, OKPKey):
        try:
            return kind.import_key(text)
        except (JoseError, ValueError, TypeError):
            continue
    raise ValueError("the PEM key is neither RSA, EC nor Ed25519")


def _check_secret(secret: bytes) -> None:
    if len(secret) < MIN_SECRET or len(set(secret)) < MIN_DIFFERENT:
        raise ValueError(
            "the shared secret is weak, and an attacker that guesses it can impersonate any caller: use at least "
            f"{MIN_SECRET} random characters, such as those that `openssl rand -hex 32` prints, or the public key of "
            "an issuer"
        )


def _to_verification_key(key: Key, jwk: Mapping[str, Any]) -> VerificationKey:
    """Return the key with the algorithms of its kind, or with the single one that the key names (`alg`)."""
    algorithms = _algorithms(key)
    declared = jwk.get("alg")
    if declared is not None:
        algorithms &= {declared}
    if not algorithms:
        raise ValueError("the key fits no signature algorithm")
    kid = jwk.get("kid")
    return VerificationKey(key, algorithms, kid if isinstance(kid, str) else "")


def _algorithms(key: Key) -> frozenset[str]:
    """Return the algorithms of a key of this kind: an RSA public key is never used as an HMAC secret."""
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


# ---- fetching -------------------------------------------------------------------------------------------------------
# Fetches a JSON document that an issuer publishes at a configured address.
#
# Invariant: https, or http on this machine. No redirects, no proxies of the environment, limited bytes and seconds.

MAX_DOCUMENT: Final = 512 * 1024  # bytes; a set of a hundred large keys has 60,000
TIMEOUT: Final = 5.0  # seconds for the whole fetch

Fetch = Callable[[str], Awaitable[Any]]
"""Returns the decoded JSON document at an address, or raises FetchError."""


class FetchError(Exception):
    """The document could not be fetched. The text says why, for the log."""


def check_address(url: str, what: str) -> str:
    """Return the address if it is trustworthy.

    Raises:
        ValueError: it is not. The text says what an address must be.
    """
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url
    if parts.scheme == "http" and is_loopback(parts.hostname or ""):
        return url
    raise ValueError(
        f"{what} must be an https address (http only on this machine), not {url!r}: "
        "an attacker on the network could replace the keys"
    )


async def fetch_json(url: str) -> Any:
    """Return the JSON document at an address."""
    import aiohttp  # takes a tenth of a second: only if keys are fetched

    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    try:
        # A new session each time: there are minutes between two fetches, and an idle connection would be stale.
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False) as http,
            http.get(url, headers=headers, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise FetchError(f"{url} answered {response.status}")
            body = await _read(response.content, url)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise FetchError(f"{url} could not be read: {str(error) or type(error).__name__}") from error
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FetchError(f"{url} did not answer with JSON") from error


async def _read(content: Any, url: str) -> bytes:  # Any: aiohttp's StreamReader; it is not imported before it is needed
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > MAX_DOCUMENT:
            raise FetchError(f"{url} answered with more than {MAX_DOCUMENT} bytes")
    return bytes(body)


# ---- keys of an issuer ----------------------------------------------------------------------------------------------
# The published keys of an issuer, refreshed in the background.
#
# Keys are fetched when the server starts and every ten minutes. A request waits for a fetch in two cases only. Either
# there are no keys yet, or its token is signed with an unknown key, as after a rotation: it names another key, or it
# names none and no known key matches its signature. The second case causes at most one fetch per minute, however many
# forged tokens arrive.
#
# Invariant: the address of the keys comes from the configuration and from the discovery document found there, never
# from a token. A fetch that fails, or that returns no usable key, changes nothing.

REFRESH: Final = 600.0  # seconds between two fetches
MIN_PAUSE: Final = 60.0  # minimum seconds between two fetches that tokens with unknown keys cause
MIN_PAUSE_WITHOUT_KEYS: Final = 5.0  # the same, while there are no keys at all
MAX_BACKOFF: Final = 60.0
DISCOVERY_PATH: Final = "/.well-known/openid-configuration"


class IssuerKeys:
    """The keys at `jwks_url`, or at the address in the discovery document of `issuer`."""

    def __init__(
        self,
        *,
        jwks_url: str = "",
        issuer: str = "",
        fetch: Fetch = fetch_json,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if jwks_url:
            check_address(jwks_url, "jwks_url")
        else:
            check_address(issuer, "issuer")
        self.current: VerificationKeys | None = None
        self.generation = 0
        """The number of sets of keys so far. A token that was verified with an older set must be verified again."""
        self._jwks_url = jwks_url
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._document: Any = None  # the last one, to detect a change; Any: JSON
        self._fetched_again_at = -MIN_PAUSE  # when a token last caused a fetch
        self._failures = 0
        self._fetching = asyncio.Lock()
        self._refreshing = PeriodicWork(self._refresh, name="keys of the issuer", pause=MAX_BACKOFF)

    @property
    def discovery_url(self) -> str:
        return self._issuer.rstrip("/") + DISCOVERY_PATH

    def open(self) -> None:
        """Start fetching the keys in the background, now and periodically."""
        self._refreshing.start()

    async def close(self) -> None:
        await self._refreshing.stop()

    async def fetch_again(self) -> None:
        """Fetch the keys because a token needs an unknown one, unless that was done shortly before.

        Requests that arrive during a fetch wait for its result.
        """
        before = self.generation
        async with self._fetching:
            if self.generation != before:  # another request has fetched new keys meanwhile
                return
            pause = MIN_PAUSE_WITHOUT_KEYS if self.current is None else MIN_PAUSE
            if self._clock() - self._fetched_again_at < pause:
                return
            self._fetched_again_at = self._clock()
            await self._try_to_fetch()
            # Set again after the fetch, which may take as long as the pause. Otherwise each waiting request would start
            # another fetch.
            self._fetched_again_at = self._clock()

    async def _refresh(self) -> float:
        """Fetch the keys, and return the number of seconds until the next fetch."""
        async with self._fetching:
            await self._try_to_fetch()
        if self._failures:
            return float(min(2 ** (self._failures - 1), MAX_BACKOFF))
        return REFRESH

    async def _try_to_fetch(self) -> None:
        try:
            async with asyncio.timeout(2 * TIMEOUT):  # discovery fetches two documents
                document = await self._fetch(self._jwks_url or await self._discover())
            keys = import_published_keys(document)
        except (FetchError, ValueError, TimeoutError) as error:
            self._failures += 1
            kept = 0 if self.current is None else len(self.current)
            details = {"source": self._jwks_url or self._issuer, "reason": str(error), "keys_kept": kept}
            logger.warning("keys of the issuer not fetched", extra=details)
            return
        self._failures = 0
        if document != self._document:
            self._document = document
            self.current = keys
            self.generation += 1

    async def _discover(self) -> str:
        """Return the address of the issuer's keys (OpenID Connect Discovery 1.0 §4)."""
        document = await self._fetch(self.discovery_url)
        if not isinstance(document, Mapping):
            raise FetchError(f"{self.discovery_url} did not answer with a discovery document")
        named = document.get("issuer")
        if named != self._issuer:  # §4.3: MUST be exactly the same, also a slash at the end
            raise FetchError(
                f"{self.discovery_url} is the document of the issuer {named!r}: set issuer to exactly that"
            )
        url = document.get("jwks_uri")
        if not isinstance(url, str):
            raise FetchError(f"{self.discovery_url} names no jwks_uri")
        if urlsplit(self._issuer).scheme == "https" and urlsplit(url).scheme != "https":
            raise FetchError(f"{self.discovery_url} names a jwks_uri that is not https")
        return check_address(url, "jwks_uri")
