"""The metrics on the socket: what they count while it happens, and what they never say."""

import asyncio
from typing import Any

import httpx
import pytest

from apcore_a2a import InMemoryTaskStore, JWTAuthenticator
from apcore_a2a.app.serve import build_app
from apcore_a2a.http.metrics import Metrics
from apcore_a2a.http.traffic import Traffic
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Backlog, Usage
from tests.app.test_app import browsing
from tests.auth.tokens import SECRET, bearer
from tests.fakes import COMPLETED, PATIENCE, WORKING, Gate, ScriptedAgent, status
from tests.interaction.serving import serving
from tests.interaction.test_jsonrpc_wire import OLD_MESSAGE, call
from tests.requirements import requirement

SECRET_TEXT = "the account of Ada Lovelace"


def message(text: str, **configuration: Any) -> dict[str, Any]:
    said = OLD_MESSAGE | {"parts": [{"kind": "text", "text": text}]}
    return call("message/send", {"message": said, "configuration": configuration})


async def figures_of(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    figures: dict[str, Any] = answer.json()
    return figures


@requirement("FR-OPS-002")
async def test_what_runs_what_ended_and_what_failed_is_counted() -> None:
    gate = Gate()
    scripts = {"go": (COMPLETED,), "fail": (status(TaskState.FAILED),), "wait": (WORKING, gate, COMPLETED)}
    async with (
        serving(ScriptedAgent(scripts), metrics=True) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        before = await figures_of(client)
        for text in ("go", "go", "fail"):
            await client.post("/", json=message(text))
        await client.post("/", json=message("wait", blocking=False))
        await gate.reached()
        during = await figures_of(client)
        gate.open()
        counted = ("active_tasks", "completed_tasks", "failed_tasks")
        assert [before[name] for name in counted] == [0, 0, 0]
        assert [during[name] for name in counted] == [1, 2, 1]
        assert during["total_requests"] == before["total_requests"] + 5
        assert all(type(during[name]) is int for name in (*counted, "total_requests"))
        assert type(during["uptime_seconds"]) is float and during["uptime_seconds"] >= before["uptime_seconds"]
        page = await client.get("/metrics", headers={"Accept": "text/plain"})
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "apcore_a2a_failed_tasks_total 1\n" in page.text


async def test_a_large_figure_is_told_to_its_last_digit() -> None:
    app = build_app(ScriptedAgent({}), metrics=True)
    app.traffic.take_body(123_456_789, "ada")
    async with browsing(app) as client:
        page = await client.get("/metrics", headers={"Accept": "text/plain"})
    assert "body_bytes_in_flight 123456789\n" in page.text


class Broken(InMemoryTaskStore):
    async def usage(self, quota_key: str) -> Usage:
        raise RuntimeError("the secret reason")


class Stuck(InMemoryTaskStore):
    async def usage(self, quota_key: str) -> Usage:
        await asyncio.Event().wait()
        raise AssertionError


@requirement("FR-OPS-002")
@pytest.mark.parametrize("store", [Broken(), Stuck()], ids=["broken", "stuck"])
async def test_metrics_are_served_without_figures_of_a_store_that_fails_or_hangs(store: InMemoryTaskStore) -> None:
    async def backlog() -> Backlog:
        return Backlog()

    metrics = Metrics(
        Traffic(), stuck_threads=lambda: 0, backlog=backlog, usage=lambda: store.usage("ada"), store_timeout=0.01
    )
    metrics.request_received()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(metrics), base_url="http://localhost") as client:
        async with asyncio.timeout(PATIENCE):
            assert (await figures_of(client))["total_requests"] == 1


@requirement("FR-OPS-002")
async def test_there_are_none_unless_asked_for() -> None:
    async with serving(ScriptedAgent({})) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/metrics")).status_code == 404


@requirement("FR-OPS-002")
async def test_metrics_need_no_token_and_no_label_names_a_caller_a_task_or_a_context() -> None:
    agent = ScriptedAgent({SECRET_TEXT: (COMPLETED,)})
    async with (
        serving(agent, metrics=True, auth=JWTAuthenticator(SECRET)) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        answer = await client.post("/", json=message(SECRET_TEXT), headers=bearer(email="ada@example.com"))
        task = answer.json()["result"]
        for accept in ("application/json", "text/plain", "application/openmetrics-text"):
            said = await client.get("/metrics", headers={"Accept": accept})
            assert said.status_code == 200
            told = [SECRET_TEXT, "ada", "idp.example", task["id"], task["contextId"]]
            assert [word for word in told if word in said.text] == []
