"""A skill of a remote agent as an apcore module: its id, its schemas, and its calls.

Invariant: a remote task does not outlive the local run that started it. If that run ends early, it cancels the task.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import cache
from typing import Any, Final, Protocol

import apcore
from msgspec import UNSET
from pydantic import BaseModel, ConfigDict

from apcore_a2a.agents.apcore.call import DEADLINE, copy_output, output_parts
from apcore_a2a.agents.schema import Schema
from apcore_a2a.clean_text import clean_text
from apcore_a2a.client.calls import CANCEL_WAIT, NO_RESULT, RemoteCall, describe_ending
from apcore_a2a.client.options import AuthLike, SendOptions
from apcore_a2a.client.skills import FREE_FORM, RemoteSkill, clean, read_skills
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.model import ArtifactUpdate, Event, Message, Part, Task, TaskState

MAX_NAME: Final = 100
MAX_ID: Final = 128  # the limit of apcore 0.6.0
# Reserved words: in apcore 0.6.0 for every part of an id, in the newest version for the first part.
RESERVED: Final = frozenset({"system", "internal", "core", "apcore", "plugin", "schema", "acl"})
TOKEN_POLL: Final = 0.05  # polling interval in seconds: apcore's token has no callback
Delegate = Callable[[Any], "AuthLike | Awaitable[AuthLike | None] | None"]
"""Returns the credentials for the remote agent, given apcore's Context of a local run."""
Data = dict[str, Any]  # Any: the inputs and outputs of modules are JSON


class RemoteConnection(Protocol):
    """The connection to the remote agent. `events` may be called from any event loop."""

    delegate: Delegate | None

    def events(self, skill: RemoteSkill, call: RemoteCall) -> AsyncGenerator[Event]: ...


class RemoteModule:
    """An apcore module that calls one skill of a remote agent."""

    def __init__(self, skill: RemoteSkill, connection: RemoteConnection) -> None:
        self.skill = skill
        self._connection = connection
        self.name = skill.name
        self.description = skill.description
        self.tags = list(skill.tags)
        # A skill without a described input accepts any object: nothing is validated against FREE_FORM.
        self.input_schema = for_apcore(skill.input_schema, checked=not skill.is_free_form)
        if skill.output_schema:  # without the attribute, apcore accepts any output
            self.output_schema = for_apcore(skill.output_schema, checked=False)
        self.annotations = apcore.ModuleAnnotations(**skill.annotations)

    async def execute(self, inputs: Data, context: Any) -> Data:
        """Call the skill, and return its result."""
        whole: Data = {}
        async with aclosing(self._results(inputs, context)) as results:
            async for result in results:
                whole = result  # the last item is the whole result
        return whole

    async def _results(self, inputs: Data, context: Any) -> AsyncGenerator[Data]:
        """Yield what each event adds to the result, and finally the whole result."""
        call = RemoteCall(self._parts(inputs), await self._options(context))
        last: Event | None = None
        async with aclosing(until_deadline(self._connection.events(self.skill, call), context)) as events:
            async for event in events:
                last = event
                if isinstance(event, ArtifactUpdate):
                    yield to_result(event.artifact.parts)
        yield read_outcome(last)

    def _parts(self, inputs: Data) -> list[Part]:
        if self.skill.is_free_form and len(inputs) == 1:
            text = inputs.get("text")
            if isinstance(text, str):  # most agents that do not describe their skills expect text
                return [Part(text=text)]
        return output_parts(copy_output(inputs))

    async def _options(self, context: Any) -> SendOptions:
        options: SendOptions = {"skill": self.skill.id, "headers": apcore.TraceContext.inject(context)}
        if self._connection.delegate is None:
            return options
        auth = self._connection.delegate(context)
        if isinstance(auth, Awaitable):
            auth = await auth
        if auth is not None:
            options["auth"] = auth
        return options


class StreamingRemoteModule(RemoteModule):
    """A module that streams its results."""

    async def stream(self, inputs: Data, context: Any) -> AsyncGenerator[Data]:
        """Call the skill, and yield its results as they arrive."""
        async with aclosing(self._results(inputs, context)) as results:
            async for result in results:
                yield result


# ---- results ---------------------------------------------------------------------------------------------------------


def read_outcome(last: Event | None) -> Data:
    """Return the result of a remote task, or of a direct reply, given its last event.

    Raises:
        AgentError: the task failed or waits for input. The text is the agent's, sanitized and truncated.
    """
    if isinstance(last, Message):
        return to_result(last.parts)
    if not isinstance(last, Task):
        raise AgentError(NO_RESULT)
    if last.status.state is not TaskState.COMPLETED:
        raise AgentError(describe_ending(last.status.state, _reason_of(last)))
    parts: list[Part] = []
    for artifact in last.artifacts:
        parts.extend(artifact.parts)
    # Conversational agents often create no artifacts. Their answer is the message of the last status, as in Task.text.
    if not parts and last.status.message is not None:
        parts.extend(last.status.message.parts)
    return to_result(parts)


