"""A remote agent's errors as ours: JSON-RPC codes, REST reasons and bare HTTP statuses become the classes of errors.py.

Rule: `WIRE` read backwards is the only table. Remote text is data: cleaned, shortened, never trusted for a decision.
"""

from collections.abc import Callable, Mapping
from typing import Final

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
        for detail in self.data if isinstance(self.data, list) else ():
            if isinstance(detail, dict) and isinstance(detail.get("reason"), str):
                metadata = detail.get("metadata")
                known = metadata if isinstance(metadata, dict) else {}
                return {
                    "reason": detail["reason"],
                    **{str(name): clean_line(str(value), MAX_TEXT) for name, value in known.items()},
                }
        return {}


def to_error(remote: RemoteError, retry_after: int = 1, otherwise: type[A2AError] = A2AServerError) -> A2AError:
    """The exception for a remote error. Its text is the agent's, its values are what the agent told.

    `otherwise` is for an error that neither its reason nor its code tells.
    """
    info = remote.info
    kind = BY_REASON.get(info.get("reason", "")) or BY_CODE.get(remote.code, otherwise)
    text = clean_line(remote.message, MAX_TEXT)
    make = _MAKERS.get(kind)
    error = make(remote, info) if make else kind(text or None)
    if isinstance(error, OverloadedError):
        error.retry_after = retry_after
    if text:
        error.message, error.args = text, (text,)
    error.metadata = {**error.metadata, **{name: value for name, value in info.items() if name != "reason"}}
    return error


_MAKERS: Final[dict[type[A2AError], Callable[[RemoteError, Mapping[str, str]], A2AError]]] = {
    A2AServerError: lambda remote, _: A2AServerError(code=remote.code, data=remote.data),
    InvalidParamsError: lambda remote, _: InvalidParamsError(None, remote.violations),
    TaskNotFoundError: lambda _, info: TaskNotFoundError(info.get("taskId")),
    TaskNotCancelableError: lambda _, info: TaskNotCancelableError(info.get("taskId"), info.get("state", "terminal")),
    ExtensionSupportRequiredError: lambda _, info: ExtensionSupportRequiredError(info.get("extension", "")),
    VersionNotSupportedError: lambda _, info: VersionNotSupportedError(
        info.get("requestedVersion", ""), info.get("supportedVersions", "").split(", ")
    ),
}


def from_status(response: HttpResponse, url: str) -> A2AError:
    """The error for an HTTP status that came without an A2A error in its body."""
    match response.status:
        case 401:
            asked = clean_line(response.headers.get("www-authenticate", ""), MAX_TEXT)
            return UnauthenticatedError(f"{url} asks for credentials ({asked or 'HTTP 401'}); pass auth=")
        case 429 | 503:
            text = f"{url} is overloaded (HTTP {response.status}); try again later"
            error = OverloadedError(text, retry_after=retry_after(response))
            error.metadata = {"status": str(response.status)}
            return error
        case _ if response.is_redirect:
            target = clean_line(response.headers.get("location", ""), MAX_TEXT)
            return A2AConnectionError(f"{url} redirects to {target or 'another place'}; redirects are not followed")
    return A2AServerError(f"{url} answered HTTP {response.status}", code=response.status)


def choose_error(response: HttpResponse, url: str, told: A2AError | None) -> A2AError:
    """Of what the body and the status of a failed answer say, that which says more."""
    vague = told is None or (isinstance(told, A2AServerError) and response.status in (401, 429, 503))
    return from_status(response, url) if vague or told is None else told


def retry_after(response: HttpResponse) -> int:
    """The Retry-After header in seconds; its date form, which needs clocks that agree, counts as one second."""
    value = response.headers.get("retry-after", "")
    return int(value[:6]) if value.isdecimal() else 1
