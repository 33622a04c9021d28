"""A tracer provider whose spans a test can read."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased


class Recorder:
    """The finished spans of the applications that use its telemetry."""

    def __init__(self, *, sampled: bool = True, record_content: bool = False) -> None:
        provider = TracerProvider() if sampled else TracerProvider(sampler=ParentBased(ALWAYS_OFF))
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.provider = provider
        self.options: dict[str, Any] = {"tracer_provider": provider, "record_content": record_content}

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return format(span.context.span_id, "016x")


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return format(span.context.trace_id, "032x")


def parent_of(span: ReadableSpan) -> str:
    return "" if span.parent is None else format(span.parent.span_id, "016x")
