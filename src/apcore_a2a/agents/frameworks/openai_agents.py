"""Agents of the OpenAI Agents SDK. A conversation is a list of items, to which each run appends.

A paused run is a `RunState`, which has a form of its own. Its items join the conversation when it ends.
"""

import asyncio
import base64
import inspect
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import agents

from apcore_a2a.agent import About, ModelUsage, ToolCalled, ToolDone
from apcore_a2a.agents.frameworks.framework_agent import AgentTurn, Asked, Kept, StateUnreadable, data_as_text
from apcore_a2a.agents.questions import Answer, approval
from apcore_a2a.agents.skills import FILE
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import Part

STOP_TIME: Final = 4.0  # seconds for the tools of a canceled run to end

# The ends of a run that an application has set up, in words for its callers.
ENDS: Final = {
    "MaxTurnsExceeded": "The agent has reached its limit of turns",
    "InputGuardrailTripwireTriggered": "A guardrail has rejected the message",
    "OutputGuardrailTripwireTriggered": "A guardrail has rejected the answer",
}


class OpenAIAdapter:
    """Translates one agent."""

    def __init__(self, agent: "agents.Agent[Any]") -> None:
        self._agent = agent
        self.about = About(name=agent.name, description=agent.handoff_description or "")

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None, None]:
        """Connect the MCP servers of the agents that are not connected yet."""
        async with AsyncExitStack() as stack:
            for agent in self._agents():
                for server in agent.mcp_servers:
                    if getattr(server, "session", None) is None:
                        await stack.enter_async_context(server)
            yield

    def messages_of(self, state: Any) -> list[Any] | None:
        if isinstance(state, dict) and "items" in state:
            items: list[Any] = state["items"]
            return items
        return None

    async def run(self, turn: AgentTurn) -> AsyncGenerator[Any, None]:
        agent = self._agent
        if turn.answers is None:
            state = turn.state or {"items": []}
            if not isinstance(state.get("items"), list):
                raise StateUnreadable("the items are not those of OpenAI Agents")
            agent = self._agents_by_name().get(state.get("agent", ""), agent)
            given: Any = [*state["items"], {"role": "user", "content": [_to_content(part) for part in turn.parts]}]
            yield Kept({"items": given, "agent": agent.name})
        else:
            given = await self._resume(turn.state, turn.answers)
        config = agents.RunConfig(
            tracing_disabled=not turn.options.allow_tracing, group_id=turn.thread_id, workflow_name=self._agent.name
        )
        run = agents.Runner.run_streamed(agent, given, run_config=config)
        text = StreamedText()
        try:
            async for event in run.stream_events():
                for each in _read_event(event, run, text):
                    yield each
        except agents.exceptions.AgentsException as error:
            words = ENDS.get(type(error).__name__)
            if words is None:
                raise
            raise AgentError(words, kind=type(error).__name__) from error
        finally:
            await _stop(run)
        for each in _end(run, text):
            yield each

    async def _resume(self, state: Any, answers: dict[str, Answer]) -> Any:
        """Return the paused run with the answers."""
        try:
            paused = await agents.RunState.from_json(self._agent, state)
        except (agents.UserError, ValueError, LookupError, TypeError) as error:
            raise StateUnreadable("the run is not one of this agent") from error
        for item in paused.get_interruptions():
            answer = answers[_call_id(item)]
            if answer.approved:
                paused.approve(item)
            elif answer.reason and "rejection_message" in inspect.signature(paused.reject).parameters:
                paused.reject(item, rejection_message=answer.reason)
            else:
                paused.reject(item)
        return paused

    def _agents_by_name(self) -> dict[str, Any]:
        return {agent.name: agent for agent in self._agents()}

    def _agents(self) -> list[Any]:
        """Return the agent and the ones that it may hand off to."""
        found: list[Any] = [self._agent]
        for agent in found:
            for target in agent.handoffs:
                if isinstance(target, agents.Agent) and target not in found:
                    found.append(target)
        return found


