"""The tools of a remote agent as tools of LangChain, pydantic-ai, the OpenAI Agents SDK, Google ADK and strands.

A question of the remote agent becomes the framework's own pause for its user. Most frameworks run the call of a tool
again when the answer arrives, so each function here says how the second run finds the task of the first one.

Invariant: a framework is imported only in the function that makes its tools. No private name of a framework is used.
"""

import hashlib
import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from msgspec import to_builtins

from apcore_a2a.errors import AgentError, InvalidParamsError
from apcore_a2a.protocol.model import encode
from apcore_a2a.toolkits.tools import RemoteTool, ToolOutcome, describe_failure, to_question

# The types of the frameworks are Any: none of them is a dependency of this package.

PENDING: Final = "a2a_tasks"
"""The key in the state of a session for the remote tasks that wait, by the ids of the tool calls."""
TASK: Final = "a2a_task_id"
ANSWER: Final = "a2a_answer"
_call_id: ContextVar[str] = ContextVar("a2a_call_id", default="")


# ---- LangChain, LangGraph -------------------------------------------------------------------------------------------


def to_langchain(tool: RemoteTool) -> Any:
    """Return a LangChain tool. In a graph, a question of the remote agent is an `interrupt`.

    `Command(resume=…)` answers it: with a text, True or False for an approval, or an object with the answers by the
    ids of the questions. LangGraph then runs the node again. The key of the call is made from the id of the tool call
    and the id of the graph's task, which are the same in both runs.

    Example:
        >>> from apcore_a2a.toolkits import open_tools
        >>> async def main(model, checkpointer):
        ...     from langchain.agents import create_agent
        ...
        ...     async with open_tools("https://agent.example.com") as tools:
        ...         agent = create_agent(model, [to_langchain(tool) for tool in tools], checkpointer=checkpointer)
    """
    from langchain_core.tools import StructuredTool, ToolException

    class RemoteStructuredTool(StructuredTool):
        """Keeps the id of the tool call, which LangChain passes to functions only if their schema is a class."""

        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            token = _call_id.set(_id_of(input))
            try:
                return super().invoke(input, config, **kwargs)
            finally:
                _call_id.reset(token)

        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            token = _call_id.set(_id_of(input))
            try:
                return await super().ainvoke(input, config, **kwargs)
            finally:
                _call_id.reset(token)

    async def call(**inputs: Any) -> tuple[str, dict[str, Any]]:
        try:
            return _to_content(await _call_in_graph(tool, inputs))
        except (InvalidParamsError, AgentError) as error:
            raise ToolException(describe_failure(error)) from error

    def call_sync(**inputs: Any) -> tuple[str, dict[str, Any]]:
        try:
            return _to_content(_call_in_graph_sync(tool, inputs))
        except (InvalidParamsError, AgentError) as error:
            raise ToolException(describe_failure(error)) from error

    return RemoteStructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=tool.input_schema,
        func=call_sync,
        coroutine=call,
        response_format="content_and_artifact",
        handle_tool_error=True,  # the model reads the error
    )


async def _call_in_graph(tool: RemoteTool, inputs: dict[str, Any]) -> ToolOutcome:
    key = _langgraph_key(tool, inputs)
    outcome = await tool.call(inputs, key=key)
    number = 0
    while outcome.is_waiting and key:
        number += 1
        answer = _interrupt(outcome)
        outcome = await tool.reply(outcome.task_id, answer, key=f"{key}\n{number}")
    return outcome


def _call_in_graph_sync(tool: RemoteTool, inputs: dict[str, Any]) -> ToolOutcome:
    key = _langgraph_key(tool, inputs)
    outcome = tool.call_sync(inputs, key=key)
    number = 0
    while outcome.is_waiting and key:
        number += 1
        answer = _interrupt(outcome)
        outcome = tool.reply_sync(outcome.task_id, answer, key=f"{key}\n{number}")
    return outcome


def _to_content(outcome: ToolOutcome) -> tuple[str, dict[str, Any]]:
    """Return the text for the model, and the artifact for programs. It is JSON, because checkpointers store it."""
    artifact = {
        "data": outcome.data,
        "files": to_builtins(outcome.files),  # with `raw` in base64, or `url`
        "task_id": outcome.task_id,
        "context_id": outcome.context_id,
    }
    return outcome.content, artifact


