"""`open_tools`: the skills of a remote agent as tools with a name, a description, a JSON Schema and a call.

A tool belongs to no framework. `toolkits.frameworks` converts it, and `apcore-a2a mcp` serves it.

A remote task that asks its user a question outlives the call: its outcome has the question, and `RemoteTool.reply`
continues the task. Frameworks answer a question by running the tool's call once more, from its start. Such a call has a
key, and both the message and the header `Idempotency-Key` are made from it. Therefore the second run finds the task of
the first: in this process for any agent, and in another process for agents that support the header.

Invariant: one call of a tool starts one remote task. A call that is cancelled, or that lasts too long, cancels it.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line, clean_text
from apcore_a2a.client import A2AClient
from apcore_a2a.client.calls import (
    CANCEL_WAIT,
    ERROR_TEXTS,
    MAX_REASON,
    NO_RESULT,
    WAITING,
    RemoteCall,
    describe_ending,
    follow,
    hide_details,
)
from apcore_a2a.client.options import AuthLike, ClientOptions, SendOptions
from apcore_a2a.client.skills import RemoteSkill, clean, read_skills
from apcore_a2a.client.sync import LoopThread
from apcore_a2a.errors import (
    A2AError,
    AgentError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotFoundError,
)
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.card import AgentCard, AgentSkill
from apcore_a2a.protocol.lifecycle import PROGRESS
from apcore_a2a.protocol.model import Event, Message, Part, Role, StatusUpdate, Task, TaskState, encode
from apcore_a2a.protocol.questions import Question, questions_of, to_answers

logger = logging.getLogger(__name__)

T = TypeVar("T")
Progress = Callable[[float | None, str], Awaitable[None]]
"""Receives the completed share of a task, from 0 to 1 or None, and what the task is doing."""

MAX_NAME: Final = 64  # characters of a function's name that every model provider accepts
MAX_SENT: Final = 1_000  # keyed messages whose tasks are remembered
TIMEOUT: Final = 300.0
WHOLE: Final = "text"  # the argument of a tool whose skill takes a text, or another value that is not an object
CLOSED: Final = "The tools are closed"
TEXTS: Final = {**ERROR_TEXTS, TaskNotFoundError: "The remote agent no longer has the task"}


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a call: the result of the remote task, or the question that it asks.

    Example:
        >>> ToolOutcome(data={"sum": 5}).content
        '{"sum":5}'
    """

    text: str = ""
    """The text of the result, or the question in words."""
    data: Any = None
    files: tuple[Part, ...] = ()
    task_id: str = ""
    """The remote task. Empty if the agent answered without one."""
    context_id: str = ""
    is_waiting: bool = False
    """Whether the task waits for an answer: to its questions, or to its text if it has none."""
    asked: str = ""
    """The id of the message that asks. `RemoteTool.reply` compares it."""
    questions: tuple[Question, ...] = ()

    @property
    def content(self) -> str:
        r"""The result as one text, for a model.

        Example:
            >>> ToolOutcome(text="Done", files=(Part(url="https://example.com/a.csv", filename="a.csv"),)).content
            'Done\n[file: a.csv]'
        """
        lines: list[str] = []
        if self.text:
            lines.append(self.text)
        if self.data is not None:
            written = encode(self.data).decode()
            if written != self.text:
                lines.append(written)
        for file in self.files:
            named = clean(file.filename or file.media_type or "without a name", MAX_NAME)
            lines.append(f"[file: {named}]")
        return "\n".join(lines)


