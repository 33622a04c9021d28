"""The tools of a remote agent as an MCP server, over the low-level server of the MCP SDK.

A client of MCP 2026-07-28 receives a question as an `InputRequiredResult`, whose `requestState` names the remote task.
It calls the tool again with that state and the answers. A client of an earlier version is asked by `elicitation/create`
while its call waits.

Invariant: the server keeps nothing between two calls, so it may be restarted between a question and its answer.
"""

import base64
from collections.abc import Sequence
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import UNSET, Struct

from apcore_a2a.clean_text import clean_text
from apcore_a2a.client.skills import clean
from apcore_a2a.errors import AgentError, InvalidParamsError
from apcore_a2a.protocol.model import Part, encode
from apcore_a2a.protocol.questions import Question
from apcore_a2a.toolkits.tools import RemoteTool, RemoteTools, ToolOutcome, describe_failure

ASKED: Final = "question"  # the key of the only request of an InputRequiredResult
ANSWER: Final = "answer"  # the field of a form for a question in words
TASK: Final = "a2a_task_id"
REPLY: Final = "a2a_answer"
MAX_STATE: Final = 2_000
MAX_ARGUMENTS: Final = 10_000  # characters of the arguments of a call that is to be approved
# MCP allows only these keywords in the fields of a form, which are not objects.
FIELD_TYPES: Final = frozenset({"string", "number", "integer", "boolean"})
FIELD_KEYWORDS: Final = frozenset(
    {"type", "title", "description", "default", "enum", "minimum", "maximum", "minLength", "maxLength"}
)
FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})
DECLINED: Final = "The user declined to answer"
NO_USER: Final = (
    "The remote agent asks for an approval, and this MCP client cannot ask its user (it has no elicitation). "
    "The user can answer with the command line: apcore-a2a send AGENT approve --task-id {task}"
)


class RequestState(Struct, frozen=True):
    """The state of a call that waits for its client. A client may change it, so the agent checks whose task it is."""

    task: str
    asked: str


