"""A skill of a remote agent as an apcore module: how it is called, and what comes back.

Rule: a remote task does not outlive the local run that began it. Whoever stops waiting cancels it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, Protocol

import apcore
from msgspec import UNSET, Struct

from apcore_a2a.agents.apcore.context import DEADLINE
from apcore_a2a.agents.apcore.parts import copy_output, output_parts
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import AuthLike, CallOptions, SendOptions
from apcore_a2a.errors import A2AError, AgentError
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    Event,
    Message,
    Part,
    SendConfiguration,
    StatusUpdate,
    Task,
    TaskState,
)
from apcore_a2a.remote.skills import RemoteSkill, clean, for_apcore

MAX_RESULT: Final = 1_000_000  # characters of a remote text
CANCEL_WAIT: Final = 5.0
TOKEN_POLL: Final = 0.05  # seconds; apcore's token has no callback
Delegate = Callable[[Any], "AuthLike | Awaitable[AuthLike | None] | None"]
"""From apcore's Context of a local run to the credentials that the remote agent gets for it."""
Data = dict[str, Any]  # Any: what a module takes and gives is JSON


class Line(Protocol):
    """The way to the remote agent, from any event loop."""

    delegate: Delegate | None

    def events(self, skill: RemoteSkill, call: "RemoteCall") -> AsyncGenerator[Event]: ...


class RemoteCall(Struct, frozen=True):
    parts: list[Part]
    options: SendOptions


class RemoteModule:
    """Calls one skill. apcore finds here what it looks for in a module."""

    def __init__(self, skill: RemoteSkill, line: Line) -> None:
        self.skill, self._line = skill, line
        self.name, self.description, self.tags = skill.name, skill.description, list(skill.tags)
        self.input_schema = for_apcore(skill.input_schema, checked=not skill.is_free_form)
        if skill.output_schema:  # apcore takes none for "anything"
            self.output_schema = for_apcore(skill.output_schema, checked=False)
        self.annotations = apcore.ModuleAnnotations(**skill.annotations)

    async def execute(self, inputs: Data, context: Any) -> Data:
        """Call the skill and wait for its result."""
        async with aclosing(self._results(inputs, context)) as results:
            return [result async for result in results][-1]

    async def _results(self, inputs: Data, context: Any) -> AsyncGenerator[Data]:
        """What each event adds to the result, and at last the whole of it."""
        call = RemoteCall(self._parts(inputs), await self._options(context))
        final: Event | None = None
        async with aclosing(bounded(self._line.events(self.skill, call), context)) as events:
            async for event in events:
                final = event
                if isinstance(event, ArtifactUpdate):
                    yield to_result(event.artifact.parts)
        yield outcome(final)

    def _parts(self, inputs: Data) -> list[Part]:
        text = inputs.get("text") if self.skill.is_free_form and len(inputs) == 1 else None
        return [Part(text=text)] if isinstance(text, str) else output_parts(copy_output(inputs))

    async def _options(self, context: Any) -> SendOptions:
        options: SendOptions = {"skill": self.skill.id, "headers": apcore.TraceContext.inject(context)}
        if self._line.delegate is not None:
            given = self._line.delegate(context)
            auth = await given if isinstance(given, Awaitable) else given
            if auth is not None:
                options["auth"] = auth
        return options


class StreamingRemoteModule(RemoteModule):
    """A module whose results are told as they come."""

    async def stream(self, inputs: Data, context: Any) -> AsyncGenerator[Data]:
        """Call the skill and hand on what it sends."""
        async with aclosing(self._results(inputs, context)) as results:
            async for result in results:
                yield result


def outcome(final: Event | None) -> Data:
    """The result of a remote task, or of a direct reply.

    Raises:
        AgentError: the task failed, or waits for somebody; the text is the agent's, cleaned and shortened.
    """
    if isinstance(final, Message):
        return to_result(final.parts)
    if not isinstance(final, Task):
        raise AgentError("The remote agent gave no result")
    if final.status.state is not TaskState.COMPLETED:
        said = final.status.message.parts if final.status.message is not None else ()
        text = " ".join(clean(str(part.text)) for part in said if part.text is not UNSET)
        state = final.status.state.removeprefix("TASK_STATE_")
        raise AgentError(f"The remote task ended as {state}{': ' if text else ''}{text[:500]}")
    return to_result([part for artifact in final.artifacts for part in artifact.parts])


