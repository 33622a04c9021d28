"""`MCPAgent`, which offers the tools of an MCP server as skills.

A tool that asks its user (an elicitation) ends the run with a question. When the answer arrives, the tool is called
again from its start, and each elicitation that was answered gets its answer, as it is for `Call.ask`. So a question
survives a restart of this server and of the MCP server. A tool of MCP 2026-07-28 that returns an `InputRequiredResult`
is called again with its own `requestState` instead.

Invariant: inputs are checked against the schema of the tool before a task exists.
"""

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError
from msgspec import Struct

from apcore_a2a.agent import About, Admission, AgentEvent, Call, Remember
from apcore_a2a.agents.functions.agent import FunctionControls, InputRequired, TaskOutput, run_with_controls
from apcore_a2a.agents.functions.skill import PausedRun, paused_run, user_messages
from apcore_a2a.agents.inputs import IntegerSchema, fill_in, read_inputs, refuse_inputs
from apcore_a2a.agents.mcp.sessions import UNUSED, MCPSession, MCPSessions, reason_of
from apcore_a2a.agents.questions import read_reply
from apcore_a2a.agents.schema import Schema, inline
from apcore_a2a.agents.schema_check import find_violations
from apcore_a2a.agents.skills import (
    Annotations,
    describe_call,
    describe_skills,
    first_skill_id,
    missing_skill,
    modes,
    named_skill,
    to_title,
)
from apcore_a2a.clean_text import clean_line, clean_text
from apcore_a2a.errors import AgentError, SkillNotFoundError
from apcore_a2a.protocol.card import AgentSkill, advise
from apcore_a2a.protocol.model import Part
from apcore_a2a.protocol.questions import Question

logger = logging.getLogger(__name__)

MAX_TOOLS: Final = 1_000
MAX_PAGES: Final = 100
MAX_TEXT: Final = 4_000  # characters of a failed tool's text
ASKED: Final = "input"  # the id of the question of an elicitation
FAILED: Final = "The tool failed"
WRAPPED: Final = frozenset({"result"})  # SDKs wrap a result that is not an object


class ToolSkill:
    """A tool as a skill."""

    def __init__(self, tool: types.Tool) -> None:
        self.id = tool.name
        self.input_schema: Schema = inline(tool.input_schema)
        self.integers = IntegerSchema(tool.input_schema)
        output_schema = inline(tool.output_schema or {})
        hints = tool.annotations or types.ToolAnnotations()
        # The defaults are those of MCP: a tool may be destructive unless it says otherwise.
        annotations = Annotations(
            readonly=bool(hints.read_only_hint),
            destructive=not hints.read_only_hint and hints.destructive_hint is not False,
            idempotent=bool(hints.idempotent_hint),
            open_world=hints.open_world_hint is not False,
        )
        self.is_repeatable = annotations.readonly or annotations.idempotent
        self.described = describe_call(self.input_schema, output_schema, (), annotations)
        name = tool.title or hints.title or to_title(tool.name)
        self.card = AgentSkill(
            id=tool.name,
            name=name,
            description=tool.description or f"The tool {name}",
            tags=("mcp",),
            input_modes=modes(self.input_schema),
        )

    def read_inputs(self, call: Call) -> dict[str, Any]:
        """Return the arguments of the tool.

        Raises:
            InvalidParamsError: the inputs do not fit the schema. The error names the fields.
        """
        inputs, rest = read_inputs(user_messages(call)[0].parts, self)
        if not isinstance(inputs, dict):
            inputs = {}
        fill_in(inputs, rest, self)
        violations = find_violations(inputs, self.input_schema)
        if violations:
            raise refuse_inputs(violations)
        return inputs


class PausedTool(Struct, frozen=True, kw_only=True, tag_field="waits", tag="mcp"):
    """The memo of a task whose tool has returned an `InputRequiredResult`."""

    questions: list[Question]
    keys: list[str]
    """The names of the requests that the questions stand for, in the same order."""
    request_state: str | None


