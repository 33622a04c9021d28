"""Every error of the package, and its codes in each binding.

    A2AError
    ├── ParseError · InvalidRequestError · MethodNotFoundError · InvalidParamsError   the request itself is wrong
    │       └── SkillNotFoundError · KeyReusedError                                   (under InvalidParamsError)
    ├── TaskNotFoundError · TaskNotCancelableError                                    about one task
    │       └── AccessDeniedError                                                         (under TaskNotFoundError)
    ├── UnsupportedOperationError · PushNotificationNotSupportedError
    ├── ContentTypeNotSupportedError · InvalidAgentResponseError
    ├── ExtendedAgentCardNotConfiguredError · ExtensionSupportRequiredError
    ├── VersionNotSupportedError
    ├── UnauthenticatedError                                                          missing or invalid credentials
    ├── OverloadedError                                                               try again later
    │       └── StoreUnavailableError · LimitExceededError
    ├── AgentError                                                                    a run failed; its text is public
    ├── InternalError                                                                 a bug of the server
    │       └── InvalidStateTransitionError · StaleWriteError
    └── A2AServerError · A2AConnectionError                                           seen by the client
            └── A2ADiscoveryError                                                     (under A2AConnectionError)
                    └── CardRewrittenError                                            (under A2ADiscoveryError)

Invariant: errors carry values, and only `WIRE` has codes. The text of an A2AError may be shown to a client.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from apcore_a2a.clean_text import clean_text

DOMAIN: Final = "a2a-protocol.org"  # google.rpc.ErrorInfo.domain, A2A 1.0 §11.6
MAX_SHOWN: Final = 256  # characters of a client's text that an error quotes
MAX_LISTED: Final = 20  # skills that an error lists


def list_names(names: Iterable[str]) -> str:
    """Return names in one line, at most `MAX_LISTED` of them.

    Example:
        >>> list_names(["add", "translate"])
        'add, translate'
    """
    listed = list(islice(names, MAX_LISTED + 1))
    if len(listed) > MAX_LISTED:
        listed[MAX_LISTED] = "…"
    return ", ".join(listed)


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a mistyped one, or None if none is similar.

    Example:
        >>> closest("prot", ["host", "port"])
        'port'
    """
    from difflib import get_close_matches  # here, because an import of the package must load little

    near = get_close_matches(name, known, n=1)
    if not near:
        return None
    return near[0]


def unknown_options(names: Iterable[str], known: Iterable[str]) -> str:
    """Return the end of an error for options that do not exist, with the most similar one that does.

    Example:
        >>> unknown_options(["prot"], ["host", "port"])
        'no option prot. Did you mean port?'
    """
    given = sorted(names)
    text = f"no option {', '.join(given)}"
    choices = list(known)
    for name in given:
        near = closest(name, choices)
        if near is not None:
            return f"{text}. Did you mean {near}?"
    return text


class Violation(NamedTuple):
    """A wrong field: its path, what is wrong, and a machine-readable code."""

    field: str
    message: str
    code: str = "invalid"


class A2AError(Exception):
    """Base of every error that this package raises.

    Example:
        >>> try:
        ...     raise TaskNotFoundError("t-1")
        ... except A2AError as error:
        ...     print(error)
        Task not found: t-1
    """

    text = "Internal error"

    def __init__(self, message: str | None = None, *, kind: str | None = None, **metadata: object) -> None:
        self.message = self.text if message is None else message
        # An error may quote text of a client. Control characters in it must not reach a terminal.
        if not self.message.isprintable():
            self.message = clean_text(self.message)
        self.kind = type(self).__name__  # clients see it as `type` in the error's details
        if kind:
            self.kind = clean_text(kind)
        # Strings, because the metadata of google.rpc.ErrorInfo is a map of strings. None is omitted.
        self.metadata: Mapping[str, str] = {
            name: clean_text(str(value)) for name, value in metadata.items() if value is not None
        }
        super().__init__(self.message)


class ParseError(A2AError):
    text = "Invalid JSON payload"


class InvalidRequestError(A2AError):
    text = "Request payload validation error"


class MethodNotFoundError(A2AError):
    text = "Method not found"


class InvalidParamsError(A2AError):
    """The parameters are wrong. `violations` has the fields and the reasons.

    Example:
        >>> error = InvalidParamsError("Wrong", [Violation("city", "There is no such city")])
        >>> error.violations[0].field
        'city'
    """

    text = "Invalid parameters"

    def __init__(
        self, message: str | None = None, violations: Iterable[Violation] = (), *, kind: str | None = None
    ) -> None:
        super().__init__(message, kind=kind)
        self.violations = tuple(
            Violation(clean_text(field), clean_text(wrong), code) for field, wrong, code in violations
        )


class KeyReusedError(InvalidParamsError):
    """The `Idempotency-Key` belongs to a task that began with another message. Its text does not name the task.

    Example:
        >>> wire(KeyReusedError()).http
        422
    """

    text = "The Idempotency-Key was used for another message; use a new key for each message"


