"""The interface between agents and the engine: an agent receives a `Call`, and yields events as an async generator.

Invariant: the engine does not know what kind of agent it runs. An agent knows no stores, streams or protocol versions.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, final, runtime_checkable

from msgspec import Struct

from apcore_a2a.protocol.card import AgentExtension, AgentSkill
from apcore_a2a.protocol.lifecycle import StreamFinal
from apcore_a2a.protocol.model import ArtifactUpdate, Message, Part, SendMessage, StatusUpdate, Task, TaskState
from apcore_a2a.protocol.questions import Question

logger = logging.getLogger(__name__)

ANONYMOUS = "anonymous"
SESSION_HEADER: Final = b"x-amzn-bedrock-agentcore-runtime-session-id"
NO_CONTROLS: Final = "progress() and ask() work only while a function agent runs; other agents yield events instead"


class Caller(Struct, frozen=True, kw_only=True):
    """The sender of a request: its `id` as the issuer names it, and the other facts that its credentials prove.

    The defaults describe an anonymous caller, which has not authenticated.

    Example:
        >>> Caller(id="ada", type="user", issuer="https://id.example", scopes=("math:read",)).is_authenticated
        True
    """

    id: str = ANONYMOUS
    type: str = ANONYMOUS
    issuer: str = ""
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    """The OAuth 2.0 scopes of the caller's credentials."""
    attributes: Mapping[str, Any] = {}
    tenant: str = ""  # chosen by the client: which part of the agent it addresses. It proves no identity.

    @property
    def owner(self) -> str:
        """The key under which the store keeps this caller's tasks. The same `id` of two issuers gives two owners.

        Example:
            >>> Caller(id="ada", type="user", issuer="https://id.example").owner
            'https://id.example|ada'
        """
        # The `|` distinguishes an authenticated caller with the id "anonymous" from ANONYMOUS. `identify` checks that
        # the issuer has no `|` and the name no line break, so the first line of a key is always the name. A client can
        # send any tenant, but gets only keys whose first line is its own name. The keys of one caller are adjacent in
        # an index.
        name = f"{self.issuer}|{self.id}" if self.type != ANONYMOUS else ANONYMOUS
        return f"{name}\n{self.tenant}" if self.tenant else name

    @property
    def is_authenticated(self) -> bool:
        """Whether the caller has proved its identity.

        Example:
            >>> Caller().is_authenticated
            False
        """
        return self.type != ANONYMOUS


class CancelToken:
    """A request to a run to stop. The run polls `is_cancelled`, or registers a callback."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.was_ignored = False
        self.task: Task | None = None
        """The task as it was when the run was cancelled. None before."""
        self._callbacks: tuple[Callable[[], object], ...] = ()  # a tuple: nearly every message has no callback

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the token is cancelled, or immediately if it already is."""
        if self.is_cancelled:
            callback()
        else:
            self._callbacks += (callback,)

    def cancel(self, task: Task | None = None) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.task = task
            for callback in self._callbacks:
                try:
                    callback()
                except Exception:  # the agent's code: it fails neither the cancel nor the other callbacks
                    logger.exception("cancel callback failed")

    def ignore(self) -> None:
        """Report that the work cannot be stopped and continues after its run. The run then counts as abandoned."""
        self.was_ignored = True


class Controls(Protocol):
    """What a function can do with its task while it runs."""

    def progress(self, done: float | None, text: str) -> None: ...

    def ask(self, question: Any) -> Message: ...

    def ask_all(self, questions: Sequence[Question]) -> dict[str, Any]: ...


