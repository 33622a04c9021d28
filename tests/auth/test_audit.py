"""The audit log: a line for each decision and for each task that ends; who, what, when, how; never what was said."""

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from apcore_a2a import JWTAuthenticator, async_serve
from apcore_a2a.auth.audit import AuditLog
from tests.app.test_app import browsing, send
from tests.auth.tokens import SECRET, bearer
from tests.modules import Add, Pay, registry

V1 = {"A2A-Version": "1.0"}
TOKEN = bearer(scope="bank:write")


async def audited(target: str, **options: Any) -> Any:
    modules = registry(math__add=Add(), bank__pay=Pay())
    auth = JWTAuthenticator(SECRET)
    return await async_serve(modules, auth=auth, skill_scopes={"bank.*": "bank:write"}, audit_log=target, **options)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_every_decision_and_every_end_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with browsing(await audited(str(path), metrics=True)) as client:
        await client.post("/", json=send())
        await client.post("/", json=send(), headers={"Authorization": "Bearer bad"})
        done = (await client.post("/", json=send(), headers=bearer())).json()["result"]
        await client.post("/", json=send(skill="bank.pay"), headers=bearer())
        waiting = (await client.post("/", json=send(skill="bank.pay"), headers=TOKEN)).json()["result"]
        await client.post(f"/tasks/{waiting['id']}:cancel", headers={**TOKEN, **V1}, json={})
        await client.get("/tasks/unknown", headers={**bearer(sub="bob"), **V1})
        await client.get("/.well-known/agent.json")
    lines = read(path)
    ada = "https://idp.example|ada"
    told = [(line["event"], line.get("operation"), line.get("caller"), line["outcome"]) for line in lines]
    assert told[:2] == [("authentication", "POST /", None, "denied")] * 2
    assert [line["reason"] for line in lines[:2]] == ["no credentials", "bad credentials"]
    assert ("task_ended", None, ada, "completed") in told[2:4] and ("operation", "send", ada, "allowed") in told[2:4]
    assert told[4] == ("operation", "send", ada, "denied")
    assert (lines[4]["skill"], lines[4]["reason"]) == ("bank.pay", "missing scopes: bank:write")
    assert told[5] == ("operation", "send", ada, "allowed")
    assert ("task_ended", None, ada, "canceled") in told[6:8] and ("operation", "cancel", ada, "allowed") in told[6:8]
    assert told[8] == ("operation", "get", "https://idp.example|bob", "refused")
    assert (lines[8]["task"], lines[8]["reason"]) == ("unknown", "TASK_NOT_FOUND")
    assert len(lines) == 9
    ended = {line["task"]: line["outcome"] for line in lines if line["event"] == "task_ended"}
    assert ended == {done["id"]: "completed", waiting["id"]: "canceled"}
    assert all(line["time"].endswith("Z") for line in lines)
    assert path.stat().st_mode & 0o077 == 0


async def test_neither_contents_nor_credentials_are_in_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with browsing(await audited(str(path))) as client:
        for headers in (bearer(), {"Authorization": "Bearer canary-token"}, {"X-API-Key": "canary-key"}):
            await client.post("/?secret=canary-query", json=send({"a": 77_777_777, "b": 1}), headers=headers)
        await client.get("/tasks/x%0a%1b[31mforged", headers={**bearer(), **V1})
    text = path.read_text()
    for secret in ("canary", "77777777", bearer()["authorization"][7:40], "\x1b"):
        assert secret not in text
    assert all("event" in line for line in read(path))


async def test_a_route_of_our_own_is_a_line_too(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with browsing(await audited(str(path), push_notifications=True)) as client:
        await client.get("/webhooks", headers=bearer())
        await client.post("/webhooks:redeliver", json={"taskId": "unknown"}, headers=bearer(sub="bob"))
        await client.get("/webhooks")
    told = [(line["event"], line["operation"], line.get("caller"), line["outcome"]) for line in read(path)]
    assert told == [
        ("operation", "GET /webhooks", "https://idp.example|ada", "allowed"),
        ("operation", "POST /webhooks:redeliver", "https://idp.example|bob", "refused"),
        ("authentication", "GET /webhooks", None, "denied"),
    ]
    assert read(path)[1]["reason"] == "NOT_FOUND"


async def test_behind_a_proxy_it_names_who_asked(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with browsing(await audited(str(path), trusted_proxies="127.0.0.1")) as client:
        for headers in ({}, {"Authorization": "Bearer bad"}, bearer()):
            await client.get("/tasks/x", headers={**V1, **headers, "X-Forwarded-For": "203.0.113.7"})
    assert [line["peer"] for line in read(path)] == ["203.0.113.7"] * 3


async def test_it_may_go_to_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="apcore_a2a.audit"):
        async with browsing(await audited("-")) as client:
            await client.post("/", json=send(), headers=bearer())
    lines = [json.loads(record.message) for record in caplog.records if record.name == "apcore_a2a.audit"]
    assert sorted(line["event"] for line in lines) == ["operation", "task_ended"]


async def test_a_file_that_cannot_be_written_is_told_before_anything_is_served(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the audit log .* cannot be written"):
        await audited(str(tmp_path / "no" / "audit.jsonl"))


def test_a_file_that_is_moved_away_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(str(path))
    log.open()
    log.write("one")
    log.close()
    log.open()
    path.rename(tmp_path / "audit.jsonl.1")
    log.write("two")
    log.close()
    assert [line["event"] for line in read(tmp_path / "audit.jsonl.1")] == ["one"]
    assert [line["event"] for line in read(path)] == ["two"]


def test_what_the_disk_does_not_take_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(str(path), max_lines=2)
    for number in range(5):  # the writing thread does not run yet
        log.write("line", number=number)
    log.open()
    log.close()
    assert [(line["event"], line.get("count")) for line in read(path)] == [
        ("lines_lost", 3),
        ("line", None),
        ("line", None),
    ]
    assert not [thread for thread in threading.enumerate() if thread.name == "audit log"]
