"""One trace through processes: a caller, our agent, a replica that is killed, its successor, a2a-sdk and a webhook."""

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx

from apcore_a2a.testing.webhook import WebhookReceiver
from tests.interaction.webhook_conditions import until
from tests.postgres_server import shared_server
from tests.processes import PATIENCE, Process, running
from tests.sources import ROOT

TRACE_ID = uuid4().hex
CALLER = "b" * 16
MAX_OURS = 12
# Spans leave a process at once: the replica that is killed keeps only those that are open.
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OTEL_BSP_SCHEDULE_DELAY": "50", "NO_PROXY": "*"}

Spans = list[dict[str, Any]]


def participant(role: str, *arguments: str) -> Any:  # Any: a context manager
    return running("-m", "tests.telemetry.participants", role, *arguments, **ENVIRONMENT)


async def address_of(process: Process) -> str:
    return (await process.says(r"running on (http://[\d.]+:\d+)"))[1]


async def spans_when(collector: str, condition: Callable[[Spans], bool]) -> Spans:
    async with httpx.AsyncClient(base_url=collector) as client, asyncio.timeout(PATIENCE):
        while True:
            spans: Spans = (await client.get("/spans")).json()
            if condition(spans):
                return spans
            await asyncio.sleep(0.05)


def ours(spans: Spans) -> Spans:
    return [span for span in spans if span["scope"] == "apcore_a2a"]


def count(spans: Spans, service: str, name: str) -> int:
    return sum(span["service"] == service and span["name"] == name for span in spans)


async def test_a_trace_connects_all_agents_although_a_replica_is_killed() -> None:
    store = f"{shared_server().url()}&lease=2"
    async with participant("collector") as collecting:
        collector = await address_of(collecting)
        async with participant("sdk", collector) as sdk:
            sdk_agent = await address_of(sdk)
            async with (
                participant("worker", collector, store, sdk_agent) as first,
                participant("worker", collector, store, sdk_agent) as second,
                WebhookReceiver() as receiver,
            ):
                addresses = await address_of(first), await address_of(second)
                async with participant("front", collector, *addresses) as front:
                    asking = asyncio.create_task(ask(await address_of(front), receiver.url))
                    await first.says("first run")
                    await front.says("task begun")
                    await spans_when(collector, lambda spans: count(spans, "worker", "SendMessage") == 1)
                    first.signal(signal.SIGKILL)
                    assert (await asking)["status"]["state"] == "TASK_STATE_COMPLETED"
                    deliveries = await until(receiver, "COMPLETED")
                    spans = await spans_when(collector, is_complete)
    check_connected(spans)
    received = {each.headers.get("traceparent", "")[3:35] for each in deliveries}
    assert TRACE_ID in received


async def ask(url: str, webhook: str) -> dict[str, Any]:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "please"}]}
    params = {"message": message, "configuration": {"taskPushNotificationConfig": {"url": webhook}}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    headers = {"A2A-Version": "1.0", "traceparent": f"00-{TRACE_ID}-{CALLER}-01"}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        answer = (await client.post(url, json=body, headers=headers)).json()
    task: dict[str, Any] = answer["result"]["task"]
    return task


def is_complete(spans: Spans) -> bool:
    """Return whether all spans were exported. Each process exports a span when it ends, so parents come last."""
    if count(spans, "front", "SendMessage") != 2 or count(spans, "front", "deliver webhook") == 0:
        return False
    return missing_parents(spans) == {CALLER}


def missing_parents(spans: Spans) -> set[str]:
    trace = [span for span in spans if span["trace"] == TRACE_ID]
    return {span["parent"] for span in trace} - {span["id"] for span in trace}


def check_connected(spans: Spans) -> None:
    told = json.dumps([[span["service"], span["name"], span["id"], span["parent"]] for span in spans], indent=1)
    mine = ours(spans)
    trace = [span for span in spans if span["trace"] == TRACE_ID]
    assert all(span["trace"] == TRACE_ID for span in mine), told
    assert len(mine) <= MAX_OURS, told
    assert count(mine, "front", "invoke_agent front") == 1, told
    assert count(mine, "worker", "invoke_agent worker") == 1, told  # that of the killed replica was open
    (run,) = [span for span in mine if span["name"] == "invoke_agent worker"]
    assert run["attributes"]["apcore.task.attempt"] == {"intValue": "2"}, told
    (call,) = [span for span in mine if span["service"] == "worker" and span["parent"] == run["id"]]
    assert any(span["service"] == "sdk" and span["parent"] == call["id"] for span in trace), told