class RemoteTool:
    """A skill of a remote agent as a tool. Its methods may be called from any event loop and any thread."""

    def __init__(self, skill: RemoteSkill, connection: "ToolConnection", skill_id: str) -> None:
        self.name = skill.local_name
        self.title = skill.name
        self.description = skill.description
        self.input_schema = to_inputs_schema(skill)
        self.output_schema = skill.output_schema
        self.annotations = skill.annotations
        self.requires_approval = skill.requires_approval
        self.skill_id = skill_id
        """The id on the card. Empty if the card lists no skills, so that the tool is the agent itself."""
        self._takes_objects = not skill.is_free_form and self.input_schema is skill.input_schema
        self._connection = connection

    def __repr__(self) -> str:
        return f"RemoteTool({self.name!r})"

    async def call(self, inputs: dict[str, Any], *, key: str = "", progress: Progress | None = None) -> ToolOutcome:
        """Start a remote task, and return its outcome.

        Args:
            inputs: The inputs of the skill.
            key: The identity of this call. A second call with the same key returns the outcome of the same task.
            progress: Called with the progress of the task, in the event loop of the caller.

        Raises:
            InvalidParamsError: the agent rejects the inputs.
            AgentError: the task failed, or the agent cannot be reached.

        Example:
            >>> async def add(tool: RemoteTool) -> None:
            ...     outcome = await tool.call({"a": 2, "b": 3})
            ...     print(outcome.data)
        """
        return await self._connection.run(self._start(inputs, key, _in_this_loop(progress)))

    def call_sync(self, inputs: dict[str, Any], *, key: str = "") -> ToolOutcome:
        """Do what `call` does, and block the calling thread meanwhile.

        Example:
            >>> def add(tool: RemoteTool) -> None:
            ...     print(tool.call_sync({"a": 2, "b": 3}).data)
        """
        return self._connection.run_sync(self._start(inputs, key, None))

    async def reply(
        self, task_id: str, answer: Any, *, asked: str = "", key: str = "", progress: Progress | None = None
    ) -> ToolOutcome:
        """Answer the question of a task, and return the next outcome of the task.

        Args:
            task_id: The task that waits.
            answer: A text, a boolean that decides about approvals, an object with the answers by the ids of the
                questions, or any other value.
            asked: The `ToolOutcome.asked` that is answered. If the task asks something else by now, the answer is not
                sent, and the outcome has the new question.
            key: The identity of this answer, as in `call`.
            progress: As in `call`.

        Example:
            >>> async def book(tool: RemoteTool) -> None:
            ...     outcome = await tool.call({"seats": 2})
            ...     if outcome.is_waiting:
            ...         outcome = await tool.reply(outcome.task_id, "Rome", asked=outcome.asked)
        """
        return await self._connection.run(self._continue(task_id, answer, asked, key, _in_this_loop(progress)))

    def reply_sync(self, task_id: str, answer: Any, *, asked: str = "", key: str = "") -> ToolOutcome:
        """Do what `reply` does, and block the calling thread meanwhile.

        Example:
            >>> def book(tool: RemoteTool) -> None:
            ...     outcome = tool.call_sync({"seats": 2})
            ...     print(tool.reply_sync(outcome.task_id, "Rome").text)
        """
        return self._connection.run_sync(self._continue(task_id, answer, asked, key, None))

    async def look(self, task_id: str) -> ToolOutcome:
        """Return the present outcome of a task that has ended or waits.

        Example:
            >>> async def questions(tool: RemoteTool, task_id: str) -> None:
            ...     print((await tool.look(task_id)).questions)
        """
        return await self._connection.run(self._connection.look(task_id))

    async def cancel(self, task_id: str) -> None:
        """Cancel a task, for example because its user declines to answer. A task that has ended stays as it is.

        Example:
            >>> async def decline(tool: RemoteTool, task_id: str) -> None:
            ...     await tool.cancel(task_id)
        """
        await self._connection.run(self._connection.cancel(task_id))

    async def _start(self, inputs: dict[str, Any], key: str, progress: Progress | None) -> ToolOutcome:
        message = _to_message([self._to_part(inputs)], key)
        return await self._connection.send(message, {"skill": self.skill_id or None}, key, progress)

    async def _continue(
        self, task_id: str, answer: Any, asked: str, key: str, progress: Progress | None
    ) -> ToolOutcome:
        message = _to_message([], key)
        if not self._connection.has_sent(message.message_id):
            waiting = await self._connection.look(task_id)
            is_other = bool(asked) and waiting.asked != asked
            # With a key, the agent knows a repeated answer by its id, even if the task goes on meanwhile.
            if not waiting.is_waiting or (is_other and not key):
                return waiting
            message = _to_message([_to_reply(answer, waiting.questions)], key)
        return await self._connection.send(message, {"task_id": task_id}, key, progress)

    def _to_part(self, inputs: dict[str, Any]) -> Part:
        value: Any = inputs
        if not self._takes_objects and inputs.keys() == {WHOLE}:
            value = inputs[WHOLE]
        if isinstance(value, str):  # most agents that do not describe their skills expect text
            return Part(text=value)
        return Part(data=value, media_type="application/json")