async def _stop(run: Any) -> None:
    """Stop a run that is not at its end, with its tools."""
    if run.is_complete:
        return
    run.cancel()
    task = getattr(run, "run_loop_task", None)
    if task is not None:
        await asyncio.wait({task}, timeout=STOP_TIME)


# ---- output of the agent --------------------------------------------------------------------------------------------


class StreamedText:
    """The text of the present message, and the names of the tools that were called."""

    def __init__(self) -> None:
        self.text = ""
        self.is_over = False
        self.names: dict[str, str] = {}

    def add(self, piece: str) -> str:
        if self.is_over:
            self.text = ""
            self.is_over = False
        self.text += piece
        return piece


def _read_event(event: Any, run: Any, text: StreamedText) -> Iterator[Any]:
    if event.type == "raw_response_event":
        if event.data.type == "response.output_text.delta" and run.current_agent.output_type in (None, str):
            yield text.add(event.data.delta)
        return
    if event.type != "run_item_stream_event":
        return
    item = event.item
    match event.name:
        case "message_output_created" if run.current_agent.output_type in (None, str):
            whole = agents.ItemHelpers.text_message_output(item)
            if text.is_over or whole != text.text:  # the model has not streamed it
                yield text.add(whole)
            text.is_over = True
        case "tool_called":
            yield from _read_call(item, text)
        case "tool_output":
            call_id = _call_id(item)
            yield ToolDone(id=call_id, name=text.names.get(call_id, "tool"), result=item.output)


def _read_call(item: Any, text: StreamedText) -> Iterator[Any]:
    raw = item.raw_item
    name = _field(raw, "name") or str(_field(raw, "type") or "tool")
    text.names[_call_id(item)] = name
    image = _field(raw, "result")
    if name == "image_generation_call" and isinstance(image, str):
        yield Part(raw=base64.b64decode(image), media_type="image/png")
        return
    yield ToolCalled(id=_call_id(item), name=name, arguments=_arguments(_field(raw, "arguments")))


def _end(run: Any, text: StreamedText) -> Iterator[Any]:
    usage = run.context_wrapper.usage
    yield ModelUsage(requests=usage.requests, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    if run.interruptions:
        state = run.to_state().to_json()
        questions = [
            approval(_call_id(item), item.name or "tool", _arguments(item.arguments)) for item in run.interruptions
        ]
        yield Asked(questions, _to_json(state))
        return
    yield Kept({"items": _to_json(run.to_input_list()), "agent": run.last_agent.name})
    output = run.final_output
    if not isinstance(output, str) or output.split() != text.text.split():
        yield output


def _field(raw: Any, name: str) -> Any:
    if isinstance(raw, dict):
        return raw.get(name)
    return getattr(raw, name, None)


def _call_id(item: Any) -> str:
    return str(_field(item.raw_item, "call_id") or _field(item.raw_item, "id") or "")


def _arguments(text: str | None) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:  # the model may write anything
        return text


def _to_json(value: Any) -> Any:
    """Return a value without the classes of the SDK."""
    return json.loads(json.dumps(value, default=_dump))


def _dump(value: Any) -> Any:
    return value.model_dump(exclude_unset=True)


# ---- parts ----------------------------------------------------------------------------------------------------------


def _to_content(part: Part) -> dict[str, Any]:
    if isinstance(part.text, str):
        return {"type": "input_text", "text": part.text}
    if not part.is_file:
        return {"type": "input_text", "text": data_as_text(part)}
    is_image = part.media_type.startswith("image/")
    if isinstance(part.url, str):
        if is_image:
            return {"type": "input_image", "image_url": part.url, "detail": "auto"}
        return {"type": "input_file", "file_url": part.url}
    assert isinstance(part.raw, bytes)
    url = f"data:{part.media_type or FILE};base64,{base64.b64encode(part.raw).decode()}"
    if is_image:
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    return {"type": "input_file", "file_data": url, "filename": part.filename or "file"}
