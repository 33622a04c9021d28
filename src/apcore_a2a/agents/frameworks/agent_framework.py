"""Agents of Microsoft's agent-framework. A conversation is an `AgentSession`.

A run is paused by the session as well: its last messages request approvals.
"""

from base64 import b64decode
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

from agent_framework import AgentSession, Content, InMemoryHistoryProvider, Message, WorkflowAgent
from msgspec import json

from apcore_a2a.agent import About, ModelUsage, ToolCalled, ToolDone
from apcore_a2a.agents.frameworks.framework_agent import AgentTurn, Asked, Kept, StateUnreadable, data_as_text
from apcore_a2a.agents.questions import approval
from apcore_a2a.agents.skills import FILE
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import Part
from apcore_a2a.protocol.questions import Question

NO_WORKFLOWS: Final = (
    "the agent of a Workflow cannot be served: the Workflow holds the state of its runs, so callers would share it."
    " Serve a function that builds and runs the Workflow"
)


class MicrosoftAdapter:
    """Translates one agent."""

    def __init__(self, agent: Any) -> None:
        if isinstance(agent, WorkflowAgent):
            raise TypeError(NO_WORKFLOWS)
        self._agent = agent
        options = getattr(agent, "default_options", {})
        self._has_schema = options.get("response_format") is not None
        self.about = About(name=agent.name or "", description=agent.description or "")

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        if isinstance(self._agent, AbstractAsyncContextManager):
            return self._agent  # it opens its tools of MCP
        return nullcontext()

    def messages_of(self, state: Any) -> list[Any] | None:
        if not isinstance(state, dict):
            return None
        history = state["session"]["state"].get(InMemoryHistoryProvider.DEFAULT_SOURCE_ID, {})
        messages: list[Any] | None = history.get("messages")
        return messages

    async def run(self, turn: AgentTurn) -> AsyncGenerator[Any, None]:
        session, requests = _read_state(turn)
        messages = _to_messages(turn, requests)
        reader = _MicrosoftUpdates(requests, has_schema=self._has_schema)
        stream = self._agent.run(messages, stream=True, session=session)
        has_kept = False
        try:
            async with stream:
                async for update in stream:
                    if not has_kept:
                        has_kept = True
                        yield await _with_message(session, turn, messages)
                    for each in reader.read(update):
                        yield each
                final = await stream.get_final_response()
        except Exception:  # it is raised again. The conversation keeps the message of the user
            if not has_kept:
                yield await _with_message(session, turn, messages)
            raise
        yield reader.usage(final.usage_details)
        state = _to_state(session, reader.requests)
        if reader.requests:
            yield Asked([_to_question(each) for each in reader.requests], state)
            return
        yield Kept(state)
        if self._has_schema:
            yield final.text if final.value is None else final.value


