"""The seam between an agent and the engine: an agent is an async generator of events over a `Call`.

Rule: the engine knows nothing of what runs; an agent knows nothing of stores, streams or protocols.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from msgspec import Struct

from apcore_a2a.protocol.model import ArtifactUpdate, Message, Part, SendMessage, StatusUpdate, Task, TaskState

logger = logging.getLogger(__name__)

ANONYMOUS = "anonymous"
NO_CONTROLS: Final = "progress() and ask() are for functions while they run; other agents yield events"


class Caller(Struct, frozen=True, kw_only=True):
    """Who is asking: `id` as their issuer knows them, and what else was proved about them."""

    id: str = ANONYMOUS
    type: str = ANONYMOUS
    issuer: str = ""
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    """What the caller's credentials are for, as OAuth 2.0 names it."""
    attributes: Mapping[str, Any] = {}
    tenant: str = ""  # as the client says it: which part of an agent it means, not who it is

    @property
    def owner(self) -> str:
        """What the store files this caller's tasks under; the same `id` of two issuers is two owners."""
        # With `|`, an authenticated caller of the name "anonymous" is not ANONYMOUS. The name stands first, and has no
        # line break (`identify` sees to that): a client may make up any tenant, but what begins with its own name is
        # its own; and all that is one caller's lies side by side in an index.
        name = f"{self.issuer}|{self.id}" if self.is_authenticated else ANONYMOUS
        return f"{name}\n{self.tenant}" if self.tenant else name

    @property
    def is_authenticated(self) -> bool:
        return self.type != ANONYMOUS


class CancelToken:
    """Tells a run that it is no longer wanted. Asked by polling, or told by a callback."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.was_ignored = False
        self._callbacks: tuple[Callable[[], object], ...] = ()  # a tuple: there is none for nearly every message

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the token is cancelled; at once if it is already."""
        if self.is_cancelled:
            callback()
        else:
            self._callbacks += (callback,)

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            for callback in self._callbacks:
                try:
                    callback()
                except Exception:  # whoever cancels is not to blame, and the others want to know, too
                    logger.exception("cancel callback failed")

    def ignore(self) -> None:
        """Say that what runs goes on all the same, because nothing can stop it: then the run counts as abandoned."""
        self.was_ignored = True


class Controls(Protocol):
    """What a function can do to its task while it runs."""

    def progress(self, done: float | None, text: str) -> None: ...

    def ask(self, question: Any) -> Message: ...