class Call(Struct, kw_only=True):
    """One message to an agent, with everything that the agent may know about it.

    A function receives it in a parameter with this annotation.

    Example:
        >>> async def report(pages: int, call: Call) -> str:
        ...     for page in range(pages):
        ...         call.progress(page / pages, f"Reading page {page}")
        ...     return f"Read for {call.caller.id}"
    """

    request: SendMessage
    task: Task
    """The task that this run belongs to, as it was when the run began. An agent reads it. Only the engine writes it."""
    caller: Caller
    history: tuple[Message, ...] = ()
    """Earlier messages of the conversation (contextId), oldest first, without this message."""
    references: tuple[Task, ...] = ()
    """The caller's tasks that the message refers to."""
    resumed: bool = False
    """Whether the task existed before this message."""
    waited_in: TaskState | None = None
    """The state in which the task waited for this message. None if it did not wait, or if another process began the
    run."""
    headers: Mapping[str, str] = {}
    """The trace that this run belongs to: traceparent, tracestate and baggage, as far as the request has them. It is
    stored with the task, so a run that another process began has it, too. Clients of this package send it on."""
    raw_headers: Mapping[bytes, bytes] = {}
    """All headers of the request, with names in lower case, credentials included. They are never stored, so a run that
    another process began has none. If a header is repeated, this has its last value."""
    extensions: frozenset[str] = frozenset()
    """The extensions that the request activates (`A2A-Extensions`)."""
    quota_key: str = ""
    """What limits of this call are counted by: the caller's account, or the address of an anonymous caller. Empty if
    another process admitted the message."""
    cancel: CancelToken
    deadline: float | None = None
    """The time, on the clock of `time.monotonic`, at which the engine ends the run, even if the agent does not stop."""
    skill: str = ""
    """The skill that answers, once the agent has chosen one. For logs."""
    stream_final: StreamFinal | None = None
    """How texts that this run sends in pieces end. None: as the server is configured. An agent may set it in `run`."""
    memo: Any = None
    """The value that this agent last kept with `Remember`: JSON, private, stored with the task."""
    attempt: int = 1
    """The number of this run of the message: 2 or more if a process ended that had begun it."""
    read_conversation: Callable[[], Awaitable[Any]] | None = None
    """The implementation of `recall`, while the agent runs."""
    prepared: Any = None
    """A value that `Agent.admit` computed for `Agent.run`. None if another process admitted the message."""
    controls: Controls | None = None
    """The implementation of `progress` and `ask`, if the agent is a function."""

    @property
    def message(self) -> Message:
        """The message that the caller sent.

        Example:
            >>> async def message_id(call: Call) -> str:
            ...     return call.message.message_id
        """
        return self.request.message

    @property
    def text(self) -> str:
        """The text of the message: all its text parts, joined by line breaks.

        Example:
            >>> async def shout(call: Call) -> str:
            ...     return call.text.upper()
        """
        return self.message.text

    @property
    def session(self) -> str:
        """The session of the platform that runs the agent (AWS Bedrock AgentCore), or an empty string.

        Example:
            >>> async def cart(call: Call) -> str:
            ...     return f"The cart of session {call.session}"
        """
        return self.raw_headers.get(SESSION_HEADER, b"").decode("latin-1")

    @property
    def files(self) -> list[Part]:
        """The file parts of the message, by value (`raw`) or by address (`url`).

        Example:
            >>> async def names(call: Call) -> list[str]:
            ...     return [file.filename for file in call.files]
        """
        return self.message.files

    async def recall(self) -> Any:
        """Return what the agent last kept of this conversation with `Remember(memo, scope="conversation")`, or None.

        Several tasks of one conversation may run at once. From this call to the end of its run, a task has the memory
        for itself: a later one waits here until the run ends, or its own time is over. Tasks at other replicas do not
        wait. The one that writes first keeps its memory.

        Example:
            >>> async def count(call: Call):
            ...     number = (await call.recall() or 0) + 1
            ...     yield Remember(number, scope="conversation")
            ...     yield f"This is message {number} of our conversation"
        """
        if self.read_conversation is None:
            return None
        return await self.read_conversation()

    def progress(self, done: float | None = None, text: str = "") -> None:
        """Report the progress of the task to the client, from any thread, as often as you like.

        Clients see it as the status message of the working task. Reports that follow each other too quickly are
        coalesced into the latest.

        Args:
            done: The completed share, from 0 to 1. None if it is unknown.
            text: What the task is doing.

        Example:
            >>> def copy(files: list[str], call: Call) -> None:
            ...     for number, name in enumerate(files):
            ...         call.progress(number / len(files), f"Copying {name}")
        """
        if self.controls is None:
            raise RuntimeError(NO_CONTROLS)
        self.controls.progress(done, text)

    def ask(self, question: Any) -> Message:
        """Return the user's answer to a question. If there is none yet, end the run here, and let the task wait for it.

        The function itself does not wait. When the answer arrives, the function is called again from its start with
        the arguments of the first call, and each `ask` that was answered returns its answer. A restart of the server
        in between loses nothing, but the function repeats what it does before it asks. An answer counts only for the
        question that the user saw: if its content changes, the user is asked again.

        Args:
            question: The question: a text, data, parts or a Message.

        Example:
            >>> async def weather(days: int, call: Call) -> str:
            ...     city = call.ask("Which city?").text
            ...     return f"{days} sunny days in {city}"
        """
        if self.controls is None:
            raise RuntimeError(NO_CONTROLS)
        return self.controls.ask(question)

    def ask_all(self, *questions: Question) -> dict[str, Any]:
        """Return the user's answers to several questions, by their ids. If one is missing, ask as `ask` does.

        A question with a schema gets an answer that fits it: the user is asked again until it does. The answer to an
        approval is True or False. The answer to a question that the user has declined is None.

        Example:
            >>> async def book(city: str, call: Call) -> str:
            ...     seats = Question(id="seats", text="How many seats?", schema={"type": "integer", "minimum": 1})
            ...     window = Question(id="window", text="At the window?", schema={"type": "boolean"})
            ...     answers = call.ask_all(seats, window)
            ...     return f"{answers['seats']} seats to {city}, window: {answers['window']}"
        """
        if self.controls is None:
            raise RuntimeError(NO_CONTROLS)
        return self.controls.ask_all(questions)


