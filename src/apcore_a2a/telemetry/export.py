"""Export of spans and metrics: over OTLP to a collector, or as trees of spans on standard error. Needs the SDK.

Invariant: a provider that the program has set is not replaced. An exporter that cannot reach its collector delays no
request: spans wait in a queue of bounded length, and the shutdown waits a bounded time.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from apcore_a2a import __version__
from apcore_a2a.http.metrics import STORE_TIMEOUT, Metrics
from apcore_a2a.telemetry.names import CONSOLE

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

FLUSH: Final = 3.0  # seconds that a shutdown waits for the collector
INTERVAL: Final = 15_000  # milliseconds between two exports of metrics


def observe_metrics(metrics: Metrics) -> None:
    """Make the metrics of the server readable for the meter provider of this process."""
    from opentelemetry.metrics import get_meter_provider

    from apcore_a2a.telemetry.instruments import observe

    loop = asyncio.get_running_loop()

    def refresh() -> None:
        if loop.is_running():
            asyncio.run_coroutine_threadsafe(metrics.refresh(), loop).result(2 * STORE_TIMEOUT)

    observe(metrics, get_meter_provider(), refresh)


class Export:
    """The export of one process. `close` sends what is left."""

    def __init__(self, closers: Iterable[Callable[[], Any]]) -> None:
        self._closers = tuple(closers)

    def close(self) -> None:
        """Send what is left, in bounded time. Blocks."""
        for close in self._closers:
            try:
                close()
            except Exception as error:  # from the SDK or its exporter: the shutdown goes on
                logger.warning("telemetry not flushed", exc_info=error)


def start_export(target: str, service: str) -> Export:
    """Set the tracer provider and the meter provider of this process, unless the program has set its own."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create(
        {"service.name": service, "service.version": __version__, "service.instance.id": str(uuid4())}
    )
    closers: list[Callable[[], Any]] = []
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        tracers = _tracer_provider(target, resource)
        trace.set_tracer_provider(tracers)
        closers += [lambda: tracers.force_flush(int(FLUSH * 1000)), tracers.shutdown]
    if target != CONSOLE and not _has_meters():
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        exporter = OTLPMetricExporter(f"{target.rstrip('/')}/v1/metrics", timeout=FLUSH)
        meters = MeterProvider([PeriodicExportingMetricReader(exporter, INTERVAL)], resource)
        metrics.set_meter_provider(meters)
        closers.append(lambda: meters.shutdown(FLUSH * 1000))
    return Export(closers)


def _has_meters() -> bool:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider

    return isinstance(metrics.get_meter_provider(), MeterProvider)


def _tracer_provider(target: str, resource: Any) -> "TracerProvider":  # Any: a Resource of the SDK
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource)  # its sampler is that of OTEL_TRACES_SAMPLER
    if target == CONSOLE:
        from apcore_a2a.telemetry.tree import TreePrinter

        provider.add_span_processor(TreePrinter(sys.stderr.write))
        return provider
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter = OTLPSpanExporter(f"{target.rstrip('/')}/v1/traces", timeout=FLUSH)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
