"""Agents of Strands. A conversation is the snapshot of an agent, with its messages and its open interrupts.

An agent of Strands has one conversation at a time. So the runs of one agent wait for each other. With a factory of
agents they run at once.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from mimetypes import guess_type
from typing import Any, Final

from strands import Agent, Snapshot
from strands.types.exceptions import SnapshotException
from strands.types.session import decode_bytes_values, encode_bytes_values

from apcore_a2a.agent import About, Call, ModelUsage, ToolCalled, ToolDone
from apcore_a2a.agents.frameworks.framework_agent import AgentTurn, Asked, Kept, StateUnreadable, data_as_text
from apcore_a2a.agents.questions import Answer, approval
from apcore_a2a.errors import AgentError, ContentTypeNotSupportedError
from apcore_a2a.protocol.model import Part
from apcore_a2a.protocol.questions import Question

UNNAMED: Final = "Strands Agents"  # the name of an agent without a name
# An interrupt has no type. By the convention of the documentation of Strands, those with such a name are approvals, and
# the answer is "y" or "n". Any other interrupt gets the answer of the user as it is.
APPROVALS: Final = ("approv", "confirm", "human-in-the-loop")
# Kinds of content by media type, and their formats.
IMAGES: Final = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
VIDEOS: Final = {"video/mp4": "mp4", "video/webm": "webm", "video/quicktime": "mov", "video/x-matroska": "mkv"}
DOCUMENTS: Final = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
}
MEDIA: Final = (("image", IMAGES), ("video", VIDEOS), ("document", DOCUMENTS))
UNFINISHED: Final = {
    "max_tokens": "The model reached its limit of tokens",
    "content_filtered": "The answer was blocked by a content filter",
    "limit_turns": "The agent reached its limit of turns",
    "limit_output_tokens": "The agent reached its limit of tokens",
    "limit_total_tokens": "The agent reached its limit of tokens",
    "cancelled": "The agent was stopped",
}


class StrandsAdapter:
    """Translates one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._empty = agent.take_snapshot(preset="session")
        self._lock = asyncio.Lock()  # the agent rejects a second run
        self._running: Call | None = None
        name = "" if agent.name == UNNAMED else agent.name
        self.about = About(name=name, description=agent.description or "")

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await asyncio.to_thread(self._agent.cleanup)  # it waits for clients of MCP

    def messages_of(self, state: Any) -> list[Any] | None:
        if isinstance(state, dict):
            messages: list[Any] = state["data"]["messages"]
            return messages
        return None

    def check_parts(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part.raw, bytes) and _kind_of(part) is None:
                raise ContentTypeNotSupportedError(
                    f"Files of the type {part.media_type or 'unknown'} are not supported"
                )

    async def run(self, turn: AgentTurn) -> AsyncGenerator[Any, None]:
        async with self._lock:
            self._load(turn.state)
            self._running = turn.call
            turn.call.cancel.on_cancel(lambda: self._cancel(turn.call))
            try:
                async with aclosing(self._run(turn)) as said:
                    async for each in said:
                        yield each
            finally:
                self._running = None

    def _cancel(self, call: Call) -> None:
        """Stop a run. Tools on threads see it as `agent.cancel_signal`."""
        if self._running is call:
            self._agent.cancel()

    async def _run(self, turn: AgentTurn) -> AsyncGenerator[Any, None]:
        reader = _StrandsEvents(self._agent.messages)
        events = self._agent.stream_async(_to_prompt(turn), invocation_state={"call": turn.call})
        async with aclosing(events):
            async for event in events:
                if reader.has_new_input(event):
                    yield Kept(self._state())
                for each in reader.read(event):
                    yield each
        yield reader.usage
        result = reader.result
        if result.stop_reason == "interrupt":
            yield Asked([reader.to_question(each) for each in result.interrupts], self._state())
            return
        yield Kept(self._state())
        if result.stop_reason in UNFINISHED:
            raise AgentError(UNFINISHED[result.stop_reason], kind=result.stop_reason)
        if result.structured_output is not None:
            yield result.structured_output

    # ---- the conversation -------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        """Return the snapshot, its messages first: what follows them changes in each turn."""
        snapshot = self._agent.take_snapshot(preset="session").to_dict()
        data = snapshot.pop("data")
        messages = data.pop("messages")
        state: dict[str, Any] = encode_bytes_values({"data": {"messages": messages, **data}, **snapshot})
        return state

    def _load(self, state: Any) -> None:
        if state is None:
            self._agent.load_snapshot(self._empty)
            return
        try:
            self._agent.load_snapshot(Snapshot.from_dict(decode_bytes_values(state)))
        except (SnapshotException, LookupError, TypeError, ValueError) as error:
            raise StateUnreadable("the snapshot is not one of this agent") from error


# ---- events, tools and questions ------------------------------------------------------------------------------------


