"""Spans of a server: one for each request, each run and each delivery to a webhook. Never one for a chunk.

There are spans only if a tracer provider is set when the application opens. If not, a request costs nothing more.

The trace that is stored with a task is that of the caller, and not that of the request span: a process that is killed
never exports its open spans, so the spans of its successor would have no parent. The runs of successors, and webhooks,
are children of the caller's span. If the caller has no trace, the request span takes its place.

Invariant: tracing has no effect on requests, and contents are recorded only if the application asks for it.
"""

import sys
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.agent import Call
from apcore_a2a.engine.context import CallContext, Observer, Perform, RunTimes
from apcore_a2a.engine.event_log import LogEntry
from apcore_a2a.engine.streams import Events
from apcore_a2a.engine.webhooks.delivery import Notification, PostFailure, Sender
from apcore_a2a.protocol.model import (
    SHAPES,
    Document,
    Message,
    Operation,
    PushConfig,
    SendMessage,
    Task,
    TaskState,
    Value,
    encode,
)
from apcore_a2a.telemetry import names
from apcore_a2a.trace_context import PARENT, continue_trace, continued_trace

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from apcore_a2a.telemetry.spans import Span, SpanContext, Spans

MAX_CONTENT: Final = 16 * 1024  # bytes of contents in one attribute
MAX_LINKED: Final = 10_000  # tasks whose last run a further turn can be linked to
_STATES: Final = {state: state.removeprefix("TASK_STATE_").lower() for state in TaskState}
_FAILED: Final = frozenset({TaskState.FAILED, TaskState.REJECTED})


class Tracing(Observer):
    """The spans of one agent. The methods do nothing if no tracer provider is set."""

    def __init__(self, agent: str, provider: "TracerProvider | None" = None, *, record_content: bool = False) -> None:
        """Without `provider`, the one that the program has set is used."""
        self._agent = agent
        self._provider = provider
        self._records_content = record_content
        self._spans: Spans | None = None  # None if no provider is set
        self.is_active = False
        self._open: dict[str, Span] = {}  # of runs, by the id of the task
        self._last: OrderedDict[str, SpanContext] = OrderedDict()  # the last run of each task, in this process

    def start(self) -> bool:
        """Make spans from now on if a tracer provider is set, and return whether it is. The application opens now."""
        # A program that has set a provider has loaded OpenTelemetry. In another program it is not loaded.
        if "opentelemetry.trace" not in sys.modules:
            return False
        from apcore_a2a.telemetry.spans import find_spans

        self._spans = find_spans(self._provider)
        self.is_active = self._spans is not None
        return self.is_active

    # ---- requests -------------------------------------------------------------------------------------------------

    async def perform(self, perform: Perform, operation: Operation, request: Value, context: CallContext) -> Any:
        """Perform an operation inside a span. The span of a stream ends with the stream."""
        spans = self._spans
        if spans is None:
            return await perform(request, context)
        span, token = spans.begin_request(operation.value, context.headers)
        headers = spans.headers_of(span, context.headers)
        if PARENT not in context.headers:
            context = replace(context, headers=headers)
        outer = continued_trace()
        continue_trace(headers)
        if span.is_recording():
            span.set_attributes(self._describe(operation, request, context))
        try:
            result = await perform(request, context)
        except BaseException as error:  # whatever it is, it is raised again
            if span.is_recording():
                spans.note_error(span, error, context.binding)
            span.end()
            raise
        finally:
            continue_trace(outer)
            spans.leave(token)
        if not span.is_recording():
            return result
        if SHAPES[operation].streams:
            return TracedEvents(result, span)
        self._note_result(span, result)
        span.end()
        return result

    def _describe(self, operation: Operation, request: Value, context: CallContext) -> dict[str, str | bool]:
        attributes: dict[str, str | bool] = {
            names.METHOD: operation.value,
            names.VERSION: context.rules.version,
            names.BINDING: context.binding,
            names.AGENT: self._agent,
        }
        if context.request_id:
            attributes[names.REQUEST_ID] = context.request_id.decode(errors="replace").strip('"')
        if isinstance(request, SendMessage):
            attributes[names.OPERATION] = names.INVOKE_AGENT
            attributes[names.STREAM] = operation is Operation.STREAM
            if request.message.context_id:
                attributes[names.CONVERSATION] = request.message.context_id
            if request.message.task_id:
                attributes[names.TASK_ID] = request.message.task_id
            if self._records_content:
                attributes[names.INPUT] = _content(encode(request.message))
            return attributes
        task_id = getattr(request, "task_id", "")
        if operation in _BY_TASK:
            task_id = getattr(request, "id", "")
        if task_id:
            attributes[names.TASK_ID] = task_id
        return attributes

    def _note_result(self, span: "Span", result: Any) -> None:
        task = result.task() if isinstance(result, Document) else result
        if isinstance(task, Task):
            span.set_attribute(names.TASK_ID, task.id)
            span.set_attribute(names.CONVERSATION, task.context_id)
            span.set_attribute(names.TASK_STATE, _STATES[task.status.state])
        elif isinstance(task, Message):
            span.set_attribute(names.CONVERSATION, task.context_id)
        else:
            return
        if self._records_content:
            span.set_attribute(names.OUTPUT, _content(encode(task)))

    # ---- runs -----------------------------------------------------------------------------------------------------

    def run_started(self, task_id: str, call: Call) -> None:
        """Begin the span of a run, and continue its trace in what the agent does. Called in the task of the run."""
        if self._spans is None:
            return
        self._spans.use_here()
        request = self._spans.unsampled_request(call.headers)
        if request is not None:
            # Its run gets no span, either. The agent's calls continue its trace all the same.
            call.headers = self._spans.headers_of(request, call.headers)
            return
        attributes: dict[str, str | int] = {
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT: self._agent,
            names.TASK_ID: task_id,
            names.CONVERSATION: call.task.context_id,
        }
        if call.attempt > 1:
            attributes[names.ATTEMPT] = call.attempt
        if self._records_content:
            attributes[names.INPUT] = _content(encode(call.message))
        span = self._spans.begin_run(
            names.RUN_SPAN.format(agent=self._agent), call.headers, attributes, self._last.pop(task_id, None)
        )
        call.headers = self._spans.headers_of(span, call.headers)
        if span.is_recording():
            self._open[task_id] = span

    def run_ended(self, task_id: str, call: Call, state: TaskState, times: RunTimes) -> None:
        span = self._open.pop(task_id, None)
        if span is None:
            return
        span.set_attribute(names.TASK_STATE, _STATES[state])
        if call.skill:
            span.set_attribute(names.SKILL, call.skill)
        began = time.time_ns() - _nanoseconds(times.seconds)
        if times.first_event is not None:
            span.add_event(names.FIRST_EVENT, timestamp=began + _nanoseconds(times.first_event))
        if times.last_event is not None:
            span.add_event(names.LAST_EVENT, timestamp=began + _nanoseconds(times.last_event))
        if state in _FAILED and self._spans is not None:
            self._spans.set_failed(span, _STATES[state])
        span.end()
        self._last[task_id] = span.get_span_context()
        if len(self._last) > MAX_LINKED:
            self._last.popitem(last=False)

    # ---- webhooks -------------------------------------------------------------------------------------------------

    async def deliver(self, sender: Sender, notification: Notification) -> PostFailure | None:
        """Post a notification inside a span, if its event changed the state of a task that has a trace."""
        if not notification.trace or self._spans is None:
            return await sender.send(notification)
        address = urlsplit(notification.config.url)
        attributes: dict[str, str] = {
            names.TASK_ID: notification.config.task_id,
            names.EVENT_ID: notification.event_id,
            names.SERVER: address.hostname or "",  # not the path, which may contain a secret
        }
        span = self._spans.begin_delivery(names.WEBHOOK_SPAN, notification.trace, attributes)
        try:
            failure = await sender.send(replace(notification, trace=self._spans.headers_of(span, notification.trace)))
            if failure is not None:
                self._spans.set_failed(span, failure.reason)
            return failure
        finally:
            span.end()


