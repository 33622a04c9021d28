"""Spans and contexts of OpenTelemetry, made from the trace headers of this package and written back to them.

Invariant: this module is loaded only in programs that have loaded OpenTelemetry.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import urlsplit

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    TraceState,
)

from apcore_a2a import __version__
from apcore_a2a.errors import A2AError, Wire, wire
from apcore_a2a.telemetry import names
from apcore_a2a.trace_context import BAGGAGE, PARENT, STATE, Trace, continue_trace, continued_trace

__all__ = ["Span", "SpanContext", "Spans", "begin_call", "find_spans"]

_BAGGAGE: Final = W3CBaggagePropagator()
_NO_PARENT: Final = Context()
Attributes = Mapping[str, str | int | bool]


def find_spans(provider: TracerProvider | None) -> "Spans | None":
    """Return the spans of a provider, by default of the one that the program has set. None if it has set none."""
    if provider is None:
        provider = trace.get_tracer_provider()
    if isinstance(provider, ProxyTracerProvider | NoOpTracerProvider):
        return None
    return Spans(provider.get_tracer(names.SCOPE, __version__))


class Spans:
    """Begins the spans of this package, as children of the right parents."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        # The latest traceparent and its span: a request that is not sampled sends the same one as its run.
        self._latest: SpanContext = INVALID_SPAN_CONTEXT
        self._latest_parent = ""

    def use_here(self) -> None:
        """Use these spans for clients in the current asyncio task, instead of those of the program's provider."""
        _SPANS.set(self)

    def begin_request(self, name: str, headers: Trace) -> tuple[Span, object]:
        """Return a server span, which is the current span until `leave`, and the token for `leave`."""
        parent = _parent_of(headers)
        span = self._tracer.start_span(name, parent, SpanKind.SERVER)
        return span, contexts.attach(trace.set_span_in_context(span, parent))

    def begin_call(self, name: str, headers: Trace, attributes: Attributes) -> Span:
        """Return a client span."""
        return self._tracer.start_span(name, _parent_of(headers), SpanKind.CLIENT, attributes)

    def enter(self, span: Span) -> object:
        """Make a span the current one, and return the token for `leave`."""
        return contexts.attach(trace.set_span_in_context(span))

    def leave(self, token: object) -> None:
        contexts.detach(token)  # type: ignore[arg-type]  # a token of `attach`

    def begin_run(self, name: str, headers: Trace, attributes: Attributes, earlier: SpanContext | None) -> Span:
        """Return the span of a run, which stays the current span of this asyncio task."""
        parent = _parent_of(headers)
        links = None if earlier is None else [Link(earlier)]
        span = self._tracer.start_span(name, parent, SpanKind.INTERNAL, attributes, links)
        contexts.attach(trace.set_span_in_context(span, parent))
        return span

    def begin_delivery(self, name: str, headers: Trace, attributes: Attributes) -> Span:
        # Not the current context: a worker delivers the events of one task after those of another.
        return self._tracer.start_span(name, _context_of(headers), SpanKind.CLIENT, attributes)

    def unsampled_request(self, headers: Trace) -> Span | None:
        """Return the span of the current request if the request belongs to this trace and is not sampled."""
        span = trace.get_current_span()
        context = span.get_span_context()
        if not _belongs_to(context, headers) or context.trace_flags & TraceFlags.SAMPLED:
            return None
        return span

    def headers_of(self, span: Span, given: Trace) -> dict[str, str]:
        """Return the headers of a span for the requests that it causes. The baggage is that of the given headers."""
        own = span.get_span_context()
        if own is not self._latest:
            self._latest_parent = f"00-{own.trace_id:032x}-{own.span_id:016x}-{int(own.trace_flags):02x}"
            self._latest = own
        headers = {PARENT: self._latest_parent}
        if own.trace_state:
            headers[STATE] = own.trace_state.to_header()
        if BAGGAGE in given:
            headers[BAGGAGE] = given[BAGGAGE]
        return headers

    def note_error(self, span: Span, error: BaseException, binding: str) -> None:
        """Record why a request failed. The span of a server is an error only if the fault is the server's."""
        if not isinstance(error, A2AError):
            self.set_failed(span, type(error).__name__)
            return
        row = wire(error)
        span.set_attribute(names.ERROR, row.reason)
        span.set_attribute(names.STATUS_CODE, _status_code(row, binding))
        if row.http >= 500:
            span.set_status(Status(StatusCode.ERROR))

    def set_failed(self, span: Span, reason: str) -> None:
        span.set_attribute(names.ERROR, reason)
        span.set_status(Status(StatusCode.ERROR))