class _StrandsEvents:
    """Reads the events of one run."""

    def __init__(self, messages: Iterable[Any]) -> None:
        self.usage = ModelUsage()
        self.result: Any = None
        self._names: dict[str, str] = {}  # of the tools, by the ids of their calls
        self._interrupted: dict[str, Any] = {}  # the call of a tool, by the id of its interrupt
        for message in messages:
            for block in message["content"]:
                if "toolUse" in block:
                    self._names[block["toolUse"]["toolUseId"]] = block["toolUse"]["name"]

    def has_new_input(self, event: Any) -> bool:
        """Return whether the conversation has something new that the model has not written."""
        return "start_event_loop" in event or ("message" in event and event["message"]["role"] == "user")

    def read(self, event: Any) -> Iterator[Any]:
        """Yield the contents of an event."""
        match event:
            case {"data": text}:
                yield text
            case {"message": message}:
                yield from self._read_message(message)
            case {"tool_interrupt_event": interrupted}:
                for interrupt in interrupted["interrupts"]:
                    self._interrupted[interrupt.id] = interrupted["tool_use"]
            case {"event": {"metadata": {"usage": used}}}:
                self._count(used)
            case {"result": result}:
                self.result = result

    def _count(self, used: Any) -> None:
        """Add the usage of a request, which the model reports in the last chunk of its response."""
        self.usage = ModelUsage(
            requests=self.usage.requests + 1,
            input_tokens=self.usage.input_tokens + used["inputTokens"],
            output_tokens=self.usage.output_tokens + used["outputTokens"],
        )

    def _read_message(self, message: Any) -> Iterator[Any]:
        """Yield the contents of a message without its text."""
        for block in message["content"]:
            if "toolUse" in block:
                use = block["toolUse"]
                self._names[use["toolUseId"]] = use["name"]
                yield ToolCalled(id=use["toolUseId"], name=use["name"], arguments=use["input"])
            elif "toolResult" in block:
                result = block["toolResult"]
                tool_id = result["toolUseId"]
                failed = result["status"] == "error"
                name = self._names.get(tool_id, "tool")
                yield ToolDone(id=tool_id, name=name, result=_to_result(result["content"]), failed=failed)
            elif message["role"] == "assistant":
                yield _to_file(block)

    def to_question(self, interrupt: Any) -> Question:
        reason = interrupt.reason
        text = reason if isinstance(reason, str) else ""
        use = self._interrupted.get(interrupt.id)
        if any(word in interrupt.name.lower() for word in APPROVALS):
            name = use["name"] if use else interrupt.name
            return approval(interrupt.id, name, use["input"] if use else reason, note=text)
        if not text and isinstance(reason, dict) and isinstance(reason.get("message"), str):
            text = reason["message"]
        return Question(id=interrupt.id, text=text or interrupt.name, arguments=None if text == reason else reason)


def _to_result(content: list[Any]) -> Any:
    """Return the result of a tool: a text or a JSON value, or all its blocks."""
    found: list[Any] = []
    for block in content:
        if "json" in block:
            found.append(block["json"])
        elif "text" in block:
            found.append(block["text"])
    return found[0] if len(found) == 1 else found


# ---- messages and parts ---------------------------------------------------------------------------------------------


def _to_prompt(turn: AgentTurn) -> list[Any]:
    if turn.answers is None:
        return [_to_block(part, number) for number, part in enumerate(turn.parts, 1)]
    responses: list[Any] = []
    for interrupt_id, answer in turn.answers.items():
        responses.append({"interruptResponse": {"interruptId": interrupt_id, "response": _to_response(answer)}})
    return responses


def _to_response(answer: Answer) -> Any:
    if answer.approved is None:
        return answer.value
    return "y" if answer.approved else "n"


def _to_block(part: Part, number: int) -> dict[str, Any]:
    """Return the content block for a part. `number` names a document without a name: two of one name are rejected."""
    if isinstance(part.text, str):
        return {"text": part.text}
    if isinstance(part.url, str):
        return {"text": part.url}
    if not isinstance(part.raw, bytes):
        return {"text": data_as_text(part)}
    found = _kind_of(part)
    assert found is not None  # `check_parts` has rejected other files
    kind, block_format = found
    block: dict[str, Any] = {"format": block_format, "source": {"bytes": part.raw}}
    if kind == "document":
        block["name"] = _to_name(part.filename) or f"document-{number}"
    return {kind: block}


def _kind_of(part: Part) -> tuple[str, str] | None:
    """Return the kind of content block for a file, and its format. None if there is no such block."""
    media_type = part.media_type or guess_type(part.filename)[0] or ""
    media_type = media_type.partition(";")[0].strip().lower()
    for kind, formats in MEDIA:
        if media_type in formats:
            return kind, formats[media_type]
    if media_type == "application/json" or media_type.startswith("text/"):
        return "document", "txt"
    return None


def _to_name(filename: str) -> str:
    """Return a name of a document: letters, digits, spaces and hyphens, as the model providers require."""
    stem = filename.rpartition(".")[0] or filename
    return "".join(letter if letter.isalnum() or letter in " -" else "-" for letter in stem)[:100].strip()


def _to_file(block: Any) -> Part | None:
    """Return the file that a model has written, or None."""
    for kind, formats in MEDIA:
        if kind not in block:
            continue
        content = block[kind]["source"].get("bytes")
        media_type = next((name for name, known in formats.items() if known == block[kind]["format"]), "")
        if isinstance(content, bytes):
            return Part(raw=content, media_type=media_type, filename=block[kind].get("name", ""))
    return None
