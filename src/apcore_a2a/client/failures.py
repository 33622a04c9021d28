"""Maps the errors of remote agents (JSON-RPC codes, REST reasons, plain HTTP statuses) to the classes of errors.py.

Invariants: `WIRE`, read in reverse, is the only table. Remote text is untrusted: it is sanitized and truncated, and no
decision depends on it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final

from msgspec import Struct

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.transport import HttpResponse
from apcore_a2a.errors import (
    WIRE,
    A2AConnectionError,
    A2AError,
    A2AServerError,
    AgentError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    LimitExceededError,
    OverloadedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    VersionNotSupportedError,
    Violation,
)

INTERNAL: Final = WIRE[A2AError].code
# The code -32603 does not tell a failed agent from a failed server. Both become A2AServerError.
# A code is that of the first class with it. The classes after it are special cases, which the reason tells apart.
BY_CODE: Final = {row.code: kind for kind, row in reversed(WIRE.items()) if row.code != INTERNAL}
BY_REASON: Final = {row.reason: kind for kind, row in WIRE.items() if kind not in (A2AError, AgentError)}

MAX_TEXT: Final = 500  # maximum length of an agent's text in our errors, in characters


class RemoteError(Struct, frozen=True):
    """An error as the agent reported it."""

    code: int
    message: str
    data: object = None
    violations: tuple[Violation, ...] = ()

    @property
    def info(self) -> Mapping[str, str]:
        """The google.rpc.ErrorInfo metadata in the data, with its reason (A2A 1.0 §9.5). Empty if there is none."""
        if not isinstance(self.data, list):
            return {}
        for detail in self.data:
            # The list also holds details of other types, such as BadRequest. Only ErrorInfo has a reason.
            if isinstance(detail, dict) and isinstance(detail.get("reason"), str):
                return _read_info(detail)
        return {}


def _read_info(detail: dict[str, Any]) -> dict[str, str]:
    info: dict[str, str] = {"reason": detail["reason"]}
    metadata = detail.get("metadata")
    if isinstance(metadata, dict):
        for name, value in metadata.items():
            info[str(name)] = clean_line(str(value), MAX_TEXT)
    return info


def to_error(remote: RemoteError, retry_after: int = 1, otherwise: type[A2AError] = A2AServerError) -> A2AError:
    """Return the exception for a remote error, with the agent's text and values.

    `otherwise` is the class for an error with an unknown reason and code.
    """
    info = dict(remote.info)
    # The reason takes precedence over the code, because several of our classes share the code -32603.
    kind = BY_REASON.get(info.pop("reason", ""))
    if kind is None:
        kind = BY_CODE.get(remote.code, otherwise)
    error = _make_error(kind, remote, info, retry_after)
    # The exception is not shared yet, so it may still be changed. This is necessary: constructors such as that of
    # TaskNotFoundError take values and write their own text, but the agent's text is more precise.
    text = clean_line(remote.message, MAX_TEXT)
    if text:
        error.message = text
        error.args = (text,)
    error.metadata = {**error.metadata, **info}
    return error


def _make_error(kind: type[A2AError], remote: RemoteError, info: Mapping[str, str], retry_after: int) -> A2AError:
    """Return an exception of that class, with the values that the agent sent for its constructor."""
    if kind is A2AServerError:
        return A2AServerError(code=remote.code, data=remote.data)
    if kind is InvalidParamsError:
        return InvalidParamsError(None, remote.violations)
    if kind is TaskNotFoundError:
        return TaskNotFoundError(info.get("taskId"))
    if kind is TaskNotCancelableError:
        return TaskNotCancelableError(info.get("taskId"), info.get("state", "terminal"))
    if kind is ExtensionSupportRequiredError:
        return ExtensionSupportRequiredError(info.get("extension", ""))
    if kind is VersionNotSupportedError:
        supported = info.get("supportedVersions", "").split(", ")
        return VersionNotSupportedError(info.get("requestedVersion", ""), supported)
    if issubclass(kind, OverloadedError):
        return kind(retry_after=retry_after)
    return kind()


def from_status(response: HttpResponse, url: str) -> A2AError:
    """Return the error for an HTTP status without an A2A error in the body."""
    match response.status:
        case 401:
            # The challenge names the scheme, and often what is wrong with the token. It is the best hint available.
            challenge = clean_line(response.headers.get("www-authenticate", ""), MAX_TEXT)
            return UnauthenticatedError(f"{url} requires credentials ({challenge or 'HTTP 401'}). Pass auth=")
        case 429 | 503:
            error = _overloaded(response, url)
            # Discovery converts this error to its own class, which has the status as a field.
            error.metadata = {"status": str(response.status)}
            return error
        case _ if response.is_redirect:
            target = clean_line(response.headers.get("location", ""), MAX_TEXT)
            return A2AConnectionError(f"{url} redirects to {target or 'another address'}. Redirects are not followed")
    return A2AServerError(f"{url} answered HTTP {response.status}", code=response.status)


def _overloaded(response: HttpResponse, url: str) -> OverloadedError:
    retry_after = read_retry_after(response)
    if response.status == 429:
        text = f"{url} rejects further requests of this caller (HTTP 429). Try again later"
        return LimitExceededError(text, retry_after=retry_after)
    return OverloadedError(f"{url} is overloaded (HTTP {response.status}). Try again later", retry_after=retry_after)


def choose_error(response: HttpResponse, url: str, from_body: A2AError | None) -> A2AError:
    """Return the more specific of the errors in the body and in the status of a failed response."""
    if from_body is None:
        return from_status(response, url)
    # "Internal error" in the body is less specific than these statuses, which tell the caller what to do.
    if isinstance(from_body, A2AServerError) and response.status in (401, 429, 503):
        return from_status(response, url)
    return from_body


def read_retry_after(response: HttpResponse) -> int:
    """Return the Retry-After header in seconds, or one if it cannot be parsed."""
    value = response.headers.get("retry-after", "")
    if value.isdecimal():
        return int(value[:18])  # int() rejects thousands of digits
    until = _read_date(value)
    if until is None:
        return 1
    # Relative to the agent's own clock, if it sends a date: the local clock may differ.
    now = _read_date(response.headers.get("date", "")) or datetime.now(UTC)
    return max(1, ceil((until - now).total_seconds()))


def _read_date(text: str) -> datetime | None:
    """Parse an HTTP date (RFC 9110 §5.6.7), which is always in UTC."""
    from email.utils import parsedate_to_datetime  # costs a megabyte, and such an answer is rare

    try:
        return parsedate_to_datetime(text).replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # OverflowError: an offset with many digits
        return None
