"""Authenticators: the protocol, several as one, what their schemes mean for a request, and how they keep up to date."""

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

# The contract of an authenticator, and what its answers become.
#
# Rule: an authenticator proves who a caller is; what they may do is apcore's ACL's business.


@runtime_checkable
class Authenticator(Protocol):
    """Proves who a caller is from the headers of a request.

    `authenticate` gets the headers by lower-case name and answers an identity (anything with `id`, `type`, `roles` and
    `attrs`, such as apcore's Identity; `scopes`, too, if it has them), or None to refuse. It may be a coroutine
    function. An optional `security_schemes()` answers what the agent card says about it, in OpenAPI's words; optional
    coroutine functions `open()` and `close()` are called when the application starts and ends.

    Example:
        >>> from apcore_a2a import Authenticator
        >>> class Key:
        ...     def authenticate(self, headers): ...
        >>> isinstance(Key(), Authenticator)
        True
    """

    def authenticate(self, headers: dict[str, str]) -> Any:  # Any: an identity, None, or an awaitable of either
        """Who shows these headers; None lets nobody in. One that raises is a 503, and lets nobody in either.

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
"""The type of caller that apcore's ACL trusts; nobody from outside has it."""
MAX_SECONDS: Final = 30.0  # that an authenticator may take; keys of a provider are fetched, or not, in twenty
BEARER: Final[dict[str, Any]] = {"type": "http", "scheme": "bearer"}


async def identify(authenticator: Authenticator, headers: dict[str, str]) -> Caller | None:
    """The caller an authenticator finds behind a request; None when it finds nobody."""
    identity = authenticator.authenticate(headers)
    # The answer is looked at, not the function: a wrapper around a coroutine function is none itself.
    if inspect.isawaitable(identity):
        async with asyncio.timeout(MAX_SECONDS):
            identity = await identity
    if identity is None:
        return None
    caller = _to_caller(identity)
    if not caller.id:  # all who have no name would be one caller, and see each other's tasks
        logger.warning("a caller was refused who has no id")
        return None
    # What names an owner is stored and compared: half a character ("\ud800") raises here, and not in the store.
    caller.owner.encode()
    if "\n" in caller.id or "\n" in caller.issuer:
        # It divides tenant and name in `Caller.owner`: in a name, it could make the tasks of one caller another's.
        logger.warning("a caller was refused whose name has a line break")
        return None
    return caller


def _to_caller(identity: Any) -> Caller:  # Any: somebody's own identity
    if isinstance(identity, Caller):
        if identity.id != ANONYMOUS and not identity.is_authenticated:
            return replace(identity, type="user")  # who has a name is not one of those without
        return identity
    # Only `id` is indispensable; an identity of somebody's own making may leave out the rest, or have None there.
    return Caller(
        id="" if identity.id is None else str(identity.id),
        type=outside_type(getattr(identity, "type", None)),
        roles=tuple(map(str, to_names(getattr(identity, "roles", None) or ()))),
        scopes=tuple(map(str, to_names(getattr(identity, "scopes", None) or ()))),
        attributes=dict(getattr(identity, "attrs", None) or {}),
    )


def to_names(given: str | Sequence[str]) -> Sequence[str]:
    """One name, or several: `"scp"` is not three names of a letter each."""
    if isinstance(given, str):
        return [given]
    return given


def outside_type(claimed: object) -> str:
    """The type of a caller who comes from outside: what was claimed, but for what cannot be claimed there."""
    kind = str(claimed or "user")
    # apcore's ACL trusts "system"; and who is ANONYMOUS owns the tasks that everybody without a name shares.
    if kind in (ANONYMOUS, SYSTEM):
        return "user"
    return kind


async def open_authenticator(authenticator: Authenticator | None) -> None:
    """Tell an authenticator that wants to know that the application starts."""
    await _call_optional(authenticator, "open")


async def close_authenticator(authenticator: Authenticator | None) -> None:
    """Tell an authenticator that wants to know that the application ends."""
    await _call_optional(authenticator, "close")


async def _call_optional(authenticator: Authenticator | None, name: str) -> None:
    # Optional, as security_schemes is.
    method = getattr(authenticator, name, None)
    if callable(method):
        done = method()
        if inspect.isawaitable(done):
            await done