class MCPAgent:
    """Offers the tools of an MCP server as skills. `serve` makes one for each MCP server that it is given.

    Args:
        server: A FastMCP, an MCPServer or a low-level Server in this process, the `StdioServerParameters` of a program,
            or the URL of a server (Streamable HTTP).
        retry_safe: Whether every tool may be called again after a crash.
        default_skill: The id of the tool for messages without a skill id. A single tool is its own default.
        protocol: The protocol to speak. "2025-11-25" is for tools that ask while they run (`ctx.elicit`), "2026-07-28"
            for tools that return an `InputRequiredResult`. A server that supports only the second is called
            with that one.

    Example:
        >>> agent = MCPAgent("https://tools.example.com/mcp")
        >>> agent.about.name
        'mcp'
    """

    may_reply = False

    def __init__(
        self,
        server: Any,
        *,
        retry_safe: bool = False,
        default_skill: str = "",
        protocol: Literal["2025-11-25", "2026-07-28"] = "2025-11-25",
    ) -> None:
        name = getattr(server, "name", None)
        instructions = getattr(server, "instructions", None)
        self.about = About(name=str(name or "mcp"), description=str(instructions or ""))
        self._retry_safe = retry_safe
        self._default_skill = default_skill
        self._skills: dict[str, ToolSkill] = {}
        self._sessions = MCPSessions(server, is_modern=protocol == "2026-07-28")

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """List the tools, and close the sessions at the end."""
        try:
            session, connected = await self._sessions.take(UNUSED)
        except AgentError as error:
            reason = reason_of(error.__cause__ or error)
            raise AgentError(f"{error.message}: {reason}; check its command or its URL") from error
        try:
            self._skills = {tool.name: ToolSkill(tool) for tool in await list_tools(connected)}
            self._describe(connected)
        except BaseException:  # also a cancellation
            await self._sessions.drop(UNUSED, session)
            raise
        await self._sessions.put_back(UNUSED, session, connected)
        try:
            yield
        finally:
            await self._sessions.close()

    def _describe(self, connected: Any) -> None:
        if self._default_skill and self._default_skill not in self._skills:
            raise ValueError(f"default_skill {self._default_skill!r} is not a tool of the MCP server")
        name = self.about.name
        version = ""
        if connected.server_info is not None:
            name = clean_line(connected.server_info.name, 200) or name
            version = clean_line(connected.server_info.version or "", 100)
        instructions = clean_text(connected.instructions or "", MAX_TEXT)
        described = {skill.id: skill.described for skill in self._skills.values()}
        self.about = About(
            name=name,
            description=instructions or self.about.description or f"The tools of {name}",
            version=version,
            skills=tuple(skill.card for skill in self._skills.values()),
            extensions=(describe_skills(described),),
        )

    def skill_of(self, call: Call) -> str:
        """Return the id of the tool that a message is for. A task stays with the tool that it began with."""
        skill_id = named_skill(call)
        if call.resumed:
            skill_id = first_skill_id(user_messages(call)[0].metadata, call.task.metadata)
        skill_id = skill_id or self._default_skill
        if not skill_id and len(self._skills) == 1:
            skill_id = next(iter(self._skills))
        if not skill_id:
            raise missing_skill(self._skills)
        return skill_id

    def _find(self, call: Call) -> ToolSkill:
        skill_id = self.skill_of(call)
        skill = self._skills.get(skill_id)
        if skill is None:
            raise SkillNotFoundError(skill_id, advise(self._skills, skill_id))
        return skill

    async def admit(self, call: Call) -> Admission:
        skill = self._find(call)
        self._sessions.check_room(call.caller.owner)
        call.prepared = skill.read_inputs(call)
        return Admission(retry_safe=self._retry_safe or skill.is_repeatable)

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        skill = self._find(call)
        call.skill = skill.id
        paused = _paused_tool(call)
        answers: dict[str, Any] = {}
        if paused is not None:
            reply = read_reply(call.message, paused.questions)
            if len(reply.answers) < len(paused.questions):
                for event in self._ask(paused, reply.problems):
                    yield event
                return
            for key, question in zip(paused.keys, paused.questions, strict=True):
                answers[key] = to_elicited(reply.answers[question.id].value)
        tool_run = ToolRun(self._sessions, skill, call, paused, answers)
        async for event in run_with_controls(call, paused_run(call) or PausedRun(), tool_run.events):
            yield event
        if tool_run.paused is not None:
            for event in self._ask(tool_run.paused):
                yield event

    def _ask(self, paused: PausedTool, problems: Any = ()) -> list[AgentEvent]:
        return [Remember(paused), *TaskOutput().ask(paused.questions, problems)]


def _paused_tool(call: Call) -> PausedTool | None:
    if not isinstance(call.memo, dict) or call.memo.get("waits") != "mcp":
        return None
    return msgspec.convert(call.memo, PausedTool)