def _reason_of(task: Task) -> str:
    """Return the texts of the last status, sanitized, and joined with spaces."""
    if task.status.message is None:
        return ""
    texts = [clean(str(part.text)) for part in task.status.message.parts if part.text is not UNSET]
    return " ".join(texts)


def to_result(parts: Sequence[Part]) -> Data:
    """Convert parts to a module's output: objects are merged, text goes to `text`, files to their names."""
    result: Data = {}
    texts: list[str] = []
    for number, part in enumerate(parts):
        name = clean(part.filename, MAX_NAME) or f"file_{number}"
        if part.text is not UNSET:
            texts.append(str(part.text))
        elif part.raw is not UNSET:
            result[name] = bytes(part.raw)
        elif part.url is not UNSET:
            result[name] = {"uri": part.url, "name": name, "mimeType": part.media_type}
        elif isinstance(part.data, dict):
            result |= part.data
        else:
            result["data"] = part.data
    if texts:
        # Not trimmed: it may be a chunk of a stream.
        result["text"] = clean_text("".join(texts))
    return result


# ---- deadline and cancellation ---------------------------------------------------------------------------------------


async def until_deadline(events: AsyncGenerator[Event], context: Any) -> AsyncGenerator[Event]:
    """Yield the events. Raise an exception at the deadline of the local run, or if the run is cancelled."""
    deadline = context.data.get(DEADLINE)
    async with aclosing(events):
        while True:
            seconds_left = None
            if deadline is not None:
                seconds_left = max(deadline - time.time(), 0.0)
            try:
                async with asyncio.timeout(seconds_left):
                    event = await _unless_cancelled(anext(events, None), context.cancel_token)
            except TimeoutError as error:
                raise AgentError("The remote agent did not answer in time") from error
            if event is None:
                return
            yield event


async def _unless_cancelled(step: Awaitable[Event | None], token: Any) -> Event | None:
    """Return the next event. Poll apcore's cancel token meanwhile, because it has no callback."""
    poll_interval = None
    if token is not None:
        poll_interval = TOKEN_POLL
    waiting = asyncio.ensure_future(step)
    try:
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=poll_interval)
            if token is not None and not waiting.done():
                token.check()  # raises apcore's own exception
        return waiting.result()
    finally:
        if not waiting.done():
            # The generator can be closed, which cancels the remote task, only when this step has ended.
            waiting.cancel()
            await asyncio.wait({waiting}, timeout=CANCEL_WAIT)


# ---- ids and schemas -------------------------------------------------------------------------------------------------


def name_modules(card: AgentCard, prefix: str) -> Iterator[RemoteSkill]:
    """Yield the skills of a card. Their local names are the ids of their modules."""
    return read_skills(card, lambda skill_id: to_module_id(prefix, skill_id))


def to_module_id(prefix: str, skill_id: str) -> str:
    """Return an id that apcore accepts, as similar to the skill's id as possible."""
    segments: list[str] = []
    for part in re.split(r"[./:]+", skill_id.lower()[:MAX_ID]):
        if not part:
            continue
        segment = re.sub(r"[^a-z0-9_]+", "_", part)
        if not segment[0].isalpha() or segment in RESERVED:
            segment = f"s_{segment}"
        segments.append(segment)
    if not segments:  # for example an id of dots
        segments.append("skill")
    if prefix:
        segments.insert(0, prefix)
    module_id = ".".join(segments)
    return module_id[: MAX_ID - 4].rstrip("._")  # room for the number that makes it unique


def for_apcore(schema: Schema, *, checked: bool) -> Any:  # Any: a dict, or a class
    """Return the schema in the form that the installed apcore takes. `checked`: whether it validates values."""
    if checked and takes_dicts():
        return schema
    return _make_model(schema)


def _make_model(schema: Schema) -> type[BaseModel]:
    class RemoteSchema(BaseModel):
        """Accepts any value, and publishes the remote schema. The remote agent validates."""

        model_config = ConfigDict(extra="allow")

        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
            return schema

    return RemoteSchema


@cache
def takes_dicts() -> bool:
    """Return whether the installed apcore accepts dicts as schemas of modules. 0.6.0 does not."""

    # Detected by trying, because apcore does not document from which version on it does.
    class Probe:
        description = "probe"
        input_schema = output_schema = FREE_FORM

        def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
            return {}

    registry = apcore.Registry()
    registry.register("probe", Probe())
    executor = apcore.Executor(registry)
    try:
        return registry.get_definition("probe") is not None and executor.validate("probe", {}).valid
    except AttributeError:
        return False
    finally:
        if hasattr(executor, "close"):  # newer versions keep an event loop
            executor.close()