class _MicrosoftUpdates:
    """Reads the updates of one run."""

    def __init__(self, answered: list[Any], *, has_schema: bool) -> None:
        self.requests: list[Any] = []
        """The requests for approvals."""
        self._has_schema = has_schema
        self._responses: set[str] = set()  # the ids of the messages of the model
        self._names: dict[str, str] = {}  # of the tools, by the ids of their calls
        self._arguments: dict[str, str] = {}  # received so far, of the calls that have not been yielded
        for request in answered:
            self._names[request.function_call.call_id] = request.function_call.name

    def read(self, update: Any) -> Iterator[Any]:
        """Yield the contents of an update."""
        if update.message_id:
            self._responses.add(update.message_id)
        for content in update.contents or ():
            yield from self._read(content)

    def usage(self, used: Any) -> ModelUsage:
        """Return what the run has used."""
        counts = used or {}
        return ModelUsage(
            requests=len(self._responses),
            input_tokens=counts.get("input_token_count") or 0,
            output_tokens=counts.get("output_token_count") or 0,
        )

    def _read(self, content: Any) -> Iterator[Any]:
        if content.type == "function_call":
            yield from self._read_call(content)
            return
        yield from self._complete_calls()
        match content.type:
            case "text" if not self._has_schema:
                yield content.text
            case "data":
                yield _to_file(content)
            case "function_result":
                name = self._names.get(content.call_id, "tool")
                failed = content.exception is not None
                yield ToolDone(id=content.call_id, name=name, result=content.result, failed=failed)
            case "function_approval_request":
                self.requests.append(content)
            case "oauth_consent_request":
                raise AgentError(f"The agent needs your consent. Open {content.consent_link}, then send it again.")

    def _read_call(self, content: Any) -> Iterator[ToolCalled]:
        """Read a call of a tool. Its arguments may come in pieces."""
        call_id = content.call_id
        if content.name and call_id not in self._names:
            self._names[call_id] = content.name
            self._arguments[call_id] = ""
        if call_id not in self._arguments:
            return
        if content.arguments is None:
            return
        if not isinstance(content.arguments, str):
            del self._arguments[call_id]
            yield ToolCalled(id=call_id, name=self._names[call_id], arguments=dict(content.arguments))
            return
        self._arguments[call_id] += content.arguments
        arguments = _read_object(self._arguments[call_id])
        if arguments is not None:
            del self._arguments[call_id]
            yield ToolCalled(id=call_id, name=self._names[call_id], arguments=arguments)

    def _complete_calls(self) -> Iterator[ToolCalled]:
        """Yield the calls whose arguments are complete, because something else follows."""
        for call_id, text in self._arguments.items():
            yield ToolCalled(id=call_id, name=self._names[call_id], arguments=text or {})
        self._arguments.clear()


def _read_object(text: str) -> dict[str, Any] | None:
    """Return a JSON object, or None if it is not complete."""
    try:
        value = json.decode(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


# ---- the conversation -----------------------------------------------------------------------------------------------


def _read_state(turn: AgentTurn) -> tuple[Any, list[Any]]:
    """Return the session, and the requests that the answers of this turn belong to."""
    if turn.state is None:
        return AgentSession(session_id=turn.thread_id), []
    try:
        session = AgentSession.from_dict(turn.state["session"])
        requests = [Content.from_dict(each) for each in turn.state["requests"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StateUnreadable("the session is not one of agent-framework") from error
    return session, requests


def _to_state(session: Any, requests: list[Any]) -> dict[str, Any]:
    return {"session": session.to_dict(), "requests": [request.to_dict() for request in requests]}


async def _with_message(session: Any, turn: AgentTurn, messages: list[Any]) -> Kept | None:
    """Return the conversation with the new message of the user, in case the run does not end.

    A session gets the messages of a run when it ends. None if the agent keeps the history in another place, and for
    answers: without the results of the calls, the history would approve them once more.
    """
    source = InMemoryHistoryProvider.DEFAULT_SOURCE_ID
    if turn.answers is not None or source not in session.state:
        return None
    copied = AgentSession.from_dict(session.to_dict())
    state = copied.state[source]
    await InMemoryHistoryProvider().save_messages(copied.session_id, messages, state=state)
    return Kept(_to_state(copied, []))


def _to_question(request: Any) -> Question:
    call = request.function_call
    return approval(request.id, call.name, call.parse_arguments() or {})


def _to_messages(turn: AgentTurn, requests: list[Any]) -> list[Any]:
    if turn.answers is None:
        return [Message("user", [_to_content(part) for part in turn.parts])]
    responses: list[Any] = []
    for request in requests:
        answer = turn.answers[request.id]
        responses.append(request.to_function_approval_response(answer.approved is True))
    return [Message("user", responses)]


def _to_content(part: Part) -> Any:
    if isinstance(part.text, str):
        return Content.from_text(part.text)
    if isinstance(part.raw, bytes):
        return Content.from_data(part.raw, part.media_type or FILE)
    if isinstance(part.url, str):
        return Content.from_uri(part.url, media_type=part.media_type or FILE)
    return Content.from_text(data_as_text(part))


def _to_file(content: Any) -> Part:
    raw = b64decode(content.uri.partition("base64,")[2])
    return Part(raw=raw, media_type=content.media_type or "")
