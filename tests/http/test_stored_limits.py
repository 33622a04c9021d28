"""What a caller reads who has too much stored, in each binding and version; and where an operator sees it."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from apcore_a2a.app.application import Application
from apcore_a2a.settings import Limits
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.http.test_rate_limit import ByName, app, client

ADA = {"X-Name": "ada"}
BOB = {"X-Name": "bob"}
SAID = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "go"}]}
SAID_03 = {"messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": "go"}]}
SEND = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": {"message": SAID}}
OLD = {"A2A-Version": ""}
# How each binding and version asks for a new task: path, body, and the version it says.
WAYS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "JSON-RPC 1.0": ("/", SEND, {}),
    "JSON-RPC 1.0, a stream": ("/", SEND | {"method": "SendStreamingMessage"}, {}),
    "JSON-RPC 0.3": ("/", SEND | {"method": "message/send", "params": {"message": SAID_03}}, OLD),
    "JSON-RPC 0.3, a stream": ("/", SEND | {"method": "message/stream", "params": {"message": SAID_03}}, OLD),
    "REST 1.0": ("/message:send", {"message": SAID}, {}),
    "REST 1.0, a stream": ("/message:stream", {"message": SAID}, {}),
    "REST 1.0, a made-up tenant": ("/made-up/message:send", {"message": SAID}, {}),
    "REST 0.3": ("/v1/message:send", {"message": SAID_03}, OLD),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


async def ask(http: httpx.AsyncClient, way: str, who: dict[str, str]) -> httpx.Response:
    path, body, version = WAYS[way]
    return await http.post(path, json=body, headers={**who, **version})


def reason_of(answer: httpx.Response) -> str:
    """The typed error, wherever its binding and version have it."""
    assert answer.headers["content-type"].startswith("application/json")
    text = json.dumps(answer.json())
    return next(name for name in ("LimitExceededError", "OverloadedError") if name in text)


@pytest.mark.parametrize("way", WAYS)
async def test_a_caller_with_too_many_tasks_gets_429_and_no_task(way: str, url: str) -> None:
    served = app(auth=ByName(), store=url, limits=Limits(max_stored_tasks_per_caller=1))
    async with client(app=served) as http:
        assert (await ask(http, way, ADA)).status_code == 200
        for other in WAYS:
            refused = await ask(http, other, ADA)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "60"), other
            assert "limit of stored tasks" in refused.text
            assert reason_of(refused) == "LimitExceededError"
        assert (await ask(http, way, BOB)).status_code == 200
        total = 0
        for path in ("/tasks", "/made-up/tasks"):
            total += (await http.get(path, headers=ADA)).json()["totalSize"]
        assert total == 1
        await served.close()


@pytest.mark.parametrize("way", WAYS)
async def test_a_full_store_is_503_to_all(way: str, url: str) -> None:
    served = app(auth=ByName(), store=url, limits=Limits(max_stored_bytes=100))
    async with client(app=served) as http:
        assert (await ask(http, way, ADA)).status_code == 200
        for who in (ADA, BOB):
            refused = await ask(http, way, who)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "60")
            assert "The agent is at its limit of stored bytes" in refused.text
            assert reason_of(refused) == "OverloadedError"
        await served.close()


async def test_a_caller_with_too_many_bytes_reads_what_is_there_and_cancels(url: str) -> None:
    served = app(auth=ByName(), store=url, limits=Limits(max_stored_bytes_per_caller=100))
    async with client(app=served) as http:
        task = (await ask(http, "REST 1.0", ADA)).json()["task"]
        refused = await ask(http, "REST 1.0", ADA)
        assert (refused.status_code, reason_of(refused)) == (429, "LimitExceededError")
        assert "limit of stored bytes" in refused.text
        assert (await http.get(f"/tasks/{task['id']}", headers=ADA)).json()["id"] == task["id"]
        assert (await http.post(f"/tasks/{task['id']}:cancel", headers=ADA)).status_code == 400  # it has ended
        await served.close()


async def test_metrics_show_what_is_stored_and_how_often_it_was_too_much(url: str) -> None:
    served = app(auth=ByName(), store=url, limits=Limits(max_stored_tasks_per_caller=1), metrics=True)
    async with client(app=served) as http:
        for _ in range(3):
            await ask(http, "REST 1.0", ADA)
        figures = (await http.get("/metrics")).json()
        assert (figures["stored_tasks"], figures["refused_for_storage"]) == (1, 2)
        assert 200 < figures["stored_bytes"] < 2_000
        text = (await http.get("/metrics", headers={"Accept": "text/plain"})).text
        assert "apcore_a2a_stored_tasks 1\n" in text
        assert "apcore_a2a_refused_for_storage_total 2\n" in text
        await served.close()


# ---- which store keeps to which limit -------------------------------------------------------------------------------


async def test_in_memory_the_oldest_tasks_of_the_caller_make_room_instead() -> None:
    served = app(auth=ByName(), limits=Limits(max_stored_tasks_per_caller=2), metrics=True)
    async with client(app=served) as http:
        await ask(http, "REST 1.0", BOB)
        made = [(await ask(http, "REST 1.0", ADA)).json()["task"]["id"] for _ in range(4)]
        listed = (await http.get("/tasks", headers=ADA)).json()["tasks"]
        assert [task["id"] for task in listed] == [made[3], made[2]]
        assert (await http.get("/metrics")).json()["stored_tasks"] == 3


async def test_in_memory_bytes_are_limited_by_the_same_settings() -> None:
    served = app(auth=ByName(), limits=Limits(max_stored_bytes=4_000, max_stored_bytes_per_caller=1_000), metrics=True)
    async with client(app=served) as http:
        for _ in range(10):
            assert (await ask(http, "REST 1.0", ADA)).status_code == 200
        figures = (await http.get("/metrics")).json()
        assert 0 < figures["stored_bytes"] <= 1_000
        for number in range(30):
            assert (await ask(http, "REST 1.0", {"X-Name": f"user-{number}"})).status_code == 200
        assert 2_000 < (await http.get("/metrics")).json()["stored_bytes"] <= 4_000


def test_a_memory_store_of_the_user_s_own_has_its_limits_itself() -> None:
    with pytest.raises(ValueError, match="give max_bytes, max_tasks_per_owner to your InMemoryTaskStore"):
        app(task_store=InMemoryTaskStore(), limits=Limits(max_stored_bytes=1, max_stored_tasks_per_caller=1))


def test_any_other_store_of_the_user_s_own_is_limited(tmp_path: Path) -> None:
    served: Application = app(task_store=SQLiteStore(tmp_path / "tasks.db"), limits=Limits(max_stored_bytes=1))
    assert served.engine.stored is not None
    unlimited: Application = app(task_store=SQLiteStore(tmp_path / "tasks.db"))
    assert unlimited.engine.stored is None


@pytest.mark.parametrize("name", ["max_stored_tasks_per_caller", "max_stored_bytes_per_caller", "max_stored_bytes"])
def test_a_limit_of_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        app(limits=Limits(**{name: 0}))
