"""API keys: long random strings that callers send in a header. The server stores only their hashes.

A key has 256 random bits, so that its hash can neither be guessed nor looked up in a table. One round of SHA-256 is
enough: slow hashes are for passwords that people choose.

Invariant: a key is printed once, when it is made. After that, only the caller has it.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from apcore_a2a.agent import Caller
from apcore_a2a.auth.authenticator import PeriodicWork, unreserved_type

logger = logging.getLogger(__name__)

HEADER: Final = "X-API-Key"
ISSUER: Final = "api-key"  # "ada" by a key is not the same caller as "ada" by a token without an issuer
PREFIX: Final = "apcore_"  # by which secret scanners recognise a leaked key
MAX_KEY: Final = 512  # characters
MAX_FILE: Final = 16 * 1024 * 1024  # bytes; a hundred thousand keys
NO_KEYS: Final = "there are no API keys, so every request is rejected"
_NON_BLOCKING: Final = getattr(os, "O_NONBLOCK", 0)  # Windows has no such flag, and no such pipes
CHECK_FILE: Final = 2.0  # polling interval of the file in seconds
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_ID: Final = re.compile(r"[^\s#=]+")
_WORD: Final = re.compile(r"[^\s#,]+")
_LISTS: Final = ("roles", "scopes")


class APIKey(Struct, frozen=True, kw_only=True):
    """One key: the id of its caller, its hash, and the caller's roles and scopes.

    Example:
        >>> APIKey(id="ada", hash=hash_key("apcore_not-a-real-key"), roles=("ops",)).id
        'ada'
    """

    id: str
    hash: str
    """The result of `hash_key`."""
    type: str = "service"
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


def new_key() -> str:
    """Return a new key: 256 random bits, in 50 characters that need no quoting.

    Example:
        >>> len(new_key())
        50
    """
    return PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """Return the hash that the server stores of a key.

    Example:
        >>> hash_key("apcore_not-a-real-key")[:15]
        'sha256:12b781ef'
    """
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


class APIKeyAuthenticator:
    """Authenticates callers by a key in a header.

    `keys` is the path of a file, or a mapping of caller ids to hashes (`{"ada": "sha256:…"}`, several hashes for one id
    during a rotation), or a list of `APIKey`. `apcore-a2a keys new` makes keys and writes such a file: one line per
    key, with the id, the hash and optionally `roles=a,b`, `scopes=x,y` and `type=user`. A changed file is read again
    within two seconds. If it is empty or has been deleted, all keys are revoked. If it cannot be read for another
    reason or has an invalid line, the old keys stay, and the error is logged.

    Args:
        keys: The hashes of the keys.
        header: The header that contains the key.

    Raises:
        ValueError: a hash is not valid, the file cannot be read, or there is no key at all.

    Example:
        >>> auth = APIKeyAuthenticator({"ada": hash_key("apcore_not-a-real-key")})
        >>> auth.authenticate({"x-api-key": "apcore_not-a-real-key"}).id
        'ada'
        >>> auth.authenticate({"x-api-key": "another"}) is None
        True
    """

    def __init__(
        self,
        keys: str | os.PathLike[str] | Mapping[str, str | Sequence[str]] | Iterable[APIKey],
        *,
        header: str = HEADER,
        check_file: float = CHECK_FILE,
    ) -> None:
        self._header = header
        self._file: Path | None = None
        self._seen = b""  # the digest of the file when it was last read
        self._reported = ""
        self._check_file = check_file
        self._watching = PeriodicWork(self._poll_file, name="file of API keys", pause=check_file)
        if isinstance(keys, str | os.PathLike):
            self._file = Path(keys)
            data = _read_file(self._file)
            self._seen = _digest(data)
            found = _parse_file(self._file, data)
            _warn_if_open_to_others(self._file)
        elif isinstance(keys, Mapping):
            found = _from_mapping(keys)
        else:
            found = tuple(keys)
        self._keys = _by_hash(found)
        if not self._keys:
            raise ValueError(
                "there are no API keys, so every request would be rejected: make one with `apcore-a2a keys new`"
            )

    def authenticate(self, headers: Mapping[str, str]) -> Caller | None:
        """Return the caller whose key the request contains, or None.

        Example:
            >>> auth = APIKeyAuthenticator({"ada": hash_key("apcore_not-a-real-key")}, header="X-Agent-Key")
            >>> auth.authenticate({"x-agent-key": "apcore_not-a-real-key"}).id
            'ada'
        """
        sent = headers.get(self._header.lower(), "").strip()
        if not sent or len(sent) > MAX_KEY:
            return None
        hashed = hash_key(sent)
        key = self._keys.get(hashed)
        # The time of this lookup reveals nothing: a client cannot choose any part of a hash. The comparison is in
        # constant time as well.
        if key is None or not hmac.compare_digest(key.hash, hashed):
            logger.debug("API key refused")
            return None
        return Caller(id=key.id, type=unreserved_type(key.type), issuer=ISSUER, roles=key.roles, scopes=key.scopes)

    def security_schemes(self) -> list[dict[str, Any]]:
        """Return the security schemes of the agent card, as OpenAPI writes them.

        Example:
            >>> APIKeyAuthenticator({"ada": hash_key("apcore_not-a-real-key")}).security_schemes()
            [{'type': 'apiKey', 'in': 'header', 'name': 'X-API-Key'}]
        """
        return [{"type": "apiKey", "in": "header", "name": self._header}]

    def trouble(self) -> str:
        """Return why every request is rejected, or an empty string. Health shows it.

        Example:
            >>> APIKeyAuthenticator({"ada": hash_key("apcore_not-a-real-key")}).trouble()
            ''
        """
        return "" if self._keys else NO_KEYS

    async def open(self) -> None:
        """Start polling the file for changes. The application calls this when it starts.

        Example:
            >>> asyncio.run(APIKeyAuthenticator({"ada": hash_key("apcore_not-a-real-key")}).open())  # there is no file
        """
        if self._file is not None:
            self._watching.start()

    async def close(self) -> None:
        """Stop polling the file. The application calls this when it ends.

        Example:
            >>> asyncio.run(APIKeyAuthenticator({"ada": hash_key("apcore_not-a-real-key")}).close())
        """
        await self._watching.stop()

    async def _poll_file(self) -> float:
        assert self._file is not None  # `open` starts the polling only if there is a file
        try:
            data = await asyncio.to_thread(_read_file_if_any, self._file)
            self._take(data)
        except ValueError as error:
            self._report(str(error))
        return self._check_file

    def _take(self, data: bytes) -> None:
        """Replace the keys if the content of the file has changed. The time and size of a file may stay the same."""
        assert self._file is not None
        seen = _digest(data)
        if seen == self._seen:
            return
        try:
            keys = _by_hash(_parse_file(self._file, data))
        finally:
            self._seen = seen  # an error is logged once per change
        self._keys = keys
        logger.info("API keys read again", extra={"file": str(self._file), "keys": len(keys)})
        if not keys:
            logger.error("there are no API keys: every request is rejected", extra={"file": str(self._file)})

    def _report(self, reason: str) -> None:
        """Log why the old keys stay, because a half-written file must not lock out all callers. Once per change."""
        if reason != self._reported:
            self._reported = reason
            logger.error("API keys not read again", extra={"reason": reason})


# ---- the file ------------------------------------------------------------------------------------------------------


def read_key_file(path: Path) -> tuple[APIKey, ...]:
    """Return the keys in a file.

    Raises:
        ValueError: the file cannot be read, or a line is not valid. The text has the number of the line, not its
            content.
    """
    return _parse_file(path, _read_file(path))


def _read_file(path: Path) -> bytes:
    """Return the content of a regular file. A pipe is rejected, because reading it may wait forever."""
    try:
        with open(os.open(path, os.O_RDONLY | _NON_BLOCKING), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError(f"the file of API keys {path} is not a regular file")
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ValueError(f"the file of API keys {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE:
        raise ValueError(f"the file of API keys {path} has more than {MAX_FILE} bytes")
    return data


def _read_file_if_any(path: Path) -> bytes:
    """Return the content of a file. A deleted file is empty."""
    try:
        return _read_file(path)
    except ValueError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return b""
        raise


def _parse_file(path: Path, data: bytes) -> tuple[APIKey, ...]:
    keys: list[APIKey] = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text:
            try:
                keys.append(_parse_line(text))
            except ValueError as error:
                raise ValueError(f"the file of API keys {path}, line {number}: {error}") from error
    return tuple(keys)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _warn_if_open_to_others(path: Path) -> None:
    """Log a warning if any user of the machine can read or change the file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if os.name == "posix" and mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        extra = {"file": str(path), "mode": f"{stat.S_IMODE(mode):o}", "remedy": "chmod 600"}
        logger.warning("other users can read or change the file of API keys", extra=extra)


