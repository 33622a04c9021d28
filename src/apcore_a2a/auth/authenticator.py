"""Authenticators: the protocol, a chain of several, the headers and challenges of their schemes, and periodic work."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol, runtime_checkable

from msgspec.structs import replace

from apcore_a2a.agent import ANONYMOUS, Caller
from apcore_a2a.errors import OverloadedError

logger = logging.getLogger(__name__)

# ---- contract -------------------------------------------------------------------------------------------------------
# The protocol of an authenticator, and the conversion of its result to a `Caller`.
#
# Invariant: an authenticator authenticates. Authorization is the task of apcore's ACL and of `scopes`.


@runtime_checkable
class Authenticator(Protocol):
    """Authenticates the caller of a request by its headers.

    `authenticate` receives the headers by lower-case name and returns an identity, or None to reject the request. An
    identity is any object with `id`, `type`, `roles` and `attrs`, such as apcore's Identity, and optionally `scopes`.
    `authenticate` may be a coroutine function. An optional `security_schemes()` returns the schemes of the agent card,
    as OpenAPI writes them. Optional coroutine functions `open()` and `close()` are called when the application starts
    and ends.

    Example:
        >>> from apcore_a2a import Authenticator
        >>> class Key:
        ...     def authenticate(self, headers): ...
        >>> isinstance(Key(), Authenticator)
        True
    """

    def authenticate(self, headers: dict[str, str]) -> Any:  # Any: an identity, None, or an awaitable of either
        """Return the caller for these headers, or None. If it raises, the request is rejected with 503.

        Example:
            >>> from apcore_a2a.agent import Caller
            >>> class Key:
            ...     def authenticate(self, headers):
            ...         if headers.get("x-api-key") == "open sesame":
            ...             return Caller(id="ada", type="user")
            >>> Key().authenticate({"x-api-key": "open sesame"}).id
            'ada'
        """


SYSTEM: Final = "system"
"""The type of caller that apcore's ACL trusts. No authenticated caller has it."""
MAX_SECONDS: Final = 30.0  # timeout of an authenticator; a request waits at most twenty for a provider's keys
BEARER: Final[dict[str, Any]] = {"type": "http", "scheme": "bearer"}


async def identify(authenticator: Authenticator, headers: dict[str, str]) -> Caller | None:
    """Return the authenticated caller for these headers, or None."""
    identity = authenticator.authenticate(headers)
    # Tests the result, not the function: a wrapper around a coroutine function is not a coroutine function itself.
    if inspect.isawaitable(identity):
        async with asyncio.timeout(MAX_SECONDS):
            identity = await identity
    if identity is None:
        return None
    caller = _to_caller(identity)
    if not caller.id:  # all callers without an id would be one caller, and see each other's tasks
        logger.warning("caller without an id rejected")
        return None
    # Owners are stored and compared: a lone surrogate ("\ud800") raises here instead of in the store.
    caller.owner.encode()
    if "\n" in caller.id or "\n" in caller.issuer:
        # A line break separates tenant and name in `Caller.owner`: in a name, it could give access to another's tasks.
        logger.warning("caller with a line break in its name rejected")
        return None
    if "|" in caller.issuer:
        # A `|` ends the issuer in `Caller.owner`: the caller "c" of "a|b" would own the tasks of "b|c" of "a".
        logger.warning("caller of an issuer whose name contains a | rejected")
        return None
    return caller


def _to_caller(identity: Any) -> Caller:  # Any: the identity of a foreign authenticator
    if isinstance(identity, Caller):
        if identity.id != ANONYMOUS and not identity.is_authenticated:
            return replace(identity, type="user")  # a caller with a name is not anonymous
        return identity
    # Only `id` is required. An identity of another class may lack the other attributes, or have None there.
    return Caller(
        id="" if identity.id is None else str(identity.id),
        type=unreserved_type(getattr(identity, "type", None)),
        roles=tuple(map(str, to_names(getattr(identity, "roles", None) or ()))),
        scopes=tuple(map(str, to_names(getattr(identity, "scopes", None) or ()))),
        attributes=dict(getattr(identity, "attrs", None) or {}),
    )