def security_schemes(authenticator: Authenticator) -> list[dict[str, Any]]:
    """What an authenticator says of itself on the agent card, in OpenAPI's words."""
    # Optional, so it is not in the protocol: isinstance would refuse an authenticator without it.
    declared = getattr(authenticator, "security_schemes", None)
    if not callable(declared):
        return [BEARER]
    return list(declared())


# ---- several as one -------------------------------------------------------------------------------------------------
# Several authenticators as one.
#
# Rule: credentials that are bad are refused. They do not make their sender somebody whom an authenticator further down
# lets in for having shown nothing.


class AnyOf:
    """Lets in whom one of several authenticators knows. They are asked in order.

    Asked are those whose kind of credentials the request shows (`security_schemes` says which kind that is); all of
    them, if it shows none of any kind.
    """

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)
        self._schemes = [security_schemes(authenticator) for authenticator in self._authenticators]

    async def authenticate(self, headers: dict[str, str]) -> Caller | None:
        pairs = zip(self._authenticators, self._schemes, strict=True)
        asked = [authenticator for authenticator, schemes in pairs if shows_credentials(schemes, headers)]
        unavailable: OverloadedError | None = None
        for authenticator in asked or self._authenticators:
            try:
                caller = await identify(authenticator, headers)
            except OverloadedError as error:  # an issuer that is down locks out nobody but its own callers
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
                if scheme not in schemes:  # tokens of two issuers are asked for in the same words
                    schemes.append(scheme)
        return schemes

    async def open(self) -> None:
        for authenticator in self._authenticators:
            await open_authenticator(authenticator)

    async def close(self) -> None:
        async with AsyncExitStack() as closing:  # each of them, whatever the others raise
            for authenticator in self._authenticators:
                closing.push_async_callback(close_authenticator, authenticator)


def as_authenticator(auth: object) -> Authenticator | None:
    """What `auth=` says: nothing, an authenticator, or several.

    Raises:
        TypeError: it is no authenticator; the text says what it lacks.
        ValueError: it is a list with nothing in it.
    """
    if auth is None:
        return None
    if not isinstance(auth, list | tuple):
        return _check(auth, "auth")
    if not auth:
        raise ValueError("auth is empty: leave it out to let in everybody")
    checked = [_check(one, f"auth[{number}]") for number, one in enumerate(auth)]
    if len(checked) == 1:
        return checked[0]
    return AnyOf(checked)


def _check(auth: object, name: str) -> Authenticator:
    if isinstance(auth, type):
        raise TypeError(f"{name} is the class {auth.__name__}: give an object of it")
    if not isinstance(auth, Authenticator) or not callable(auth.authenticate):
        raise TypeError(f"{name} {type(auth).__name__} lacks the method authenticate(headers)")
    try:
        inspect.signature(auth.authenticate).bind({})
    except TypeError as error:
        raise TypeError(f"{name} {type(auth).__name__}.authenticate must take the headers, and nothing else") from error
    except ValueError:
        return auth  # written in C, maybe: it does not tell what it takes
    return auth


# ---- credentials ----------------------------------------------------------------------------------------------------
# What security schemes mean for a request: where its credentials stand, and how to ask for them.
#
# Rule: a scheme is in OpenAPI's words, as authenticators and cards have it.

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


# ---- what is done again and again -----------------------------------------------------------------------------------
# Work that is done again and again beside the requests, by a task that its owner starts and ends.


class Repeating:
    """Calls `work` for ever; each call answers after how many seconds the next one comes.

    Never raises: work that fails is logged, and tried again after `pause` seconds.
    """

    def __init__(self, work: Callable[[], Awaitable[float]], *, name: str, pause: float) -> None:
        self._work = work
        self._name = name
        self._pause = pause
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has begun in this event loop."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._repeat(), name=self._name)

    async def stop(self) -> None:
        """End, and wait for the end."""
        task = self._task
        self._task = None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _repeat(self) -> None:
        while True:
            try:
                seconds = await self._work()
            except Exception:  # long-lived work ends with its owner and not with an error
                logger.exception("repeated work failed", extra={"work": self._name})
                seconds = self._pause
            await asyncio.sleep(seconds)
