"""Agents of Google's ADK, its Apps, Workflows and Runners. A conversation is a session: a list of events, and a state.

Each run has a Runner of its own, whose session service has only the session of this conversation. If the application
serves a Runner, its services are used, and a conversation is the id of a session there.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.run_config import RunConfig, StreamingMode, ToolThreadPoolConfig
from google.adk.apps.app import App
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService, ListSessionsResponse
from google.adk.sessions.session import Session
from google.genai import types
from msgspec import json

from apcore_a2a.agent import About, ModelUsage, ToolCalled, ToolDone
from apcore_a2a.agents.frameworks.framework_agent import AgentTurn, Asked, Kept, StateUnreadable, data_as_text
from apcore_a2a.agents.questions import Answer, approval
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import Part
from apcore_a2a.protocol.questions import Question

# Calls by which a run asks its user. ADK documents the names, but does not export them.
CONFIRMATION: Final = "adk_request_confirmation"
INPUT: Final = "adk_request_input"
CREDENTIAL: Final = "adk_request_credential"
USUAL_HINT: Final = "Please approve or reject"  # how the hint begins that ADK writes for programs
NO_CREDENTIALS: Final = "A tool of the agent needs a credential of the user, which this server cannot request"
MAX_THREADS: Final = 64  # on which tools that are not async run. Without them, such a tool blocks the event loop.


class OneSession(BaseSessionService):
    """The session of one conversation, in memory."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create_session(self, **_: Any) -> Session:
        return self._session

    async def get_session(self, **_: Any) -> Session:
        return self._session

    async def list_sessions(self, **_: Any) -> ListSessionsResponse:
        return ListSessionsResponse(sessions=[self._session])

    async def delete_session(self, **_: Any) -> None:
        raise NotImplementedError("the server deletes the session together with the last task of its context")


class GoogleAdapter:
    """Translates one agent."""

    def __init__(self, served: Any) -> None:
        self._served = served
        agent = served
        if isinstance(served, App):
            agent = served.root_agent
        elif isinstance(served, Runner):
            agent = served.agent
        self._has_schema = getattr(agent, "output_schema", None) is not None
        self._name: str = agent.name
        self.about = About(name=agent.name, description=agent.description)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            session = Session(id="closing", app_name=self._name, user_id="closing")
            await self._runner(OneSession(session)).close()  # the toolsets of the agent, and the plugins of an App

    def messages_of(self, state: Any) -> list[Any] | None:
        if isinstance(state, dict) and "events" in state:
            events: list[Any] = state["events"]
            return events
        return None

    async def run(self, turn: AgentTurn) -> AsyncGenerator[Any, None]:
        conversation: _StoredSession | _SessionOfRunner
        if isinstance(self._served, Runner):
            conversation = await _SessionOfRunner.open(self._served, turn)
        else:
            conversation = _StoredSession(self._name, turn)
        session = conversation.session
        runner = self._runner(OneSession(session))
        parts = _to_parts(turn, session)
        events = runner.run_async(
            user_id=session.user_id,
            session_id=session.id,
            new_message=types.Content(role="user", parts=parts),
            run_config=RunConfig(
                streaming_mode=StreamingMode.SSE,
                tool_thread_pool_config=ToolThreadPoolConfig(max_workers=MAX_THREADS),
            ),
            yield_user_message=True,
        )
        reader = _GoogleEvents(self._has_schema)
        async with aclosing(events):
            async for event in events:
                for each in reader.read(event):
                    yield each
                async for file in _artifacts(runner, session, event):
                    yield file
                if not event.partial and not reader.open_calls:  # a call without its result cannot be continued
                    yield Kept(conversation.state())
        for each in reader.end(conversation):
            yield each

    def _runner(self, sessions: BaseSessionService) -> Runner:
        if isinstance(self._served, Runner):
            return self._served
        services: dict[str, Any] = {"session_service": sessions, "artifact_service": InMemoryArtifactService()}
        if isinstance(self._served, App):
            return Runner(app=self._served, **services)
        if isinstance(self._served, BaseAgent):
            return Runner(app_name=self._name, agent=self._served, **services)
        return Runner(app_name=self._name, node=self._served, **services)  # a Workflow


# ---- the conversation -----------------------------------------------------------------------------------------------


class _StoredSession:
    """A session that this package stores. Each event is encoded once."""

    def __init__(self, name: str, turn: AgentTurn) -> None:
        state = turn.state or {"events": [], "state": {}}
        try:
            self._events: list[Any] = [*state["events"]]
            self.session = Session(
                id=turn.thread_id, app_name=name, user_id=_user_id(turn), events=self._events, state=state["state"]
            )
        except (ValueError, LookupError, TypeError) as error:
            raise StateUnreadable("the events are not those of ADK") from error

    def state(self) -> dict[str, Any]:
        for event in self.session.events[len(self._events) :]:
            self._events.append(event.model_dump(mode="json", exclude_none=True))
        values = self.session.model_dump(mode="json", include={"state"})
        return {"events": [*self._events], **values}