class ToolConnection:
    """The client of the tools of one agent, in an event loop of its own."""

    def __init__(self, client: A2AClient, thread: LoopThread, timeout: float | None) -> None:
        self._client = client
        self._thread = thread
        self._timeout = timeout
        self._sent: dict[str, str] = {}  # the tasks of keyed messages, by message id. The latest MAX_SENT
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the connection's own loop, and wait for it in the caller's."""
        try:
            future = self._thread.submit(self._translated(work))
        except RuntimeError:
            work.close()
            raise AgentError(CLOSED) from None
        return await asyncio.wrap_future(future)

    def run_sync(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the connection's own loop, and block until it is done."""
        try:
            return self._thread.run(self._translated(work))
        except RuntimeError:
            work.close()
            raise AgentError(CLOSED) from None

    async def _translated(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work within the time limit of a call, and raise only errors that a model may read."""
        running = asyncio.current_task()
        assert running is not None
        self._running.add(running)
        try:
            async with asyncio.timeout(self._timeout):
                return await work
        except TimeoutError as error:
            raise AgentError("The remote agent did not answer in time") from error
        except (InvalidParamsError, AgentError):
            raise  # about the inputs, or the agent's own text for its callers
        except ContentTypeNotSupportedError as error:
            raise InvalidParamsError(str(error)) from error
        except A2AError as error:
            logger.warning("remote tool failed", extra={"url": self._client.url, "reason": clean_line(str(error))})
            raise hide_details(error, TEXTS) from error
        finally:
            self._running.discard(running)

    async def close(self) -> None:
        """Cancel the running calls, each once: a second cancellation would interrupt the cancel of its remote task."""
        running = list(self._running)
        for call in running:
            if not call.cancelling():
                call.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_WAIT + 1)

    async def discover(self) -> AgentCard:
        return await self._client.discover()

    def has_sent(self, message_id: str) -> bool:
        return message_id in self._sent

    async def send(self, message: Message, options: SendOptions, key: str, progress: Progress | None) -> ToolOutcome:
        """Send a message, follow its task until it rests, and return the outcome."""
        known = self._sent.get(message.message_id)
        if known is not None:
            return await self._settle(known)
        call = RemoteCall(message, options, idempotency_key=message.message_id if key else "", keeps_waiting=True)
        last: Event | None = None
        async with aclosing(follow(self._client, call)) as events:
            async for event in events:
                last = event
                if key:
                    self._remember(message.message_id, event)
                if progress is not None and isinstance(event, StatusUpdate):
                    await _report(progress, event)
        return read_outcome(last)

    def _remember(self, message_id: str, event: Event) -> None:
        if isinstance(event, Task) and message_id not in self._sent:
            while len(self._sent) >= MAX_SENT:
                del self._sent[next(iter(self._sent))]
            self._sent[message_id] = event.id

    async def _settle(self, task_id: str) -> ToolOutcome:
        return read_outcome(await self._client.wait(task_id))

    async def look(self, task_id: str) -> ToolOutcome:
        return read_outcome(await self._client.get_task(task_id))

    async def cancel(self, task_id: str) -> None:
        try:
            await self._client.cancel_task(task_id)
        except A2AError as error:  # it has ended meanwhile, or the agent cannot be reached
            logger.info("remote task not cancelled", extra={"task_id": task_id, "reason": clean_line(str(error))})


class RemoteTools:
    """The tools of one remote agent. Opened by a `with` or `async with` block, and closed at its end."""

    def __init__(self, opening: AbstractAsyncContextManager[A2AClient], timeout: float | None) -> None:
        self._opening = opening  # entered and left in the thread's event loop, to which the client belongs
        self._timeout = timeout
        self._thread: LoopThread | None = None
        self._connection: ToolConnection | None = None
        self._card: AgentCard | None = None
        self._tools: tuple[RemoteTool, ...] = ()

    def __repr__(self) -> str:
        names = [tool.name for tool in self._tools]
        return f"RemoteTools({names})"

    def __iter__(self) -> Iterator[RemoteTool]:
        self._check_open()
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __getitem__(self, name: str) -> RemoteTool:
        self._check_open()
        for tool in self._tools:
            if name in (tool.name, tool.skill_id):
                return tool
        listed = ", ".join(tool.name for tool in self._tools)
        raise KeyError(f"There is no tool {name!r}. The tools are: {listed}")

    @property
    def card(self) -> AgentCard:
        """The card of the agent.

        Example:
            >>> def show(tools: RemoteTools) -> None:
            ...     print(tools.card.name)
        """
        self._check_open()
        assert self._card is not None
        return self._card

    def open(self) -> Self:
        """Fetch the card, and block meanwhile. A `with` block does the same. `close` ends the connection.

        Raises:
            A2AError: the agent cannot be reached, or its card cannot be used.

        Example:
            >>> tools = open_tools("https://agent.example.com")
            >>> def main() -> None:
            ...     print([tool.name for tool in tools.open()])
        """
        if self._thread is None:
            self._thread = LoopThread()
            try:
                self._thread.run(self._open())
            except BaseException:  # also a cancellation
                self.close()
                raise
        return self

    async def _open(self) -> None:
        client = await self._opening.__aenter__()
        assert self._thread is not None
        self._connection = ToolConnection(client, self._thread, self._timeout)
        self._use(await client.discover())

    def _use(self, card: AgentCard) -> None:
        if card is self._card:
            return
        assert self._connection is not None
        found = [RemoteTool(skill, self._connection, skill.id) for skill in read_skills(card, to_tool_name)]
        if not found:  # the agent itself is the tool
            itself = AgentSkill(id=card.name, name=card.name, description=card.description)
            (skill,) = read_skills(replace(card, skills=(itself,)), to_tool_name)
            found.append(RemoteTool(skill, self._connection, ""))
        self._tools = tuple(found)
        self._card = card

    async def refresh(self) -> None:
        """Use the skills of the present card, which is fetched again if it is older than five minutes.

        If the agent cannot be reached, the tools stay as they are.

        Example:
            >>> async def show(tools: RemoteTools) -> None:
            ...     await tools.refresh()
            ...     print([tool.name for tool in tools])
        """
        self._check_open()
        assert self._connection is not None
        with suppress(AgentError):  # it is in the log
            self._use(await self._connection.run(self._connection.discover()))

    def close(self) -> None:
        """Cancel running calls and their tasks, and close the connections. Tasks that wait for an answer stay.

        Example:
            >>> def main(tools: RemoteTools) -> None:
            ...     tools.close()
        """
        thread = self._thread
        if thread is None:
            return
        if self._connection is not None:
            with suppress(RuntimeError):  # closed already
                thread.run(self._connection.close())
        thread.stop(self._leave)

    async def _leave(self) -> None:
        if self._connection is not None:
            await self._opening.__aexit__(None, None, None)

    def _check_open(self) -> None:
        if self._thread is None:
            raise RuntimeError("The tools are not open. Use `async with open_tools(url) as tools`, or call open()")

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.open)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def open_tools(
    url: str,
    *,
    auth: AuthLike | None = None,
    timeout: float | None = TIMEOUT,
    **options: Unpack[ClientOptions],
) -> RemoteTools:
    """Return the skills of a remote A2A agent as tools, for the block that uses them.

    Args:
        url: The remote agent's address.
        auth: Credentials for the remote agent, as for `A2AClient`.
        timeout: Seconds for one call of a tool. When they have passed, the remote task is cancelled.
        options: See `ClientOptions`.

    Raises:
        ValueError: `url` is not an http or https address, or an option is invalid.

    Example:
        >>> async def main() -> None:
        ...     async with open_tools("https://agent.example.com") as tools:
        ...         print([tool.name for tool in tools])
    """
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be positive, not {timeout}")
    return RemoteTools(A2AClient(url, auth=auth, **options), timeout)


# ---- outcomes -------------------------------------------------------------------------------------------------------


def read_outcome(last: Event | None) -> ToolOutcome:
    """Return the outcome of a call, given its last event.

    Raises:
        AgentError: the task failed. The text is the agent's, sanitized and truncated.
    """
    if isinstance(last, Message):
        return ToolOutcome(text=clean_text(last.text), data=last.data, files=tuple(last.files))
    if not isinstance(last, Task):
        raise AgentError(NO_RESULT)
    said = last.status.message
    if last.status.state in WAITING:
        text = clean_text(last.status.text) or "The remote agent waits for an answer"
        return ToolOutcome(
            text=text,
            files=tuple(said.files) if said is not None else (),
            task_id=last.id,
            context_id=last.context_id,
            is_waiting=True,
            asked=said.message_id if said is not None else "",
            questions=tuple(questions_of(said)),
        )
    if last.status.state is not TaskState.COMPLETED:
        raise AgentError(describe_ending(last.status.state, clean(last.status.text, MAX_REASON)))
    return ToolOutcome(
        text=clean_text(last.text),
        data=last.data,
        files=tuple(last.files),
        task_id=last.id,
        context_id=last.context_id,
    )


def to_question(outcome: ToolOutcome) -> dict[str, Any]:
    """Return the question of a waiting task as JSON, in the form in which frameworks hand it to their users."""
    return {
        "text": outcome.text,
        "task_id": outcome.task_id,
        "asked": outcome.asked,
        "questions": to_answerable(outcome.questions),
    }


def to_answerable(questions: tuple[Question, ...]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    for each in questions:
        shown: dict[str, Any] = {"id": each.id, "kind": each.kind, "text": clean_text(each.text)}
        if each.kind == "approval":
            shown |= {"tool": clean(each.tool), "arguments": each.arguments}
        elif each.schema is not None:
            shown["schema"] = each.schema
        listed.append(shown)
    return listed


def _to_reply(answer: Any, questions: tuple[Question, ...]) -> Part:
    """Return the part that answers: by the ids of the questions, or as a text or data."""
    approvals = [question.id for question in questions if question.kind == "approval"]
    if isinstance(answer, bool):
        if approvals:
            return to_answers(dict.fromkeys(approvals, answer))
        if not questions:
            return Part(text="yes" if answer else "no")
    if isinstance(answer, str):
        return Part(text=answer)
    if isinstance(answer, dict) and answer and answer.keys() <= {question.id for question in questions}:
        return to_answers(answer)
    if len(questions) == 1:
        return to_answers({questions[0].id: answer})
    return Part(data=answer, media_type="application/json")


def describe_failure(error: InvalidParamsError | AgentError) -> str:
    """Return the text about a failed call for a model: what is wrong with which input.

    Example:
        >>> describe_failure(AgentError("No such city"))
        'No such city'
    """
    lines = [str(error)]
    if isinstance(error, InvalidParamsError):
        for each in error.violations:
            line = f"{each.field}: {each.message}" if each.field else each.message
            if line not in lines[0]:
                lines.append(line)
    return "\n".join(lines)


# ---- messages -------------------------------------------------------------------------------------------------------


def _to_message(parts: list[Part], key: str) -> Message:
    """Return a message whose id is made from the key, or is new."""
    message_id = new_id()
    if key:
        message_id = hashlib.sha256(key.encode()).hexdigest()[:32]
    return Message(message_id=message_id, role=Role.USER, parts=tuple(parts))


def _in_this_loop(progress: Progress | None) -> Progress | None:
    """Return a function that calls `progress` in the running loop, for a call from another loop."""
    if progress is None:
        return None
    wanted = progress
    loop = asyncio.get_running_loop()

    async def report(done: float | None, text: str) -> None:
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_as_coroutine(wanted(done, text)), loop))
        except RuntimeError:  # the caller's loop has ended
            return

    return report


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


async def _report(progress: Progress, event: StatusUpdate) -> None:
    said = event.status.message
    if said is None or event.status.state is not TaskState.WORKING:
        return
    done = (said.metadata or {}).get(PROGRESS)
    share = None
    if isinstance(done, int | float) and not isinstance(done, bool):
        share = min(max(float(done), 0.0), 1.0)
    await progress(share, clean_text(said.text, MAX_REASON))


# ---- schemas and names -----------------------------------------------------------------------------------------------


def to_inputs_schema(skill: RemoteSkill) -> dict[str, Any]:
    """Return the schema of a tool's arguments, which are an object in every framework."""
    if skill.is_free_form:
        text = {"type": "string", "description": "The message to the agent"}
        return {"type": "object", "properties": {WHOLE: text}, "required": [WHOLE]}
    if skill.input_schema.get("type", "object") == "object":
        return skill.input_schema
    return {"type": "object", "properties": {WHOLE: skill.input_schema}, "required": [WHOLE]}


def to_tool_name(skill_id: str) -> str:
    """Return a name that every model provider accepts, as similar to the skill's id as possible.

    Example:
        >>> to_tool_name("math.add")
        'math_add'
    """
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", skill_id[: 2 * MAX_NAME]).strip("_")
    if not name or not (name[0].isalpha() or name[0] == "_"):
        name = f"skill_{name}".rstrip("_")
    return name[: MAX_NAME - 4]  # room for the number that makes it unique
