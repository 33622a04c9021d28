"""Who is refused, and why, is in the log: each once a minute, whatever refused them, and never a flood."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from apcore_a2a import JWTAuthenticator, Limits
from apcore_a2a.agent import Caller
from apcore_a2a.errors import OverloadedError
from apcore_a2a.http.traffic import Refusals
from apcore_a2a.log_throttle import INTERVAL, MAX_LINES
from tests.auth.tokens import SECRET
from tests.fakes import COMPLETED, PATIENCE, WORKING, Gate, ScriptedAgent
from tests.interaction.serving import serving

ANYONE = ("anonymous", "127.0.0.1")


@asynccontextmanager
async def calling(agent: ScriptedAgent | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A server on a socket, and a client of it."""
    async with serving(agent or ScriptedAgent(default=(COMPLETED,)), metrics=True, **options) as url:
        async with httpx.AsyncClient(base_url=url, headers={"A2A-Version": "1.0"}, timeout=PATIENCE) as http:
            yield http


def send(text: str = "hi") -> dict[str, Any]:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": message, "configuration": {"returnImmediately": True}}


def rpc(method: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": send()}


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, str, str]]:
    """What was told of refused requests: the level, the caller, their address, and why."""
    told: list[tuple[int, str, str, str]] = []
    for record in caplog.records:
        if record.getMessage() == "request refused":
            said = vars(record)
            told.append((record.levelno, said["caller"], said["peer"], said["reason"]))
    return told


# ---- whatever refuses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "path", "body", "status", "reason"),
    [
        (
            "max_active_tasks_per_caller",
            "/",
            rpc("SendMessage"),
            429,
            "You are at your limit of running tasks; wait for one to end",
        ),
        (
            "max_active_tasks",
            "/message:send",
            send(),
            503,
            "The agent is at its limit of running tasks; try again later",
        ),
        (
            "max_streams_per_caller",
            "/",
            rpc("SendStreamingMessage"),
            429,
            "You are at your limit of open streams; close one or try again later",
        ),
        (
            "max_streams",
            "/message:stream",
            send(),
            503,
            "The agent is at its limit of open streams; try again later",
        ),
        (
            "max_stored_tasks_per_caller",
            "/message:send",
            send(),
            503,  # it is the share of all who have no name
            "The agent is at its limit of unfinished tasks; try again later",
        ),
    ],
)
async def test_a_limit_that_is_reached_is_a_warning_once_and_each_request_is_counted(
    caplog: pytest.LogCaptureFixture, option: str, path: str, body: dict[str, Any], status: int, reason: str
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"wait": (WORKING, gate, COMPLETED)}, default=(COMPLETED,))
    async with calling(agent, limits=Limits(**{option: 1})) as http:
        async with http.stream("POST", "/message:stream", json=send("wait")) as first:
            assert first.status_code == 200
            for _ in range(3):
                assert (await http.post(path, json=body)).status_code == status
            assert (await http.get("/metrics")).json()["refused_requests"] == 3
            gate.open()
    assert lines(caplog) == [(logging.WARNING, *ANYONE, reason)]


async def test_a_request_that_is_wrong_or_from_elsewhere_is_told_at_a_lower_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with calling(limits=Limits(max_request_bytes=1000), cors_origins=["https://app.example"]) as http:
        for _ in range(2):
            assert (await http.post("/", json={"text": "x" * 1000})).status_code == 413
            assert (await http.get("/tasks", headers={"Host": "evil.example"})).status_code == 421
        assert (await http.get("/metrics")).json()["refused_requests"] == 0
    levels = {line[:3] for line in lines(caplog)}
    assert levels == {(logging.INFO, *ANYONE)}
    assert [reason for _, _, _, reason in lines(caplog)] == [
        "Request body larger than 1000 bytes",
        "This server accepts only requests to localhost; if it has another name, set it with --url (in Python: url=)",
    ]


async def test_why_credentials_are_not_good_is_told_without_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with calling(auth=JWTAuthenticator(SECRET)) as http:
        for shown in ({}, {"Authorization": "Bearer CANARY"}, {}, {"Authorization": "Bearer CANARY"}):
            assert (await http.get("/tasks", headers=shown)).status_code == 401
    assert lines(caplog) == [
        (logging.INFO, *ANYONE, "no credentials"),
        (logging.INFO, *ANYONE, "bad credentials"),
    ]
    assert [record.getMessage() for record in caplog.records].count("token refused") == 1
    assert "CANARY" not in caplog.text


