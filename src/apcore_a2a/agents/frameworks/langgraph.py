"""Graphs of LangGraph, the agents of LangChain among them.

A graph with a checkpointer keeps its threads there. For any other graph, a `LastCheckpoints` holds what the next run
needs: the last checkpoint of each namespace, and the writes that wait for an answer.
"""

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any, Final, get_type_hints

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    copy_checkpoint,
    get_checkpoint_id,
)
from langgraph.errors import GraphRecursionError
from langgraph.types import Command
from msgspec import to_builtins

from apcore_a2a.agent import About, ModelUsage, ToolCalled, ToolDone
from apcore_a2a.agents.content import agent_message
from apcore_a2a.agents.frameworks.framework_agent import AgentTurn, Asked, Kept, StateUnreadable, data_as_text
from apcore_a2a.agents.inputs import IntegerSchema
from apcore_a2a.agents.questions import Answer, approval
from apcore_a2a.agents.schema import inline
from apcore_a2a.agents.skills import FILE
from apcore_a2a.errors import AgentError, InvalidParamsError
from apcore_a2a.protocol.lifecycle import PROGRESS
from apcore_a2a.protocol.model import Part, StatusUpdate, TaskState, TaskStatus
from apcore_a2a.protocol.questions import Question

MODES: Final = ["messages", "updates", "custom", "values"]
MESSAGES: Final = "messages"
UNNAMED: Final = "LangGraph"  # the name of a graph without a name
TOOLS: Final = "tools"  # the node of LangChain's agents that runs tools
TYPES: Final = {str: "string", int: "integer"}
DECISIONS: Final = frozenset({"approve", "edit", "reject", "respond"})  # of LangChain's HumanInTheLoopMiddleware


class GraphAdapter:
    """Translates one graph."""

    def __init__(self, graph: Any) -> None:
        if not hasattr(graph, "astream"):  # a StateGraph
            graph = graph.compile()
        self._graph = graph
        self._keeps_threads = bool(graph.checkpointer)
        schema = _input_schema(graph)
        self._input_type = schema.get("type", "object")
        self._integers = IntegerSchema(schema)
        self._fields: dict[str, Any] = dict(schema.get("properties", {}))
        """The fields of the state that data may set, with their schemas."""
        # A client that sets the messages would write those of the system and of the tools, and files by URL.
        self._has_messages = self._fields.pop(MESSAGES, None) is not None
        name = graph.get_name()
        self.about = About(name="" if name == UNNAMED else name)

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    def messages_of(self, state: Any) -> list[Any] | None:
        if isinstance(state, dict):
            messages: list[Any] | None = state[MESSAGES]
            return messages
        return None

    async def run(self, turn: AgentTurn) -> AsyncGenerator[Any, None]:
        graph = self._graph
        saver = None
        asked: list[Any] = []
        if turn.answers is not None:
            asked = turn.state["asked"]
        options: dict[str, Any] = {}
        if not self._keeps_threads:
            saver = LastCheckpoints()
            options["durability"] = "sync"  # otherwise the saver is behind the stream
            _load(saver, turn.state)
            graph = graph.copy(update={"checkpointer": saver})
        given: Any = (
            self._to_input(turn.parts) if turn.answers is None else Command(resume=_resume(asked, turn.answers))
        )
        said = GraphSaid()
        config = {"configurable": {"thread_id": turn.thread_id}}
        stream = graph.astream(given, config, stream_mode=MODES, subgraphs=True, **options)
        try:
            async with aclosing(stream) as chunks:
                async for namespace, mode, data in chunks:
                    if saver is not None and mode == "values" and not said.has_values and turn.answers is None:
                        yield Kept(saver.dump())  # the message of the user
                    for each in said.read(namespace, mode, data):
                        yield each
        except GraphRecursionError as error:
            raise AgentError("The agent has reached its limit of steps", kind="GraphRecursionError") from error
        yield said.usage
        if said.interrupts:
            pending = [{"id": each.id, "value": each.value} for each in said.interrupts]
            state = {MESSAGES: None} if saver is None else saver.dump(is_paused=True)
            yield Asked(
                _to_questions(said.interrupts), {**state, "asked": json.loads(json.dumps(pending, default=str))}
            )
            return
        if saver is not None:
            yield Kept(saver.dump())
        for each in self._output(said):
            yield each

    def _output(self, said: "GraphSaid") -> Iterator[Any]:
        """Yield the output that was not streamed."""
        yield from said.unstreamed()
        values = said.values
        if not isinstance(values, dict):
            yield values
            return
        if values.get("structured_response") is not None:
            yield values["structured_response"]
            return
        if self._has_messages:
            return
        keys = self._graph.output_channels
        if isinstance(keys, str):
            yield values.get(keys)
        else:
            yield {key: values[key] for key in keys if key in values}

    def check_parts(self, parts: Sequence[Part]) -> None:
        if not self._has_messages:
            self._to_input(parts)

    def _to_input(self, parts: Sequence[Part]) -> Any:
        """Return the input of the graph: its fields from data, text and files as a message or as its only text."""
        if self._input_type != "object":
            return self._integers.restore(_only_value(parts))
        state: dict[str, Any] = {}
        rest: list[Part] = []
        for part in parts:
            if isinstance(part.data, dict) and part.data.keys() <= self._fields.keys():
                state.update(to_builtins(part.data))  # a copy, because nodes may change their state
            else:
                rest.append(part)
        state = self._integers.restore(state)
        if not rest:
            return state
        if self._has_messages:
            content = [_to_content(part) for part in rest]
            is_text = len(content) == 1 and content[0]["type"] == "text"
            return {**state, MESSAGES: [HumanMessage(content[0]["text"] if is_text else content)]}
        texts = [name for name, schema in self._fields.items() if schema.get("type") == "string" and name not in state]
        if len(texts) != 1 or not all(isinstance(part.text, str) for part in rest):
            raise InvalidParamsError(f"Send a data part with {', '.join(self._fields)}")
        return {**state, texts[0]: "\n".join(str(part.text) for part in rest)}


