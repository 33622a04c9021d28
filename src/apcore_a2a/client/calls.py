"""One call to a skill of a remote agent: its events, its task, which ends with the call, and the texts of its failures.

Invariant: a remote task does not outlive the local call that started it. If the call ends early, it cancels the task.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

from msgspec import Struct

from apcore_a2a.client.client import A2AClient
from apcore_a2a.client.messages import Sendable
from apcore_a2a.client.options import CallOptions, SendOptions
from apcore_a2a.errors import A2AError, AgentError, OverloadedError, UnauthenticatedError
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Event, Message, SendConfiguration, StatusUpdate, Task, TaskState

CANCEL_WAIT: Final = 5.0
MAX_REASON: Final = 500  # characters of the agent's text about a task that failed
NO_RESULT: Final = "The remote agent returned no result"
# Error texts for local callers and models. They contain no addresses and credentials.
ERROR_TEXTS: Final[Mapping[type[A2AError], str]] = {
    UnauthenticatedError: "The remote agent rejects our credentials",
    OverloadedError: "The remote agent is overloaded; try again later",
}
UNREACHABLE: Final = "The remote agent is not available or returns errors"
WAITING: Final = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})


class RemoteCall(Struct, frozen=True):
    """The content of one call to a remote agent."""

    message: Sendable
    options: SendOptions = {}
    idempotency_key: str = ""
    """The key by which an agent recognizes a repeated message, if it supports the header."""
    keeps_waiting: bool = False
    """Whether the task may go on to wait for its user after the call."""


async def follow(client: A2AClient, call: RemoteCall) -> AsyncGenerator[Event]:
    """Yield the events of a call: of its stream if the agent supports streaming, and finally its task or its reply.

    If the generator is closed before the remote task has ended, it cancels that task.
    """
    task_id = ""
    state = TaskState.UNSPECIFIED
    at_rest = TERMINAL
    if call.keeps_waiting:
        at_rest = TERMINAL | WAITING
    try:
        async with aclosing(_begin(client, call)) as events:
            async for event in events:
                if isinstance(event, Message) and not task_id:
                    yield event
                    return
                if isinstance(event, Task):
                    task_id = event.id
                elif not isinstance(event, Message):
                    task_id = event.task_id or task_id  # some agents omit it in updates
                if isinstance(event, Task | StatusUpdate):
                    state = event.status.state
                yield event
                if call.keeps_waiting and state is TaskState.AUTH_REQUIRED:
                    break  # the stream stays open, but the user has to act
        # The task is fetched, not assembled from the events, so that nothing missed or truncated is lost.
        final = await client.get_task(task_id, **_options_of(call))
        state = final.status.state
        yield final
    finally:
        if task_id and state not in at_rest:
            await _cancel(client, task_id, call)


async def _begin(client: A2AClient, call: RemoteCall) -> AsyncGenerator[Event]:
    options = call.options
    if call.idempotency_key:
        headers = {**options.get("headers", {}), "Idempotency-Key": call.idempotency_key}
        options = {**options, "headers": headers}
    card = await client.agent_card
    if card.capabilities.streaming:
        async with aclosing(client.stream_message(call.message, **options)) as events:
            async for event in events:
                yield event
        return
    # With `return_immediately` the task's id is known at once, so the task can be cancelled. Then wait for its end.
    at_once: SendOptions = {**options, "configuration": SendConfiguration(return_immediately=True)}
    answer = await client.send_message(call.message, **at_once)
    yield answer
    if isinstance(answer, Task):
        await client.wait(answer, **_options_of(call))


async def _cancel(client: A2AClient, task_id: str, call: RemoteCall) -> None:
    with contextlib.suppress(
        A2AError, TimeoutError
    ):  # the task may have ended already, or the agent may be unreachable
        async with asyncio.timeout(CANCEL_WAIT):
            await client.cancel_task(task_id, **_options_of(call))


def _options_of(call: RemoteCall) -> CallOptions:
    """Return the options for further requests of the same call: credentials and trace headers."""
    options: CallOptions = {"headers": call.options.get("headers", {})}
    if "auth" in call.options:
        options["auth"] = call.options["auth"]
    return options


# ---- failures -------------------------------------------------------------------------------------------------------


def describe_ending(state: TaskState, reason: str) -> str:
    """Return the text about a task that did not complete: its state, and the agent's text, which is sanitized."""
    text = f"The remote task ended as {state.removeprefix('TASK_STATE_')}"
    if reason:
        text += f": {reason[:MAX_REASON]}"
    return text


def hide_details(error: A2AError, texts: Mapping[type[A2AError], str] = ERROR_TEXTS) -> AgentError:
    """Return the error that local callers and models may see. The first text whose class matches is used."""
    for kind, text in texts.items():
        if isinstance(error, kind):
            return AgentError(text)
    return AgentError(UNREACHABLE)
