"""Spans of the requests that a client makes. Loaded by the client if its program uses OpenTelemetry.

Invariant: a request is sent as without telemetry, with one difference: its trace headers name the client's span.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import urlsplit

from apcore_a2a.errors import A2AError, wire
from apcore_a2a.telemetry import names
from apcore_a2a.telemetry.spans import Span, Spans, find_spans
from apcore_a2a.trace_context import Trace, continue_trace, continued_trace

_SPANS: Final[ContextVar[Spans | None]] = ContextVar("apcore_a2a.spans", default=None)


def use_spans(spans: Spans) -> None:
    """Use these spans for clients in the current asyncio task, instead of those of the program's provider."""
    _SPANS.set(spans)


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
