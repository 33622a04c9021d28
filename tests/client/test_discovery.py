"""The card: where the client finds it, how long it is cached, and how invalid cards are handled."""

import asyncio

import pytest

from apcore_a2a.client import A2AClient, Retry
from apcore_a2a.client.discovery import MAX_CARD
from apcore_a2a.errors import A2AConnectionError, A2ADiscoveryError
from tests.client.conftest import Connect
from tests.client.scripted import (
    CARD,
    OLD_CARD,
    STREAM_HEAD,
    Request,
    ScriptedServer,
    card,
    card_03,
    chunk,
    reset,
    respond,
    result,
    task,
)
from tests.requirements import requirement


@requirement("FR-CLI-002")
async def test_the_card_is_fetched_once_and_cached(server: ScriptedServer, connect: Connect) -> None:
    client = connect()

    first = await client.agent_card
    second = await client.agent_card

    assert first is second
    assert first.skills[0].id == "obey"
    assert [request.path for request in server.requests] == [CARD]


@requirement("FR-CLI-002")
async def test_the_card_is_also_found_at_the_old_well_known_path(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, respond({}, 404)).on(OLD_CARD, respond(card_03(server.url)))

    assert (await connect().agent_card).name == "Scripted"
    assert [request.path for request in server.requests] == [CARD, OLD_CARD]


async def test_the_well_known_path_is_relative_to_the_given_address(server: ScriptedServer, connect: Connect) -> None:
    server.on("/agents/one" + CARD, respond(card(server.url, name="One")))

    assert (await connect(server.url + "/agents/one/").agent_card).name == "One"


async def test_the_address_may_be_that_of_the_card(server: ScriptedServer, connect: Connect) -> None:
    server.on("/cards/one.json", respond(card(server.url, name="One")))

    assert (await connect(server.url + "/cards/one.json").agent_card).name == "One"


@requirement("FR-CLI-002")
async def test_an_expired_card_is_fetched_again(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, respond(card(server.url, name="Old")), respond(card(server.url, name="New")))
    client = connect(card_ttl=0.0)

    assert [(await client.agent_card).name, (await client.agent_card).name] == ["Old", "New"]


async def test_the_address_of_a_card_may_have_a_query(server: ScriptedServer, connect: Connect) -> None:
    # LangGraph's server has one card for each assistant.
    address = f"{CARD}?assistant_id=7"
    server.on(CARD, respond({}, 404)).on(address, respond(card(server.url, name="Seven"))).on("/", result(task()))
    client = connect(server.url + address)

    assert (await client.agent_card).name == "Seven"
    assert (await client.get_task("t-1")).id == "t-1"
    assert len(server.asked(address)) == 1


async def test_an_expired_card_is_revalidated_with_its_validators(server: ScriptedServer, connect: Connect) -> None:
    dated = {"ETag": '"one"', "Last-Modified": "Mon, 16 Nov 2026 07:00:00 GMT"}
    server.on(CARD, respond(card(server.url), headers=dated), respond(b"", 304))
    client = connect(card_ttl=0.0)

    assert await client.agent_card is await client.agent_card
    again = server.requests[1].headers
    assert (again["if-none-match"], again["if-modified-since"]) == ('"one"', "Mon, 16 Nov 2026 07:00:00 GMT")


async def test_validators_are_only_sent_to_the_url_they_came_from(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, respond(card(server.url), headers={"ETag": '"one"'}), respond({}, 404))
    server.on(OLD_CARD, respond(card_03(server.url, name="Moved")))
    client = connect(card_ttl=0.0)

    assert [(await client.agent_card).name, (await client.agent_card).name] == ["Scripted", "Moved"]
    assert [request.headers.get("if-none-match") for request in server.requests] == [None, '"one"', None]


@pytest.mark.parametrize("control", ["no-store", "no-cache", "public, max-age=0"])
async def test_the_agent_may_shorten_the_cache_lifetime_of_its_card(
    server: ScriptedServer, connect: Connect, control: str
) -> None:
    server.on(CARD, respond(card(server.url), headers={"Cache-Control": control}))
    client = connect()

    _ = await client.agent_card, await client.agent_card

    assert len(server.requests) == 2


