"""Agents of pydantic-ai. A conversation is its list of messages, to which each run appends.

A run is paused by the messages as well: they end with calls of tools that have no results.
"""

import inspect
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from typing import Any, Final, get_args

import pydantic_ai
from pydantic_ai import messages as m

from apcore_a2a.agent import About, ModelUsage, ToolCalled, ToolDone
from apcore_a2a.agents.content import call_in_words
from apcore_a2a.agents.frameworks.framework_agent import AgentTurn, Asked, Kept, StateUnreadable, data_as_text
from apcore_a2a.agents.questions import Answer, approval
from apcore_a2a.agents.skills import FILE
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import Part
from apcore_a2a.protocol.questions import Question

HISTORY: Final = m.ModelMessagesTypeAdapter
DENIED: Final = "The user has not approved this call."
OWN_OUTPUT_ONLY: Final = "output validators"  # in the error for an agent whose `output_type` a run may not change


class PydanticAdapter:
    """Translates one agent."""

    def __init__(self, agent: "pydantic_ai.Agent[Any, Any]") -> None:
        self._agent = agent
        self._output_type = _with_questions(agent.output_type)
        self.about = About(name=agent.name or "", description=str(getattr(agent, "description", "") or ""))

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        agent: AbstractAsyncContextManager[object] = self._agent  # it opens its toolsets
        return agent

    def messages_of(self, state: Any) -> list[Any] | None:
        if isinstance(state, dict):
            messages: list[Any] = state["messages"]
            return messages
        return None

    async def run(self, turn: AgentTurn) -> AsyncGenerator[Any, None]:
        options: dict[str, Any] = {"message_history": _read_history(turn.state)}
        prompt: list[Any] | None = None
        if turn.answers is None:
            prompt = [_to_content(part) for part in turn.parts]
        else:
            options["deferred_tool_results"] = _to_results(turn.answers)
        async with AsyncExitStack() as stack:
            run = await self._begin(stack, prompt, options)
            try:
                async for node in run:
                    async with aclosing(self._follow(node, run)) as said:
                        async for each in said:
                            yield each
            except pydantic_ai.UsageLimitExceeded as error:
                raise AgentError("The agent has reached its usage limit", kind="UsageLimitExceeded") from error
        for each in self._end(run.result, _text_of(run.all_messages())):
            yield each

    async def _follow(self, node: Any, run: Any) -> AsyncGenerator[Any, None]:
        """Yield the output of one step of a run."""
        if pydantic_ai.Agent.is_model_request_node(node):
            yield Kept(_to_state([*run.all_messages(), node.request]))  # each call of a tool has its result here
            async with node.stream(run.ctx) as events:
                async for event in events:
                    yield _read_response(event)
        elif pydantic_ai.Agent.is_call_tools_node(node):
            async with node.stream(run.ctx) as events:
                async for event in events:
                    yield _read_tools(event)

    async def _begin(self, stack: AsyncExitStack, prompt: Any, options: dict[str, Any]) -> Any:
        """Begin a run. It may end with a question, even if the agent's own `output_type` does not allow it."""
        try:
            return await stack.enter_async_context(self._agent.iter(prompt, output_type=self._output_type, **options))
        except pydantic_ai.UserError as error:
            if OWN_OUTPUT_ONLY not in str(error):
                raise
        return await stack.enter_async_context(self._agent.iter(prompt, **options))

    def _end(self, result: Any, streamed: str) -> Iterator[Any]:
        usage = result.usage
        if inspect.ismethod(usage):  # in older versions
            usage = usage()
        yield ModelUsage(requests=usage.requests, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        state = _to_state(result.all_messages())
        output = result.output
        if isinstance(output, pydantic_ai.DeferredToolRequests):
            yield Asked(_to_questions(output), state)
            return
        yield Kept(state)
        if isinstance(output, m.BinaryContent):
            yield _to_file(output)
        elif not isinstance(output, str) or output.split() != streamed.split():
            yield output


def _with_questions(output_type: Any) -> Any:
    """Return an output type with `DeferredToolRequests`. Without it, a tool that requires approval raises."""
    types = output_type if isinstance(output_type, list | tuple) else [output_type]
    for each in types:
        if pydantic_ai.DeferredToolRequests in (each, *get_args(each)):
            return output_type
    return [*types, pydantic_ai.DeferredToolRequests]


def _text_of(messages: list[Any]) -> str:
    """Return the text of the last response of the model, which has been streamed."""
    for message in reversed(messages):
        if isinstance(message, m.ModelResponse):
            return "".join(part.content for part in message.parts if isinstance(part, m.TextPart))
    return ""


def _read_response(event: Any) -> Any:
    """Return the contents of a response of the model."""
    match event:
        case m.PartStartEvent(part=m.TextPart() as part):
            return part.content
        case m.PartDeltaEvent(delta=m.TextPartDelta() as delta):
            return delta.content_delta
        case m.PartStartEvent(part=m.FilePart() as part):
            return _to_file(part.content)
    return None


def _read_tools(event: Any) -> Any:
    """Return the call or the result of a tool in an event."""
    match event:
        case m.FunctionToolCallEvent(part=part):
            return ToolCalled(id=part.tool_call_id, name=part.tool_name, arguments=part.args_as_dict())
        case m.FunctionToolResultEvent():
            part = event.part if hasattr(event, "part") else event.result  # its name in older versions
            failed = isinstance(part, m.RetryPromptPart) or getattr(part, "outcome", "success") == "failed"
            return ToolDone(id=part.tool_call_id, name=part.tool_name or "tool", result=part.content, failed=failed)
    return None


# ---- questions and answers ------------------------------------------------------------------------------------------


def _to_questions(output: "pydantic_ai.DeferredToolRequests") -> list[Question]:
    questions = [approval(each.tool_call_id, each.tool_name, each.args_as_dict()) for each in output.approvals]
    for each in output.calls:
        arguments = each.args_as_dict()
        text = f"{each.tool_name}({call_in_words(arguments)})?"
        if len(arguments) == 1 and isinstance(next(iter(arguments.values())), str):
            text = next(iter(arguments.values()))
        questions.append(Question(id=each.tool_call_id, text=text, tool=each.tool_name, arguments=arguments))
    return questions


def _to_results(answers: dict[str, Answer]) -> "pydantic_ai.DeferredToolResults":
    results = pydantic_ai.DeferredToolResults()
    for tool_call_id, answer in answers.items():
        if answer.approved is None:
            results.calls[tool_call_id] = answer.value
        elif answer.approved:
            results.approvals[tool_call_id] = pydantic_ai.ToolApproved()
        else:
            results.approvals[tool_call_id] = pydantic_ai.ToolDenied(answer.reason or DENIED)
    return results


# ---- messages and parts ---------------------------------------------------------------------------------------------


def _read_history(state: Any) -> list[Any]:
    if state is None:
        return []
    try:
        history: list[Any] = HISTORY.validate_python(state["messages"])
    except (ValueError, LookupError, TypeError) as error:
        raise StateUnreadable("the messages are not those of pydantic-ai") from error
    return history


def _to_state(messages: list[Any]) -> dict[str, Any]:
    return {"messages": HISTORY.dump_python(messages, mode="json")}


def _to_content(part: Part) -> Any:
    if isinstance(part.text, str):
        return part.text
    if isinstance(part.raw, bytes):
        return m.BinaryContent(part.raw, media_type=part.media_type or FILE)
    if isinstance(part.url, str):
        if part.media_type.startswith("image/"):
            return m.ImageUrl(part.url)
        return m.DocumentUrl(part.url)
    return data_as_text(part)


def _to_file(content: Any) -> Part:
    return Part(raw=content.data, media_type=content.media_type)
