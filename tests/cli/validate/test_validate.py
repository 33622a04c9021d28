"""`validate` with agents that follow the rules, and agents that break each of them."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from apcore_a2a.cli.validate.card_checks import check_card
from tests.cli.conftest import Ran, Terminal, elsewhere, scripted
from tests.client.scripted import CARD, Request, Writer, card, respond
from tests.client.scripted_http2 import serving_frames
from tests.client.test_grpc import refusing, status

HEADERS = {"etag": '"1"', "cache-control": "max-age=60"}
URL = "https://agent.example"
GOOD = card(URL)


def broken(ran: Ran) -> dict[str, str]:
    return {check["id"]: check["clause"] for check in ran.json["checks"] if check["result"] == "fail"}


def always(**answer: object) -> Writer:
    """Return a writer that sends the same answer to every request."""

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        id = None
        if request.body.endswith(b"}"):
            id = json.loads(request.body)["id"]
        writer.write(respond({"jsonrpc": "2.0", "id": id, **answer}))

    return write


def test_our_own_agent_passes_every_rule(terminal: Terminal, url: str) -> None:
    ran = terminal("validate", url, "--message", "hello", "--json")

    assert (ran.code, broken(ran), ran.json["valid"]) == (0, {}, True)
    ids = {check["id"] for check in ran.json["checks"] if check["result"] == "pass"}
    assert {
        *("card.fields", "card.caching", "jsonrpc:errors.version", "http+json:errors.unknown-task"),
        *("jsonrpc:stream.first-event", "http+json:stream.last-event", "jsonrpc:cancel.ended-task"),
        *("grpc:errors.version", "grpc:binding.errors", "grpc:stream.media-type", "grpc:subscribe.ended-task"),
    } <= ids


def test_the_text_report_is_readable(terminal: Terminal, url: str) -> None:
    ran = terminal("conformance", url)

    assert ran.code == 0
    assert "Pass: card.fields (A2A 4.4.1) The card has every required field\n" in ran.out
    assert ran.fields["Result"].startswith("0 failed, 0 warnings, ")


def test_no_message_is_sent_without_the_message_option(terminal: Terminal, url: str) -> None:
    terminal("validate", url)

    assert terminal("tasks", url, "--json").json["totalSize"] == 0


@pytest.mark.parametrize("name", ["sdk1", "js", "fasta2a"])
def test_agents_of_other_implementations_are_validated(
    terminal: Terminal, peer: Callable[[str], str], name: str
) -> None:
    ran = terminal("validate", peer(name), "--message", "echo hi", "--json")

    assert ran.code in (0, 1)
    assert ran.json["summary"]["pass"] > 5
    if name == "sdk1":  # 1.1 breaks two rules that 1.3 follows
        assert {id.partition(":")[2] for id in broken(ran)} <= {"cancel.ended-task", "subscribe.ended-task"}


@pytest.mark.parametrize(
    ("changes", "clause", "problem"),
    [
        ({"name": None}, "4.4.1", "name is not a string"),
        ({"skills": ...}, "4.4.1", "skills is missing"),
        ({"defaultInputModes": [1]}, "4.4.1", "defaultInputModes[0] is not a string"),
        ({"supportedInterfaces": []}, "4.4.6", "supportedInterfaces is empty"),
        ({"supportedInterfaces": [{"url": "/x"}]}, "4.4.6", "supportedInterfaces[0].protocolBinding is missing"),
        ({"supportedInterfaces": [{"url": "/x"}]}, "4.4.6", "supportedInterfaces[0].url is not an absolute URL"),
        ({"skills": [{"id": "a"}]}, "4.4.5", "skills[0].tags is missing"),
        ({"skills": GOOD["skills"] * 2}, "4.4.5", "skills[1].id 'obey' is not unique"),
        ({"capabilities": {"streaming": "yes"}}, "4.4.3", "capabilities.streaming is not true or false"),
        ({"capabilities": {"extensions": [{}]}}, "4.4.3", "capabilities.extensions[0].uri is missing"),
        ({"securitySchemes": {"a": {"type": "http"}}}, "4.5.1", "securitySchemes.a is not exactly one of"),
        ({"securityRequirements": [{"schemes": {"b": {}}}]}, "4.5.1", "securityRequirements[0] names 'b'"),
        (
            {"securityRequirements": [{"schemes": {"b": []}}]},
            "4.5.1",
            "securityRequirements[0].schemes.b is not",
        ),
        ({"signatures": [{"protected": "x"}]}, "8.4.2", "signatures[0].signature is missing"),
    ],
)
def test_an_invalid_card_is_reported_with_clause_and_field(changes: dict[str, Any], clause: str, problem: str) -> None:
    broken = {name: value for name, value in (GOOD | changes).items() if value is not ...}

    failed = [finding for finding in check_card(broken, HEADERS, URL) if finding.result == "fail"]

    assert any(finding.clause == clause and finding.message.startswith(problem) for finding in failed)


def test_a_valid_card_passes_every_check() -> None:
    assert {finding.result for finding in check_card(GOOD, HEADERS, URL)} == {"pass"}


@pytest.mark.parametrize(
    ("changes", "url", "problem"),
    [
        (
            {},
            "https://my-agent.run.app",
            "supportedInterfaces[0].url names the host agent.example, but",
        ),
        (
            {"url": "http://localhost:8000"},
            URL,
            "url names localhost, which only callers on the agent's",
        ),
        (
            {"url": "https://other.example"},
            URL,
            "supportedInterfaces[0].url and url name different hosts",
        ),
        ({"url": "other.example:7"}, URL, "url names the host other.example"),
        (
            {"supportedInterfaces": [{"url": "http://agent.example"}]},
            URL,
            "supportedInterfaces[0].url is not",
        ),
    ],
)
def test_other_addresses_than_the_one_of_the_card_are_warnings(changes: dict[str, Any], url: str, problem: str) -> None:
    found = [finding for finding in check_card(GOOD | changes, HEADERS, url) if finding.id == "card.addresses"]

    assert {finding.result for finding in found} == {"warn"}
    assert [finding.message for finding in found if finding.message.startswith(problem)] != []


def test_an_address_that_is_not_a_url_is_reported_by_its_own_rule() -> None:
    broken = GOOD | {"supportedInterfaces": [{"url": "http://[::1"}]}

    assert {finding.result for finding in check_card(broken, HEADERS, URL) if finding.id == "card.addresses"} == {
        "pass"
    }


def test_a_recommendation_is_only_a_warning() -> None:
    versioned = [GOOD["supportedInterfaces"][0] | {"protocolVersion": "1.0.0"}]

    found = check_card(GOOD | {"supportedInterfaces": versioned}, {}, URL)

    assert [finding.id for finding in found if finding.result == "warn"] == [
        "card.versions",
        "card.caching",
        "card.caching",
    ]


@pytest.mark.parametrize("nonsense", [None, [], "card", 7])
def test_a_card_that_is_not_an_object_is_reported(nonsense: object) -> None:
    assert [finding.result for finding in check_card(nonsense, {}, URL)] == ["fail"]


def test_an_agent_that_always_returns_the_wrong_error_fails_every_rule(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(CARD, respond(card(server.url, capabilities={}))).on(
            "/", always(error={"code": -32000, "message": "whatever"})
        )
        ran = terminal("validate", server.url, "--json", "--message", "hi")

    assert ran.code == 1
    assert broken(ran) == {
        "jsonrpc:errors.unknown-task": "3.1.3",
        "jsonrpc:errors.cancel-unknown-task": "3.1.5",
        "jsonrpc:errors.version": "3.6.2",
        "jsonrpc:errors.no-parts": "3.3.2",
        "jsonrpc:capabilities.push": "3.3.4",
        "jsonrpc:capabilities.extended-card": "3.3.4",
        "jsonrpc:binding.parse-error": "9.5",
        "jsonrpc:binding.unknown-method": "9.5",
        "jsonrpc:list.fields": "3.1.4",
        "jsonrpc:send.answer": "3.1.1",
    }


def test_an_agent_that_always_answers_the_wrong_status_over_grpc_fails_its_rules(terminal: Terminal) -> None:
    with elsewhere(serving_frames(refusing(status(13, "whatever")))) as calls, scripted() as server:
        offer = {"url": calls.target, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
        server.on(CARD, respond(card(server.url, capabilities={}, supportedInterfaces=[offer])))
        distrusted = terminal("validate", server.url, "--json")
        ran = terminal("validate", server.url, "--allow-origin", f"http://{calls.target}", "--json")

    skipped = [check for check in distrusted.json["checks"] if check["id"] == "card.speaks"]
    assert ["another origin" in check["message"] for check in skipped] == [True]
    assert ran.code == 1
    assert broken(ran) == {
        "grpc:errors.unknown-task": "3.1.3",
        "grpc:errors.cancel-unknown-task": "3.1.5",
        "grpc:errors.version": "3.6.2",
        "grpc:errors.no-parts": "3.3.2",
        "grpc:capabilities.push": "3.3.4",
        "grpc:capabilities.extended-card": "3.3.4",
        "grpc:binding.errors": "10.6",
        "grpc:list.fields": "3.1.4",
    }


def test_an_agent_that_accepts_everything_fails_the_rules(terminal: Terminal) -> None:
    task = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}}
    with scripted() as server:
        server.on(CARD, respond(card(server.url, capabilities={}))).on("/", always(result=task))
        ran = terminal("validate", server.url, "--json")

    messages = {check["id"]: check["message"] for check in ran.json["checks"]}
    assert messages["jsonrpc:errors.unknown-task"] == "expected TaskNotFoundError, but it was accepted"


def test_a_card_alone_can_be_validated(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(CARD, respond(card(server.url, skills=[{"id": "x"}])))
        ran = terminal("card", "get", server.url, "--validate", "--json")

    assert ran.code == 1
    assert set(broken(ran)) == {"card.skills"}


def test_a_card_that_the_client_cannot_use_is_still_validated(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(CARD, respond({"name": "half a card"}))
        ran = terminal("validate", server.url, "--json")

    assert ran.code == 1
    assert "card.fields" in broken(ran)
