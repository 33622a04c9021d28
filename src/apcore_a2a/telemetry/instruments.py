"""The metrics of the server as observable instruments of OpenTelemetry, read when a reader exports them.

Invariant: nothing is counted twice, and a message costs nothing more. The names are those of Prometheus.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from apcore_a2a import __version__
from apcore_a2a.http.histograms import BOUNDS, PREFIX, Family
from apcore_a2a.http.metrics import HELP, Metrics
from apcore_a2a.telemetry import names

FRESH: Final = 1.0  # seconds for which the values of one reading serve all instruments of an export


class Reading:
    """The values of the metrics at one time. A reader asks for each instrument by itself, from a thread."""

    def __init__(self, metrics: Metrics, refresh: Callable[[], None]) -> None:
        self._metrics = metrics
        self._refresh = refresh
        self._read_at = float("-inf")
        self._figures: dict[str, float] = {}
        self._families: dict[str, Family] = {}

    def figure(self, name: str) -> float:
        self._renew()
        return self._figures[name]

    def family(self, name: str) -> Family:
        self._renew()
        return self._families[name]

    def _renew(self) -> None:
        if time.monotonic() - self._read_at < FRESH:
            return
        self._refresh()
        self._figures = self._metrics.own_values()
        self._families = {family.name: family for family in self._metrics.own_families()}
        self._read_at = time.monotonic()


def observe(metrics: Metrics, provider: MeterProvider, refresh: Callable[[], None]) -> None:
    """Make the instruments. `refresh` reads the figures of the store again, in bounded time."""
    meter = provider.get_meter(names.SCOPE, __version__)
    reading = Reading(metrics, refresh)
    for name, (kind, text) in HELP.items():
        callback = _figure_callback(reading, name)
        if kind == "counter":
            meter.create_observable_counter(PREFIX + name, [callback], description=text)
        else:
            meter.create_observable_gauge(PREFIX + name, [callback], description=text)
    for family in metrics.own_families():
        _observe_family(meter, reading, family)


def _observe_family(meter: Meter, reading: Reading, family: Family) -> None:
    name = PREFIX + family.name
    if not family.is_histogram:
        meter.create_observable_counter(name, [_count_callback(reading, family.name)], description=family.text)
        return
    # There is no observable histogram. These are the three series of a histogram in Prometheus.
    meter.create_observable_counter(f"{name}_bucket", [_bucket_callback(reading, family.name)], description=family.text)
    meter.create_observable_counter(f"{name}_count", [_count_callback(reading, family.name)], description=family.text)
    meter.create_observable_counter(
        f"{name}_sum", [_sum_callback(reading, family.name)], unit="s", description=family.text
    )


Callback = Callable[[CallbackOptions], Iterable[Observation]]


def _figure_callback(reading: Reading, name: str) -> Callback:
    def read(options: CallbackOptions) -> list[Observation]:
        return [Observation(reading.figure(name))]

    return read


def _count_callback(reading: Reading, name: str) -> Callback:
    def read(options: CallbackOptions) -> list[Observation]:
        family = reading.family(name)
        return [Observation(sum(series.counts), family.named(values)) for values, series in list(family.series.items())]

    return read


def _sum_callback(reading: Reading, name: str) -> Callback:
    def read(options: CallbackOptions) -> list[Observation]:
        family = reading.family(name)
        return [Observation(series.total, family.named(values)) for values, series in list(family.series.items())]

    return read


def _bucket_callback(reading: Reading, name: str) -> Callback:
    def read(options: CallbackOptions) -> list[Observation]:
        family = reading.family(name)
        observations: list[Observation] = []
        for values, series in list(family.series.items()):
            cumulated = 0
            for bucket, count in enumerate(series.counts):
                cumulated += count
                bound = f"{BOUNDS[bucket]:.15g}" if bucket < len(BOUNDS) else "+Inf"
                observations.append(Observation(cumulated, {**family.named(values), "le": bound}))
        return observations

    return read