def _id_of(given: Any) -> str:
    """Return the id of a tool call, or "" if the tool is called with its arguments only."""
    if isinstance(given, Mapping) and given.get("type") == "tool_call":
        return str(given.get("id") or "")
    return ""


def _langgraph_key(tool: RemoteTool, inputs: dict[str, Any]) -> str:
    """Return the key of the call, or "" outside of a graph that can be resumed."""
    try:
        from langgraph.runtime import get_runtime

        info = get_runtime().execution_info
    except (ImportError, RuntimeError, KeyError, AttributeError):
        return ""
    if info is None or not info.thread_id:
        return ""
    # Without the id of a tool call, for example if a node calls the tool itself, the inputs tell the calls apart.
    called = _call_id.get() or hashlib.sha256(encode(inputs)).hexdigest()
    return "\n".join(("langgraph", info.thread_id, info.task_id, tool.name, called))


def _interrupt(outcome: ToolOutcome) -> Any:
    from langgraph.types import interrupt

    return interrupt(to_question(outcome))


# ---- pydantic-ai ----------------------------------------------------------------------------------------------------


def to_pydantic_ai(tool: RemoteTool) -> Any:
    """Return a pydantic-ai tool. A question of the remote agent ends the run with `DeferredToolRequests`.

    The agent needs `DeferredToolRequests` in its `output_type`. The metadata of the request have the question.
    `build_results(approvals={id: True}, metadata={id: {"answer": …}})` answers it, and without metadata approves. The
    key of the call is made from the conversation and the id of the tool call.

    Example:
        >>> from apcore_a2a.toolkits import open_tools
        >>> async def main(model):
        ...     from pydantic_ai import Agent, DeferredToolRequests
        ...
        ...     async with open_tools("https://agent.example.com") as tools:
        ...         agent = Agent(
        ...             model, tools=[to_pydantic_ai(tool) for tool in tools], output_type=[str, DeferredToolRequests]
        ...         )
    """
    from pydantic_ai import ApprovalRequired, ModelRetry, Tool
    from pydantic_ai.exceptions import ToolFailed

    async def call(context: Any, **inputs: Any) -> Any:
        key = _pydantic_ai_key(context)
        given = context.tool_call_metadata or {}
        try:
            outcome = await tool.call(inputs, key=key)
            if outcome.is_waiting and context.tool_call_approved:
                # The user has answered the question with this id. If the agent asks another one by now, ask again.
                answer = given.get("answer", True)
                outcome = await tool.reply(outcome.task_id, answer, asked=given.get("asked", ""))
        except InvalidParamsError as error:
            raise ModelRetry(describe_failure(error)) from error
        except AgentError as error:
            raise ToolFailed(describe_failure(error)) from error
        if outcome.is_waiting:
            raise ApprovalRequired(metadata=to_question(outcome))
        return outcome.content if outcome.data is None or outcome.text or outcome.files else outcome.data

    return Tool.from_schema(call, tool.name, tool.description, tool.input_schema, takes_ctx=True)


def _pydantic_ai_key(context: Any) -> str:
    """Return the key of the call. A model may repeat the id of a tool call, but not the time of its response."""
    asked_at = ""
    for message in context.messages:
        for part in message.parts:
            if part.part_kind == "tool-call" and part.tool_call_id == context.tool_call_id:
                asked_at = message.timestamp.isoformat()
    if not asked_at or not context.conversation_id:
        return ""
    return "\n".join(("pydantic-ai", context.conversation_id, context.tool_call_id, asked_at))


# ---- OpenAI Agents --------------------------------------------------------------------------------------------------


