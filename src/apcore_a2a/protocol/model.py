"""The data model, shaped as A2A 1.0: its JSON is the 1.0 wire format, field for field.

Invariant: values are frozen, except for `Task` and the parts of an `Artifact`, which `lifecycle.fold` extends in place
so that the thousandth chunk costs as much as the first. Limits (`Id`, `Parts`) are checked when decoding only.
"""

import json
from collections.abc import Iterable
from enum import Enum, StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, NamedTuple, final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from apcore_a2a.errors import A2AError, UnsupportedOperationError

MAX_ID: Final = 256  # no limit in the specification, but ids are stored, indexed and echoed
MAX_PARTS: Final = 1000
MAX_PAGE_SIZE: Final = 100  # 1.0 §3.1.4

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
OptionalId = Annotated[str, Meta(max_length=MAX_ID)]  # ProtoJSON: "" is the same as absent
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # int32 in the protocol buffers
Metadata = dict[str, Any]  # free-form in the specification: passed through, never interpreted


def _nothing() -> tuple[Any, ...]:
    return ()


def _empty_list() -> list[Any]:
    return []


# REQUIRED in 1.0, so written even if empty (`omit_defaults` keeps values of a factory), but not required when reading:
# writers that follow ProtoJSON omit empty values.
REQUIRED_TEXT: Final[str] = field(default_factory=str)
REQUIRED_COUNT: Final[int] = field(default_factory=int)
REQUIRED_ITEMS: Final[tuple[Any, ...]] = field(default_factory=_nothing)
REQUIRED_LIST: Final[list[Any]] = field(default_factory=_empty_list)


# gc=False: values never form reference cycles, so the garbage collector need not track them.
class Value(Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, rename="camel", gc=False):
    """Base of the model: camelCase on the wire, defaults omitted, unknown fields ignored."""

    def to_dict(self) -> dict[str, Any]:
        """Return the 1.0 JSON of this value as Python objects."""
        return dict(msgspec.json.decode(encode(self)))


class TaskState(StrEnum):
    """The state of a task. It equals its names in 1.0 and in 0.3, and prints as the one of 0.3.

    In a set or a dict only the name of 1.0 finds it, because two different texts have different hashes.

    Example:
        >>> TaskState.INPUT_REQUIRED == "input-required", TaskState.INPUT_REQUIRED == "TASK_STATE_INPUT_REQUIRED"
        (True, True)
        >>> print(TaskState.INPUT_REQUIRED)
        input-required
    """

    UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"

    # Enum's own hash runs in Python for each lookup in a table.
    __hash__ = str.__hash__

    @property
    def word(self) -> str:
        """The name in 0.3, which is also easier to read.

        Example:
            >>> TaskState.INPUT_REQUIRED.word
            'input-required'
        """
        return self.removeprefix("TASK_STATE_").lower().replace("_", "-")

    def __eq__(self, other: object) -> bool:
        if self is other or str.__eq__(self, other) is True:
            return True
        return type(other) is str and other == self.word

    def __ne__(self, other: object) -> bool:  # `str` defines it too
        return not self == other

    def __str__(self) -> str:
        return self.word

    def __format__(self, spec: str) -> str:
        return format(self.word, spec)


class Role(StrEnum):
    """Who has written a message: the user's side or the agent.

    Example:
        >>> Role("ROLE_USER") is Role.USER
        True
    """

    UNSPECIFIED = "ROLE_UNSPECIFIED"
    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"


# ---- content and tasks -------------------------------------------------------------------------------------------


class Part(Value, frozen=True):
    """A piece of content: exactly one of `text`, `raw`, `url` and `data`.

    `raw` and `url` are files, by value and by address, with `filename` and `media_type`.

    Example:
        >>> Part(text="hello"), Part(data={"a": 1})
        (Part(text='hello'), Part(data={'a': 1}))
        >>> Part(raw=b"a,b", filename="table.csv", media_type="text/csv").is_file
        True
    """

    # UNSET and not None, because `data` may be null, and a text may be empty.
    text: str | UnsetType = UNSET
    raw: bytes | UnsetType = UNSET
    url: str | UnsetType = UNSET
    data: Any = UNSET
    metadata: Metadata | None = None
    filename: str = ""
    media_type: str = ""

    def __post_init__(self) -> None:
        # Booleans add up to a count. Not a loop, because this runs for every part of every message.
        given = (self.text is not UNSET) + (self.raw is not UNSET) + (self.url is not UNSET) + (self.data is not UNSET)
        if given != 1:
            raise ValueError("a part has exactly one of text, raw, url and data")

    @property
    def is_file(self) -> bool:
        """Whether this part is a file.

        Example:
            >>> Part(url="https://example.com/table.csv").is_file
            True
        """
        return self.raw is not UNSET or self.url is not UNSET