def _input_schema(graph: Any) -> Any:
    """Return the JSON Schema of the input. If a type of the application has none, the names and types of its fields."""
    try:
        return graph.get_input_jsonschema()
    except Exception:  # it depends on types of the application. Those of `typing.TypedDict` have none before 3.12
        state = getattr(getattr(graph, "builder", None), "input_schema", None)
    fields = get_type_hints(state) if isinstance(state, type) else {}
    properties: dict[str, Any] = {}
    for name, hint in fields.items():
        properties[name] = {"type": TYPES[hint]} if hint in TYPES else {}
    return {"properties": properties}


# ---- output of the graph --------------------------------------------------------------------------------------------


class GraphSaid:
    """The output of one run, read from its stream."""

    def __init__(self) -> None:
        self.values: Any = None
        self.has_values = False
        self.interrupts: list[Any] = []
        self._before: set[str | None] = set()  # ids of the messages that the run began with
        self._streamed: set[str] = set()  # ids of messages
        self._texts: dict[tuple[str, str], str] = {}  # by the run of a node and the id of the message
        self._called: set[str] = set()  # ids of calls of tools
        self._counts = {"input_tokens": 0, "output_tokens": 0}
        self._requests: set[str] = set()  # ids of messages with usage

    @property
    def usage(self) -> ModelUsage:
        return ModelUsage(requests=len(self._requests), **self._counts)

    def read(self, namespace: tuple[str, ...], mode: str, data: Any) -> Iterator[Any]:
        match mode:
            case "messages":
                yield from self._read_message(namespace, *data)
            case "updates":
                yield from self._read_updates(data)
            case "custom":
                yield _progress(data)
            case "values" if not namespace:
                if not self.has_values:
                    self._before = {message.id for message in self._answers_in(data)}
                self.values = data
                self.has_values = True

    def unstreamed(self) -> Iterator[str]:
        """Yield the texts that LangGraph does not stream: of messages that a node returns as a dict or a tuple."""
        for message in self._answers_in(self.values):
            text = _text_of(message)
            is_known = message.id in self._before or message.id in self._streamed
            if text and not is_known and text not in self._texts.values():
                yield text

    def _answers_in(self, values: Any) -> list[AIMessage]:
        return [message for message in _messages_in(values) if isinstance(message, AIMessage)]

    def _read_message(self, namespace: tuple[str, ...], message: Any, metadata: dict[str, Any]) -> Iterator[Any]:
        if not isinstance(message, AIMessage):
            return
        is_chunk = isinstance(message, AIMessageChunk)
        if not is_chunk and message.id in self._streamed:  # the whole of what was streamed
            return
        self._streamed.add(message.id or "")
        if message.usage_metadata:
            self._requests.add(message.id or "")
            for name in self._counts:
                self._counts[name] += message.usage_metadata.get(name, 0)
        is_inner = metadata.get("langgraph_node") == TOOLS or any(each.startswith(f"{TOOLS}:") for each in namespace)
        if is_inner or metadata.get("lc_source"):  # a model that a tool or a middleware calls for itself
            return
        text = _text_of(message)
        node_run = metadata.get("langgraph_checkpoint_ns", "")
        if not is_chunk and self._is_copy(text, node_run):
            return
        key = (node_run, message.id or "")
        self._texts[key] = self._texts.get(key, "") + text
        yield text

    def _is_copy(self, text: str, node_run: str) -> bool:
        """Return whether a node returns, in a message of its own, what its model or its subgraph has said."""
        for (said_in, _), said in self._texts.items():
            if said == text and f"{said_in}|".startswith(f"{node_run}|"):
                return True
        return False

    def _read_updates(self, data: dict[str, Any]) -> Iterator[Any]:
        for node, update in data.items():
            if node == "__interrupt__":
                known = {each.id for each in self.interrupts}
                self.interrupts += [each for each in update if each.id not in known]
                continue
            for message in _messages_in(update):
                yield from self._read_tools(message)

    def _read_tools(self, message: Any) -> Iterator[Any]:
        if isinstance(message, ToolMessage):
            failed = message.status == "error"
            name = message.name or "tool"
            yield ToolDone(id=message.tool_call_id, name=name, result=message.content, failed=failed)
        for called in getattr(message, "tool_calls", ()) or ():
            if called["id"] not in self._called:
                self._called.add(called["id"])
                yield ToolCalled(id=called["id"], name=called["name"], arguments=called["args"])


