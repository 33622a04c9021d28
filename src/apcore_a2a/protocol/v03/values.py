"""Values of 0.3: decoded from its JSON, and encoded from the model's own JSON."""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field

from apcore_a2a.protocol.decoding import inverted
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import (
    MAX_PARTS,
    Artifact,
    ArtifactUpdate,
    Id,
    Message,
    Metadata,
    OptionalId,
    Part,
    Role,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    Value,
)

# From the JSON of A2A 0.3 to the model: parts, messages, artifacts, tasks and events.
#
# Decoding takes two steps. A `Wire…` class has the shape of the JSON, with all accepted forms. A `to_…` function
# converts it to the model's value, which has one form.
#
# Invariant: a wire class accepts the official form and the looser ones of the requirements and of the specification's
# examples (a part with `type` for `kind`, or neither; a flat file part; a file with `data` for `bytes` or `url` for
# `uri`; a state with `_` for `-`). Its `to_…` function converts every accepted value without failing.
#
# A message without `messageId` is accepted (with an empty id, which the engine fills in) only if it has no `kind`
# either. Then it has the form of the requirements. With `kind` it has the official form, for which the conformance kit
# requires the id.

ROLES: Final = {"user": Role.USER, "agent": Role.AGENT}
STATES: Final = {
    "unknown": TaskState.UNSPECIFIED,
    "submitted": TaskState.SUBMITTED,
    "working": TaskState.WORKING,
    "completed": TaskState.COMPLETED,
    "failed": TaskState.FAILED,
    "canceled": TaskState.CANCELED,
    "rejected": TaskState.REJECTED,
    "input_required": TaskState.INPUT_REQUIRED,
    "auth_required": TaskState.AUTH_REQUIRED,
    "input-required": TaskState.INPUT_REQUIRED,  # the official spelling is last, so it wins when the table is inverted
    "auth-required": TaskState.AUTH_REQUIRED,
}

# If 0.3 has no field for a value, the metadata of the part carries it. The last of these keys is from a2a-sdk: in 0.3,
# data must be an object, so any other value is sent as {"value": …}.
FILENAME: Final = "filename"
MEDIA_TYPE: Final = "mediaType"
WRAPPED: Final = "data_part_compat"

Kind = Literal["text", "file", "data"]
State = Literal[
    "unknown",
    "submitted",
    "working",
    "completed",
    "failed",
    "canceled",
    "rejected",
    "input_required",
    "auth_required",
    "input-required",
    "auth-required",
]


def missing(name: str) -> ValueError:
    # The text of the JSON library, which adds the path to errors raised while it decodes. `decoding` parses both.
    return ValueError(f"Object missing required field `{name}`")


class WireFile(Value, frozen=True):
    uri: str | UnsetType = UNSET
    content: bytes | UnsetType = field(default=UNSET, name="bytes")
    data: bytes | UnsetType = UNSET
    url: str | UnsetType = UNSET  # the name in the conformance kit
    name: str = ""
    mime_type: str = ""

    def __post_init__(self) -> None:
        if self.uri is UNSET and self.content is UNSET and self.data is UNSET and self.url is UNSET:
            raise missing("uri")


class WirePart(Value, frozen=True):
    kind: Kind | None = None
    type: Kind | None = None  # the name in the requirements
    text: str | UnsetType = UNSET
    file: WireFile | None = None
    data: Any = UNSET
    metadata: Metadata | None = None
    # Not official: a flat file part, and the media type of a data part.
    uri: str | UnsetType = UNSET
    content: bytes | UnsetType = field(default=UNSET, name="bytes")
    name: str = ""
    mime_type: str = ""
    media_type: str = ""

    @property
    def has_file(self) -> bool:
        return self.file is not None or self.uri is not UNSET or self.content is not UNSET

    def __post_init__(self) -> None:
        match self.kind or self.type:
            case "text" if self.text is UNSET:
                raise missing("text")
            case "data" if self.data is UNSET:
                raise missing("data")
            case "file" if not self.has_file:
                raise missing("file")
            case None if self.text is UNSET and self.data is UNSET and not self.has_file:
                raise ValueError("a part has exactly one of text, file and data")


