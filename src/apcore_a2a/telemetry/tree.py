"""Prints the spans of a process as trees, one for each trace, when none of its spans is open any more."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from apcore_a2a.telemetry import names

MAX_TRACES: Final = 100  # with open spans. The oldest is dropped
MAX_SPANS: Final = 200  # of one trace that are kept
MAX_TEXT: Final = 80  # characters of a value
# The attributes that are printed behind a span, and their labels.
_SHOWN: Final = (
    (names.TASK_STATE, ""),
    (names.ERROR, "error="),
    (names.SKILL, "skill="),
    (names.BINDING, ""),
    (names.SERVER, "to "),
    (names.ATTEMPT, "attempt="),
)


class _Trace:
    def __init__(self) -> None:
        self.open = 0
        self.spans: list[ReadableSpan] = []


class TreePrinter(SpanProcessor):
    """Writes each trace as a tree: the spans that belong together, their times and their outcomes."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._traces: OrderedDict[int, _Trace] = OrderedDict()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        trace_id = span.get_span_context().trace_id
        trace = self._traces.setdefault(trace_id, _Trace())
        trace.open += 1
        if len(self._traces) > MAX_TRACES:
            self._traces.popitem(last=False)

    def on_end(self, span: ReadableSpan) -> None:
        trace = self._traces.get(_trace_id(span))
        if trace is None:
            return
        trace.open -= 1
        if len(trace.spans) < MAX_SPANS:
            trace.spans.append(span)
        if trace.open == 0:
            del self._traces[_trace_id(span)]
            self._write(tree_of(trace.spans))


def tree_of(spans: list[ReadableSpan]) -> str:
    """Return the lines of a trace: a span is below its parent, and siblings are in the order in which they began."""
    children: dict[int, list[ReadableSpan]] = {}
    known = {_span_id(span) for span in spans}
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        parent = span.parent.span_id if span.parent is not None else 0
        children.setdefault(parent if parent in known else 0, []).append(span)
    lines = [f"trace {_trace_id(spans[0]):032x}"]
    lines += _lines_below(0, children, "")
    return "\n".join(lines) + "\n"


def _lines_below(parent: int, children: dict[int, list[ReadableSpan]], indent: str) -> Iterator[str]:
    below = children.get(parent, [])
    for number, span in enumerate(below, 1):
        is_last = number == len(below)
        yield f"{indent}{'└─' if is_last else '├─'} {_line_of(span)}"
        yield from _lines_below(_span_id(span), children, indent + ("   " if is_last else "│  "))


def _line_of(span: ReadableSpan) -> str:
    milliseconds = ((span.end_time or 0) - (span.start_time or 0)) / 1_000_000
    words = [span.name, f"{milliseconds:.1f} ms"]
    attributes = span.attributes or {}
    for name, label in _SHOWN:
        value = attributes.get(name)
        if value is not None:
            words.append(f"{label}{_clean(str(value))}")
    for event in span.events:
        if event.name == names.FIRST_EVENT:
            first = (event.timestamp - (span.start_time or 0)) / 1_000_000
            words.append(f"first event after {first:.1f} ms")
    return "  ".join(words)


def _clean(text: str) -> str:
    """Return a text that cannot break its line: an id of a client may contain anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_TEXT])


def _span_id(span: ReadableSpan) -> int:
    return 0 if span.context is None else span.context.span_id


def _trace_id(span: ReadableSpan) -> int:
    return 0 if span.context is None else span.context.trace_id
