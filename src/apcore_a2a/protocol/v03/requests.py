"""Requests and push configs from the JSON of A2A 0.3, in the official forms and those of the requirements.

Invariant: as in `values`, a `Wire…` class accepts all forms, and its `to_…` function converts it without failing.
The forms of the requirements: `params.contextId`, a flat push config, `{taskId}` for `{id}`, and `tasks/list`, which
0.3 does not have, with `cursor` and `limit`.
"""

from typing import Annotated, Final

from msgspec import Meta
from msgspec.structs import replace

from apcore_a2a.errors import InvalidParamsError, Violation
from apcore_a2a.protocol.model import (
    AuthenticationInfo,
    Count,
    Id,
    ListPushConfigs,
    ListTasks,
    Metadata,
    OptionalId,
    PushConfig,
    PushConfigPage,
    PushConfigRef,
    SendConfiguration,
    SendMessage,
    TaskPage,
    TaskState,
    Value,
)
from apcore_a2a.protocol.v03.values import STATES, State, WireMessage, WireTask, missing, to_message, to_task

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