class WireMessage(Value, frozen=True):
    role: Literal["user", "agent"]
    parts: Annotated[list[WirePart], Meta(min_length=1, max_length=MAX_PARTS)]
    kind: Literal["message"] | None = None
    message_id: OptionalId = ""
    context_id: OptionalId = ""
    task_id: OptionalId = ""
    metadata: Metadata | None = None
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[Id, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is not None and not self.message_id:
            raise missing("messageId")


class WireStatus(Value, frozen=True):
    state: State
    message: WireMessage | None = None
    timestamp: str = ""


class WireArtifact(Value, frozen=True):
    artifact_id: Id
    parts: list[WirePart]
    name: str = ""
    description: str = ""
    metadata: Metadata | None = None
    extensions: tuple[str, ...] = ()


class WireTask(Value, frozen=True):
    id: Id
    status: WireStatus
    context_id: OptionalId = ""
    artifacts: tuple[WireArtifact, ...] = ()
    history: tuple[WireMessage, ...] = ()
    metadata: Metadata | None = None


class WireStatusUpdate(Value, frozen=True):
    status: WireStatus
    task_id: OptionalId = ""
    context_id: OptionalId = ""
    metadata: Metadata | None = None


class WireArtifactUpdate(Value, frozen=True):
    artifact: WireArtifact
    task_id: OptionalId = ""
    context_id: OptionalId = ""
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata | None = None


def _to_part(part: WirePart) -> Part:
    kind = part.kind or part.type or _guess_kind(part)
    if kind == "file":
        return _to_file(part)
    data = part.data
    metadata = part.metadata
    filename = ""
    media_type = part.media_type
    if metadata:  # created by the decoder, so it may be changed
        filename = _pop_text(metadata, FILENAME)
        media_type = media_type or _pop_text(metadata, MEDIA_TYPE)
        if kind == "data" and _is_wrapped(data, metadata):
            data = data["value"]
            del metadata[WRAPPED]
    if kind == "text":
        return Part(text=part.text, metadata=metadata or None, filename=filename, media_type=media_type)
    return Part(data=data, metadata=metadata or None, filename=filename, media_type=media_type)


def _guess_kind(part: WirePart) -> Kind:
    """Return the kind of a part without `kind`, from its fields."""
    if part.text is not UNSET:
        return "text"
    if part.has_file:
        return "file"
    return "data"


def _pop_text(metadata: Metadata, key: str) -> str:
    """Remove a string from the metadata and return it. A value of another type belongs to the sender and stays."""
    value = metadata.get(key)
    if not isinstance(value, str) or not value:
        return ""
    del metadata[key]
    return value


def _is_wrapped(data: Any, metadata: Metadata) -> bool:
    # Both the key in the metadata and the form of the data, because the sender may use one of them itself.
    return metadata.get(WRAPPED) is True and isinstance(data, dict) and data.keys() == {"value"}


def _to_file(part: WirePart) -> Part:
    file = part.file
    if file is None:
        file = WireFile(uri=part.uri, content=part.content, name=part.name, mime_type=part.mime_type)
    raw = file.data if file.content is UNSET else file.content
    uri = file.url if file.uri is UNSET else file.uri
    if raw is not UNSET:
        uri = UNSET  # the model has one of them, and the content needs no download
    return Part(raw=raw, url=uri, metadata=part.metadata, filename=file.name, media_type=file.mime_type)


def to_message(message: WireMessage) -> Message:
    return Message(
        message_id=message.message_id,
        role=ROLES[message.role],
        parts=tuple(map(_to_part, message.parts)),
        context_id=message.context_id,
        task_id=message.task_id,
        metadata=message.metadata,
        extensions=message.extensions,
        reference_task_ids=message.reference_task_ids,
    )


def _to_status(status: WireStatus) -> TaskStatus:
    message = None
    if status.message is not None:
        message = to_message(status.message)
    return TaskStatus(state=STATES[status.state], message=message, timestamp=status.timestamp)


def _to_artifact(artifact: WireArtifact) -> Artifact:
    return Artifact(
        artifact_id=artifact.artifact_id,
        parts=[_to_part(part) for part in artifact.parts],
        name=artifact.name,
        description=artifact.description,
        metadata=artifact.metadata,
        extensions=artifact.extensions,
    )


def to_task(task: WireTask) -> Task:
    return Task(
        id=task.id,
        context_id=task.context_id,
        status=_to_status(task.status),
        artifacts=[_to_artifact(artifact) for artifact in task.artifacts],
        history=[to_message(message) for message in task.history],
        metadata=task.metadata,
    )


def to_status_update(update: WireStatusUpdate) -> StatusUpdate:
    return StatusUpdate(
        status=_to_status(update.status),
        task_id=update.task_id,
        context_id=update.context_id,
        metadata=update.metadata,
    )


def to_artifact_update(update: WireArtifactUpdate) -> ArtifactUpdate:
    return ArtifactUpdate(
        artifact=_to_artifact(update.artifact),
        task_id=update.task_id,
        context_id=update.context_id,
        append=update.append,
        last_chunk=update.last_chunk,
        metadata=update.metadata,
    )


# ---- writing --------------------------------------------------------------------------------------------------------
# From the model to the JSON of A2A 0.3: the 1.0 JSON of a value is converted.
#
# Invariant: each function converts its arguments in place, which it owns, and returns them. The output is official
# 0.3.0. The only addition is `tasks/list`, which 0.3 does not have.

Json = dict[str, Any]  # the JSON of one value of the model: strings for enums and bytes

# 0.3 has two roles. An unspecified role is the agent's, because messages of users are rejected without a role.
_ROLES: Final[dict[str, str]] = {Role.UNSPECIFIED: "agent", Role.USER: "user", Role.AGENT: "agent"}
_STATES: Final[dict[str, str]] = inverted(STATES)
_NO_OUTPUT: Final = [{"data": None, "mediaType": "application/json"}]  # no output; 1.0 requires a part


def _part(part: Json) -> None:
    if "text" in part:
        part["kind"] = "text"
    elif "data" in part:
        part["kind"] = "data"
        if not isinstance(part["data"], dict):  # 0.3 accepts only objects. `_to_part` unwraps it
            part["data"] = {"value": part["data"]}
            part.setdefault("metadata", {})[WRAPPED] = True
    else:
        part["kind"] = "file"
        file: Json = {}
        part["file"] = file
        _move(part, "raw", file, "bytes")
        _move(part, "url", file, "uri")
        _move(part, "filename", file, "name")
        _move(part, "mediaType", file, "mimeType")
        return
    # 0.3 has these fields only for files.
    if "filename" in part or "mediaType" in part:
        metadata = part.setdefault("metadata", {})
        _move(part, "filename", metadata, FILENAME)
        _move(part, "mediaType", metadata, MEDIA_TYPE)


def _move(source: Json, name: str, target: Json, new_name: str) -> None:
    if name in source:
        target[new_name] = source.pop(name)


def message(message: Json) -> Json:
    message["kind"] = "message"
    message["role"] = _ROLES[message["role"]]
    for part in message["parts"]:
        _part(part)
    return message


def _status(status: Json) -> None:
    status["state"] = _STATES[status["state"]]
    if "message" in status:
        message(status["message"])


def _artifact(artifact: Json) -> None:
    if artifact["parts"] == _NO_OUTPUT:
        artifact["parts"] = []  # FR-MSG-004
    for part in artifact["parts"]:
        _part(part)


def task(task: Json) -> Json:
    task.setdefault("artifacts", [])  # FR-TSK-002
    return _task(task)


def _task(task: Json) -> Json:
    task["kind"] = "task"
    task.setdefault("contextId", "")  # required in 0.3
    _status(task["status"])
    for artifact in task.get("artifacts", ()):
        _artifact(artifact)
    for entry in task.get("history", ()):
        message(entry)
    return task


def status_update(update: Json) -> Json:
    # Marks the last event of a stream. In 0.3, a task that waits for the user also ends the stream.
    update["final"] = update["status"]["state"] in AT_REST
    _status(update["status"])
    update["kind"] = "status-update"
    return update


def artifact_update(update: Json) -> Json:
    _artifact(update["artifact"])
    update["kind"] = "artifact-update"
    return update


def _push(push: Json) -> Json:
    if "authentication" in push:
        authentication = push["authentication"]
        scheme = authentication.pop("scheme")
        authentication["schemes"] = [scheme] if scheme else []
    push.pop("tenant", None)  # 0.3 has no tenants
    push.pop("metadata", None)
    return push


def task_push(push: Json) -> Json:
    """Return a push config of 0.3. The state of its deliveries is beside it, as in the requirements."""
    states = push.pop("metadata", {}).values()
    shown = {"taskId": push.pop("taskId", ""), "pushNotificationConfig": _push(push)}
    for state in states:
        shown |= state
    return shown


def push_page(page: Json) -> list[Json]:
    return [task_push(push) for push in page["configs"]]


def task_page(page: Json) -> Json:
    for entry in page["tasks"]:
        _task(entry)  # a list omits artifacts unless they were asked for, so that is not an empty list
    if page["nextPageToken"]:
        page["nextCursor"] = page["nextPageToken"]  # the name in the requirements
    return page


# ---- requests, for the client ------------------------------------------------------------------------------------


def send(request: Json) -> Json:
    message(request["message"])
    configuration = request.setdefault("configuration", {})
    configuration["blocking"] = not configuration.pop("returnImmediately", False)
    if "taskPushNotificationConfig" in configuration:
        push = _push(configuration.pop("taskPushNotificationConfig"))
        push.pop("taskId", None)  # there is no task yet
        configuration["pushNotificationConfig"] = push
    return request


def list_tasks(request: Json) -> Json:
    _move(request, "pageToken", request, "cursor")
    _move(request, "pageSize", request, "limit")
    if "status" in request:
        request["status"] = _STATES[request["status"]]
    request.setdefault("includeArtifacts", False)  # the default of 1.0, but not for 0.3
    return request


def push_ref(ref: Json) -> Json:
    # In this order, because the task's id takes the name `id`.
    _move(ref, "id", ref, "pushNotificationConfigId")
    _move(ref, "taskId", ref, "id")
    return ref
