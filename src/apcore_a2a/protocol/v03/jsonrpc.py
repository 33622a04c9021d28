"""A2A 0.3 in its JSON-RPC form: requests, and the tables that decode and encode operations, events and results.

Invariant: input is decoded with tolerance, output is official 0.3.0 (`values`, `card`).
A decoded message may have an empty `message_id`, which the engine fills in.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw
from msgspec.structs import replace

from apcore_a2a.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InvalidAgentResponseError,
    InvalidParamsError,
    SkillNotFoundError,
    Violation,
    wire,
)
from apcore_a2a.protocol import decoding, v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import inverted
from apcore_a2a.protocol.jsonrpc import NULL, ErrorObject
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    AuthenticationInfo,
    CancelTask,
    Count,
    Document,
    Event,
    GetExtendedCard,
    GetTask,
    Id,
    ListPushConfigs,
    ListTasks,
    Message,
    Metadata,
    Operation,
    OptionalId,
    PushConfig,
    PushConfigPage,
    PushConfigRef,
    PushConfigWithState,
    Rules,
    SendConfiguration,
    SendMessage,
    StatusUpdate,
    SubscribeToTask,
    Task,
    TaskPage,
    TaskState,
    Value,
    encode,
)
from apcore_a2a.protocol.v03 import card as card_module
from apcore_a2a.protocol.v03 import values
from apcore_a2a.protocol.v03.values import STATES, State, WireMessage, WireTask, missing, to_message, to_task
from apcore_a2a.protocol.v1 import Result

# ---- requests -------------------------------------------------------------------------------------------------------
# Requests and push configs from the JSON of A2A 0.3, in the official forms and those of the requirements.
# Invariant: as in `values`, a `Wire…` class accepts all forms, and its `to_…` function converts it without failing.
# The forms of the requirements: `params.contextId`, a flat push config, `{taskId}` for `{id}`, and `tasks/list`, which
# 0.3 does not have, with `cursor` and `limit`.

MAX_LIMIT: Final = 200

Url = Annotated[str, Meta(min_length=1, max_length=2048)]
Limit = Annotated[int, Meta(ge=1)]  # clamped to MAX_LIMIT, not rejected


class WireAuthentication(Value, frozen=True):
    schemes: tuple[str, ...] = ()  # several in 0.3. The model has one, and the first counts
    credentials: str = ""


class WirePush(Value, frozen=True):
    url: Url
    id: OptionalId = ""
    token: str = ""
    authentication: WireAuthentication | None = None


class WireTaskPush(Value, frozen=True):
    """A push config with its task, nested or flat."""

    task_id: Id
    push_notification_config: WirePush | None = None
    url: Url | None = None
    id: OptionalId = ""
    token: str = ""
    authentication: WireAuthentication | None = None

    def __post_init__(self) -> None:
        if self.push_notification_config is None and self.url is None:
            raise missing("pushNotificationConfig.url")


class WireConfiguration(Value, frozen=True):
    accepted_output_modes: tuple[str, ...] = ()
    push_notification_config: WirePush | None = None
    history_length: Count | None = None
    # 0.3.0 does not specify the default. Official servers wait for the result, and so does this one.
    blocking: bool = True


class WireSend(Value, frozen=True):
    message: WireMessage
    configuration: WireConfiguration | None = None
    metadata: Metadata | None = None
    context_id: OptionalId = ""
    message_id: OptionalId = ""  # 0.3.0 §9.4 has it here

    def __post_init__(self) -> None:
        # Two values must be equal. To choose one could put the message into the wrong conversation.
        if self.context_id and self.message.context_id not in ("", self.context_id):
            text = "differs from message.contextId"
            raise InvalidParamsError(f"Invalid parameter contextId: {text}", [Violation("contextId", text)])


class WireTaskRef(Value, frozen=True):
    """Identifies a task, by `id` or `taskId`, and optionally one of its push configs."""

    id: OptionalId = ""
    task_id: OptionalId = ""
    push_notification_config_id: OptionalId = ""

    def __post_init__(self) -> None:
        if not self.id and not self.task_id:
            raise missing("id")


class WireListTasks(Value, frozen=True):
    context_id: OptionalId = ""
    status: State | None = None
    cursor: str = ""
    limit: Limit | None = None
    page_token: str = ""
    page_size: Limit | None = None
    history_length: Count | None = None
    status_timestamp_after: str = ""
    include_artifacts: bool = True  # 1.0 omits them by default. 0.3 has no tasks without artifacts


class WireTaskPage(Value, frozen=True):
    tasks: list[WireTask]
    next_cursor: str = ""
    next_page_token: str = ""
    page_size: int = 0
    total_size: int = 0


def _to_authentication(given: WireAuthentication | None) -> AuthenticationInfo | None:
    if given is None:
        return None
    return AuthenticationInfo(scheme=next(iter(given.schemes), ""), credentials=given.credentials)


def _to_push(push: WirePush, task_id: str = "") -> PushConfig:
    authentication = _to_authentication(push.authentication)
    return PushConfig(url=push.url, id=push.id, task_id=task_id, token=push.token, authentication=authentication)


def to_task_push(push: WireTaskPush) -> PushConfig:
    config = push.push_notification_config
    if config is None:  # flat. `__post_init__` has checked that there is a url
        config = WirePush(url=push.url or "", id=push.id, token=push.token, authentication=push.authentication)
    return _to_push(config, push.task_id)


def to_push_page(pushes: list[WireTaskPush]) -> PushConfigPage:
    return PushConfigPage(configs=tuple(map(to_task_push, pushes)))


def to_send(send: WireSend) -> SendMessage:
    message = to_message(send.message)
    if send.context_id or send.message_id:
        message = replace(
            message,
            context_id=message.context_id or send.context_id,
            message_id=message.message_id or send.message_id,
        )
    if send.configuration is None:
        return SendMessage(message=message, metadata=send.metadata)
    configuration = _to_configuration(send.configuration)
    return SendMessage(message=message, configuration=configuration, metadata=send.metadata)


def _to_configuration(given: WireConfiguration) -> SendConfiguration:
    push = None
    if given.push_notification_config is not None:
        push = _to_push(given.push_notification_config)
    return SendConfiguration(
        accepted_output_modes=given.accepted_output_modes,
        task_push_notification_config=push,
        history_length=given.history_length,
        return_immediately=not given.blocking,
    )


def to_list_tasks(request: WireListTasks) -> ListTasks:
    status = TaskState.UNSPECIFIED  # which means any state
    if request.status is not None:
        status = STATES[request.status]
    page_size = request.limit or request.page_size or ListTasks().page_size
    return ListTasks(
        context_id=request.context_id,
        status=status,
        page_size=min(page_size, MAX_LIMIT),
        page_token=request.cursor or request.page_token,
        history_length=request.history_length,
        status_timestamp_after=request.status_timestamp_after,
        include_artifacts=request.include_artifacts,
    )


def to_task_page(page: WireTaskPage) -> TaskPage:
    return TaskPage(
        tasks=tuple(map(to_task, page.tasks)),
        next_page_token=page.next_cursor or page.next_page_token,
        page_size=page.page_size,
        total_size=page.total_size,
    )


def to_push_ref(ref: WireTaskRef) -> PushConfigRef:
    # Official: `id` identifies the task. With `taskId` (the requirements, and the path of a REST request), `id`
    # identifies the config.
    if not ref.task_id:
        return PushConfigRef(task_id=ref.id, id=ref.push_notification_config_id)
    return PushConfigRef(task_id=ref.task_id, id=ref.push_notification_config_id or ref.id)


def to_list_pushes(ref: WireTaskRef) -> ListPushConfigs:
    return ListPushConfigs(task_id=ref.task_id or ref.id)


# ---- operations, events and results ---------------------------------------------------------------------------------

VERSION: Final = "0.3"
NAMES: Final = {
    Operation.SEND: "message/send",
    Operation.STREAM: "message/stream",
    Operation.GET: "tasks/get",
    Operation.LIST: "tasks/list",  # from the requirements: 0.3 lists tasks only over REST and gRPC
    Operation.CANCEL: "tasks/cancel",
    Operation.SUBSCRIBE: "tasks/resubscribe",
    Operation.CREATE_PUSH: "tasks/pushNotificationConfig/set",
    Operation.GET_PUSH: "tasks/pushNotificationConfig/get",
    Operation.LIST_PUSH: "tasks/pushNotificationConfig/list",
    Operation.DELETE_PUSH: "tasks/pushNotificationConfig/delete",
    Operation.EXTENDED_CARD: "agent/getAuthenticatedExtendedCard",
}
METHODS: Final = {
    **inverted(NAMES),
    "agentCard/get": Operation.EXTENDED_CARD,  # from the requirements
}
REST_PREFIX: Final = "/v1"
EXTENSIONS_HEADER: Final = "X-A2A-Extensions"
RULES: Final = Rules(
    version="0.3",
    resume_by_context=True,
    stream_keeps_task=True,
    subscribe_when_ended=True,
    replay=True,
    list_by_creation=True,
    page_is_array=True,
    without_extended_card=ExtendedAgentCardNotConfiguredError,
    unnamed_push="default",
    deleted_push_must_exist=True,
    stream_errors_as_events=True,
)
SENDS_EVENTS_AS_STORED: Final = False  # events are stored as 1.0

ERROR_NAMES: Final = {  # by code; 0.3.0 §8
    -32700: "JSONParseError",
    -32600: "InvalidRequestError",
    -32601: "MethodNotFoundError",
    -32602: "InvalidParamsError",
    -32603: "InternalError",
    -32001: "TaskNotFoundError",
    -32002: "TaskNotCancelableError",
    -32003: "PushNotificationNotSupportedError",
    -32004: "UnsupportedOperationError",
    -32005: "ContentTypeNotSupportedError",
    -32006: "InvalidAgentResponseError",
    -32007: "AuthenticatedExtendedCardNotConfiguredError",
}


def _unchanged(value: Any) -> Any:
    """Return the value, for types that are the same in 0.3 and 1.0."""
    return value


class _WireDecoder:
    """Decodes JSON into a wire type of 0.3, and converts that to a value of the model."""

    def __init__(self, shape: Any, to_model: Callable[[Any], Any] = _unchanged) -> None:
        self._decoder: decoding.LooseDecoder[Any] = decoding.LooseDecoder(shape)
        self._to_model = to_model

    def decode(self, data: bytes | Raw, left_out: list[str] | None = None) -> Any:
        return self._to_model(self._decoder.decode(data, left_out))

    def convert(self, params: dict[str, Any]) -> Any:
        """Convert path and query values, all of which may be strings."""
        return self._to_model(self._decoder.convert(params))


# ---- for the server ----------------------------------------------------------------------------------------------

_SEND: Final = _WireDecoder(WireSend, to_send)
_PUSH: Final = _WireDecoder(WireTaskPush, to_task_push)
_PUSH_REF: Final = _WireDecoder(WireTaskRef, to_push_ref)
_REQUESTS: Final = {
    Operation.SEND: _SEND,
    Operation.STREAM: _SEND,
    Operation.GET: _WireDecoder(GetTask),
    Operation.LIST: _WireDecoder(WireListTasks, to_list_tasks),
    Operation.CANCEL: _WireDecoder(CancelTask),
    Operation.SUBSCRIBE: _WireDecoder(SubscribeToTask),
    Operation.CREATE_PUSH: _PUSH,
    Operation.GET_PUSH: _PUSH_REF,
    Operation.LIST_PUSH: _WireDecoder(WireTaskRef, to_list_pushes),
    Operation.DELETE_PUSH: _PUSH_REF,
    Operation.EXTENDED_CARD: _WireDecoder(GetExtendedCard),
}
_WRITERS: Final[dict[type, Callable[[Any], object]]] = {
    Task: values.task,
    Message: values.message,
    StatusUpdate: values.status_update,
    ArtifactUpdate: values.artifact_update,
    TaskPage: values.task_page,
    PushConfig: values.task_push,
    PushConfigWithState: values.task_push,
    PushConfigPage: values.push_page,
}


def decode_request(operation: Operation, params: bytes | Raw) -> Value:
    """Return the typed request of an operation. A wrong field is an InvalidParamsError that names it."""
    request: Value = _REQUESTS[operation].decode(params)
    return request


def convert_request(operation: Operation, params: dict[str, Any]) -> Value:
    """Return the typed request from path and query values, all of which may be strings."""
    request: Value = _REQUESTS[operation].convert(params)
    return request


def encode_result(operation: Operation, result: Result) -> bytes:
    match result:
        case None:
            return NULL
        case Document():
            # Converting its 1.0 JSON is cheaper than decoding a task first.
            return encode(values.task(msgspec.json.decode(result.body)))
        case AgentCard():
            return encode_card(result)
    return _write(result)


def _write(value: Value | Task) -> bytes:
    return encode(_WRITERS[type(value)](msgspec.to_builtins(value)))


def encode_event(event: Event) -> bytes:
    return _write(event)


def encode_push(event: Event, task: Task) -> bytes:
    """Return the body for a webhook: the whole task (0.3.0 §9.5)."""
    return _write(task)


def encode_card(card: AgentCard) -> bytes:
    return encode(card_module.to_json(card))


def encode_hybrid_card(card: AgentCard) -> bytes:
    """Return a card for the official SDKs of both generations: 1.0, with the fields of 0.3 added."""
    return encode(card_module.to_hybrid_json(card))


def _code(error: A2AError) -> int:
    if isinstance(error, SkillNotFoundError):
        return -32601  # FR-ERR-001: an unknown skill is an unknown method
    return wire(error).code


def error_data(error: A2AError) -> dict[str, object]:
    data: dict[str, object] = {"type": error.kind, **error.metadata}
    if isinstance(error, InvalidParamsError) and error.violations:
        errors: list[dict[str, str]] = []
        for violation in error.violations:
            entry = {"field": violation.field, "code": violation.code, "message": violation.message}
            errors.append(entry)
        data["errors"] = errors
    return data


def encode_error(error: A2AError, *, typed: bool = False) -> ErrorObject:
    """Return the `error` of a JSON-RPC response. If `typed`, its data is the list of 1.0 (docs/decisions/0043)."""
    if typed:
        return ErrorObject(_code(error), error.message, v1.error_details(error))
    return ErrorObject(_code(error), error.message, error_data(error))


def encode_rest_error(error: A2AError, status: int, *, typed: bool = False) -> bytes:
    """Return the body of a REST error.

    0.3.0 does not specify it, and each SDK reads another part: Python the name in `type`, JavaScript `code` and
    `message`, the conformance kit the name in `error`. The Go SDK reads the object of 1.0 under `error`, and receives
    it: `typed` means that the client knows 1.0 (docs/decisions/0052).
    """
    code = _code(error)
    name = ERROR_NAMES.get(code, error.kind)  # 0.3 has no name for the codes that 1.0 added
    described: object = name
    if typed:
        described = v1.rest_status(error, status)
    return encode(
        {
            "error": described,
            "type": name,
            "message": error.message,
            "code": code,
            "data": error_data(error),
        }
    )


# ---- for the client ----------------------------------------------------------------------------------------------


class _Tagged(Value, frozen=True):
    kind: str


_KIND: Final = msgspec.json.Decoder(_Tagged)
_TASK: Final = _WireDecoder(values.WireTask, values.to_task)
_EVENTS: Final = {
    "task": _TASK,
    "message": _WireDecoder(values.WireMessage, values.to_message),
    "status-update": _WireDecoder(values.WireStatusUpdate, values.to_status_update),
    "artifact-update": _WireDecoder(values.WireArtifactUpdate, values.to_artifact_update),
}
_RESULTS: Final = {
    Operation.GET: _TASK,
    Operation.LIST: _WireDecoder(WireTaskPage, to_task_page),
    Operation.CANCEL: _TASK,
    Operation.CREATE_PUSH: _PUSH,
    Operation.GET_PUSH: _PUSH,
    Operation.LIST_PUSH: _WireDecoder(list[WireTaskPush], to_push_page),
}
_REQUEST_WRITERS: Final[dict[Operation, Callable[[Any], object]]] = {  # all others are the same as in 1.0
    Operation.SEND: values.send,
    Operation.STREAM: values.send,
    Operation.LIST: values.list_tasks,
    Operation.CREATE_PUSH: values.task_push,
    Operation.GET_PUSH: values.push_ref,
    Operation.LIST_PUSH: values.push_ref,
    Operation.DELETE_PUSH: values.push_ref,
}


def encode_request(operation: Operation, request: Value) -> bytes:
    body: dict[str, Any] = msgspec.to_builtins(request)
    body.pop("tenant", None)  # 0.3 has no tenants
    writer = _REQUEST_WRITERS.get(operation)
    if writer is None:
        return encode(body)
    return encode(writer(body))


def decode_event(data: bytes | Raw, left_out: list[str] | None = None) -> Event:
    """Return an event of a stream, or the result of message/send. `kind` is its type."""
    kind = decoding.decode(data, _KIND).kind
    if kind not in _EVENTS:
        raise InvalidAgentResponseError("The agent answered with none of task, message, status-update, artifact-update")
    event: Event = _EVENTS[kind].decode(data, left_out)
    return event


def decode_result(operation: Operation, data: bytes | Raw, left_out: list[str] | None = None) -> Any:
    """Return the typed result of a remote agent."""
    match operation:
        case Operation.SEND:
            return decode_event(data, left_out)
        case Operation.EXTENDED_CARD:
            return decode_card(bytes(data))
        case Operation.DELETE_PUSH:
            return None  # the result is ignored
    return _RESULTS[operation].decode(data, left_out)


def decode_card(data: bytes) -> AgentCard:
    """Return the card from any form: 0.3, 1.0, or a hybrid."""
    return card_module.decode(data)


def decode_violations(data: object) -> list[Violation]:
    """Return the wrong fields in the data of an error, in the form of 1.0, this package, or pydantic (a2a-sdk)."""
    typed = v1.decode_violations(data)
    if typed:
        return typed
    if isinstance(data, dict):
        data = data.get("errors")
    if not isinstance(data, list):
        return []
    return [_violation(item) for item in data if isinstance(item, dict) and "@type" not in item]


def _violation(item: dict[str, Any]) -> Violation:
    # `loc` and `msg` come from pydantic. Its location is a list of names and indexes.
    place = item.get("field", item.get("loc", ""))
    if isinstance(place, list):
        place = ".".join(map(str, place))
    message = item.get("message", item.get("msg", ""))
    code = item.get("code", "invalid")
    return Violation(str(place), str(message), str(code))
