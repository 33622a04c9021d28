"""Several authenticators as one.

Rule: credentials that are bad are refused. They do not make their sender somebody whom an authenticator further down
lets in for having shown nothing.
"""

import inspect
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from apcore_a2a.agent import Caller
from apcore_a2a.auth.authenticator import (
    Authenticator,
    close_authenticator,
    identify,
    open_authenticator,
    security_schemes,
)
from apcore_a2a.auth.credentials import shows_credentials
from apcore_a2a.errors import OverloadedError


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
