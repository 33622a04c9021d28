"""The contract of an authenticator, and what its answers become.

Rule: an authenticator proves who a caller is; what they may do is apcore's ACL's business.
"""

import inspect
from collections.abc import Iterable
from typing import Any, Final, Protocol, runtime_checkable

from apcore_a2a.agent import ANONYMOUS, Caller


@runtime_checkable
class Authenticator(Protocol):
    """Proves who a caller is from the headers of a request.

    `authenticate` gets the headers by lower-case name and answers an identity (anything with `id`, `type`, `roles` and
    `attrs`, such as apcore's Identity), or None to refuse. It may be a coroutine function. An optional
    `security_schemes()` answers what the agent card says about it.

    Example:
        >>> from apcore_a2a import Authenticator
        >>> class Key:
        ...     def authenticate(self, headers): ...
        >>> isinstance(Key(), Authenticator)
        True
    """

    def authenticate(self, headers: dict[str, str]) -> Any: ...  # Any: an identity, None, or an awaitable of either


BEARER: Final[dict[str, Any]] = {"type": "http", "scheme": "bearer"}


async def identify(authenticator: Authenticator, headers: dict[str, str]) -> Caller | None:
    """The caller an authenticator finds behind a request; None when it finds nobody."""
    identity = authenticator.authenticate(headers)
    if inspect.isawaitable(identity):
        identity = await identity
    if identity is None or isinstance(identity, Caller):
        return identity
    kind = str(getattr(identity, "type", "") or "user")
    return Caller(
        id=str(identity.id),
        type="user" if kind in (ANONYMOUS, "system") else kind,  # neither can be claimed from outside
        roles=tuple(map(str, getattr(identity, "roles", None) or ())),
        attributes=dict(getattr(identity, "attrs", None) or {}),
    )


def security_schemes(authenticator: Authenticator) -> list[dict[str, Any]]:
    """What an authenticator says of itself on the agent card, in OpenAPI's words."""
    declared = getattr(authenticator, "security_schemes", None)
    schemes: Iterable[dict[str, Any]] = declared() if callable(declared) else [BEARER]
    return list(schemes)
