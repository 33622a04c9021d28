"""`FrameworkAgent`, which serves the agent of another framework. An `Adapter` translates the output of that agent.

A framework can write its whole conversation, a paused run included, as one JSON value. That value is all that passes
from one run to the next, so a conversation and a pending approval survive a restart without a storage of the framework:

- `Kept` is the conversation: the memory of owner and context, which the next task of the context begins with.
- `Asked` is a paused run: the memo of its task, which the answers continue. The conversation does not have the turn
  until it ends. If it grew in the meantime, the turn is appended to it.

Invariant: frameworks differ in what they stream, not in what a client sees of it.
"""

import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, nullcontext
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from apcore_a2a.agent import About, Admission, AgentEvent, Call, Remember, ShowTools
from apcore_a2a.agents.functions.agent import USAGE, TaskOutput
from apcore_a2a.agents.questions import Answer, read_reply
from apcore_a2a.agents.skills import FILE, JSON, TEXT
from apcore_a2a.errors import AgentError, ContentTypeNotSupportedError
from apcore_a2a.protocol.model import Part, encode
from apcore_a2a.protocol.questions import Question

logger = logging.getLogger(__name__)

INPUT_MODES: Final = (TEXT, JSON, FILE)
URLS_NOT_ALLOWED: Final = "URL parts are not accepted. Send the content of the file instead."


class FrameworkOptions(Struct, frozen=True, kw_only=True):
    """How the agents of frameworks are served: settings of the server."""

    show_tools: ShowTools = "names"
    allow_urls: bool = False
    """Whether messages may have files by URL. The framework or its model provider fetches them."""
    allow_tracing: bool = False
    """Whether the framework may send traces to its vendor."""


class AgentTurn(Struct, frozen=True, kw_only=True):
    """The input of one run: the state that it continues, and the message or the answers."""

    call: Call
    state: Any = None
    """The conversation (`Kept`), or the paused run (`Asked`) if there are answers. None: the conversation begins."""
    answers: dict[str, Answer] | None = None
    """The answers to all questions of the paused run, by their ids. None if the message is a new turn."""
    thread_id: str
    """A name of the conversation that no other caller can choose, for storages of the framework."""
    options: FrameworkOptions

    @property
    def parts(self) -> Sequence[Part]:
        return self.call.message.parts


class Kept(Struct, frozen=True):
    """The conversation so far, as JSON. A later task can go on from here, even if this run fails or is canceled."""

    state: Any


class Asked(Struct, frozen=True):
    """Ends a run that waits for its user. `state` is the paused run as JSON."""

    questions: Sequence[Question]
    state: Any


class StateUnreadable(Exception):
    """Raised by `Adapter.run` if it cannot read the state, because the framework or the agent has changed."""


class Adapter(Protocol):
    """Translates one agent of a framework."""

    about: About

    def run(self, turn: AgentTurn) -> AsyncGenerator[Any, None]:
        """Run one turn. Yield the output of the agent as `TaskOutput` reads it, and `Kept` and `Asked`.

        A piece of text is a `str`. A result that is not text, for example typed output or a file, is any other value.
        """
        ...

    def messages_of(self, state: Any) -> list[Any] | None:
        """Return the list of messages in a state, to which each turn appends. None if the state has no such list."""
        ...

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """Open what the agent needs for all its runs, and close it. An agent of a factory has one run."""
        ...


@runtime_checkable
class PartChecker(Protocol):
    """An adapter that cannot give each message to its agent."""

    def check_parts(self, parts: Sequence[Part]) -> None:
        """Raise ContentTypeNotSupportedError or InvalidParamsError for a message that the agent cannot read."""
        ...


class PausedTurn(Struct, frozen=True, kw_only=True):
    """The memo of a task that waits for its user."""

    questions: list[Question]
    """The questions without an answer."""
    state: Any
    """The paused run. If `is_tail`, its messages are only those of this turn: the conversation has the others."""
    is_tail: bool
    base: int
    """The number of messages that the conversation had when the turn began."""
    answers: dict[str, Answer] = {}
    """The answers so far."""


class FrameworkAgent:
    """Serves the agent of a framework.

    Args:
        title: The name of the framework. The memory of a conversation belongs to it.
        adapter: Translates the agent, and describes it for the card.
        options: How the agent is served.
        make: Makes an adapter with a new agent for each run, if a factory is served. None: all runs share the agent.
        retry_safe: Whether a run may be repeated from its start after a crash.
    """

    may_reply = False

    def __init__(
        self,
        title: str,
        adapter: Adapter,
        *,
        options: FrameworkOptions,
        make: Callable[[], Adapter] | None = None,
        retry_safe: bool = False,
    ) -> None:
        self.about = adapter.about
        if not self.about.input_modes:
            self.about = replace(self.about, input_modes=INPUT_MODES)
        self._title = title
        self._adapter = adapter
        self._make = make
        self._options = options
        self._admission = Admission(retry_safe=retry_safe)

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        if self._make is not None:  # each run opens and closes its own agent
            return nullcontext()
        return self._adapter.lifespan()

    async def admit(self, call: Call) -> Admission:
        if not self._options.allow_urls and any(isinstance(part.url, str) for part in call.message.parts):
            raise ContentTypeNotSupportedError(URLS_NOT_ALLOWED)
        if isinstance(self._adapter, PartChecker) and not call.resumed:  # the reply to a question is not for the model
            self._adapter.check_parts(call.message.parts)
        return self._admission

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        usage = (call.task.metadata or {}).get(USAGE)
        output = TaskOutput(show_tools=self._options.show_tools, earlier_usage=usage)
        paused = None
        if call.resumed and call.memo is not None:
            paused, problems = _read_answers(call, msgspec.convert(call.memo, PausedTurn))
            if paused.questions:
                yield Remember(paused)
                for event in output.ask(paused.questions, problems):
                    yield event
                return
        async with AsyncExitStack() as stack:
            adapter = self._adapter
            if self._make is not None:
                adapter = self._make()
                await stack.enter_async_context(adapter.lifespan())
            run = _FrameworkRun(self._title, adapter, call, paused)
            events = await stack.enter_async_context(aclosing(run.events(output, self._options)))
            async for event in events:
                yield event


