"""The trace of a request: three HTTP headers (W3C Trace Context, W3C Baggage), which calls of the agent continue.

Invariant: only well-formed headers within the limits are continued. No OpenTelemetry is needed for it.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
TRACE_HEADERS: Final = (PARENT, STATE, BAGGAGE)
MAX_STATE: Final = 512  # bytes of a tracestate: what each system has to pass on at least (W3C Trace Context §3.3.1.5)
MAX_BAGGAGE: Final = 8192  # bytes of a baggage, as in W3C Baggage §3.3.2
MAX_ENTRIES: Final = 64  # entries of a baggage, from the same paragraph
# Version, trace id, parent id, flags. A version above 00 may add fields, which are not passed on.
_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16

Trace = Mapping[str, str]
"""The headers of a trace: none of them, some, or all three."""

NO_TRACE: Final[Trace] = {}
_CONTINUED: Final[ContextVar[Trace]] = ContextVar("apcore_a2a.trace", default=NO_TRACE)


def read_trace(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the trace in the headers of a request, given with lower-case names. Wrong or excessive parts are left out.

    Example:
        >>> read_trace({b"traceparent": b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", b"host": b"x"})
        {'traceparent': '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'}
    """
    found: dict[str, str] = {}
    parent = _read_parent(_text(headers, PARENT))
    if parent:
        found[PARENT] = parent
        state = _first_entries(_text(headers, STATE), MAX_STATE)
        if state:  # without a parent it has no meaning
            found[STATE] = state
    baggage = _first_entries(_text(headers, BAGGAGE), MAX_BAGGAGE)
    if baggage:
        found[BAGGAGE] = baggage
    return found


def trace_id_of(trace: Trace) -> str:
    """Return the id of a trace: 32 hexadecimal digits, or an empty string if it has none."""
    return trace.get(PARENT, "")[3:35]


def ids_of(trace: Trace) -> dict[str, str]:
    """Return the ids of a trace and of its present span, with the names that log collectors expect. Empty without one.

    Example:
        >>> ids_of({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
        {'trace_id': '4bf92f3577b34da6a3ce929d0e0e4736', 'span_id': '00f067aa0ba902b7'}
    """
    parent = trace.get(PARENT, "")
    if not parent:
        return {}
    return {"trace_id": parent[3:35], "span_id": parent[36:52]}


def is_sampled(trace: Trace) -> bool:
    """Return whether the system that began the trace records it."""
    flags = trace.get(PARENT, "")[-2:]
    return flags != "" and int(flags, 16) % 2 == 1


def continue_trace(trace: Trace) -> None:
    """Continue a trace in the requests of clients that the current asyncio task, or the current thread, makes."""
    _CONTINUED.set(trace)


def continued_trace(given: Mapping[str, str] = NO_TRACE) -> Trace:
    """Return the headers that continue the current trace in a request with the given headers.

    If the given headers name a trace, only the baggage of the current one is added.
    """
    trace = _CONTINUED.get()
    if trace and any(name.lower() == PARENT for name in given):
        return {name: value for name, value in trace.items() if name == BAGGAGE}
    return trace


def _text(headers: Mapping[bytes, bytes], name: str) -> str:
    return headers.get(name.encode(), b"").decode("latin-1").strip()


def _read_parent(text: str) -> str:
    """Return a traceparent in the form of version 00, or an empty string if the text is not one."""
    match = _PARENT.fullmatch(text)
    if match is None:
        return ""
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return ""
    if version == "00" and more is not None:
        return ""
    return f"00-{trace_id}-{span_id}-{flags}"


def _first_entries(text: str, limit: int) -> str:
    """Return the first entries of a comma-separated list that fit into a limit of bytes, and of entries."""
    if not text.isascii() or not text.isprintable():  # a header cannot carry it unchanged
        return ""
    if len(text) <= limit and text.count(",") < MAX_ENTRIES:
        return text
    kept: list[str] = []
    size = 0
    for entry in text.split(",")[:MAX_ENTRIES]:
        size += len(entry) + 1
        if size > limit + 1:
            break
        kept.append(entry)
    return ",".join(kept)