def to_result(parts: "list[Part] | tuple[Part, ...]") -> Data:
    """The parts as a module's output: objects as they are, text under `text`, files under their names."""
    result: Data = {}
    texts: list[str] = []
    for number, part in enumerate(parts):
        name = clean(part.filename, 100) or f"file_{number}"
        if part.text is not UNSET:
            texts.append(str(part.text))
        elif part.raw is not UNSET:
            result[name] = bytes(part.raw)
        elif part.url is not UNSET:
            result[name] = {"uri": part.url, "name": name, "mimeType": part.media_type}
        elif isinstance(part.data, dict):
            result |= part.data
        else:
            result["data"] = part.data
    if texts:
        result["text"] = clean("".join(texts), MAX_RESULT)
    return result


async def bounded(events: AsyncGenerator[Event], context: Any) -> AsyncGenerator[Event]:
    """The events, until the local run's deadline, and not if it is cancelled."""
    deadline = context.data.get(DEADLINE)
    async with aclosing(events):
        while True:
            left = None if deadline is None else max(deadline - time.time(), 0.0)
            try:
                async with asyncio.timeout(left):
                    event = await _unless_cancelled(anext(events, None), context.cancel_token)
            except TimeoutError as error:
                raise AgentError("The remote agent did not answer in time") from error
            if event is None:
                return
            yield event


async def _unless_cancelled(step: Awaitable[Event | None], token: Any) -> Event | None:
    """What comes next, unless apcore's token is cancelled first: it has no callback, so it is asked now and then."""
    waiting = asyncio.ensure_future(step)
    try:
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=None if token is None else TOKEN_POLL)
            if token is not None and not waiting.done():
                token.check()  # raises apcore's own exception
        return waiting.result()
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait({waiting}, timeout=CANCEL_WAIT)


async def follow(client: A2AClient, call: RemoteCall) -> AsyncGenerator[Event]:
    """What becomes of a call: the events of its stream if the agent has one, and last its task or its reply.

    Closed before that, it cancels the remote task.
    """
    task_id, state = "", TaskState.UNSPECIFIED
    try:
        async with aclosing(_begin(client, call)) as events:
            async for event in events:
                if isinstance(event, Message) and not task_id:
                    yield event
                    return
                if isinstance(event, Task | StatusUpdate):
                    task_id = event.id if isinstance(event, Task) else event.task_id
                    state = event.status.state
                yield event
        final = await client.get_task(task_id, **_plain(call))
        state = final.status.state
        yield final
    finally:
        if task_id and state not in TERMINAL:
            await _cancel(client, task_id, call)


async def _begin(client: A2AClient, call: RemoteCall) -> AsyncGenerator[Event]:
    if (await client.agent_card).capabilities.streaming:
        async with aclosing(client.stream_message(call.parts, **call.options)) as events:
            async for event in events:
                yield event
        return
    at_once: SendOptions = {**call.options, "configuration": SendConfiguration(return_immediately=True)}
    answer = await client.send_message(call.parts, **at_once)
    yield answer
    if isinstance(answer, Task):
        await client.wait(answer, **_plain(call))


async def _cancel(client: A2AClient, task_id: str, call: RemoteCall) -> None:
    with contextlib.suppress(A2AError, TimeoutError):  # it may have ended; or the agent is gone, and its task with it
        async with asyncio.timeout(CANCEL_WAIT):
            await client.cancel_task(task_id, **_plain(call))


def _plain(call: RemoteCall) -> CallOptions:
    """The options that every call of this run takes."""
    options: CallOptions = {"headers": call.options["headers"]}
    if "auth" in call.options:
        options["auth"] = call.options["auth"]
    return options