def _messages_in(update: Any) -> Sequence[Any]:
    found = update.get(MESSAGES, ()) if isinstance(update, dict) else ()
    if isinstance(found, list | tuple):
        return found
    return [getattr(found, "value", found)]


def _text_of(message: Any) -> str:
    text = message.text
    return str(text if isinstance(text, str) else text())  # a method in older versions


def _progress(data: Any) -> Any:
    """Return what a node writes to the custom stream: text as progress, anything else as data."""
    if isinstance(data, str):
        message = agent_message(data, metadata={PROGRESS: None})
        return StatusUpdate(status=TaskStatus(state=TaskState.WORKING, message=message))
    return json.loads(json.dumps(data, default=str))


# ---- questions and answers ------------------------------------------------------------------------------------------


def _to_questions(interrupts: Sequence[Any]) -> list[Question]:
    questions: list[Question] = []
    for interrupt in interrupts:
        value = interrupt.value
        if isinstance(value, dict) and "action_requests" in value:
            questions += _batched_questions(interrupt.id, value)
        elif isinstance(value, dict) and value.get("type") == "tool_approval":
            allowed = _decisions_in(interrupt.response_schema)
            questions.append(_call_question(interrupt.id, value, allowed))
        else:
            questions.append(_value_question(interrupt))
    return questions


def _batched_questions(interrupt_id: str, value: dict[str, Any]) -> Iterator[Question]:
    """Return a question for each call of LangChain's HumanInTheLoopMiddleware, which asks for all calls at once."""
    reviews = {each["action_name"]: each["allowed_decisions"] for each in value.get("review_configs", ())}
    for index, action in enumerate(value["action_requests"]):
        allowed = reviews.get(action["name"], ())
        yield _call_question(f"{interrupt_id}:{index}", action, set(allowed))