def to_openai_agents(tool: RemoteTool, *, confirm_answers: bool = False) -> Any:
    """Return a tool of the OpenAI Agents SDK.

    A skill whose card announces an approval pauses the run before the remote task begins (`needs_approval`). If the
    user approves, the tool approves exactly that call. Any other question is the output of the tool: the model asks its
    user, and calls the tool again with the task and the answer. An answer to an approval pauses the run as well, so the
    model cannot approve anything by itself.

    Args:
        tool: The tool of the remote agent.
        confirm_answers: Pause the run for every answer, for agents that ask for approvals in words only.

    Example:
        >>> from apcore_a2a.toolkits import open_tools
        >>> async def main(model):
        ...     from agents import Agent
        ...
        ...     async with open_tools("https://agent.example.com") as tools:
        ...         agent = Agent(name="clerk", model=model, tools=[to_openai_agents(tool) for tool in tools])
    """
    from agents import FunctionTool

    async def needs_approval(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return await _needs_approval(tool, arguments, confirm_answers)

    async def invoke(context: Any, arguments: str) -> str:
        return await _call_for_openai(tool, arguments)

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=_with_task(tool.input_schema, **{ANSWER: {"description": "Only with that: the answer"}}),
        on_invoke_tool=invoke,
        strict_json_schema=False,
        needs_approval=needs_approval,
    )


async def _needs_approval(tool: RemoteTool, arguments: dict[str, Any], confirm_answers: bool) -> bool:
    if TASK not in arguments:
        return tool.requires_approval
    if confirm_answers:
        return True
    try:
        outcome = await tool.look(str(arguments[TASK]))
    except (InvalidParamsError, AgentError):
        return False  # the call itself reports it
    return any(each.kind == "approval" for each in outcome.questions)


async def _call_for_openai(tool: RemoteTool, arguments: str) -> str:
    try:
        inputs = json.loads(arguments or "{}")
        if not isinstance(inputs, dict):
            return "The tool failed: the arguments are not an object"
        if TASK in inputs:
            outcome = await tool.reply(str(inputs[TASK]), inputs.get(ANSWER, ""))
        else:
            outcome = await tool.call(inputs)
            if tool.requires_approval and _asks_only_about(outcome, inputs):
                outcome = await tool.reply(outcome.task_id, True, asked=outcome.asked)
    except (InvalidParamsError, AgentError) as error:
        return f"The tool failed: {describe_failure(error)}"
    except json.JSONDecodeError:
        return "The tool failed: the arguments are not JSON"
    if outcome.is_waiting:
        return _how_to_answer(outcome)
    return outcome.content


def _asks_only_about(outcome: ToolOutcome, inputs: dict[str, Any]) -> bool:
    """Return whether the agent asks for nothing but the approval of this call with these inputs."""
    if not outcome.is_waiting or len(outcome.questions) != 1:
        return False
    question = outcome.questions[0]
    return question.kind == "approval" and question.arguments == inputs


def _how_to_answer(outcome: ToolOutcome) -> str:
    asked = encode(to_question(outcome)).decode()
    return (
        f"The remote agent asks its user: {outcome.text}\n{asked}\nAsk the user. Then call this tool again with the "
        f'same arguments, and in addition {{"{TASK}": "{outcome.task_id}", "{ANSWER}": the answer of the user}}.'
    )