def format_line(key: APIKey) -> str:
    """Return the line of a key for the file.

    Raises:
        ValueError: a role or a scope would break the format of the line.
    """
    for word in (*key.roles, *key.scopes):
        if not _WORD.fullmatch(word):
            raise ValueError(f"the role or scope {word!r} must be one word without ',' and '#'; give each separately")
    words = [key.id, key.hash]
    if key.roles:
        words.append(f"roles={','.join(key.roles)}")
    if key.scopes:
        words.append(f"scopes={','.join(key.scopes)}")
    if key.type != "service":
        words.append(f"type={key.type}")
    return " ".join(words) + "\n"


def _parse_line(text: str) -> APIKey:
    id, *words = text.split()
    if not words:
        raise ValueError("an id and a hash are needed, as `apcore-a2a keys new` prints them")
    fields: dict[str, Any] = {}
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name in _LISTS:
            fields[name] = tuple(filter(None, value.split(",")))
        elif name == "type":
            fields[name] = value
        else:
            raise ValueError("after the hash, only roles=, scopes= and type= are allowed")
    return check_key(APIKey(id=id, hash=words[0], **fields))


# ---- keys ------------------------------------------------------------------------------------------------------------


def check_key(key: APIKey) -> APIKey:
    """Return the key if its id and its hash are valid.

    Raises:
        ValueError: the id or the hash is not valid. The text does not contain the hash, because it may be a key.
    """
    if not _ID.fullmatch(key.id):
        raise ValueError(f"the id {key.id!r} must be one word without '=' and '#'")
    if not _HASH.fullmatch(key.hash):
        raise ValueError(f"the key of {key.id!r} is not given as a hash: use hash_key(), or `apcore-a2a keys new`")
    return key


def _from_mapping(keys: Mapping[str, str | Sequence[str]]) -> tuple[APIKey, ...]:
    found: list[APIKey] = []
    for id, hashes in keys.items():
        if isinstance(hashes, str):
            hashes = [hashes]
        found.extend(APIKey(id=id, hash=hash) for hash in hashes)
    return tuple(found)


def _by_hash(keys: Iterable[APIKey]) -> dict[str, APIKey]:
    found: dict[str, APIKey] = {}
    for key in keys:
        check_key(key)
        if key.hash in found:
            raise ValueError(f"{key.id!r} and {found[key.hash].id!r} have the same key")
        found[key.hash] = key
    return found
