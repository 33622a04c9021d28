"""Counts and durations with labels, and their text for Prometheus: version 0.0.4, or OpenMetrics with exemplars.

Invariant: the number of series is limited, whatever callers send. Labels are names from tables and skills of the agent,
never the id of a task, a context or a caller.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import json

BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the buckets in seconds. A last bucket counts everything above."""
MAX_SERIES: Final = 512  # combinations of label values of one family. All others are counted together
OTHER: Final = "other"  # the value of each label of that series
PREFIX: Final = "apcore_a2a_"
PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
_BOUND_NAMES: Final = tuple(f"{bound:.15g}" for bound in BOUNDS)

Labels = tuple[str, ...]
Saved = dict[str, list[tuple[list[str], list[int], float]]]
"""Families as values of JSON: by name, each series with its labels, its counts and the sum of its durations."""


class Exemplar(NamedTuple):
    """A measured value with the trace in which it was measured."""

    trace_id: str
    value: float
    time: float
    """Seconds since 1970."""


class Series:
    """The counts of one combination of label values."""

    __slots__ = ("counts", "exemplars", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets  # per bucket, not cumulated
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}  # the latest one of each bucket

    def observe(self, seconds: float) -> None:
        """Add a duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def note(self, exemplar: Exemplar) -> None:
        """Keep the trace of a duration that was just added."""
        self.exemplars[bisect_left(BOUNDS, exemplar.value)] = exemplar

    def add(self, counts: Iterable[int], total: float) -> None:
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, counts, strict=True)]
        self.total += total


class Family:
    """Series of one name: a counter, or a histogram of durations."""

    def __init__(self, name: str, text: str, labels: Labels = (), *, is_histogram: bool = True) -> None:
        self.name = name
        self.text = text
        self.labels = labels
        self.is_histogram = is_histogram
        self.series: dict[Labels, Series] = {}
        self._buckets = len(BOUNDS) + 1 if is_histogram else 1
        self._others = (OTHER,) * len(labels)

    def find(self, labels: Labels) -> Series:
        """Return the series with these label values, or the one for all others if there are too many."""
        series = self.series.get(labels)
        if series is None:
            if len(self.series) >= MAX_SERIES:
                labels = self._others
            series = self.series.setdefault(labels, Series(self._buckets))
        return series

    def count(self, labels: Labels) -> None:
        """Add one to a counter."""
        self.find(labels).counts[0] += 1

    def named(self, values: Labels) -> dict[str, str]:
        """Return the labels of a series by their names."""
        return dict(zip(self.labels, values, strict=True))

    def add_all(self, saved: Sequence[tuple[list[str], list[int], float]]) -> None:
        """Add the series of another process."""
        for labels, counts, total in saved:
            self.find(tuple(labels)).add(counts, total)


_SAVED: Final = json.Decoder(Saved)


def encode_families(families: Iterable[Family]) -> bytes:
    """Return families as JSON, without their exemplars."""
    saved: Saved = {}
    for family in families:
        saved[family.name] = [(list(labels), series.counts, series.total) for labels, series in family.series.items()]
    return json.encode(saved)


def decode_families(body: bytes) -> Saved:
    """Return the series that another process has encoded."""
    return _SAVED.decode(body)


# ---- text -----------------------------------------------------------------------------------------------------------


def text_of_figure(name: str, kind: str, text: str, value: float, *, is_open: bool) -> list[str]:
    """Return the lines of a figure without labels. `is_open`: in the format OpenMetrics."""
    metric = PREFIX + name
    family = metric
    if kind == "counter" and name.startswith("total"):
        # The only counter whose name does not end in _total, which OpenMetrics requires. The name stays, with no type.
        kind = "unknown" if is_open else kind
    elif kind == "counter":
        metric += "_total"
        family = family if is_open else metric
    return [*_head(family, kind, text), f"{metric} {value:.15g}"]


def text_of_info(name: str, text: str, labels: Mapping[str, str]) -> list[str]:
    """Return the lines of a gauge that is always 1, with facts as labels."""
    metric = PREFIX + name
    return [*_head(metric, "gauge", text), f"{metric}{_braces(labels.items())} 1"]


def text_of_family(family: Family, *, is_open: bool) -> list[str]:
    """Return the lines of a family with labels. Only OpenMetrics has exemplars."""
    metric = PREFIX + family.name
    if not family.is_histogram:
        lines = _head(metric if is_open else f"{metric}_total", "counter", family.text)
        for values, series in family.series.items():
            lines.append(f"{metric}_total{_braces(zip(family.labels, values, strict=True))} {series.counts[0]}")
        return lines
    lines = _head(metric, "histogram", family.text)
    for values, series in family.series.items():
        lines += _text_of_series(metric, list(zip(family.labels, values, strict=True)), series, is_open=is_open)
    return lines


def _text_of_series(metric: str, labels: list[tuple[str, str]], series: Series, *, is_open: bool) -> list[str]:
    lines: list[str] = []
    cumulated = 0
    for bucket, count in enumerate(series.counts):
        cumulated += count
        bound = _BOUND_NAMES[bucket] if bucket < len(BOUNDS) else "+Inf"
        line = f"{metric}_bucket{_braces([*labels, ('le', bound)])} {cumulated}"
        exemplar = series.exemplars.get(bucket)
        if exemplar is not None and is_open:
            line += f' # {{trace_id="{exemplar.trace_id}"}} {exemplar.value:.6g} {exemplar.time:.3f}'
        lines.append(line)
    lines.append(f"{metric}_count{_braces(labels)} {cumulated}")
    lines.append(f"{metric}_sum{_braces(labels)} {series.total:.6f}")
    return lines


def _head(metric: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]


def _braces(labels: Iterable[tuple[str, Any]]) -> str:
    words = [f'{name}="{_escape(str(value))}"' for name, value in labels]
    if not words:
        return ""
    return "{" + ",".join(words) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