class _SessionOfRunner:
    """A session in the service of the application's own Runner."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @classmethod
    async def open(cls, runner: Runner, turn: AgentTurn) -> "_SessionOfRunner":
        service = runner.session_service
        name = runner.app_name
        user_id = _user_id(turn)
        if turn.state is None:
            return cls(await service.create_session(app_name=name, user_id=user_id))
        if not isinstance(turn.state, dict) or "session" not in turn.state:
            raise StateUnreadable("the conversation began without this session service")
        session = await service.get_session(app_name=name, user_id=user_id, session_id=turn.state["session"])
        if session is None:
            raise StateUnreadable("the session service no longer has the session")
        return cls(session)

    def state(self) -> dict[str, Any]:
        return {"session": self.session.id}


def _user_id(turn: AgentTurn) -> str:
    """Return the user for ADK. Callers that are not authenticated are strangers to each other."""
    caller = turn.call.caller
    return caller.owner if caller.is_authenticated else turn.thread_id


# ---- events ---------------------------------------------------------------------------------------------------------


class _GoogleEvents:
    """Reads the events of one run."""

    def __init__(self, has_schema: bool) -> None:
        self.open_calls: set[str] = set()
        """The calls of tools without a result."""
        self._has_schema = has_schema
        self._questions: dict[str, Question] = {}
        self._streamed: set[str] = set()  # authors of partial texts, which the complete event repeats
        self._author = ""  # of the present text
        self._text = ""  # the last complete text
        self._output: Any = None
        self._failure: Any = None  # the last event, if it is an error
        self._usage = ModelUsage()

    def read(self, event: Any) -> Iterator[Any]:
        """Yield the contents of an event."""
        if event.author == "user":
            return
        if event.error_code:
            self._failure = event
            return
        parts = event.content.parts or () if event.content else ()
        text = ""
        for part in parts:
            if part.text and not part.thought:
                text += part.text
            elif not event.partial:
                yield from self._read_part(part, event)
        yield from self._read_text(text, event)
        if not event.partial:
            self._read_facts(event)

    def end(self, conversation: "_StoredSession | _SessionOfRunner") -> Iterator[Any]:
        """Yield the usage, the questions and the result of a run that has ended."""
        yield self._usage
        if self._questions:
            yield Asked(list(self._questions.values()), conversation.state())
            return
        if self._failure is not None:
            self._fail(self._failure)
        if self._has_schema:
            yield _read_json(self._text)
        elif self._output is not None and self._output != self._text:
            yield self._output

    def _read_text(self, text: str, event: Any) -> Iterator[str]:
        if not text:
            return
        is_repeated = not event.partial and event.author in self._streamed
        if event.partial:
            self._streamed.add(event.author)
        else:
            self._streamed.discard(event.author)
            self._text = text
        if is_repeated or self._has_schema:
            return
        if self._author not in ("", event.author):
            yield "\n\n"  # another agent of the same team
        self._author = event.author
        yield text

    def _read_part(self, part: Any, event: Any) -> Iterator[Any]:
        if part.function_call:
            yield from self._read_call(part.function_call, event)
        elif part.function_response:
            response = part.function_response
            self.open_calls.discard(response.id)
            if response.id in self._questions or response.id in event.actions.requested_tool_confirmations:
                return  # the tool has not run yet
            result = response.response or {}
            self._author = ""
            yield ToolDone(
                id=response.id,
                name=response.name,
                result=result.get("error", result.get("result", result)),
                failed="error" in result,
            )
        elif part.inline_data:
            yield _to_file(part.inline_data)

    def _read_call(self, call: Any, event: Any) -> Iterator[Any]:
        if call.name in (CONFIRMATION, INPUT, CREDENTIAL):
            self._questions[call.id] = _to_question(call)
            return
        self.open_calls.add(call.id)
        if call.id in (event.long_running_tool_ids or ()):
            self._questions[call.id] = _to_question(call)
        self._author = ""
        yield ToolCalled(id=call.id, name=call.name, arguments=call.args or {})

    def _read_facts(self, event: Any) -> None:
        """Read the usage and the output of a complete event."""
        self._failure = None
        if event.usage_metadata:
            used = event.usage_metadata
            self._usage = ModelUsage(
                requests=self._usage.requests + 1,
                input_tokens=self._usage.input_tokens + (used.prompt_token_count or 0),
                output_tokens=self._usage.output_tokens
                + (used.candidates_token_count or 0)
                + (used.thoughts_token_count or 0),
            )
        output = getattr(event, "output", None)  # from version 2 on
        if output is not None and any("/" not in path for path in event.node_info.output_for or ()):
            self._output = output  # of the whole Workflow

    def _fail(self, event: Any) -> None:
        """Raise the error of an event. Its message may be the text of an exception, so clients do not see it."""
        code = str(getattr(event.error_code, "value", event.error_code))
        if code in types.FinishReason.__members__:
            raise AgentError("The model did not finish its answer", kind=code)
        raise RuntimeError(f"{code}: {event.error_message}")


async def _artifacts(runner: Runner, session: Session, event: Any) -> AsyncGenerator[Part, None]:
    """Yield the files that a tool has saved."""
    if event.partial or event.author == "user" or runner.artifact_service is None:
        return
    for filename, number in event.actions.artifact_delta.items():
        saved = await runner.artifact_service.load_artifact(
            app_name=runner.app_name,
            user_id=session.user_id,
            session_id=session.id,
            filename=filename,
            version=number,
        )
        if saved is None:
            continue
        if saved.inline_data:
            yield _to_file(saved.inline_data, filename)
        elif saved.text:
            yield Part(text=saved.text, filename=filename)


# ---- questions and answers ------------------------------------------------------------------------------------------


def _to_question(call: Any) -> Question:
    arguments = call.args or {}
    if call.name == CONFIRMATION:
        return _to_confirmation(call.id, arguments["originalFunctionCall"], arguments["toolConfirmation"])
    if call.name == CREDENTIAL:
        raise AgentError(NO_CREDENTIALS)
    if call.name != INPUT:
        return Question(id=call.id, text=f"{call.name} waits for its result", tool=call.name, arguments=arguments)
    asked = _node_of(arguments)
    if asked is not None:
        return approval(call.id, asked["tool_name"], asked["args"], note=_to_note(arguments.get("message")))
    return Question(
        id=call.id,
        text=arguments.get("message") or "The agent needs an input",
        arguments=arguments.get("payload"),
        schema=arguments.get("response_schema"),
    )


def _to_confirmation(question_id: str, call: dict[str, Any], asked: dict[str, Any]) -> Question:
    note = _to_note(asked.get("hint"))
    question = approval(question_id, call["name"], call.get("args") or {}, note=note)
    payload = asked.get("payload")
    if not isinstance(payload, dict):
        return question
    # The user may change the payload, as arguments of the approval.
    return Question(
        id=question_id,
        text=question.text,
        kind="approval",
        tool=question.tool,
        arguments=payload,
        editable=True,
        schema=question.schema,
    )


def _to_note(hint: str | None) -> str:
    return "" if hint is None or hint.startswith(USUAL_HINT) else hint


def _node_of(arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Return the call that a Workflow asks to confirm, or None if it asks for something else."""
    schema = arguments.get("response_schema")
    payload = arguments.get("payload")
    if not isinstance(schema, dict) or schema.get("title") != "ToolConfirmation":
        return None
    if not isinstance(payload, dict) or "tool_name" not in payload:
        return None
    return payload