def to_mcp(tools: RemoteTools, *, version: str = "") -> Server[Any]:
    """Return an MCP server with these tools, which `run` or `streamable_http_app` serves.

    Example:
        >>> from apcore_a2a.toolkits import open_tools
        >>> async def main() -> None:
        ...     from mcp.server.stdio import stdio_server
        ...
        ...     async with open_tools("https://agent.example.com") as tools:
        ...         server = to_mcp(tools)
        ...         async with stdio_server() as (reading, writing):
        ...             await server.run(reading, writing, server.create_initialization_options())
    """

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        await tools.refresh()
        asks = _can_ask(context)
        return types.ListToolsResult(tools=[describe_tool(tool, asks=asks) for tool in tools])

    async def call_tool(
        context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        try:
            tool = tools[params.name]
        except KeyError:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {clean(params.name, 64)}") from None
        try:
            return await ToolCall(tool, context, params).run()
        except (InvalidParamsError, AgentError) as error:
            return failed(describe_failure(error))

    return Server(
        clean(tools.card.name) or "agent",
        version=version or clean(tools.card.version),
        instructions=clean(tools.card.description) or None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def describe_tool(tool: RemoteTool, *, asks: bool) -> types.Tool:
    """Return a tool as MCP describes it. `asks`: whether the client can ask its user."""
    schema = {**tool.input_schema, "type": "object"}
    if not asks:
        schema["properties"] = {
            **schema.get("properties", {}),
            TASK: {"type": "string", "description": "Only to answer a question of the remote agent: its task"},
            REPLY: {"type": "string", "description": "Only with that: the answer of the user"},
        }
    flags = tool.annotations
    hints = types.ToolAnnotations(
        read_only_hint=flags.get("readonly"),
        destructive_hint=flags.get("destructive"),
        idempotent_hint=flags.get("idempotent"),
        open_world_hint=flags.get("open_world"),
    )
    return types.Tool(
        name=tool.name, title=tool.title or None, description=tool.description, input_schema=schema, annotations=hints
    )


def failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


class ToolCall:
    """One call of a tool by an MCP client."""

    def __init__(self, tool: RemoteTool, context: Any, params: types.CallToolRequestParams) -> None:
        self._tool = tool
        self._context = context  # Any: the SDK's ServerRequestContext, which is generic in what this server has not
        self._params = params
        self._is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def run(self) -> types.CallToolResult | types.InputRequiredResult:
        outcome = await self._begin()
        while outcome is not None and outcome.is_waiting:
            if not _can_ask(self._context):
                return _to_instructions(outcome)
            form = types.ElicitRequestFormParams(
                message=to_message(outcome), requested_schema=to_form(outcome.questions)
            )
            if self._is_modern:
                state = encode(RequestState(outcome.task_id, outcome.asked)).decode()
                asked: Any = {ASKED: types.ElicitRequest(params=form)}
                return types.InputRequiredResult(input_requests=asked, request_state=state)
            session = self._context.session
            result = await session.elicit_form(form.message, form.requested_schema, self._context.request_id)
            outcome = await self._reply(outcome, result)
        if outcome is None:
            return failed(DECLINED)
        return to_result(outcome)

    async def _begin(self) -> ToolOutcome | None:
        """Return the outcome of a new task, or of the task that the client's answers continue."""
        inputs = dict(self._params.arguments or {})
        if self._params.request_state is not None:
            state = _read_state(self._params.request_state)
            responses = self._params.input_responses or {}
            waiting = await self._tool.look(state.task)
            answer = responses.get(ASKED)
            if not waiting.is_waiting or waiting.asked != state.asked or not isinstance(answer, types.ElicitResult):
                return waiting  # it has ended meanwhile, or asks something else, or nothing was answered
            return await self._reply(waiting, answer)
        if TASK in inputs and not _can_ask(self._context):
            waiting = await self._tool.look(str(inputs[TASK]))
            if not waiting.is_waiting or has_approval(waiting.questions):
                return waiting  # the model cannot approve
            return await self._tool.reply(waiting.task_id, inputs.get(REPLY, ""), progress=self._progress)
        return await self._tool.call(inputs, progress=self._progress)

    async def _reply(self, waiting: ToolOutcome, given: types.ElicitResult) -> ToolOutcome | None:
        """Answer the questions of a task. Return None if the user declines, which cancels the task."""
        if given.action == "accept":
            answer = read_form(given.content or {}, waiting.questions)
        elif given.action == "decline" and has_approval(waiting.questions):
            answer = {each.id: False if each.kind == "approval" else None for each in waiting.questions}
        else:
            await self._tool.cancel(waiting.task_id)
            return None
        return await self._tool.reply(waiting.task_id, answer, asked=waiting.asked, progress=self._progress)

    async def _progress(self, done: float | None, text: str) -> None:
        await self._context.session.report_progress(done or 0.0, 1.0, text or None)


def _can_ask(context: Any) -> bool:
    """Return whether the client can show a form to its user."""
    capabilities = context.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


def _read_state(text: str) -> RequestState:
    try:
        if len(text) > MAX_STATE:
            raise ValueError("too long")
        return msgspec.json.decode(text, type=RequestState)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise MCPError(types.INVALID_PARAMS, "The requestState is not from this server") from error


# ---- forms ----------------------------------------------------------------------------------------------------------


def has_approval(questions: Sequence[Question]) -> bool:
    return any(each.kind == "approval" for each in questions)


def to_message(outcome: ToolOutcome) -> str:
    """Return the text above a form: the question, and the calls that are to be approved with their arguments."""
    calls = [each for each in outcome.questions if each.kind == "approval" and each.arguments is not None]
    lines = [f"{clean(each.tool)} {clean_text(encode(each.arguments).decode(), MAX_ARGUMENTS)}" for each in calls]
    return "\n".join([outcome.text, *lines])


def to_form(questions: Sequence[Question]) -> dict[str, Any]:
    """Return the schema of a form with a field for each question. A question in words is one text."""
    if not questions:
        return {"type": "object", "properties": {ANSWER: {"type": "string"}}, "required": [ANSWER]}
    fields: dict[str, Any] = {}
    required: list[str] = []
    for name, each in name_fields(questions).items():
        fields[name] = _to_field(each)
        if not each.optional:
            required.append(name)
    return {"type": "object", "properties": fields, "required": required}


def name_fields(questions: Sequence[Question]) -> dict[str, Question]:
    """Return the questions by the names of their fields: their ids, or "approve", because approvals have random ids."""
    named: dict[str, Question] = {}
    for each in questions:
        name = each.id
        if each.kind == "approval":
            name = "approve"
        if name in named:
            name = f"{name}_{len(named) + 1}"
        named[name] = each
    return named


def _to_field(question: Question) -> dict[str, Any]:
    text = clean(question.text)
    if question.kind == "approval":
        return {"type": "boolean", "title": "Approve", "description": text}
    schema = question.schema or {}
    if not _is_field(schema):
        hint = "" if question.schema is None else " (JSON)"
        return {"type": "string", "description": text + hint}
    field = {name: value for name, value in schema.items() if name in FIELD_KEYWORDS}
    if schema.get("format") in FORMATS:
        field["format"] = schema["format"]
    return {"description": text, **field}


def _is_field(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    if kind not in FIELD_TYPES:
        return False
    listed = schema.get("enum")
    return listed is None or (kind == "string" and all(isinstance(each, str) for each in listed))


def read_form(content: dict[str, Any], questions: Sequence[Question]) -> Any:
    """Return the answer in a filled form: a text, or the answers by the ids of the questions."""
    if not questions:
        return str(content.get(ANSWER, ""))
    answers: dict[str, Any] = {}
    for name, each in name_fields(questions).items():
        if name not in content:
            continue
        value = content[name]
        is_json = each.kind != "approval" and each.schema is not None and not _is_field(each.schema)
        if is_json and isinstance(value, str):
            value = _from_json(value)
        answers[each.id] = value
    return answers


def _from_json(text: str) -> Any:
    """Return the value that a text is in JSON, or the text itself."""
    try:
        return msgspec.json.decode(text)
    except ValueError:
        return text


# ---- results --------------------------------------------------------------------------------------------------------


def to_result(outcome: ToolOutcome) -> types.CallToolResult:
    """Return the result of a call: its text, its files, and its data as structured content, which is an object."""
    content: list[Any] = []
    text = outcome.text
    if not text and outcome.data is not None:
        text = encode(outcome.data).decode()
    if text:
        content.append(types.TextContent(text=text))
    for number, file in enumerate(outcome.files):
        content.append(_to_block(file, f"a2a:///{outcome.task_id}/{number}"))
    structured = outcome.data
    if structured is not None and not isinstance(structured, dict):
        structured = {"result": structured}
    return types.CallToolResult(content=content, structured_content=structured)


def _to_block(file: Part, address: str) -> Any:
    """Return a file as a content block. `address` names it, because MCP requires a URI."""
    media_type = clean(file.media_type, 100)
    if file.raw is UNSET:
        name = clean(file.filename, 200) or "file"
        return types.ResourceLink(name=name, uri=str(file.url), mime_type=media_type or None)
    data = base64.b64encode(file.raw).decode()
    if media_type.startswith("image/"):
        return types.ImageContent(data=data, mime_type=media_type)
    if media_type.startswith("audio/"):
        return types.AudioContent(data=data, mime_type=media_type)
    blob = types.BlobResourceContents(uri=address, blob=data, mime_type=media_type or "application/octet-stream")
    return types.EmbeddedResource(resource=blob)


def _to_instructions(outcome: ToolOutcome) -> types.CallToolResult:
    """Return what a model can do about a question, if its MCP client cannot ask the user."""
    if has_approval(outcome.questions):
        return failed(f"{to_message(outcome)}\n{NO_USER.format(task=outcome.task_id)}")
    text = (
        f"The remote agent asks its user: {outcome.text}\nAsk the user. Then call this tool again with the same "
        f'arguments, and in addition {{"{TASK}": "{outcome.task_id}", "{REPLY}": the answer of the user}}.'
    )
    return types.CallToolResult(content=[types.TextContent(text=text)])