def to_names(given: str | Sequence[str]) -> Sequence[str]:
    """Return a list of names for one name or several: `"scp"` is one name, not three letters."""
    if isinstance(given, str):
        return [given]
    return given


def unreserved_type(claimed: object) -> str:
    """Return the claimed type of a caller, or "user" if the type is reserved or missing."""
    kind = str(claimed or "user")
    # apcore's ACL trusts "system", and ANONYMOUS owns the tasks of all callers without a name.
    if kind in (ANONYMOUS, SYSTEM):
        return "user"
    return kind


async def open_authenticator(authenticator: Authenticator | None) -> None:
    """Call `open` of an authenticator, if it has one."""
    await _call_optional(authenticator, "open")


async def close_authenticator(authenticator: Authenticator | None) -> None:
    """Call `close` of an authenticator, if it has one."""
    await _call_optional(authenticator, "close")


async def _call_optional(authenticator: Authenticator | None, name: str) -> None:
    # Not in the protocol, for the same reason as security_schemes (below).
    method = getattr(authenticator, name, None)
    if callable(method):
        done = method()
        if inspect.isawaitable(done):
            await done


def security_schemes(authenticator: Authenticator) -> list[dict[str, Any]]:
    """Return the security schemes of an authenticator, as OpenAPI writes them."""
    # Optional, so it is not in the protocol: isinstance would reject an authenticator without it.
    declared = getattr(authenticator, "security_schemes", None)
    if not callable(declared):
        return [BEARER]
    return list(declared())


# ---- several authenticators -----------------------------------------------------------------------------------------
# Invariant: a request with invalid credentials is rejected. It never reaches an authenticator that accepts requests
# without credentials.


class AnyOf:
    """Accepts a request if any of the authenticators does. They are called in order.

    Only authenticators whose kind of credentials is in the request are called (`security_schemes` names the kind). If
    the request has no credentials of any kind, all of them are called.
    """

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)
        self._schemes = [security_schemes(authenticator) for authenticator in self._authenticators]

    async def authenticate(self, headers: dict[str, str]) -> Caller | None:
        pairs = zip(self._authenticators, self._schemes, strict=True)
        addressed = [authenticator for authenticator, schemes in pairs if has_credentials(schemes, headers)]
        unavailable: OverloadedError | None = None
        for authenticator in addressed or self._authenticators:
            try:
                caller = await identify(authenticator, headers)
            except OverloadedError as error:  # an issuer that is down affects only its own callers
                unavailable = error
                continue
            if caller is not None:
                return caller
        if unavailable is not None:
            raise unavailable
        return None

    def security_schemes(self) -> list[dict[str, Any]]:
        schemes: list[dict[str, Any]] = []
        for declared in self._schemes:
            for scheme in declared:
                if scheme not in schemes:  # tokens of two issuers have the same scheme
                    schemes.append(scheme)
        return schemes

    def trouble(self) -> str:
        """Return why every request is rejected, or an empty string: none of the authenticators accepts any."""
        found = [trouble_of(authenticator) for authenticator in self._authenticators]
        return found[0] if all(found) else ""

    async def open(self) -> None:
        for authenticator in self._authenticators:
            await open_authenticator(authenticator)

    async def close(self) -> None:
        async with AsyncExitStack() as closing:  # closes each of them, even if another one raises
            for authenticator in self._authenticators:
                closing.push_async_callback(close_authenticator, authenticator)


def trouble_of(authenticator: object) -> str:
    """Return why an authenticator rejects every request, or an empty string. Its method `trouble` is optional."""
    ask = getattr(authenticator, "trouble", None)
    return str(ask()) if callable(ask) else ""


def as_authenticator(auth: object) -> Authenticator | None:
    """Return the authenticator that `auth=` describes: None, an authenticator, or a list of several.

    Raises:
        TypeError: it is not an authenticator. The text says what it lacks.
        ValueError: the list is empty.
    """
    if auth is None:
        return None
    if not isinstance(auth, list | tuple):
        return _check(auth, "auth")
    if not auth:
        raise ValueError("auth is empty: omit it to accept requests without credentials")
    checked = [_check(one, f"auth[{number}]") for number, one in enumerate(auth)]
    if len(checked) == 1:
        return checked[0]
    return AnyOf(checked)


