"""`validate` with faulty agents: it always ends with a report."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ran, Terminal, scripted
from tests.client.scripted import (
    CARD,
    STREAM_HEAD,
    Answer,
    Request,
    ScriptedServer,
    Writer,
    card,
    chunk,
    event,
    hang,
    reset,
    respond,
    result,
    status,
    stream,
    task,
)

QUICKLY = ("--json", "--timeout", "3")
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


async def close(request: Request, writer: asyncio.StreamWriter) -> None:
    reset(writer)


async def half(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")


async def endless_body(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(JSON_HEAD)
    while True:
        writer.write(chunk(b" " * 65536))
        await writer.drain()


async def trickle(request: Request, writer: asyncio.StreamWriter) -> None:
    """Send an endless response very slowly."""
    writer.write(JSON_HEAD)
    await hang(request, writer)


def endless_stream(*values: Any) -> Writer:
    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for value in values:
            writer.write(event(request, value))
        while True:
            writer.write(event(request, status("WORKING")))
            await writer.drain()

    return write


ANSWERS: dict[str, Answer] = {
    "hangs": hang,
    "closes": close,
    "half": half,
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "page": respond(b"<html>hello</html>", headers={"Content-Type": "text/html"}),
    "garbage": respond(b"\xff\x00{{{"),
    "redirects": respond({}, 302, {"Location": "/elsewhere"}),
    "fails": respond({}, 500),
    "endless": endless_body,
    "never done": trickle,
    "nothing": respond(b"", 204),
    "wrong JSON": respond([[[1]]]),
}


@pytest.fixture(params=ANSWERS)
def answer(request: pytest.FixtureRequest) -> Answer:
    return ANSWERS[request.param]


def checks(ran: Ran) -> dict[str, str]:
    """Return the results by rule."""
    assert ran.json["agent"]
    assert ran.json["summary"]["pass"] + ran.json["summary"]["fail"] > 0
    return {check["id"]: check["result"] for check in ran.json["checks"]}


def test_an_unavailable_card_gives_a_report(terminal: Terminal, answer: Answer) -> None:
    with scripted() as server:
        server.on(CARD, answer).on("/.well-known/agent.json", answer)
        ran = terminal("validate", server.url, *QUICKLY)

    assert ran.code != 0
    assert ran.json["valid"] is False
    assert {"card.found", "card.fields"} & {id for id, found in checks(ran).items() if found == "fail"}


def test_an_answer_in_invalid_utf8_is_a_finding(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(CARD, respond(card(server.url))).on("/", respond(b'{"jsonrpc": "2.0", "error": "\xff"}'))
        ran = terminal("validate", server.url, "--json")

    assert (ran.code, ran.json["valid"]) == (1, False)
    assert len(ran.json["checks"]) > 10


def test_an_unreachable_agent_gives_a_report_and_its_exit_code(terminal: Terminal) -> None:
    ran = terminal("validate", "http://127.0.0.1:1", *QUICKLY)

    assert (ran.code, checks(ran)) == (3, {"card.found": "fail"})


def test_a_card_that_requires_credentials_gives_a_report_with_a_hint(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(CARD, respond({}, 401))
        ran = terminal("validate", server.url)

    assert ran.code == 4
    assert "Pass --token" in ran.fields["Fail"]


@pytest.mark.parametrize(
    ("flags", "said"), [((), "Pass --token"), (("--token", "bad"), "does not accept these credentials")]
)
def test_an_agent_that_requires_credentials_breaks_no_rule(
    terminal: Terminal, flags: tuple[str, ...], said: str
) -> None:
    with scripted() as server:
        server.on(CARD, respond(card(server.url))).on("/", respond({}, 401))
        ran = terminal("validate", server.url, "--json", *flags)

    assert ran.code == 4
    failed = [check for check in ran.json["checks"] if check["result"] == "fail"]
    assert [check["id"] for check in failed] == ["agent.answers"]
    assert said in failed[0]["message"]


def test_an_unusable_key_file_is_a_usage_error_and_not_a_finding(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "x": "AA", "y": "AA"}]}')
    with scripted() as server:
        server.on(CARD, respond(card(server.url)))
        ran = terminal("validate", server.url, "--keys", str(tmp_path / "keys.json"))

    assert ran.code == 2
    assert "The pinned key 'k' cannot be used" in ran.err


def test_an_agent_that_does_not_answer_fails_the_tested_rules(terminal: Terminal, answer: Answer) -> None:
    with scripted() as server:
        server.on(CARD, respond(card(server.url))).on("/", answer)
        ran = terminal("validate", server.url, *QUICKLY, "--message", "hi")

    found = checks(ran)
    assert ran.code == 1
    assert found["card.fields"] == "pass"
    assert found["jsonrpc:errors.unknown-task"] == "fail"


def conversing(server: ScriptedServer, streaming: Writer) -> None:
    """Script an agent that works, except for its streams."""

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        method = json.loads(request.body)["method"] if request.body.endswith(b"}") else ""
        match method:
            case "SendMessage":
                await result({"task": task("COMPLETED")})(request, writer)
            case "GetTask":
                await result(task("COMPLETED"))(request, writer)
            case "SendStreamingMessage":
                await streaming(request, writer)
            case _:
                await result({})(request, writer)

    server.on(CARD, respond(card(server.url))).on("/", answer)


@pytest.mark.parametrize(
    ("streaming", "rule"),
    [
        (endless_stream({"task": task("WORKING")}), "stream.last-event"),
        (endless_stream(), "stream.last-event"),
        (hang, "stream.first-event"),
        (stream(), "stream.first-event"),
        (close, "stream.first-event"),
        (endless_body, "stream.first-event"),
    ],
    ids=["endless", "endless without a task", "hangs", "is empty", "closes", "is no stream"],
)
def test_a_stream_that_does_not_end_properly_fails_its_rule(terminal: Terminal, streaming: Writer, rule: str) -> None:
    with scripted() as server:
        conversing(server, streaming)
        ran = terminal("validate", server.url, *QUICKLY, "--message", "hi")

    found = checks(ran)
    assert ran.code == 1
    assert found["jsonrpc:send.answer"] == "pass"
    assert found[f"jsonrpc:{rule}"] == "fail"
