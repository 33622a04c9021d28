"""The durations of /metrics, as a scraper reads them: by operation, binding, version, outcome, skill; with traces."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_prometheus

from apcore_a2a.agent import Call, Caller, CancelToken
from apcore_a2a.engine.context import RunTimes
from apcore_a2a.errors import WIRE
from apcore_a2a.http.histograms import MAX_SERIES, OTHER, Family
from apcore_a2a.http.metrics import Metrics, make_board, make_families
from apcore_a2a.http.traffic import Traffic
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import Message, Role, SendMessage, Task, TaskState, TaskStatus
from apcore_a2a.storage.contract import Backlog, Usage
from apcore_a2a.testing.webhook import WebhookReceiver
from tests.fakes import COMPLETED, PATIENCE, WORKING, Gate, ScriptedAgent
from tests.interaction.serving import serving
from tests.interaction.test_jsonrpc_wire import OLD_MESSAGE, call
from tests.interaction.webhook_conditions import open_to

SENDS = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
SAID = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
SAMPLED = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
UNSAMPLED = {"traceparent": f"00-{'c' * 32}-{'b' * 16}-00"}
V1 = {"A2A-Version": "1.0"}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def read(client: httpx.AsyncClient) -> Samples:
    page = await client.get("/metrics", headers={"Accept": "text/plain"})
    return samples_of(read_prometheus(page.text))


def openmetrics(text: str) -> list[Metric]:
    return list(read_openmetrics(text))  # type: ignore[no-untyped-call]  # the parser has no annotations


async def read_when(client: httpx.AsyncClient, condition: Callable[[Samples], bool]) -> Samples:
    async with asyncio.timeout(PATIENCE):
        while True:
            samples = await read(client)
            if condition(samples):
                return samples
            await asyncio.sleep(0)


def samples_of(families: Iterable[Metric]) -> Samples:
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def counted(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((f"apcore_a2a_{name}", tuple(sorted(labels.items()))), 0.0)


def requests(samples: Samples, operation: str, binding: str, version: str, outcome: str) -> float:
    labels = {"operation": operation, "binding": binding, "version": version, "outcome": outcome}
    return counted(samples, "request_duration_seconds_count", **labels)


async def test_requests_are_measured_by_operation_binding_version_and_outcome() -> None:
    async with serving(ScriptedAgent(), metrics=True) as url, httpx.AsyncClient(base_url=url) as client:
        await client.post("/", json={**SENDS, "params": {"message": SAID}}, headers=V1)
        await client.post("/message:send", json={"message": SAID}, headers=V1)
        await client.post("/", json=call("message/send", {"message": OLD_MESSAGE}))
        await client.post("/", json=call("message/stream", {"message": OLD_MESSAGE}))
        await client.get("/tasks/unknown", headers=V1)
        samples = await read(client)
    assert requests(samples, "SendMessage", "JSONRPC", "1.0", "ok") == 1
    assert requests(samples, "SendMessage", "HTTP+JSON", "1.0", "ok") == 1
    assert requests(samples, "SendMessage", "JSONRPC", "0.3", "ok") == 1
    assert requests(samples, "SendStreamingMessage", "JSONRPC", "0.3", "ok") == 1
    assert requests(samples, "GetTask", "HTTP+JSON", "1.0", "TASK_NOT_FOUND") == 1


async def test_runs_are_measured_by_skill_and_outcome() -> None:
    async def shout(text: str) -> str:
        return text.upper()

    async def fail(text: str) -> str:
        raise ValueError(text)

    async with serving([shout, fail], card=None, metrics=True) as url, httpx.AsyncClient(base_url=url) as client:
        for skill in ("shout", "shout", "fail"):
            params = {"message": {**SAID, "messageId": skill}, "metadata": {"skillId": skill}}
            await client.post("/", json={**SENDS, "params": params}, headers=V1)
        samples = await read(client)
    assert counted(samples, "run_duration_seconds_count", skill="shout", outcome="completed") == 2
    assert counted(samples, "run_first_event_seconds_count", skill="shout", outcome="completed") == 2
    assert counted(samples, "run_duration_seconds_count", skill="fail", outcome="failed") == 1
    assert counted(samples, "run_first_event_seconds_count", skill="fail", outcome="failed") == 0


async def test_the_first_event_is_measured_when_it_comes_and_not_at_the_end() -> None:
    gate = Gate()
    agent = ScriptedAgent({"hello": (WORKING, gate, COMPLETED)})
    async with serving(agent, metrics=True) as url, httpx.AsyncClient(base_url=url) as client:
        later = {**SENDS, "params": {"message": SAID, "configuration": {"returnImmediately": True}}}
        await client.post("/", json=later, headers=V1)
        await gate.reached()
        waiting = await read(client)
        gate.open()
        samples = await read_when(client, lambda now: counted(now, "completed_tasks_total") == 1)
    labels = {"skill": "none", "outcome": "completed"}
    assert counted(waiting, "run_duration_seconds_count", **labels) == 0
    first = counted(samples, "run_first_event_seconds_sum", **labels)
    assert first <= counted(samples, "run_duration_seconds_sum", **labels)


async def test_messages_in_the_queue_of_a_task_are_counted_and_their_wait_is_measured() -> None:
    gate = Gate()
    agent = ScriptedAgent({"hello": (WORKING, gate, COMPLETED)})
    async with serving(agent, metrics=True) as url, httpx.AsyncClient(base_url=url) as client:
        later = {"returnImmediately": True}
        sent = await client.post("/", json={**SENDS, "params": {"message": SAID, "configuration": later}}, headers=V1)
        await gate.reached()
        more = {**SAID, "messageId": "m-2", "taskId": sent.json()["result"]["task"]["id"]}
        await client.post("/", json={**SENDS, "params": {"message": more, "configuration": later}}, headers=V1)
        during = await read(client)
        gate.open()
        samples = await read_when(client, lambda now: counted(now, "waiting_messages") == 0)
    assert counted(during, "waiting_messages") == 1
    assert counted(during, "queue_wait_seconds_count") == 0
    assert counted(samples, "queue_wait_seconds_count") == 1


@pytest.mark.parametrize("on_disk", [True, False])
async def test_writes_are_measured_where_a_store_keeps_tasks_on_disk(tmp_path: Path, on_disk: bool) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}" if on_disk else None
    async with (
        serving(ScriptedAgent(), metrics=True, store=store) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        await client.post("/", json={**SENDS, "params": {"message": SAID}}, headers=V1)
        samples = await read(client)
    assert (counted(samples, "store_write_seconds_count") >= 2) is on_disk


async def test_the_delay_of_webhooks_is_measured_for_changes_of_the_status() -> None:
    async with (
        WebhookReceiver() as receiver,
        serving(ScriptedAgent(), metrics=True, **open_to()) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        configuration = {"taskPushNotificationConfig": {"url": receiver.url}}
        params = {"message": SAID, "configuration": configuration}
        await client.post("/", json={**SENDS, "params": params}, headers=V1)
        samples = await read_when(client, lambda now: counted(now, "webhook_delay_seconds_count") >= 1)
    assert counted(samples, "webhook_delay_seconds_sum") < PATIENCE


async def test_rejected_requests_are_counted_by_reason() -> None:
    async with serving(ScriptedAgent(), metrics=True) as url, httpx.AsyncClient(base_url=url) as client:
        await client.post("/", content=b"x", headers={"Content-Type": "text/plain"})
        samples = await read(client)
    assert counted(samples, "refusals_total", reason="CONTENT_TYPE_NOT_SUPPORTED") == 1


async def test_openmetrics_has_the_trace_of_a_sampled_request_and_prometheus_text_has_none() -> None:
    async with serving(ScriptedAgent(), metrics=True) as url, httpx.AsyncClient(base_url=url) as client:
        for headers in (SAMPLED, UNSAMPLED):
            await client.post("/", json={**SENDS, "params": {"message": SAID}}, headers=V1 | headers)
        asked = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4"
        page = await client.get("/metrics", headers={"Accept": asked})
        plain = await client.get("/metrics", headers={"Accept": "text/plain"})
    assert page.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    traces = set()
    for family in openmetrics(page.text):
        for sample in family.samples:
            if sample.exemplar is not None:
                traces.add((family.name, sample.exemplar.labels["trace_id"]))
    assert traces == {
        ("apcore_a2a_request_duration_seconds", "a" * 32),
        ("apcore_a2a_run_duration_seconds", "a" * 32),
    }
    assert "trace_id" not in plain.text


async def test_both_formats_have_the_same_names_and_values() -> None:
    app = measured()
    app.request_received()
    in_text = samples_of(read_prometheus(app.prometheus().decode()))
    in_openmetrics = samples_of(openmetrics(app.prometheus(is_open=True).decode()))
    # This parser adds _total to the one counter whose name does not end in it.
    names = {name.replace("total_requests_total", "total_requests") for name, _ in in_text}
    assert names == {name for name, _ in in_openmetrics}
    for text in (app.prometheus(), app.prometheus(is_open=True)):
        assert b"\napcore_a2a_total_requests 1\n" in text


async def test_the_versions_are_the_labels_of_a_gauge() -> None:
    samples = samples_of(read_prometheus(measured().prometheus().decode()))
    (labels,) = [dict(labels) for name, labels in samples if name == "apcore_a2a_build_info"]
    assert set(labels) == {"version", "python"}


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_the_number_of_series_is_limited_and_nothing_is_lost() -> None:
    family = Family("runs", "Runs", ("skill",))
    for number in range(MAX_SERIES + 10):
        family.find((f"skill-{number}",)).observe(0.1)
    assert len(family.series) == MAX_SERIES + 1
    assert sum(family.series[OTHER,].counts) == 10


def test_a_label_cannot_end_its_line() -> None:
    metrics = measured()
    call = call_of('a"b\\c\nd')
    metrics.run_ended("t-1", call, TaskState.COMPLETED, RunTimes(0.2, None, None))
    samples = samples_of(read_prometheus(metrics.prometheus().decode()))
    assert counted(samples, "run_duration_seconds_count", skill='a"b\\c\nd', outcome="completed") == 1


def test_every_family_with_labels_has_names_for_them() -> None:
    for family in make_families().values():
        assert all(label.isidentifier() for label in family.labels)


# ---- several workers ------------------------------------------------------------------------------------------------


async def test_durations_of_all_workers_are_added_up_and_outlive_a_worker() -> None:
    board = make_board(2)
    workers = [measured(), measured()]
    for number, metrics in enumerate(workers):
        metrics.share(board, number)
        metrics.watch_loop()
    workers[1].run_ended("t-1", call_of("shout"), TaskState.COMPLETED, RunTimes(2.0, 1.0, 1.5))
    workers[1].publish()
    successor = measured()
    successor.share(board, 1)
    successor.run_ended("t-2", call_of("shout"), TaskState.COMPLETED, RunTimes(0.5, None, None))
    successor.publish()
    for metrics in (*workers, successor):
        metrics.stop()
    samples = samples_of(read_prometheus(workers[0].prometheus().decode()))
    labels = {"skill": "shout", "outcome": "completed"}
    assert counted(samples, "run_duration_seconds_count", **labels) == 2
    assert counted(samples, "run_duration_seconds_sum", **labels) == 2.5
    assert counted(samples, "run_first_event_seconds_count", **labels) == 1


async def test_refusals_of_a_worker_are_counted_once_although_it_has_a_successor() -> None:
    board = make_board(1)
    traffic = Traffic()
    first = measured(traffic)
    first.share(board, 0)
    traffic.refusals.reasons["TASK_NOT_FOUND"] += 3
    first.publish()
    first.stop()
    traffic = Traffic()
    second = measured(traffic)
    second.share(board, 0)
    traffic.refusals.reasons["TASK_NOT_FOUND"] += 1
    samples = samples_of(read_prometheus(second.prometheus().decode()))
    assert counted(samples, "refusals_total", reason="TASK_NOT_FOUND") == 4


def measured(traffic: Traffic | None = None) -> Metrics:
    async def backlog() -> Backlog:
        return Backlog()

    async def usage() -> Usage:
        return Usage(0, 0)

    return Metrics(traffic or Traffic(), stuck_threads=lambda: 0, backlog=backlog, usage=usage)


def call_of(skill: str) -> Call:
    request = SendMessage(message=Message(message_id="m", role=Role.USER, parts=()))
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING))
    made = Call(request=request, task=task, caller=Caller(), cancel=CancelToken())
    made.skill = skill
    return made


def test_the_time_of_a_record_is_that_of_its_status() -> None:
    assert v1.time_of(b'{"statusUpdate":{"taskId":"t","status":{"state":"x","timestamp":"2026-01-01T00:00:00Z"}}}')
    assert v1.time_of(b'{"artifactUpdate":{"taskId":"t"}}') == ""


def test_the_documentation_lists_every_name_and_no_other() -> None:
    page = Path("docs/observability.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\|.*", page, re.MULTILINE))
    names = set(re.findall(r"`(apcore_a2a_\w+)`", "\n".join(documented)))
    assert names == exported_names()


def exported_names() -> set[str]:
    """Return the names in the text format, histograms without the suffixes of their lines."""
    text = measured().prometheus().decode()
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


# ---- the dashboard and the alert rules ------------------------------------------------------------------------------

SUFFIXES = ("_bucket", "_count", "_sum")


def line_names() -> set[str]:
    """Return the names of all lines that the text format can have."""
    found = exported_names()
    for family in make_families().values():
        if family.is_histogram:
            found |= {f"apcore_a2a_{family.name}{suffix}" for suffix in SUFFIXES}
            found.discard(f"apcore_a2a_{family.name}")
    return found


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yaml"])
def test_every_name_in_the_dashboard_and_in_the_alert_rules_is_exported(file: str) -> None:
    text = Path("deploy/grafana", file).read_text(encoding="utf-8")
    used = set(re.findall(r"apcore_a2a_\w+", text))
    assert len(used) > 8
    assert used - line_names() == set()


def labels_in(expression: str) -> Iterator[tuple[str, str]]:
    """Yield each name with each label that selects or groups it."""
    for name, braces in re.findall(r"(apcore_a2a_\w+)(?:\{([^}]*)\})?", expression):
        for label in re.findall(r"(\w+)=", braces):
            yield name, label
    for group in re.findall(r"by \(([^)]*)\)", expression):
        for label in group.split(","):
            for name in re.findall(r"apcore_a2a_\w+", expression):
                yield name, label.strip()


def test_every_label_in_the_dashboard_exists() -> None:
    of_target = {"job", "instance", "le"}  # Prometheus adds the first two; a histogram has the third
    labels = {f"apcore_a2a_{family.name}": set(family.labels) for family in make_families().values()}
    dashboard = json.loads(Path("deploy/grafana/dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    for expression in expressions:
        for name, label in labels_in(expression):
            stem = re.sub(r"_(bucket|count|sum|total)$", "", name)
            assert label in labels.get(stem, set()) | of_target, (expression, label)


def test_the_outcomes_in_the_alert_rules_exist() -> None:
    rules = Path("deploy/grafana/alerts.yaml").read_text(encoding="utf-8")
    outcomes = set(re.findall(r'outcome="(\w+)"', rules))
    states = {state.removeprefix("TASK_STATE_").lower() for state in TaskState}
    assert outcomes
    assert outcomes <= states | {row.reason for row in WIRE.values()}
