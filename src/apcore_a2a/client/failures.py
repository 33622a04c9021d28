"""A remote agent's errors as ours: JSON-RPC codes, REST reasons and bare HTTP statuses become the classes of errors.py.

Rule: `WIRE` read backwards is the only table. Remote text is data: cleaned, shortened, never trusted for a decision.
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
# -32603 says nothing of its own, and a failed agent is to its caller a failed server: both are an A2AServerError.
BY_CODE: Final = {row.code: kind for kind, row in WIRE.items() if row.code != INTERNAL}
BY_REASON: Final = {row.reason: kind for kind, row in WIRE.items() if kind not in (A2AError, AgentError)}

MAX_TEXT: Final = 500  # characters of an agent's text that we repeat


class RemoteError(Struct, frozen=True):
    """What an agent said went wrong."""

    code: int
    message: str
    data: object = None
    violations: tuple[Violation, ...] = ()

    @property
    def info(self) -> Mapping[str, str]:
        """The metadata of google.rpc.ErrorInfo in the data, with its reason (A2A 1.0 §9.5); empty if there is none."""
        if not isinstance(self.data, list):
            return {}
        for detail in self.data:
            # Details of other types stand in the same list (BadRequest, say); only ErrorInfo has a reason.
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
    """The exception for a remote error. Its text is the agent's, its values are what the agent told.

    `otherwise` is for an error that neither its reason nor its code tells.
    """
    info = dict(remote.info)
    # The reason comes first: several of our classes share the code -32603.
    kind = BY_REASON.get(info.pop("reason", ""))
    if kind is None:
        kind = BY_CODE.get(remote.code, otherwise)
    error = _make_error(kind, remote, info, retry_after)
    # Nobody has seen this exception yet, so it may still be changed. It has to be: constructors such as
    # TaskNotFoundError's take values and write a text of their own, and the agent's text says more.
    text = clean_line(remote.message, MAX_TEXT)
    if text:
        error.message = text
        error.args = (text,)
    error.metadata = {**error.metadata, **info}
    return error


def _make_error(kind: type[A2AError], remote: RemoteError, info: Mapping[str, str], retry_after: int) -> A2AError:
    """An exception of that class, with the values its constructor asks for where the agent told them."""
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
    """The error for an HTTP status that came without an A2A error in its body."""
    match response.status:
        case 401:
            # The challenge names the scheme and often what is wrong with the token: the best hint there is.
            challenge = clean_line(response.headers.get("www-authenticate", ""), MAX_TEXT)
            return UnauthenticatedError(f"{url} asks for credentials ({challenge or 'HTTP 401'}); pass auth=")
        case 429 | 503:
            error = _too_much(response, url)
            # Discovery turns this error into its own, which has the status as a field.
            error.metadata = {"status": str(response.status)}
            return error
        case _ if response.is_redirect:
            target = clean_line(response.headers.get("location", ""), MAX_TEXT)
            return A2AConnectionError(f"{url} redirects to {target or 'another place'}; redirects are not followed")
    return A2AServerError(f"{url} answered HTTP {response.status}", code=response.status)


def _too_much(response: HttpResponse, url: str) -> OverloadedError:
    retry_after = read_retry_after(response)
    if response.status == 429:
        text = f"{url} is overloaded by this caller (HTTP 429); try again later"
        return LimitExceededError(text, retry_after=retry_after)
    return OverloadedError(f"{url} is overloaded (HTTP {response.status}); try again later", retry_after=retry_after)


def choose_error(response: HttpResponse, url: str, from_body: A2AError | None) -> A2AError:
    """Of what the body and the status of a failed answer say, that which says more."""
    if from_body is None:
        return from_status(response, url)
    # "Internal error" in the body says less than these statuses, which tell the caller what to do.
    if isinstance(from_body, A2AServerError) and response.status in (401, 429, 503):
        return from_status(response, url)
    return from_body


def read_retry_after(response: HttpResponse) -> int:
    """The Retry-After header in seconds; one if it says nothing that can be read."""
    value = response.headers.get("retry-after", "")
    if value.isdecimal():
        return int(value[:18])  # Python refuses to convert thousands of digits
    until = _read_date(value)
    if until is None:
        return 1
    # By the agent's own clock, if it tells the time: ours may be another.
    now = _read_date(response.headers.get("date", "")) or datetime.now(UTC)
    return max(1, ceil((until - now).total_seconds()))


def _read_date(text: str) -> datetime | None:
    """An HTTP date (RFC 9110 §5.6.7), which is always in UTC."""
    from email.utils import parsedate_to_datetime  # a megabyte, for an answer that hardly ever comes

    try:
        return parsedate_to_datetime(text).replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # the latter of an offset with many digits
        return None