Parts = Annotated[tuple[Part, ...], Meta(min_length=1, max_length=MAX_PARTS)]


@final
class Message(Value, frozen=True):
    """One turn of a conversation, of the user or of the agent.

    Example:
        >>> message = Message(message_id="m-1", role=Role.USER, parts=(Part(text="hello"),))
        >>> print(message)
        hello
    """

    message_id: Id
    role: Role
    parts: Parts
    context_id: OptionalId = ""
    task_id: OptionalId = ""
    metadata: Metadata | None = None
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[Id, ...] = ()

    @property
    def text(self) -> str:
        """The text parts, joined with line ends.

        Example:
            >>> Message(message_id="m-1", role=Role.AGENT, parts=(Part(text="one"), Part(text="two"))).text.split()
            ['one', 'two']
        """
        return "\n".join(_texts(self.parts))

    @property
    def data(self) -> Any:
        """The value of the first data part; None if there is none.

        Example:
            >>> Message(message_id="m-1", role=Role.USER, parts=(Part(data=[1, 2]),)).data
            [1, 2]
        """
        return _first_data(self.parts)

    @property
    def files(self) -> list[Part]:
        """The parts that are files, by value (`raw`) or by address (`url`).

        Example:
            >>> len(Message(message_id="m-1", role=Role.USER, parts=(Part(raw=b"1"), Part(text="2"))).files)
            1
        """
        return [part for part in self.parts if part.is_file]

    def __str__(self) -> str:
        return _text_or_json(self.text, self.data)


class TaskStatus(Value, frozen=True):
    """The state of a task, with an optional message about it.

    Example:
        >>> TaskStatus(state=TaskState.WORKING).state == "working"
        True
    """

    state: TaskState
    message: Message | None = None
    timestamp: str = ""

    @property
    def text(self) -> str:
        """The text of the status message, or an empty string.

        Example:
            >>> TaskStatus(state=TaskState.WORKING).text
            ''
        """
        if self.message is None:
            return ""
        return self.message.text

    def __str__(self) -> str:
        return _labelled(self.state, self.text)


