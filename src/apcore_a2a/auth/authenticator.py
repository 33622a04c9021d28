"""The contract of an authenticator, and what its answers become.

Rule: an authenticator proves who a caller is; what they may do is apcore's ACL's business.
"""

import asyncio
import inspect
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol, runtime_checkable

from msgspec.structs import replace

from apcore_a2a.agent import ANONYMOUS, Caller

logger = logging.getLogger(__name__)


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