def _status_code(row: Wire, binding: str) -> str:
    """Return the code of an error as its binding writes it."""
    if binding == "GRPC":
        return row.grpc
    if binding == "JSONRPC":
        return str(row.code)
    return str(row.http)


def _parent_of(headers: Trace) -> Context:
    """Return the context for a new span: the current one if it belongs to the trace of the headers, else theirs.

    The current one has a span if the HTTP server is instrumented, or if a request has begun the present work.
    """
    if _belongs_to(trace.get_current_span().get_span_context(), headers):
        return contexts.get_current()
    return _context_of(headers)


def _belongs_to(span: SpanContext, headers: Trace) -> bool:
    """Return whether a span is valid and part of the trace of these headers, or they have no trace."""
    if not span.is_valid:
        return False
    parent = headers.get(PARENT)
    return parent is None or int(parent[3:35], 16) == span.trace_id


def _context_of(headers: Trace) -> Context:
    """Return the context of headers that `read_trace` has checked."""
    context = _NO_PARENT
    if not headers:
        return context
    parent = headers.get(PARENT)
    if parent is not None:
        state = headers.get(STATE)
        span_context = SpanContext(
            trace_id=int(parent[3:35], 16),
            span_id=int(parent[36:52], 16),
            is_remote=True,
            trace_flags=TraceFlags(int(parent[53:55], 16)),
            trace_state=TraceState() if state is None else TraceState.from_header([state]),
        )
        context = trace.set_span_in_context(NonRecordingSpan(span_context), context)
    if BAGGAGE in headers:
        context = _BAGGAGE.extract({BAGGAGE: headers[BAGGAGE]}, context)
    return context


# ---- requests of clients ---------------------------------------------------------------------------------------------
#
# Invariant: a request is sent as without telemetry, with one difference: its trace headers name the client's span.

_SPANS: Final[ContextVar[Spans | None]] = ContextVar("apcore_a2a.spans", default=None)


def begin_call(method: str, url: str) -> "ClientSpan | None":
    """Return the span of a request, or None if no tracer provider is set."""
    spans = _SPANS.get() or find_spans(None)
    if spans is None:
        return None
    address = urlsplit(url)
    attributes: dict[str, str | int | bool] = {names.METHOD: method, names.SERVER: address.hostname or ""}
    if address.port is not None:
        attributes[names.PORT] = address.port
    return ClientSpan(spans, method, attributes, continued_trace())


class ClientSpan:
    """The span of one request, with all its attempts."""

    def __init__(self, spans: Spans, name: str, attributes: dict[str, str | int | bool], outer: Trace) -> None:
        self._spans = spans
        self._outer = outer
        self._span: Span = spans.begin_call(name, outer, attributes)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the parent of all that happens within. Do not yield to other code within: it would be included."""
        token = self._spans.enter(self._span)
        continue_trace(self._spans.headers_of(self._span, self._outer))
        try:
            yield
        finally:
            continue_trace(self._outer)
            self._spans.leave(token)

    def end(self, error: BaseException | None) -> None:
        if isinstance(error, A2AError):
            self._spans.set_failed(self._span, wire(error).reason)
        elif error is not None and not isinstance(error, GeneratorExit):  # the caller has left a stream
            self._spans.set_failed(self._span, type(error).__name__)
        self._span.end()