class ToolRun:
    """One call of a tool."""

    def __init__(
        self,
        sessions: MCPSessions,
        skill: ToolSkill,
        call: Call,
        resumed: PausedTool | None,
        answers: Mapping[str, Any],
    ) -> None:
        self._sessions = sessions
        self._skill = skill
        self._call = call
        self._resumed = resumed
        self._answers = answers
        self.paused: PausedTool | None = None
        """What the task waits for, if the tool has returned an `InputRequiredResult`."""

    async def events(self, output: TaskOutput) -> AsyncGenerator[AgentEvent, None]:
        result = await self._call_tool()
        if isinstance(result, types.InputRequiredResult):
            self.paused = to_paused(result)
            return
        if result.is_error:
            texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
            raise AgentError(clean_text("\n".join(texts), MAX_TEXT).strip() or FAILED, kind="ToolError")
        for value in to_output(result):
            for event in output.add_whole(value):
                yield event
        for event in output.end():
            yield event

    async def _call_tool(self) -> Any:
        """Return the result of the tool. Raise `InputRequired` if it asks what the user has not answered yet."""
        owner = self._call.caller.owner
        session, connected = await self._sessions.take(owner)
        is_reusable = False
        try:
            result = await self._call_in(session, connected)
            is_reusable = True
            return result
        finally:
            if is_reusable:
                await self._sessions.put_back(owner, session, connected)
            else:  # the tool may still be at work, or the server has ended
                await self._sessions.drop(owner, session)

    async def _call_in(self, session: MCPSession, connected: Any) -> Any:
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session.elicit = partial(self._elicit, asked)
        inputs = self._call.prepared or self._skill.read_inputs(self._call)
        calling = connected.call_tool(self._skill.id, inputs, **self._options())
        work = asyncio.create_task(calling)
        try:
            await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                asked.result()  # raises
            return work.result()
        except MCPError as error:
            logger.warning("MCP server rejects a call", extra={"tool": self._skill.id}, exc_info=error)
            raise AgentError(clean_text(str(error), MAX_TEXT) or FAILED, kind="ToolError") from error
        finally:
            work.cancel()
            await asyncio.wait({work})
            asked.cancel()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"progress_callback": self._progress, "allow_input_required": True}
        if self._resumed is not None:
            options["request_state"] = self._resumed.request_state
            options["input_responses"] = {
                key: types.ElicitResult.model_validate(answer) for key, answer in self._answers.items()
            }
        return options

    async def _elicit(self, asked: "asyncio.Future[None]", params: Any) -> types.ElicitResult:
        try:
            answer = self._controls.ask_all([to_question(params, ASKED)])[ASKED]
        except InputRequired as ends:
            if not asked.done():
                asked.set_exception(ends)
            await asyncio.Event().wait()  # no answer: the session is closed, and the tool is called again
        return types.ElicitResult.model_validate(to_elicited(answer))

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        share = min(max(progress / total, 0.0), 1.0) if total else None
        self._controls.progress(share, clean_text(message or "", MAX_TEXT))

    @property
    def _controls(self) -> FunctionControls:
        controls = self._call.controls
        assert isinstance(controls, FunctionControls)
        return controls


async def list_tools(connected: Any) -> list[types.Tool]:
    """Return the tools of a server: all pages, within limits."""
    found: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await connected.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        found.extend(page.tools)
        cursor = page.next_cursor
        if not cursor or len(found) >= MAX_TOOLS:
            break
    return found[:MAX_TOOLS]


# ---- questions ------------------------------------------------------------------------------------------------------


def to_question(params: Any, question_id: str) -> Question:
    """Return an elicitation as a question. The user may decline each of them."""
    if isinstance(params, types.ElicitRequestURLParams):
        return Question(id=question_id, text=f"{params.message}\n{params.url}", optional=True)
    return Question(id=question_id, text=params.message, schema=inline(params.requested_schema), optional=True)


def to_elicited(value: Any) -> dict[str, Any]:
    """Return the answer to an elicitation. None declines. A text answers an elicitation without a form (a URL)."""
    if value is None:
        return {"action": "decline"}
    if isinstance(value, dict):
        return {"action": "accept", "content": value}
    return {"action": "accept"}


def to_paused(result: types.InputRequiredResult) -> PausedTool:
    """Return the questions of an `InputRequiredResult`.

    Raises:
        AgentError: it asks for something else than its user.
    """
    questions: list[Question] = []
    keys: list[str] = []
    for key, request in (result.input_requests or {}).items():
        if not isinstance(request, types.ElicitRequest):
            raise AgentError(f"The tool asks for {request.method}, which this agent does not support", kind="ToolError")
        keys.append(key)
        questions.append(to_question(request.params, key))
    if not questions:
        raise AgentError("The tool waits for something that this agent cannot provide", kind="ToolError")
    return PausedTool(questions=questions, keys=keys, request_state=result.request_state)


# ---- results --------------------------------------------------------------------------------------------------------


def to_output(result: types.CallToolResult) -> list[Any]:
    """Return the contents of a result: its structured content, or its texts, and its files."""
    parts = [to_part(block) for block in result.content]
    structured = result.structured_content
    if structured is None:
        return [parts] if parts else []
    if isinstance(structured, dict) and structured.keys() == WRAPPED:
        structured = structured["result"]
    files = [part for part in parts if part.is_file]
    if isinstance(structured, str) or structured is None:
        value = Part(text=structured or "")
    else:
        value = Part(data=structured, media_type="application/json")
    return [[value, *files]]


def to_part(block: Any) -> Part:
    match block:
        case types.TextContent():
            return Part(text=block.text)
        case types.ImageContent() | types.AudioContent():
            return Part(raw=_decode(block.data), media_type=block.mime_type)
        case types.ResourceLink():
            return Part(url=str(block.uri), filename=block.name, media_type=block.mime_type or "")
        case types.EmbeddedResource():
            resource = block.resource
            name = str(resource.uri).rpartition("/")[2]
            if isinstance(resource, types.BlobResourceContents):
                return Part(raw=_decode(resource.blob), filename=name, media_type=resource.mime_type or "")
            return Part(text=resource.text, media_type=resource.mime_type or "")
    raise AgentError("The tool returns content of an unknown kind", kind="ToolError")


def _decode(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise AgentError("The tool returns a file that is not Base64", kind="ToolError") from error