def _call_question(question_id: str, action: dict[str, Any], allowed: set[str]) -> Question:
    if allowed and "approve" not in allowed:
        text = str(action.get("description") or action["name"])
        return Question(id=question_id, text=text, tool=action["name"], arguments=action["args"])
    return approval(question_id, action["name"], action["args"], editable="edit" in allowed)


def _value_question(interrupt: Any) -> Question:
    value = interrupt.value
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    arguments = None
    if isinstance(value, dict):
        for name in ("question", "message", "description", "text"):
            if isinstance(value.get(name), str):
                text = value[name]
                arguments = json.loads(json.dumps(value, default=str))
                break
    schema = getattr(interrupt, "response_schema", None)
    return Question(
        id=interrupt.id, text=text, arguments=arguments, schema=inline(schema) if isinstance(schema, dict) else None
    )


def _decisions_in(schema: Any) -> set[str]:
    """Return the decisions that a schema of LangChain allows."""
    found: set[str] = set()
    if isinstance(schema, dict):
        if schema.get("const") in DECISIONS:
            found.add(schema["const"])
        for value in schema.values():
            found |= _decisions_in(value)
    elif isinstance(schema, list):
        for value in schema:
            found |= _decisions_in(value)
    return found


def _resume(asked: Sequence[dict[str, Any]], answers: dict[str, Answer]) -> dict[str, Any]:
    """Return the value with which each interrupt continues."""
    resume: dict[str, Any] = {}
    for each in asked:
        value = each["value"]
        if isinstance(value, dict) and "action_requests" in value:
            calls = enumerate(value["action_requests"])
            decisions = [_decision(action, answers[f"{each['id']}:{index}"]) for index, action in calls]
            resume[each["id"]] = {"decisions": decisions}
        elif isinstance(value, dict) and value.get("type") == "tool_approval":
            resume[each["id"]] = _decision(value, answers[each["id"]])
        else:
            resume[each["id"]] = answers[each["id"]].value
    return resume


def _decision(action: dict[str, Any], answer: Answer) -> dict[str, Any]:
    if answer.approved is None:
        return {"type": "respond", "message": str(answer.value)}
    if not answer.approved:
        return {"type": "reject", "message": answer.reason} if answer.reason else {"type": "reject"}
    if answer.arguments is not None:
        return {"type": "edit", "edited_action": {"name": action["name"], "args": answer.arguments}}
    return {"type": "approve"}


# ---- parts ----------------------------------------------------------------------------------------------------------


def _only_value(parts: Sequence[Part]) -> Any:
    for part in parts:
        if not part.is_file and not isinstance(part.text, str):
            return to_builtins(part.data)
    return "\n".join(str(part.text) for part in parts if isinstance(part.text, str))


def _to_content(part: Part) -> dict[str, Any]:
    if isinstance(part.text, str):
        return {"type": "text", "text": part.text}
    if not part.is_file:
        return {"type": "text", "text": data_as_text(part)}
    kind = part.media_type.partition("/")[0]
    if kind not in ("image", "audio", "video"):
        kind = "file"
    media_type = part.media_type or FILE
    if isinstance(part.url, str):
        return {"type": kind, "url": part.url, "mime_type": media_type}
    assert isinstance(part.raw, bytes)
    return {"type": kind, "base64": base64.b64encode(part.raw).decode(), "mime_type": media_type}


# ---- checkpoints ----------------------------------------------------------------------------------------------------