@final
class Remember(Struct, frozen=True):
    """Yielded by an agent to keep `memo`, which is JSON. It is stored with the next event, and no client sees it.

    A memo of the task is in `Call.memo` when the task continues. A memo of the conversation is what `Call.recall`
    returns in later tasks of the same caller and context. It is removed with the last task of the context. A memo that
    repeats the beginning of the previous one costs only what is new.

    Example:
        >>> Remember({"city": "Rome"}, scope="conversation").scope
        'conversation'
    """

    memo: Any
    scope: Literal["task", "conversation"] = "task"


# ---- what agents say ------------------------------------------------------------------------------------------------
# A function yields these beside texts and values, and the adapters of frameworks convert all output to them. An `Agent`
# yields events: `TaskOutput` converts one to the other.

ShowTools = Literal["no", "names", "arguments", "results"]
"""What clients see of the tools that an agent calls. Each step includes the one before."""


class ToolCalled(Struct, frozen=True, kw_only=True):
    """The agent calls a tool. Clients see it as the status of the working task.

    Example:
        >>> async def answer(text: str):
        ...     yield ToolCalled(id="1", name="search", arguments={"query": text})
        ...     yield ToolDone(id="1", name="search")
        ...     yield "Found nothing"
    """

    id: str
    name: str
    arguments: Any = None


class ToolDone(Struct, frozen=True, kw_only=True):
    """A tool has returned, or failed.

    Example:
        >>> ToolDone(id="1", name="search", failed=True).result is None
        True
    """

    id: str
    name: str
    result: Any = None
    failed: bool = False


class ModelUsage(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a part of a run has used. The metadata of the task have the sum.

    Example:
        >>> ModelUsage(requests=1, input_tokens=12, output_tokens=5).output_tokens
        5
    """

    requests: int = 0
    """The requests to models."""
    input_tokens: int = 0
    output_tokens: int = 0


class About(Struct, frozen=True, kw_only=True):
    """The description of an agent for its card, as its attribute `about`. Empty fields get a default.

    Example:
        >>> About(name="clerk", description="Pays and looks").skills
        ()
    """

    name: str = ""
    description: str = ""
    version: str = ""
    skills: tuple[AgentSkill, ...] = ()
    """Empty if the agent itself is its only skill."""
    extensions: tuple[AgentExtension, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()


AgentEvent = StatusUpdate | ArtifactUpdate | Message | Task | Remember


class Admission(Struct, frozen=True):
    """The answer of an agent that accepts a message.

    Example:
        >>> Admission(retry_safe=True).retry_safe
        True
    """

    retry_safe: bool = False
    """Whether the run may be repeated from its start after a crash."""


@runtime_checkable
class Agent(Protocol):
    """The interface of an agent, which the engine runs.

    `may_reply` concerns messages that do not continue a task. If it is false, the engine creates the task, and its
    stream begins, before the engine calls `run`. If it is true, the first event that is not a `Remember` decides: a
    `Message` is the whole reply, and no task is created. Any other event creates the task.

    The engine cancels a run by asyncio cancellation. Further members are optional:

    - `about` is an `About`, from which the card is built.
    - `lifespan()` returns an async context manager. It is entered before the first message, and left after the last
      run. If the agent has `about` as well, the card is built again once it is entered.
    - `cancel(call)` is called when a task is canceled while it waits for its user. It yields events as `run` does.
    - `skill_of(call)` returns the id of the skill that a message is for, if the agent has several.

    Example:
        >>> from apcore_a2a.protocol.model import StatusUpdate, TaskState, TaskStatus
        >>> class Nothing:
        ...     may_reply = False
        ...
        ...     async def admit(self, call):
        ...         return Admission(retry_safe=True)
        ...
        ...     async def run(self, call):
        ...         yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))
        >>> isinstance(Nothing(), Agent)
        True
    """

    may_reply: bool

    async def admit(self, call: Call) -> Admission:
        """Accept a message, or reject it before a task exists by raising an A2AError.

        Example:
            >>> from apcore_a2a.errors import InvalidParamsError
            >>> async def admit(self, call: Call) -> Admission:
            ...     if len(call.message.parts) > 1:
            ...         raise InvalidParamsError("One part, please")
            ...     return Admission(retry_safe=True)
        """
        ...

    def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Do the work. An A2AError raised here fails the task with its text, any other exception with "Internal error".

        Example:
            >>> from apcore_a2a.protocol.model import Artifact, Part, TaskState, TaskStatus
            >>> async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
            ...     yield ArtifactUpdate(artifact=Artifact(artifact_id="answer", parts=[Part(text="42")]))
            ...     yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))
        """
        ...