def _check(auth: object, name: str) -> Authenticator:
    if isinstance(auth, type):
        raise TypeError(f"{name} is the class {auth.__name__}: pass an instance")
    if not isinstance(auth, Authenticator) or not callable(auth.authenticate):
        raise TypeError(f"{name} {type(auth).__name__} lacks the method authenticate(headers)")
    try:
        inspect.signature(auth.authenticate).bind({})
    except TypeError as error:
        raise TypeError(f"{name} {type(auth).__name__}.authenticate must take the headers, and nothing else") from error
    except ValueError:
        return auth  # a function written in C, for example, has no signature
    return auth


# ---- credentials ----------------------------------------------------------------------------------------------------
# The headers and the challenges of security schemes. A scheme has the form of OpenAPI, as authenticators declare it.

Scheme = Mapping[str, Any]
AUTHORIZATION = "authorization"


def credential_headers(schemes: Sequence[Scheme]) -> frozenset[str]:
    """Return the lower-case names of the headers that may contain credentials."""
    names = {AUTHORIZATION}
    for scheme in schemes:
        name = _header_of_key(scheme)
        if name:
            names.add(name)
    return frozenset(names)


def has_credentials(schemes: Sequence[Scheme], headers: Mapping[str, str]) -> bool:
    """Return whether a request contains credentials of one of these kinds, valid or not."""
    word = headers.get(AUTHORIZATION, "").partition(" ")[0].lower()
    for scheme in schemes:
        if _header_of_key(scheme) in headers:
            return True
        if word and word == _authorization_word(scheme).lower():
            return True
    return False


def challenge(schemes: Sequence[Scheme], headers: Mapping[str, str]) -> bytes:
    """Return the value of WWW-Authenticate: one challenge for each kind of credentials (RFC 9110 §11.6.1)."""
    challenges: list[str] = []
    for scheme in schemes:
        word = _authorization_word(scheme)
        name = _header_of_key(scheme)
        if name:
            text = f'ApiKey header="{scheme["name"]}"'
        elif word == "Bearer" and AUTHORIZATION in headers:
            # RFC 6750 §3.1: no error code for a request without credentials. The reason is only in the log.
            text = 'Bearer error="invalid_token"'
        elif word == "Basic":
            text = 'Basic realm="agent"'  # RFC 7617 §2: required, and browsers show no dialog without it
        else:
            text = word
        if text and text not in challenges:
            challenges.append(text)
    return (", ".join(challenges) or "Bearer").encode("latin-1", "replace")


def _authorization_word(scheme: Scheme) -> str:
    """Return the first word of Authorization for this scheme, or an empty string if it uses another header."""
    match scheme.get("type"):
        case "http":
            return str(scheme.get("scheme", "")).capitalize()
        case "oauth2" | "openIdConnect":
            return "Bearer"
    return ""


def _header_of_key(scheme: Scheme) -> str:
    """Return the lower-case header of an API key, or an empty string if the scheme has none."""
    if scheme.get("type") == "apiKey" and scheme.get("in") == "header":
        return str(scheme.get("name", "")).lower()
    return ""


# ---- periodic work --------------------------------------------------------------------------------------------------


class PeriodicWork:
    """Calls `work` periodically in an asyncio task. Each call returns the number of seconds until the next one.

    An exception is logged, and the work is retried after `pause` seconds.
    """

    def __init__(self, work: Callable[[], Awaitable[float]], *, name: str, pause: float) -> None:
        self._work = work
        self._name = name
        self._pause = pause
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, unless it is running."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._repeat(), name=self._name)

    async def stop(self) -> None:
        """Cancel the task, and wait for its end."""
        task = self._task
        self._task = None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _repeat(self) -> None:
        while True:
            try:
                seconds = await self._work()
            except Exception:  # long-lived work ends when its owner stops it, not with an error
                logger.exception("periodic work failed", extra={"work": self._name})
                seconds = self._pause
            await asyncio.sleep(seconds)