def _to_parts(turn: AgentTurn, session: Session) -> list[types.Part]:
    """Return the message of the user, or its answers."""
    if turn.answers is None:
        return [_to_part(part) for part in turn.parts]
    calls: dict[str, Any] = {}
    for event in session.events:
        for call in event.get_function_calls():
            calls[call.id] = call
    if not turn.answers.keys() <= calls.keys():
        raise StateUnreadable("the session does not have the questions")
    parts: list[types.Part] = []
    for question_id, answer in turn.answers.items():
        call = calls[question_id]
        response = types.FunctionResponse(id=question_id, name=call.name, response=_to_response(call, answer))
        parts.append(types.Part(function_response=response))
    return parts


def _to_response(call: Any, answer: Answer) -> dict[str, Any]:
    if answer.approved is None:
        return answer.value if isinstance(answer.value, dict) else {"result": answer.value}
    response: dict[str, Any] = {"confirmed": answer.approved}
    payload = call.args.get("toolConfirmation", {}).get("payload")
    if payload is not None:
        response["payload"] = payload if answer.arguments is None else answer.arguments
    return response


def _to_part(part: Part) -> types.Part:
    if isinstance(part.text, str):
        return types.Part(text=part.text)
    media_type = part.media_type or "application/octet-stream"
    name = part.filename or None
    if isinstance(part.raw, bytes):
        return types.Part(inline_data=types.Blob(data=part.raw, mime_type=media_type, display_name=name))
    if isinstance(part.url, str):
        return types.Part(file_data=types.FileData(file_uri=part.url, mime_type=media_type, display_name=name))
    return types.Part(text=data_as_text(part))


def _to_file(blob: Any, filename: str = "") -> Part:
    return Part(raw=blob.data, media_type=blob.mime_type or "", filename=filename or blob.display_name or "")


def _read_json(text: str) -> Any:
    """Return the typed output of an agent, or its text if it is not JSON."""
    try:
        return json.decode(text)
    except ValueError:
        return text