class SkillNotFoundError(InvalidParamsError):
    """No skill has the id that the message asks for.

    Args:
        advice: The available skills and the closest one, for the details of the error.

    Example:
        >>> error = SkillNotFoundError("ad", "did you mean add?")
        >>> print(error)
        Skill not found: ad
        >>> print(error.violations[0].message)
        Skill not found: ad; did you mean add?
    """

    def __init__(self, skill_id: str, advice: str = "") -> None:
        text = f"Skill not found: {skill_id[:MAX_SHOWN]}"  # the exact text of the requirements
        wrong = text
        if advice:
            wrong = f"{text}; {advice}"
        # FR-ERR-001: clients see the name of apcore's exception.
        super().__init__(text, [Violation("message.metadata.skillId", wrong, "unknown")], kind="ModuleNotFoundError")
        self.skill_id = skill_id


class TaskNotFoundError(A2AError):
    """The caller has no such task. A task of another owner gives the same error.

    Example:
        >>> TaskNotFoundError("t-1").task_id
        't-1'
    """

    def __init__(self, task_id: str | None = None) -> None:
        text = "Task not found" if task_id is None else f"Task not found: {task_id}"
        super().__init__(text, taskId=task_id)
        self.task_id = task_id


class AccessDeniedError(TaskNotFoundError):
    """The caller may not do this. For the caller it is identical to an unknown task. `reason` is for logs."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.kind = TaskNotFoundError.__name__
        self.reason = reason


class TaskNotCancelableError(A2AError):
    """The task has ended and cannot be canceled.

    Example:
        >>> print(TaskNotCancelableError("t-1", "completed"))
        Task is not cancelable: current state is completed
    """

    def __init__(self, task_id: str | None = None, state: str = "terminal") -> None:
        super().__init__(f"Task is not cancelable: current state is {state}", taskId=task_id, state=state)
        self.task_id = task_id
        self.state = state


class UnsupportedOperationError(A2AError):
    text = "This operation is not supported"


class PushNotificationNotSupportedError(A2AError):
    text = "Push Notification is not supported"


class ContentTypeNotSupportedError(A2AError):
    text = "Incompatible content types"


class InvalidAgentResponseError(A2AError):
    text = "Invalid agent response"


class ExtendedAgentCardNotConfiguredError(A2AError):
    text = "Authenticated Extended Card is not configured"


class ExtensionSupportRequiredError(A2AError):
    """The agent requires an extension that the client did not declare.

    Example:
        >>> ExtensionSupportRequiredError("urn:example:1").uri
        'urn:example:1'
    """

    def __init__(self, uri: str) -> None:
        super().__init__(f"Extension support required: {uri}", extension=uri)
        self.uri = uri


class VersionNotSupportedError(A2AError):
    """The agent does not support the requested A2A version. `supported` names the supported ones.

    Example:
        >>> print(VersionNotSupportedError("0.1", ["1.0", "0.3"]))
        A2A version 0.1 is not supported; supported versions: 1.0, 0.3
    """

    def __init__(self, version: str, supported: Iterable[str], message: str | None = None) -> None:
        self.version = version
        self.supported = ", ".join(supported)
        super().__init__(
            message or f"A2A version {version} is not supported; supported versions: {self.supported}",
            requestedVersion=version,
            supportedVersions=self.supported,
        )


class UnauthenticatedError(A2AError):
    text = "Authentication required"


class OverloadedError(A2AError):
    """A limit is reached. The client may retry after `retry_after` seconds.

    Example:
        >>> OverloadedError(retry_after=30).retry_after
        30
    """

    text = "The agent is overloaded; try again later"

    def __init__(self, message: str | None = None, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoreUnavailableError(OverloadedError):
    text = "The task store is not available; try again later"


class LimitExceededError(OverloadedError):
    """A limit of this caller is reached, not one that all callers share."""

    text = "You are over your limit; try again later"


class AgentError(A2AError):
    """Raised by an agent to fail its task with a text for the client.

    Example:
        >>> AgentError("No such city", kind="NoSuchCity").kind
        'NoSuchCity'
    """

    text = "The agent failed"


class InternalError(A2AError):
    """A bug of the server. The details are in the log, under `reference`."""

    def __init__(self, reference: str | None = None) -> None:
        super().__init__("Internal error", kind="InternalError", reference=reference)
        self.reference = reference


class InvalidStateTransitionError(InternalError):
    """An agent tried to move its task from state `old` to `new`, which the lifecycle does not allow."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__()  # a client sees "Internal error". The states are for the log
        self.old = old
        self.new = new


class StaleWriteError(InternalError):
    """Another writer has changed the task. Nothing was written."""