class Artifact(Value, frozen=True):
    """A result of a task. A stream extends it by chunks.

    Example:
        >>> print(Artifact(artifact_id="answer", parts=[Part(data={"sum": 5})]))
        {"sum":5}
    """

    artifact_id: Id
    parts: list[Part] = REQUIRED_LIST  # a list and not a tuple, because chunks extend it
    name: str = ""
    description: str = ""
    metadata: Metadata | None = None
    extensions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text parts, joined without separator, because they are pieces of a stream.

        Example:
            >>> Artifact(artifact_id="answer", parts=[Part(text="hel"), Part(text="lo")]).text
            'hello'
        """
        return "".join(_texts(self.parts))

    @property
    def data(self) -> Any:
        """The value of the first data part; None if there is none.

        Example:
            >>> Artifact(artifact_id="answer", parts=[Part(data=5)]).data
            5
        """
        return _first_data(self.parts)

    @property
    def files(self) -> list[Part]:
        """The parts that are files, by value (`raw`) or by address (`url`).

        Example:
            >>> Artifact(artifact_id="chart", parts=[Part(raw=b"<svg/>", filename="chart.svg")]).files[0].filename
            'chart.svg'
        """
        return [part for part in self.parts if part.is_file]

    def __str__(self) -> str:
        return _text_or_json(self.text, self.data)


# Not a Value, because it is mutable. dict=True gives it a `__dict__` for its cached property, which is not in its JSON.
@final
class Task(Struct, kw_only=True, omit_defaults=True, repr_omit_defaults=True, rename="camel", dict=True):
    """The unit of work: its state, its results and its history.

    Example:
        >>> task = Task(id="t-1", status=TaskStatus(state=TaskState.COMPLETED))
        >>> task.artifacts.append(Artifact(artifact_id="answer", parts=[Part(text="hello")]))
        >>> print(task)
        completed: hello
    """

    # Only `lifecycle.fold` changes the task of a run. Its lists and its metadata are not shared.

    id: Id
    context_id: OptionalId = ""
    status: TaskStatus
    artifacts: list[Artifact] = []
    history: list[Message] = []
    metadata: Metadata | None = None

    @cached_property
    def positions(self) -> dict[str, int]:
        """The index of each artifact by its id. `fold` keeps it up to date, so a chunk needs no search."""
        return {artifact.artifact_id: index for index, artifact in enumerate(self.artifacts)}

    @cached_property
    def pieces(self) -> dict[int, list[int]]:
        """The places of texts that events appended, and that may continue the text before: by index of the artifact.

        `fold` adds them, and `lifecycle.join_texts` joins the texts and removes the places.
        """
        return {}

    @property
    def text(self) -> str:
        """The text of the artifacts, joined with line ends. Without one, the text of the status.

        Example:
            >>> Task(id="t-1", status=TaskStatus(state=TaskState.WORKING)).text
            ''
        """
        texts = [artifact.text for artifact in self.artifacts]
        answered = "\n".join(text for text in texts if text)
        return answered or self.status.text

    @property
    def data(self) -> Any:
        """The value of the first data part of the artifacts, else of the status message, or None.

        Example:
            >>> artifact = Artifact(artifact_id="answer", parts=[Part(data=5)])
            >>> Task(id="t-1", status=TaskStatus(state=TaskState.COMPLETED), artifacts=[artifact]).data
            5
        """
        for artifact in self.artifacts:
            data = artifact.data
            if data is not None:
                return data
        if self.status.message is None:
            return None
        return self.status.message.data

    @property
    def files(self) -> list[Part]:
        """The file parts of the artifacts.

        Example:
            >>> Task(id="t-1", status=TaskStatus(state=TaskState.COMPLETED)).files
            []
        """
        found: list[Part] = []
        for artifact in self.artifacts:
            found += artifact.files
        return found

    def __str__(self) -> str:
        return _labelled(self.status.state, _text_or_json(self.text, self.data))

    def to_dict(self) -> dict[str, Any]:
        """Return the 1.0 JSON of this task as Python objects.

        Example:
            >>> Task(id="t-1", status=TaskStatus(state=TaskState.WORKING)).to_dict()
            {'id': 't-1', 'status': {'state': 'TASK_STATE_WORKING'}}
        """
        return dict(msgspec.json.decode(encode(self)))


@final
class StatusUpdate(Value, frozen=True):
    """An event: the task has a new status.

    Example:
        >>> print(StatusUpdate(status=TaskStatus(state=TaskState.WORKING)))
        working
    """

    status: TaskStatus
    # Agents omit the ids. The engine fills them in before it publishes the event.
    task_id: OptionalId = REQUIRED_TEXT
    context_id: OptionalId = REQUIRED_TEXT
    metadata: Metadata | None = None

    @property
    def text(self) -> str:
        """The text of the status message, or an empty string.

        Example:
            >>> StatusUpdate(status=TaskStatus(state=TaskState.WORKING)).text
            ''
        """
        return self.status.text

    def __str__(self) -> str:
        return str(self.status)


@final
class ArtifactUpdate(Value, frozen=True):
    """An event: a new artifact, or, with `append`, a further chunk of one.

    Example:
        >>> print(ArtifactUpdate(artifact=Artifact(artifact_id="answer", parts=[Part(text="hel")])))
        hel
    """

    artifact: Artifact
    task_id: OptionalId = REQUIRED_TEXT
    context_id: OptionalId = REQUIRED_TEXT
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata | None = None

    @property
    def text(self) -> str:
        """The text of this artifact or chunk.

        Example:
            >>> ArtifactUpdate(artifact=Artifact(artifact_id="answer", parts=[Part(text="hel")])).text
            'hel'
        """
        return self.artifact.text

    def __str__(self) -> str:
        return str(self.artifact)


def _texts(parts: Iterable[Part]) -> list[str]:
    return [part.text for part in parts if isinstance(part.text, str)]


def _first_data(parts: Iterable[Part]) -> Any:
    for part in parts:
        if part.data is not UNSET:
            return part.data
    return None


def _text_or_json(text: str, data: Any) -> str:
    """Return the text, or without one the data as JSON."""
    if text or data is None:
        return text
    return encode(data).decode()


def _labelled(state: TaskState, text: str) -> str:
    if not text:
        return state.word
    return f"{state.word}: {text}"


Event = Task | Message | StatusUpdate | ArtifactUpdate


# ---- requests and results of the operations ----------------------------------------------------------------------


class AuthenticationInfo(Value, frozen=True):
    scheme: str
    credentials: str = ""


class PushConfig(Value, frozen=True):
    """TaskPushNotificationConfig: the webhook of a task.

    Example:
        >>> PushConfig(url="https://example.com/hook", token="secret").url
        'https://example.com/hook'
    """

    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    id: OptionalId = ""
    task_id: OptionalId = ""
    token: str = ""
    authentication: AuthenticationInfo | None = None
    tenant: OptionalId = ""


class PushConfigWithState(PushConfig, frozen=True):
    """A push config in a response, with a field that A2A does not have: the state of its deliveries.

    Example:
        >>> PushConfigWithState(url="https://example.com/hook", metadata={"apcore.webhook": {"status": "active"}}).url
        'https://example.com/hook'
    """

    metadata: Metadata | None = None


class SendConfiguration(Value, frozen=True):
    """How a message is answered: when, in which media types, with how much history, and to which webhook.

    Example:
        >>> SendConfiguration(return_immediately=True, history_length=5).history_length
        5
    """

    accepted_output_modes: tuple[str, ...] = ()
    task_push_notification_config: PushConfig | None = None
    history_length: Count | None = None
    return_immediately: bool = False


class SendMessage(Value, frozen=True):
    message: Message
    configuration: SendConfiguration = SendConfiguration()
    metadata: Metadata | None = None
    tenant: OptionalId = ""


class GetTask(Value, frozen=True):
    id: Id
    history_length: Count | None = None
    tenant: OptionalId = ""


class ListTasks(Value, frozen=True):
    context_id: OptionalId = ""
    status: TaskState = TaskState.UNSPECIFIED
    page_size: Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE)] = 50  # 1.0 §3.1.4: 50 unless given
    page_token: str = ""
    history_length: Count | None = None
    status_timestamp_after: str = ""
    include_artifacts: bool = False
    tenant: OptionalId = ""


class TaskPage(Value, frozen=True):
    """ListTasksResponse."""

    tasks: tuple[Task, ...] = REQUIRED_ITEMS
    next_page_token: str = REQUIRED_TEXT
    page_size: int = REQUIRED_COUNT
    total_size: int = REQUIRED_COUNT


class CancelTask(Value, frozen=True):
    id: Id
    metadata: Metadata | None = None
    tenant: OptionalId = ""


class SubscribeToTask(Value, frozen=True):
    id: Id
    tenant: OptionalId = ""


class PushConfigRef(Value, frozen=True):
    """Identifies a push config of a task. An empty `id` means the only one (0.3)."""

    task_id: Id
    id: OptionalId = REQUIRED_TEXT
    tenant: OptionalId = ""


class ListPushConfigs(Value, frozen=True):
    task_id: Id
    page_size: Count = 0
    page_token: str = ""
    tenant: OptionalId = ""


class PushConfigPage(Value, frozen=True):
    configs: tuple[PushConfig, ...] = REQUIRED_ITEMS
    next_page_token: str = ""


class GetExtendedCard(Value, frozen=True):
    tenant: OptionalId = ""


# ---- the model's own JSON ----------------------------------------------------------------------------------------


def to_plain_text(value: Any) -> str:
    """Return a text of a subclass of str as a str. Frameworks produce such texts, and msgspec accepts only str.

    Raises:
        TypeError: it is not a text. The encoder reports which type it does not support.
    """
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


encode: Final = msgspec.json.Encoder(enc_hook=to_plain_text).encode
# Raises ValueError for NaN and infinity, which `encode` writes as null. Its input is plain objects without cycles.
check_finite: Final = json.JSONEncoder(allow_nan=False, check_circular=False).encode
decode_task: Final = msgspec.json.Decoder(Task).decode  # for own JSON, so errors need no translation


class Document(Struct, frozen=True, gc=False):
    """A task as encoded JSON: smaller than its objects, not tracked by the garbage collector, and sent unchanged."""

    body: bytes
    parsed: Task | None = None
    """The task as an object, if the creator of the document had one."""

    def task(self) -> Task:
        if self.parsed is not None:
            return self.parsed
        return decode_task(self.body)


# ---- operations -----------------------------------------------------------------------------------------------------
# The eleven operations of A2A 1.0, with their requests, and whether they stream.
#
# Invariant: a dialect has a table of method names. An operation that is not in the table does not exist in the dialect.


class Shape(NamedTuple):
    """The request type of an operation, and whether its result is a stream of events."""

    request: type[Value]
    streams: bool = False


class Rules(NamedTuple):
    """Differences between the versions in meaning, not only in shape, for the engine and the bindings.

    The defaults are the rules of 1.0, so each field that a dialect sets is a difference from 1.0.
    """

    version: str = "1.0"
    """The name of the version. A webhook receives events in the version of the request that created it."""
    resume_by_context: bool = False
    """A message without taskId continues the only task of its context that waits for input."""
    stream_keeps_task: bool = False
    """A task may be canceled when its last stream disconnects (`cancel_on_disconnect`)."""
    subscribe_when_ended: bool = False
    """A subscription to a task that has ended returns its last status instead of an error."""
    replay: bool = False
    """A stream may begin with missed events instead of a snapshot (`Last-Event-ID`)."""
    list_by_creation: bool = False
    """A listing is ordered by creation, the newest task first, and not by the last change of status."""
    page_is_array: bool = False
    """Over REST, a page of a listing is an array of tasks. A header has the link to the next page."""
    without_extended_card: type[A2AError] = UnsupportedOperationError
    """The error of GetExtendedAgentCard if the agent has no extended card."""
    unnamed_push: str = ""
    """The id of a webhook that is created without one, so that the next such request replaces it. Empty: a new id."""
    deleted_push_must_exist: bool = False
    """Deleting an unknown webhook is an error."""
    stream_errors_as_events: bool = False
    """Over JSON-RPC, the error of a streaming request is sent as the only event of a stream, if the client accepts
    streams. Clients of 0.3 read it only there."""


class Operation(Enum):
    """The operations with their names in 1.0, which are also its JSON-RPC methods.

    Example:
        >>> Operation.SEND.value
        'SendMessage'
    """

    # By identity, as members are compared. Enum's own hash is a Python function, and a request looks up its operation
    # in five tables: about 4,000 of the 630,000 instructions of a message.
    __hash__ = object.__hash__

    SEND = "SendMessage"
    STREAM = "SendStreamingMessage"
    GET = "GetTask"
    LIST = "ListTasks"
    CANCEL = "CancelTask"
    SUBSCRIBE = "SubscribeToTask"
    CREATE_PUSH = "CreateTaskPushNotificationConfig"
    GET_PUSH = "GetTaskPushNotificationConfig"
    LIST_PUSH = "ListTaskPushNotificationConfigs"
    DELETE_PUSH = "DeleteTaskPushNotificationConfig"
    EXTENDED_CARD = "GetExtendedAgentCard"

    # Members are unique, so identity suffices. Enum's own hash runs in Python for each lookup in a table.
    __hash__ = object.__hash__


SHAPES = {
    Operation.SEND: Shape(SendMessage),
    Operation.STREAM: Shape(SendMessage, streams=True),
    Operation.GET: Shape(GetTask),
    Operation.LIST: Shape(ListTasks),
    Operation.CANCEL: Shape(CancelTask),
    Operation.SUBSCRIBE: Shape(SubscribeToTask, streams=True),
    Operation.CREATE_PUSH: Shape(PushConfig),
    Operation.GET_PUSH: Shape(PushConfigRef),
    Operation.LIST_PUSH: Shape(ListPushConfigs),
    Operation.DELETE_PUSH: Shape(PushConfigRef),
    Operation.EXTENDED_CARD: Shape(GetExtendedCard),
}
