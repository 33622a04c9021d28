"""Export of spans and metrics: as instruments, as trees, and over OTLP. Packages that are missing are named."""

import asyncio
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.trace import TracerProvider

from apcore_a2a.app.serve import build_app
from apcore_a2a.engine.context import RunTimes
from apcore_a2a.http.metrics import HELP
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.telemetry import names
from apcore_a2a.telemetry.instruments import observe
from apcore_a2a.telemetry.tree import MAX_SPANS, MAX_TRACES, TreePrinter
from tests.fakes import PATIENCE, ScriptedAgent
from tests.http.test_histograms import call_of, measured
from tests.interaction.serving import serving
from tests.telemetry.test_spans import send

# ---- instruments ----------------------------------------------------------------------------------------------------


def points_of(data: MetricsData | None) -> dict[str, list[tuple[dict[str, object], float]]]:
    points: dict[str, list[tuple[dict[str, object], float]]] = {}
    assert data is not None
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    value = point.value  # type: ignore[union-attr]  # there are no histograms
                    points.setdefault(metric.name, []).append((dict(point.attributes or {}), value))
    return points


async def test_the_instruments_have_the_names_and_values_of_prometheus() -> None:
    reader = InMemoryMetricReader()
    metrics = measured()
    observe(metrics, MeterProvider([reader]), lambda: None)
    metrics.request_received()
    metrics.run_ended("t", call_of("shout"), TaskState.COMPLETED, RunTimes(0.02, 0.002, 0.002))
    points = points_of(await asyncio.to_thread(reader.get_metrics_data))  # exporters read in a thread of their own
    assert points["apcore_a2a_total_requests"] == [({}, 1)]
    labels = {"skill": "shout", "outcome": "completed"}
    assert points["apcore_a2a_run_duration_seconds_count"] == [(labels, 1)]
    assert points["apcore_a2a_run_duration_seconds_sum"] == [(labels, 0.02)]
    buckets = {point["le"]: value for point, value in points["apcore_a2a_run_duration_seconds_bucket"]}
    assert (buckets["0.01"], buckets["0.025"], buckets["+Inf"]) == (0, 1, 1)
    assert {f"apcore_a2a_{name}" for name in HELP} <= set(points)


async def test_every_export_reads_the_store_once() -> None:
    reader = InMemoryMetricReader()
    readings: list[int] = []
    observe(measured(), MeterProvider([reader]), lambda: readings.append(1))
    await asyncio.to_thread(reader.get_metrics_data)
    assert readings == [1]


# ---- trees ----------------------------------------------------------------------------------------------------------


def printer() -> tuple[TracerProvider, io.StringIO]:
    written = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(TreePrinter(written.write))
    return provider, written


async def test_a_request_is_printed_as_a_tree_when_all_its_spans_have_ended() -> None:
    provider, written = printer()
    async with serving(ScriptedAgent(), tracer_provider=provider) as url:
        await send(url)
    first, request, run = written.getvalue().splitlines()
    assert first == f"trace {'a' * 32}"
    assert request.startswith("└─ SendMessage  ")
    assert request.endswith("  completed  JSONRPC")
    assert run.startswith("   └─ invoke_agent scripted  ")


def test_a_value_cannot_break_its_line() -> None:
    provider, written = printer()
    with provider.get_tracer("test").start_as_current_span("one") as span:
        span.set_attribute(names.TASK_STATE, "a\nb\x1b[2J" + "x" * 1000)
    _, line = written.getvalue().splitlines()
    assert "a?b?[2J" in line
    assert len(line) < 200


def test_open_traces_and_spans_of_a_trace_are_limited() -> None:
    provider, written = printer()
    tracer = provider.get_tracer("test")
    spans = [tracer.start_span(f"root {number}") for number in range(MAX_TRACES + 1)]
    for span in spans:
        span.end()
    assert written.getvalue().count("trace ") == MAX_TRACES  # the oldest was dropped
    written.truncate(0)
    with tracer.start_as_current_span("parent"):
        for number in range(MAX_SPANS + 10):
            tracer.start_span(f"child {number}").end()
    assert written.getvalue().count("─ child") == MAX_SPANS


# ---- serve --otlp ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["localhost:4318", "grpc://localhost:4317", ""])
def test_an_address_that_is_not_http_is_rejected(wrong: str) -> None:
    with pytest.raises(ValueError, match="otlp must be an http or https address, or 'console'"):
        build_app(ScriptedAgent(), otlp=wrong)


@pytest.mark.parametrize(
    ("target", "packages"),
    [
        ("console", "pip install opentelemetry-sdk"),
        ("http://localhost:4318", "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"),
    ],
)
def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, target: str, packages: str) -> None:
    monkeypatch.setattr(names, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"{packages}$"):
        build_app(ScriptedAgent(), otlp=target)


def test_serve_prints_the_tree_of_a_request(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("async def shout(text: str) -> str:\n    return text.upper()\n")
    words = [sys.executable, "-m", "apcore_a2a", "serve", "agent.py:shout", "--port", "0", "--host", "127.0.0.1"]
    with subprocess.Popen(
        [*words, "--otlp", "console"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as server:
        assert server.stderr is not None
        url = ""
        for line in server.stderr:
            if line.startswith("agent "):
                url = line.split()[1]
            if "running on" in line:
                break
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        httpx.post(f"{url}message:send", json={"message": message}, headers={"A2A-Version": "1.0"}, timeout=PATIENCE)
        server.send_signal(signal.SIGINT)
        told = server.stderr.read()
        assert server.wait(PATIENCE) == 0
    assert "└─ SendMessage  " in told
    assert "   └─ invoke_agent shout  " in told