class Away:
    """An authenticator whose keys cannot be had."""

    def authenticate(self, headers: dict[str, str]) -> None:
        raise OverloadedError("The issuer does not answer")


async def test_an_authenticator_that_is_away_is_no_flood(caplog: pytest.LogCaptureFixture) -> None:
    async with calling(auth=Away()) as http:
        for _ in range(3):
            assert (await http.get("/tasks")).status_code == 503
    assert lines(caplog) == [(logging.WARNING, *ANYONE, "The issuer does not answer")]


# ---- connections -------------------------------------------------------------------------------------------------


async def answer_to(url: httpx.URL, sent: bytes) -> bytes:
    """All that a connection of its own is answered."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(sent)
    try:
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.transport.abort()


async def test_what_is_no_http_is_told_once_and_answered_as_safely_as_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with calling() as http:
        for _ in range(3):
            answer = await answer_to(http.base_url, b"\x16\x03\x01 CANARY\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert b"\r\nx-content-type-options: nosniff\r\n" in answer
            assert b"\r\nx-frame-options: DENY\r\n" in answer
            assert answer.endswith(b"\r\n\r\nInvalid HTTP request received.")
    told = [vars(record) for record in caplog.records if record.getMessage() == "connection refused"]
    assert [(line["peer"], line["reason"]) for line in told] == [("127.0.0.1", "the request is not valid HTTP")]
    assert "Invalid HTTP" not in caplog.text
    assert "CANARY" not in caplog.text


async def test_who_asks_for_a_websocket_is_answered_and_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    async with calling() as http:
        for _ in range(3):
            assert (await http.get("/health", headers=upgrade)).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_connections_too_many_are_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with calling(limits=Limits(max_connections=1)) as http:
        assert (await http.get("/health")).status_code == 200  # its connection stays open
        for _ in range(3):
            assert (await answer_to(http.base_url, b"")).startswith(b"HTTP/1.1 503 ")
        assert (await http.get("/metrics")).json()["refused_connections"] == 3
    told = [vars(record) for record in caplog.records if record.getMessage() == "connection refused"]
    assert [(line["levelno"], line["peer"]) for line in told] == [(logging.WARNING, "127.0.0.1")]
    assert told[0]["reason"] == "all 1 connections are taken"


async def test_connections_too_many_of_one_address_are_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with calling(limits=Limits(max_connections_per_address=1)) as http:
        assert (await http.get("/health")).status_code == 200  # its connection stays open
        for _ in range(3):
            assert (await answer_to(http.base_url, b"")).startswith(b"HTTP/1.1 503 ")
        assert (await http.get("/metrics")).json()["refused_connections"] == 3
    told = [vars(record) for record in caplog.records if record.getMessage() == "connection refused"]
    assert [(line["levelno"], line["peer"]) for line in told] == [(logging.WARNING, "127.0.0.1")]
    assert told[0]["reason"] == "it has all 1 connections that one address may have"


# ---- no flood ----------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def refuse(refusals: Refusals, whose: str, reason: str = "too much") -> None:
    refusals.refuse_request(OverloadedError(reason), Caller(id=whose, type="user"), None)


def test_a_line_comes_again_after_a_minute_and_each_reason_has_its_own(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = Refusals(clock=clock)
    for _ in range(3):
        refuse(refusals, "ada")
        refuse(refusals, "ada", "too often")
        refuse(refusals, "bob")
    assert len(lines(caplog)) == 3
    clock.now += INTERVAL
    refuse(refusals, "ada")
    refuse(refusals, "ada")
    assert len(lines(caplog)) == 4
    assert refusals.requests == 11


def test_however_many_callers_there_are_a_minute_has_so_many_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = Refusals(clock=clock)
    for number in range(3 * MAX_LINES):
        refuse(refusals, f"caller {number}")
    assert len(lines(caplog)) == MAX_LINES
    clock.now += INTERVAL
    for number in range(3 * MAX_LINES):
        refuse(refusals, f"new caller {number}")
    assert len(lines(caplog)) == 2 * MAX_LINES


def test_a_client_that_reads_nothing_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for _ in range(3):
        refusals.cut_off_reader("10.0.0.1", unread=4000)
    assert refusals.readers == 3
    (told,) = [vars(record) for record in caplog.records]
    assert (told["peer"], told["unread_bytes"]) == ("10.0.0.1", 4000)