class Call(Struct, kw_only=True):
    """One message to an agent, with all that the agent may know about it.

    A function gets it by asking for it: a parameter with this annotation.

    Example:
        >>> async def report(pages: int, call: Call) -> str:
        ...     for page in range(pages):
        ...         call.progress(page / pages, f"Reading page {page}")
        ...     return f"Read for {call.caller.id}"
    """

    request: SendMessage
    task: Task
    """The task this run belongs to, as it was when the run began. An agent reads it; only the engine writes."""
    caller: Caller
    history: tuple[Message, ...] = ()
    """Earlier messages of the conversation (contextId), oldest first, without this one."""
    references: tuple[Task, ...] = ()
    """The caller's tasks that the message refers to."""
    resumed: bool = False
    """Whether the task existed before this message."""
    waited_in: TaskState | None = None
    """The state in which the task waited for this message; None if it did not, or if another process began the run."""
    headers: Mapping[str, str] = {}
    """Request headers an agent may use, in lower case: traceparent, tracestate."""
    raw_headers: Mapping[bytes, bytes] = {}
    """All headers of the request as they came, in lower case, credentials among them: never stored, so there are none
    for a run that another process began. Of one that came twice, the last."""
    extensions: frozenset[str] = frozenset()
    """The extensions that the request asks for (`A2A-Extensions`)."""
    cancel: CancelToken
    deadline: float | None = None
    """On `time.monotonic`'s clock; the engine ends the run then, with or without the agent."""
    skill: str = ""
    """The skill that answers, once the agent has chosen one; for logs."""
    memo: Any = None
    """What this agent last kept with `Remember`: JSON, private, stored with the task."""
    prepared: Any = None
    """What the agent made of the message when it admitted it, for its run; None if another process did."""
    controls: Controls | None = None
    """What `progress` and `ask` go to, where the agent is a function."""

    @property
    def message(self) -> Message:
        """What was sent.

        Example:
            >>> async def who(call: Call) -> str:
            ...     return call.message.message_id
        """
        return self.request.message

    @property
    def text(self) -> str:
        """The text of the message: all its text parts, in lines.

        Example:
            >>> async def shout(call: Call) -> str:
            ...     return call.text.upper()
        """
        return self.message.text

    @property
    def files(self) -> list[Part]:
        """The parts of the message that are files, by value (`raw`) or by address (`url`).

        Example:
            >>> async def names(call: Call) -> list[str]:
            ...     return [file.filename for file in call.files]
        """
        return self.message.files

    def progress(self, done: float | None = None, text: str = "") -> None:
        """Tell the client how far the task is; from any thread, as often as you like.

        It is shown as the status message of the working task. Of several that come faster than they can be told, the
        latest counts.

        Args:
            done: The share that is done, from 0 to 1; None if that is not known.
            text: What is being done.

        Example:
            >>> def copy(files: list[str], call: Call) -> None:
            ...     for number, name in enumerate(files):
            ...         call.progress(number / len(files), f"Copying {name}")
        """
        if self.controls is None:
            raise RuntimeError(NO_CONTROLS)
        self.controls.progress(done, text)

    def ask(self, question: Any) -> Message:
        """The user's answer to a question; if there is none yet, the run ends here, and the task waits for it.

        It does not wait: when the answer comes, the function is called again from its start, with what it was first
        called with, and each `ask` gives the answer that it got. So nothing is lost if the server is restarted in
        between; but what the function does before it asks, it does again.

        Args:
            question: What to ask: a text, data, parts or a Message.

        Example:
            >>> async def weather(days: int, call: Call) -> str:
            ...     city = call.ask("Which city?").text
            ...     return f"{days} sunny days in {city}"
        """
        if self.controls is None:
            raise RuntimeError(NO_CONTROLS)
        return self.controls.ask(question)


class Remember(Struct, frozen=True):
    """Yielded by an agent to keep `memo` with its task: stored with the next event, never shown to a client."""

    memo: Any


AgentEvent = StatusUpdate | ArtifactUpdate | Message | Task | Remember


class Admission(Struct, frozen=True):
    """What an agent says of a message it accepts."""

    retry_safe: bool = False
    """Whether the run may be repeated from the start after a crash."""


@runtime_checkable
class Agent(Protocol):
    """What the engine can run.

    `may_reply` says whether a run may answer with a bare `Message` and no task; the task is then made at the first
    other event. Otherwise the task exists, and its stream begins, before the agent runs.

    A run is canceled as asyncio cancels. An agent that also wants to know when a task is canceled that waits for its
    user may have a method `cancel(call)`, which yields events as `run` does. One that does several things may have a
    method `skill_of(call)`, which answers the id of the skill that a message is for.

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
        """Refuse a message before a task exists, by raising an A2AError; or accept it.

        Example:
            >>> from apcore_a2a.errors import InvalidParamsError
            >>> async def admit(self, call: Call) -> Admission:
            ...     if len(call.message.parts) > 1:
            ...         raise InvalidParamsError("One part, please")
            ...     return Admission(retry_safe=True)
        """
        ...

    def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Do the work. An A2AError raised here fails the task with its text; anything else with "Internal error".

        Example:
            >>> from apcore_a2a.protocol.model import Artifact, Part, TaskState, TaskStatus
            >>> async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
            ...     yield ArtifactUpdate(artifact=Artifact(artifact_id="answer", parts=[Part(text="42")]))
            ...     yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))
        """
        ...