class LastCheckpoints(BaseCheckpointSaver[int]):
    """The last checkpoint of each namespace of one thread, which can be written as JSON.

    The messages come first, each by itself, so that a longer conversation begins with the bytes of the shorter one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._checkpoints: dict[str, tuple[Any, Any]] = {}
        """The checkpoint and its metadata, by namespace."""
        self._writes: dict[tuple[str, str], dict[tuple[str, int], tuple[str, str, Any, str]]] = {}
        """Task, channel, value and path of each write, by namespace and checkpoint, then by task and number."""

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        namespace = config["configurable"].get("checkpoint_ns", "")
        if namespace not in self._checkpoints:
            return None
        checkpoint, metadata = self._checkpoints[namespace]
        wanted = get_checkpoint_id(config)
        if wanted and wanted != checkpoint["id"]:
            return None
        writes = self._writes.get((namespace, checkpoint["id"]), {}).values()
        return CheckpointTuple(
            config=_config_of(config, namespace, checkpoint["id"]),
            checkpoint=copy_checkpoint(checkpoint),
            metadata=metadata,
            pending_writes=[(task_id, channel, value) for task_id, channel, value, _ in writes],
        )

    def list(self, config: Any, **options: Any) -> Iterator[CheckpointTuple]:
        found = self.get_tuple(config)
        if found is not None:
            yield found

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        namespace = config["configurable"].get("checkpoint_ns", "")
        if namespace in self._checkpoints:
            self._writes.pop((namespace, self._checkpoints[namespace][0]["id"]), None)
        self._checkpoints[namespace] = (copy_checkpoint(checkpoint), metadata)
        return _config_of(config, namespace, checkpoint["id"])

    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        namespace = config["configurable"].get("checkpoint_ns", "")
        known = self._writes.setdefault((namespace, config["configurable"]["checkpoint_id"]), {})
        for index, (channel, value) in enumerate(writes):
            number = WRITES_IDX_MAP.get(channel, index)
            if number < 0 or (task_id, number) not in known:  # a special write replaces, another one stays
                known[task_id, number] = (task_id, channel, value, task_path)

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        for each in self.list(config, **options):
            yield each

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    def dump(self, *, is_paused: bool = False) -> dict[str, Any]:
        """Return all of it as JSON. Only a paused run needs the namespaces of its tasks, which have a colon."""
        messages: Any = None
        checkpoints: dict[str, Any] = {}
        writes: list[Any] = []
        for namespace, (checkpoint, metadata) in self._checkpoints.items():
            if ":" in namespace and not is_paused:
                continue
            checkpoint = copy_checkpoint(checkpoint)
            values = checkpoint["channel_values"]
            if not namespace and isinstance(values.get(MESSAGES), list):
                messages = [self._encode(each) for each in values.pop(MESSAGES)]
            checkpoints[namespace] = [self._encode(checkpoint), self._encode(metadata)]
            for (task_id, number), (_, channel, value, path) in self._writes.get(
                (namespace, checkpoint["id"]), {}
            ).items():
                if is_paused:
                    writes.append([namespace, checkpoint["id"], task_id, number, channel, self._encode(value), path])
        return {MESSAGES: messages, "checkpoints": checkpoints, "writes": writes}

    def load(self, state: dict[str, Any]) -> None:
        for namespace, (checkpoint, metadata) in state["checkpoints"].items():
            self._checkpoints[namespace] = (self._decode(checkpoint), self._decode(metadata))
        if state[MESSAGES] is not None:
            messages = [self._decode(each) for each in state[MESSAGES]]
            self._checkpoints[""][0]["channel_values"][MESSAGES] = messages
        for namespace, checkpoint_id, task_id, number, channel, value, path in state["writes"]:
            known = self._writes.setdefault((namespace, checkpoint_id), {})
            known[task_id, number] = (task_id, channel, self._decode(value), path)

    def _encode(self, value: Any) -> str:
        kind, content = self.serde.dumps_typed(value)
        return f"{kind}:{base64.b64encode(content).decode()}"

    def _decode(self, text: str) -> Any:
        kind, _, content = text.partition(":")
        return self.serde.loads_typed((kind, base64.b64decode(content)))


def _config_of(config: Any, namespace: str, checkpoint_id: str) -> dict[str, Any]:
    thread_id = config["configurable"]["thread_id"]
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _load(saver: LastCheckpoints, state: Any) -> None:
    if state is None:
        return
    try:
        saver.load(state)
    except (ValueError, LookupError, TypeError, AttributeError, ImportError) as error:
        raise StateUnreadable("the checkpoints are not those of this version of LangGraph") from error