def _read_answers(call: Call, paused: PausedTurn) -> tuple[PausedTurn, list[str]]:
    """Return a paused turn with the answers of a reply, and what is wrong with the others."""
    reply = read_reply(call.message, paused.questions)
    still_open = [question for question in paused.questions if question.id not in reply.answers]
    answers = {**paused.answers, **reply.answers}
    return replace(paused, questions=still_open, answers=answers), reply.problems


class _FrameworkRun:
    """One run: it gives the adapter the conversation, and stores what the adapter keeps."""

    def __init__(self, title: str, adapter: Adapter, call: Call, paused: PausedTurn | None) -> None:
        self._title = title
        self._adapter = adapter
        self._call = call
        self._paused = paused
        self._before: Any = None  # the state of the conversation when the run began
        self._has_kept = False  # whether the conversation was written in this run

    async def events(self, output: TaskOutput, options: FrameworkOptions) -> AsyncGenerator[AgentEvent, None]:
        memory = await self._call.recall()
        if isinstance(memory, dict) and memory.get("framework") == self._title:
            self._before = memory["state"]
        turn = AgentTurn(call=self._call, thread_id=thread_id(self._call), state=self._before, options=options)
        if self._paused is not None:
            turn = replace(turn, state=self._resumed_state(self._paused), answers=self._paused.answers)
        try:
            async with aclosing(self._convert(turn, output)) as events:
                async for event in events:
                    yield event
        except StateUnreadable as error:
            if self._paused is not None:
                raise AgentError("The agent has changed since it asked, and cannot continue this task") from error
            logger.warning("conversation cannot be read, it begins again", exc_info=error)
            self._before = None
            async with aclosing(self._convert(replace(turn, state=None), output)) as events:
                async for event in events:
                    yield event

    async def _convert(self, turn: AgentTurn, output: TaskOutput) -> AsyncGenerator[AgentEvent, None]:
        """Yield the events for the output of the agent."""
        async with aclosing(self._adapter.run(turn)) as said:
            async for each in said:
                match each:
                    case Kept():
                        self._has_kept = True
                        yield self._remember(self._merged(each.state))
                    case Asked():
                        for event in self._ask(each, output):
                            yield event
                        return
                    case _:
                        for event in output.add(each):
                            yield event
        for event in output.end():
            yield event

    def _remember(self, state: Any) -> Remember:
        return Remember({"framework": self._title, "state": state}, scope="conversation")

    def _ask(self, asked: Asked, output: TaskOutput) -> Sequence[AgentEvent]:
        """Return the events that let the task wait."""
        events: list[AgentEvent] = []
        if self._has_kept:  # the conversation gets this turn when it ends
            events.append(self._remember(self._before))
        before = self._messages_of(self._before)
        messages = self._messages_of(asked.state)
        base = len(before)
        if self._paused is not None and not self._paused.is_tail:
            base = self._paused.base
        is_tail = bool(messages) and messages[: len(before)] == before
        if is_tail:
            del messages[: len(before)]
        paused = PausedTurn(questions=list(asked.questions), state=asked.state, is_tail=is_tail, base=base)
        events.append(Remember(paused))
        events += output.ask(asked.questions)
        return events

    def _resumed_state(self, paused: PausedTurn) -> Any:
        """Return the paused run. The turn follows what the conversation has become."""
        if paused.is_tail:
            self._messages_of(paused.state)[:0] = self._messages_of(self._before)
        return paused.state

    def _merged(self, state: Any) -> Any:
        """Return a state after a turn that was paused, with the turns that other tasks have had in between."""
        if self._paused is None or self._paused.is_tail:
            return state
        base = self._paused.base
        messages = self._messages_of(state)
        before = self._messages_of(self._before)
        if len(before) > base and messages[:base] == before[:base]:
            messages[:base] = before
        return state

    def _messages_of(self, state: Any) -> list[Any]:
        if state is None:
            return []
        messages = self._adapter.messages_of(state)
        if messages is None:
            return []
        return messages


def thread_id(call: Call) -> str:
    """Return a name of the conversation. It includes the owner, because clients choose context ids."""
    return hashlib.sha256(f"{call.caller.owner}\n\n{call.task.context_id}".encode()).hexdigest()[:32]


def data_as_text(part: Part) -> str:
    """Return the data of a part as JSON, for models that read text."""
    if part.data is UNSET:
        raise TypeError("the part has no data")
    return encode(part.data).decode()