def _with_task(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema with an argument that names the task which is to continue. `required` stays as it is.

    Model providers reject a schema with alternatives at its top level.
    """
    task = {"type": "string", "description": "Only to continue a task that asks a question: its id"}
    return {**schema, "type": "object", "properties": {**schema.get("properties", {}), TASK: task, **more}}


# ---- Google ADK -----------------------------------------------------------------------------------------------------


def to_adk(tool: RemoteTool) -> Any:
    """Return a tool of Google ADK. A question of the remote agent is a request for a confirmation.

    Its payload has the question. The `ToolConfirmation` that answers it has `confirmed`, and in its payload the key
    `answer`, unless the question is an approval. The remote task is in the state of the session until it ends.

    Example:
        >>> from apcore_a2a.toolkits import open_tools
        >>> async def main(model):
        ...     from google.adk.agents import LlmAgent
        ...
        ...     async with open_tools("https://agent.example.com") as tools:
        ...         agent = LlmAgent(name="clerk", model=model, tools=[to_adk(tool) for tool in tools])
    """
    from google.adk.tools.base_tool import BaseTool
    from google.genai import types

    class RemoteADKTool(BaseTool):
        def _get_declaration(self) -> Any:  # the method that ADK's documentation tells tools to override
            return types.FunctionDeclaration(
                name=tool.name, description=tool.description, parameters_json_schema=_with_task(tool.input_schema)
            )

        async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
            return await _call_for_adk(tool, args, tool_context)

    return RemoteADKTool(name=tool.name, description=tool.description)


async def _call_for_adk(tool: RemoteTool, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
    pending = f"{PENDING}:{context.function_call_id}"
    waiting = context.state.get(pending)
    is_answered = bool(waiting) and context.tool_confirmation is not None
    try:
        if is_answered:
            outcome = await _answer_for_adk(tool, waiting, context.tool_confirmation)
        elif TASK in inputs:
            outcome = await tool.look(str(inputs[TASK]))
        else:
            outcome = await tool.call(inputs)
    except (InvalidParamsError, AgentError) as error:
        context.state[pending] = None
        return {"error": describe_failure(error)}
    if outcome is None:
        context.state[pending] = None
        return {"error": "The user rejects this call"}
    if outcome.is_waiting and is_answered:  # ADK passes on only one request for each call of a tool
        context.state[pending] = None
        again = f'Call this tool again with the same arguments, and in addition {{"{TASK}": "{outcome.task_id}"}}'
        return {"error": f"The remote agent asks its user another question. {again}"}
    if outcome.is_waiting:
        context.state[pending] = {"task": outcome.task_id, "asked": outcome.asked}
        context.request_confirmation(hint=outcome.text, payload=to_question(outcome))
        context.actions.skip_summarization = True  # as ADK's own tools do: the model does not comment on the pause
        return {"error": "This tool call waits for an answer of the user"}
    if waiting:
        context.state[pending] = None
    return {"result": outcome.content if outcome.data is None else outcome.data}


async def _answer_for_adk(tool: RemoteTool, waiting: dict[str, str], confirmation: Any) -> ToolOutcome | None:
    """Answer the question of a task. Return None if the user rejects it, which cancels the task."""
    if not confirmation.confirmed and not await _asks_for_approval(tool, waiting["task"]):
        await tool.cancel(waiting["task"])
        return None
    answer = confirmation.payload
    if isinstance(answer, dict):
        answer = answer.get("answer")
    if answer is None:
        answer = confirmation.confirmed
    return await tool.reply(waiting["task"], answer, asked=waiting["asked"])


async def _asks_for_approval(tool: RemoteTool, task_id: str) -> bool:
    outcome = await tool.look(task_id)
    return any(question.kind == "approval" for question in outcome.questions)


# ---- strands --------------------------------------------------------------------------------------------------------


def to_strands(tool: RemoteTool) -> Any:
    """Return a tool of strands. A question of the remote agent is an interrupt.

    Its reason has the question. The response is the answer: a text, True or False for an approval, or an object with
    the answers by the ids of the questions. The remote task is in the state of the agent until it ends.

    Example:
        >>> from apcore_a2a.toolkits import open_tools
        >>> def main(model):
        ...     from strands import Agent
        ...
        ...     with open_tools("https://agent.example.com") as tools:
        ...         agent = Agent(model=model, tools=[to_strands(tool) for tool in tools])
    """
    from strands import ToolContext
    from strands import tool as strands_tool

    async def call(tool_context: Any) -> dict[str, Any]:
        call_id = tool_context.tool_use["toolUseId"]
        state = tool_context.agent.state
        tasks = dict(state.get(PENDING) or {})
        try:
            if call_id in tasks:
                outcome = await tool.look(tasks[call_id])
            else:
                outcome = await tool.call(dict(tool_context.tool_use["input"]))
            while outcome.is_waiting:
                tasks[call_id] = outcome.task_id
                state.set(PENDING, tasks)
                # The name is part of the interrupt's id: each question has a response of its own.
                answer = tool_context.interrupt(f"{tool.name}:{outcome.asked}", reason=to_question(outcome))
                outcome = await tool.reply(outcome.task_id, answer, asked=outcome.asked)
            status = "success"
            text = outcome.content
        except (InvalidParamsError, AgentError) as error:
            status = "error"
            text = describe_failure(error)
        if tasks.pop(call_id, None) is not None:
            state.set(PENDING, tasks)
        return {"status": status, "content": [{"text": text}]}

    call.__annotations__["tool_context"] = ToolContext
    decorate = strands_tool(
        name=tool.name, description=tool.description, inputSchema={"json": tool.input_schema}, context=True
    )
    return decorate(call)