class TracedSender:
    """A sender of webhooks whose deliveries are spans."""

    def __init__(self, sender: Sender, tracing: Tracing) -> None:
        self._sender = sender
        self._tracing = tracing

    def check(self, config: PushConfig) -> None:
        self._sender.check(config)

    async def send(self, notification: Notification) -> PostFailure | None:
        return await self._tracing.deliver(self._sender, notification)

    async def close(self) -> None:
        await self._sender.close()


class _TaskInEvent(Struct, rename="camel"):
    id: str = ""
    task_id: str = ""
    context_id: str = ""


class _Event(Struct, rename="camel"):
    """The ids in the first event of a stream."""

    task: _TaskInEvent | None = None
    status_update: _TaskInEvent | None = None
    artifact_update: _TaskInEvent | None = None


_EVENT: Final = msgspec.json.Decoder(_Event)


class TracedEvents:
    """A stream whose span ends when it is closed."""

    def __init__(self, events: Events, span: "Span") -> None:
        self._events = events
        self._span = span
        self._last: LogEntry | None = None

    @property
    def is_cut(self) -> bool:
        return self._events.is_cut

    def take(self) -> list[LogEntry] | None:
        batch = self._events.take()
        if batch:
            if self._last is None:
                self._note_first(batch[0])
            self._last = batch[-1]
        return batch

    def _note_first(self, entry: LogEntry) -> None:
        self._span.add_event(names.FIRST_EVENT)
        event = _EVENT.decode(entry.body)
        part = event.task or event.status_update or event.artifact_update
        if part is not None:
            self._span.set_attribute(names.TASK_ID, part.id or part.task_id)
            self._span.set_attribute(names.CONVERSATION, part.context_id)

    async def wait(self) -> None:
        await self._events.wait()

    def close(self) -> None:
        self._events.close()
        if self._last is not None:
            self._span.set_attribute(names.TASK_STATE, _STATES[self._last.state])
        self._span.end()  # a second call does nothing


_BY_TASK: Final = frozenset({Operation.GET, Operation.CANCEL, Operation.SUBSCRIBE})


def _content(body: bytes) -> str:
    return body[:MAX_CONTENT].decode(errors="replace")


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