async def test_the_agent_cannot_lengthen_the_cache_lifetime_of_its_card(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on(CARD, respond(card(server.url), headers={"Cache-Control": "max-age=3600"}))
    client = connect(card_ttl=0.0)

    _ = await client.agent_card, await client.agent_card

    assert len(server.requests) == 2


async def test_a_refresh_fetches_the_card_at_once(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, respond(card(server.url, name="Old")), respond(card(server.url, name="New")))
    client = connect()

    assert [(await client.agent_card).name, (await client.refresh_card()).name] == ["Old", "New"]


async def test_concurrent_calls_share_one_fetch_of_the_card(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result(task()))
    client = connect()

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(client.get_task("t-1"))

    assert (len(server.asked(CARD)), len(server.asked("/"))) == (1, 20)


@requirement("FR-CLI-002")
@pytest.mark.parametrize("status", [400, 401, 404, 418, 500])
async def test_an_http_error_is_a_discovery_error_with_status_and_address(
    server: ScriptedServer, connect: Connect, status: int
) -> None:
    server.on(CARD, respond({}, status)).on(OLD_CARD, respond({}, status))

    with pytest.raises(A2ADiscoveryError, match=f"HTTP {status} from {server.url}/.well-known/agent") as caught:
        _ = await connect().agent_card
    assert (caught.value.status, caught.value.url.startswith(server.url)) == (status, True)


@pytest.mark.parametrize("status", [429, 503])
async def test_the_card_of_an_overloaded_agent_is_retried_and_then_given_up(
    server: ScriptedServer, connect: Connect, status: int
) -> None:
    server.on(CARD, respond({}, status, {"Retry-After": "0"}))

    with pytest.raises(A2ADiscoveryError, match=f"HTTP {status}") as caught:
        _ = await connect(retry=Retry(base=0.0, attempts=4)).agent_card
    assert (caught.value.status, len(server.requests)) == (status, 4)


@requirement("FR-CLI-002")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "Invalid JSON in the agent card at"),
        (b"<html>", "Invalid JSON in the agent card at"),
        (b"\xff\xfe", "Invalid JSON in the agent card at"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "is not an agent card: JSON nested deeper"),
        (b"[]", "is not an agent card"),
        (b'{"name": 1}', "is not an agent card: .*name"),
        (b"{}", "is not an agent card"),
    ],
)
async def test_an_invalid_card_is_a_discovery_error(
    server: ScriptedServer, connect: Connect, body: bytes, said: str
) -> None:
    server.on(CARD, respond(body))

    with pytest.raises(A2ADiscoveryError, match=said):
        _ = await connect().agent_card


async def test_a_card_with_a_huge_content_length_is_not_read(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")

    with pytest.raises(A2ADiscoveryError, match="larger than"):
        _ = await connect().agent_card


async def test_an_endless_card_is_read_up_to_the_limit(server: ScriptedServer, connect: Connect) -> None:
    sent = 0

    async def pour(request: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(STREAM_HEAD)
        while True:
            writer.write(chunk(b" " * 65536))
            await writer.drain()
            sent += 65536

    server.on(CARD, pour)

    with pytest.raises(A2ADiscoveryError, match="larger than"):
        _ = await connect().agent_card
    assert sent < 20 * MAX_CARD  # the size of the socket buffers, not the gigabyte of the whole body


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/latest/meta-data", "http://127.0.0.1:1/", "/elsewhere.json"]
)
async def test_a_redirect_of_the_card_is_not_followed(server: ScriptedServer, connect: Connect, target: str) -> None:
    server.on(CARD, respond(b"", 302, {"Location": target})).on("/elsewhere.json", respond(card(server.url)))

    with pytest.raises(A2ADiscoveryError, match=r"HTTP 302 .*Redirects are not followed") as caught:
        _ = await connect(auth="Bearer s3cret").agent_card
    assert caught.value.status == 302
    assert len(server.requests) == 1


async def test_a_compressed_response_is_rejected(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, respond(b"\x1f\x8b", headers={"Content-Encoding": "gzip"}))

    with pytest.raises(A2ADiscoveryError, match="compressed"):
        _ = await connect().agent_card
    assert server.requests[0].headers["accept-encoding"] == "identity"


@requirement("FR-CLI-003")
async def test_an_unreachable_agent_is_a_connection_error_with_its_address() -> None:
    async with ScriptedServer() as gone:
        url = gone.url
    async with A2AClient(url, retry=Retry(base=0.0)) as client:
        with pytest.raises(A2AConnectionError, match=f"Cannot connect to {url}") as caught:
            _ = await client.agent_card
    assert not caught.value.sent


async def test_the_card_is_fetched_again_when_its_connection_breaks(server: ScriptedServer, connect: Connect) -> None:
    async def cut(request: Request, writer: asyncio.StreamWriter) -> None:
        reset(writer)

    server.on(CARD, cut, cut, respond(card(server.url)))

    assert (await connect().agent_card).name == "Scripted"


async def test_the_extended_card_replaces_the_public_one(server: ScriptedServer, connect: Connect) -> None:
    tagged = {"ETag": '"one"'}
    server.on(
        CARD, respond(card(server.url), headers=tagged), respond(b"", 304), respond(card(server.url, version="2"))
    )
    server.on("/", result(card(server.url, name="Extended")))
    client = connect(card_ttl=0.0)

    assert (await client.extended_card()).name == "Extended"
    assert [(await client.agent_card).name, (await client.agent_card).name] == ["Extended", "Scripted"]


async def test_an_extended_card_fetched_with_other_credentials_is_not_cached(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on("/", result(card(server.url, name="Extended")))
    client = connect()

    assert (await client.extended_card(auth="Bearer other")).name == "Extended"
    assert (await client.agent_card).name == "Scripted"