class A2AServerError(A2AError):
    """A remote agent answered with an error `code` for which this module has no class.

    Example:
        >>> A2AServerError("Out of order", code=-32050).code
        -32050
    """

    text = "The remote agent failed"

    def __init__(self, message: str | None = None, *, code: int = -32603, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class A2AConnectionError(A2AError):
    """A remote agent could not be reached, or the connection broke. `sent` is false if the request was not sent.

    Example:
        >>> A2AConnectionError("Connection refused", sent=False).sent
        False
    """

    text = "The remote agent could not be reached"

    def __init__(self, message: str | None = None, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class A2ADiscoveryError(A2AConnectionError):
    """A remote agent's card could not be fetched, decoded or verified. `status` is the HTTP status, if any.

    Example:
        >>> A2ADiscoveryError("There is no card", url="https://agent.example.com", status=404).status
        404
    """

    text = "The agent card could not be fetched"

    def __init__(self, message: str | None = None, *, url: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.url = url
        self.status = status


class CardRewrittenError(A2ADiscoveryError):
    """A remote agent's card is signed, but its addresses were changed later, as some gateways do. It is not forged.

    `A2AClient(…, signatures="allow-rewritten")` accepts such a card.

    Example:
        >>> CardRewrittenError("The addresses differ", url="https://gateway.example.com").url
        'https://gateway.example.com'
    """

    text = "The addresses of the agent card were changed after it was signed"


class Wire(NamedTuple):
    """The codes of an error: JSON-RPC code, HTTP status, gRPC status, and the reason in google.rpc.ErrorInfo.

    `http` and `grpc` are the statuses of A2A 1.0.1. `http_v1_0_0` and `grpc_v1_0_0` are those of A2A 1.0.0 if they
    differ.
    """

    code: int
    http: int
    grpc: str
    reason: str
    http_v1_0_0: int | None = None
    grpc_v1_0_0: str | None = None


# The codes from -32700 to -32600 are from JSON-RPC (2.0 §5.1). Those from -32001, and all statuses, are from A2A
# (1.0 §5.4). An error for which A2A has no code gets -32603, and an HTTP status that tells a client what to do.
WIRE: Final[dict[type[A2AError], Wire]] = {
    A2AError: Wire(-32603, 500, "INTERNAL", "INTERNAL_ERROR"),
    ParseError: Wire(-32700, 400, "INVALID_ARGUMENT", "PARSE_ERROR"),
    InvalidRequestError: Wire(-32600, 400, "INVALID_ARGUMENT", "INVALID_REQUEST"),
    MethodNotFoundError: Wire(-32601, 404, "NOT_FOUND", "METHOD_NOT_FOUND"),
    InvalidParamsError: Wire(-32602, 400, "INVALID_ARGUMENT", "INVALID_PARAMS"),
    KeyReusedError: Wire(-32602, 422, "INVALID_ARGUMENT", "IDEMPOTENCY_KEY_REUSED"),
    TaskNotFoundError: Wire(-32001, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
    TaskNotCancelableError: Wire(-32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE", 409),
    PushNotificationNotSupportedError: Wire(
        -32003, 400, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED", grpc_v1_0_0="UNIMPLEMENTED"
    ),
    UnsupportedOperationError: Wire(
        -32004, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION", grpc_v1_0_0="UNIMPLEMENTED"
    ),
    ContentTypeNotSupportedError: Wire(-32005, 400, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED", 415),
    InvalidAgentResponseError: Wire(-32006, 500, "INTERNAL", "INVALID_AGENT_RESPONSE", 502),
    ExtendedAgentCardNotConfiguredError: Wire(-32007, 400, "FAILED_PRECONDITION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED"),
    ExtensionSupportRequiredError: Wire(-32008, 400, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED"),
    VersionNotSupportedError: Wire(
        -32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED", grpc_v1_0_0="UNIMPLEMENTED"
    ),
    UnauthenticatedError: Wire(-32603, 401, "UNAUTHENTICATED", "UNAUTHENTICATED"),
    OverloadedError: Wire(-32603, 503, "UNAVAILABLE", "OVERLOADED"),
    LimitExceededError: Wire(-32603, 429, "RESOURCE_EXHAUSTED", "LIMIT_EXCEEDED"),
    AgentError: Wire(-32603, 500, "INTERNAL", "AGENT_FAILED"),
}


def wire(error: A2AError) -> Wire:
    """Return the codes of an error: those of its class, or of the nearest parent class with a row in `WIRE`."""
    # A2AError has a row, so there always is one.
    return next(WIRE[cls] for cls in type(error).__mro__ if cls in WIRE)


def to_metadata(error: A2AError) -> dict[str, object]:
    """Return the metadata for the status message of a failed task, equal to that of an error response.

    Example:
        >>> to_metadata(AgentError("The balance is too low", kind="BalanceTooLow", account="a-1"))
        {'account': 'a-1', 'type': 'BalanceTooLow', 'code': -32603}
    """
    metadata: dict[str, object] = {**error.metadata, "type": error.kind, "code": wire(error).code}
    if isinstance(error, InvalidParamsError) and error.violations:
        metadata["errors"] = [violation._asdict() for violation in error.violations]
    return metadata
