"""The agent card on the wire: its forms and its caching."""

from typing import Any

import httpx
import pytest

from tests.fakes import ScriptedAgent
from tests.interaction.conftest import Serve
from tests.requirements import requirement

CARD, OLD_CARD = "/.well-known/agent-card.json", "/.well-known/agent.json"
ONLY_1_0 = {"supportedInterfaces"}
ONLY_0_3 = {"url", "preferredTransport", "protocolVersion", "additionalInterfaces"}


@pytest.fixture
async def agent(serve: Serve, http: httpx.AsyncClient) -> httpx.AsyncClient:
    http.base_url = httpx.URL(await serve(ScriptedAgent()))
    return http


def forms(card: dict[str, Any]) -> tuple[bool, bool]:
    return card.keys() >= ONLY_1_0, card.keys() >= ONLY_0_3


@requirement("FR-AGC-003")
@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        (CARD, {}, (True, True)),
        (CARD, {"A2A-Version": "1.0"}, (True, False)),
        (CARD + "?A2A-Version=1.0", {}, (True, False)),
        (OLD_CARD, {}, (False, True)),
    ],
)
async def test_a_card_has_the_form_that_the_client_requests(
    agent: httpx.AsyncClient, path: str, headers: dict[str, str], expected: tuple[bool, bool]
) -> None:
    response = await agent.get(path, headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert forms(response.json()) == expected
    assert response.headers["vary"] == "A2A-Version"


@pytest.mark.parametrize(
    ("mode", "expected"), [("1.0", (True, False)), ("0.3", (False, True)), ("hybrid", (True, True))]
)
async def test_a_setting_fixes_the_form_of_the_card(
    serve: Serve, http: httpx.AsyncClient, mode: str, expected: tuple[bool, bool]
) -> None:
    url = await serve(ScriptedAgent(), card_mode=mode)
    for path in (CARD, OLD_CARD):
        assert forms((await http.get(url + path, headers={"A2A-Version": "1.0"})).json()) == expected


async def test_a_card_contains_its_address_in_the_form_of_each_binding(agent: httpx.AsyncClient) -> None:
    card = (await agent.get(CARD)).json()
    own = str(agent.base_url)
    addresses: dict[str, set[tuple[str, str]]] = {"1.0": set(), "0.3": set()}
    for interface in card["supportedInterfaces"]:
        addresses[interface["protocolVersion"]].add((interface["protocolBinding"], interface["url"]))
    http = {("JSONRPC", f"{own}/"), ("HTTP+JSON", own)}  # clients append paths to the REST address
    assert addresses["1.0"] == {*http, ("GRPC", own.removeprefix("http://"))}  # a target, not a URL
    assert addresses["0.3"] == {*http, ("GRPC", own)}
    assert card["url"] == f"{own}/"
    old = {(interface["transport"], interface["url"]) for interface in card["additionalInterfaces"]}
    assert old == addresses["0.3"]


@pytest.mark.parametrize("url", ["https://agent.example/a/", "https://agent.example/a"])
async def test_the_rest_address_has_no_trailing_slash(serve: Serve, http: httpx.AsyncClient, url: str) -> None:
    card = (await http.get(await serve(ScriptedAgent(), url=url) + CARD)).json()
    addresses = {(interface["protocolBinding"], interface["url"]) for interface in card["supportedInterfaces"]}
    assert addresses == {("JSONRPC", url), ("HTTP+JSON", "https://agent.example/a")}


@requirement("FR-AGC-003")
@pytest.mark.parametrize("path", [CARD, OLD_CARD])
async def test_a_cached_card_is_revalidated_by_etag_or_date(agent: httpx.AsyncClient, path: str) -> None:
    first = await agent.get(path)
    assert first.headers["cache-control"] == "max-age=300"
    etag, date = first.headers["etag"], first.headers["last-modified"]
    for known in (
        {"If-None-Match": etag},
        {"If-None-Match": f'"other", W/{etag}'},
        {"If-None-Match": "*"},
        {"If-Modified-Since": date},
    ):
        response = await agent.get(path, headers=known)
        assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", etag)
    for unknown in (
        {"If-None-Match": '"other"'},
        {"If-Modified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"},
        {"If-None-Match": '"other"', "If-Modified-Since": date},
    ):
        assert (await agent.get(path, headers=unknown)).status_code == 200


async def test_each_form_of_the_card_has_its_own_etag(agent: httpx.AsyncClient) -> None:
    responses = [
        await agent.get(CARD),
        await agent.get(CARD, headers={"A2A-Version": "1.0"}),
        await agent.get(OLD_CARD),
    ]
    assert len({response.headers["etag"] for response in responses}) == 3


async def test_head_returns_the_headers_of_get_without_the_card(agent: httpx.AsyncClient) -> None:
    get, head = await agent.get(CARD), await agent.head(CARD)
    assert (head.status_code, head.content) == (200, b"")
    same = ("content-type", "content-length", "etag", "last-modified", "cache-control")
    assert [head.headers[name] for name in same] == [get.headers[name] for name in same]


async def test_health_returns_the_number_of_skills(agent: httpx.AsyncClient) -> None:
    response = await agent.get("/health")
    assert response.status_code == 200
    body = response.json()
    assert (body["status"], body["module_count"]) == ("healthy", 1) and body["uptime_seconds"] >= 0
