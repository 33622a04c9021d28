"""The construction of a client, and the headers that it sends."""

import asyncio
import socket
from collections.abc import Callable, Mapping

import httpx
import pytest

import apcore_a2a.client
from apcore_a2a.client import A2AClient, ApiKeyAuth, Client, Retry
from apcore_a2a.errors import A2AConnectionError
from tests.client.conftest import Connect
from tests.client.scripted import CARD, STREAM_HEAD, Request, ScriptedServer, event, hang, result, task
from tests.fakes import PATIENCE
from tests.requirements import requirement


@requirement("FR-CLI-001")
@pytest.mark.parametrize("url", ["http://agent.example", "https://agent.example:8443/agents/one/", "http://[::1]:80"])
def test_an_http_address_makes_a_client(url: str) -> None:
    assert A2AClient(url).url == url.rstrip("/")


@requirement("FR-CLI-001")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "agent.example",
        "ftp://agent.example",
        "http://",
        "http:///path",
        "http://agent.example:99999",
        "http://agent.example:port",
        "http://user:secret@agent.example",
        "http://agent.example/?q=1",
        "http://agent.example/#top",
        "http://agent.example/\nHost: evil",
        " http://agent.example",
        "http://[::1",
    ],
)
def test_anything_else_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        A2AClient(url)
    assert "secret" not in str(caught.value)


@requirement("FR-CLI-001")
@pytest.mark.parametrize("auth", ["Bearer s3cret", "s3cret"])
async def test_a_bearer_token_goes_with_every_request(server: ScriptedServer, connect: Connect, auth: str) -> None:
    server.on("/", result({"task": task()}), result(task()))
    client = connect(auth=auth)

    await client.send_message("hi")
    await client.get_task("t-1")

    assert [request.headers["authorization"] for request in server.requests] == ["Bearer s3cret"] * 3


@requirement("FR-CLI-001")
async def test_the_timeout_bounds_a_call(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", hang)

    with pytest.raises(A2AConnectionError, match=r"within 0\.05 seconds\. Pass timeout="):
        await connect(timeout=0.05).send_message("hi")


@requirement("FR-CLI-001")
async def test_a_call_may_have_its_own_timeout(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", hang)

    with pytest.raises(A2AConnectionError, match=r"within 0\.05 seconds"):
        await connect(timeout=None).send_message("hi", timeout=0.05)


async def test_a_timeout_between_attempts_reports_the_last_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"

    # The pause before the second attempt is longer than the timeout of the call, but not than that of the client.
    async with A2AClient(url, timeout=60, retry=Retry(base=30.0, cap=30.0)) as client:
        with pytest.raises(A2AConnectionError, match=r"Connection refused\. Is the agent running") as caught:
            await client.get_task("t-1", timeout=0.2)
    assert not caught.value.sent


async def test_a_server_that_never_sends_its_card_is_a_connection_error(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on(CARD, hang)

    with pytest.raises(A2AConnectionError, match=r"within 0\.05 seconds"):
        _ = await connect(timeout=0.05).agent_card


@requirement("FR-CLI-001")
async def test_an_httpx_client_of_the_caller_carries_the_requests(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result({"task": task()}))
    async with httpx.AsyncClient(headers={"X-From": "httpx"}) as http:
        client = connect(http=http)
        await client.send_message("hi")
        await client.close()

        assert not http.is_closed
    assert [request.headers["x-from"] for request in server.requests] == ["httpx", "httpx"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"binding": "SOAP"}, "binding must be one of JSONRPC, HTTP"),
        ({"binding": "GRPC", "http": httpx.AsyncClient()}, "Leave http= out"),
        ({"version": "2.0"}, r"version must be one of 1\.0, 0\.3"),
        ({"signatures": "maybe"}, "signatures must be one of"),
        ({"signatures": "require"}, "needs keys="),
        ({"allow_origins": ["not an origin"]}, "Not an http or https address"),
        ({"allow_origins": "https://agent.example"}, "allow_origins must be a list"),
        ({"extensions": "urn:example:1"}, "extensions must be a list"),
        ({"idle_timeout": 0}, "idle_timeout must be positive"),
        ({"max_response": -1}, "max_response must be positive"),
        ({"poll_interval": float("nan")}, "poll_interval must not be negative"),
    ],
)
def test_an_invalid_option_is_a_value_error(options: Mapping[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        A2AClient("http://agent.example", **options)  # type: ignore[arg-type]  # that is the point


def test_an_option_that_does_not_exist_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(TypeError, match=r"A2AClient has no option bindng\. Did you mean binding\?"):
        A2AClient("http://agent", bindng="HTTP+JSON")  # type: ignore[call-arg]  # that is the test


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        A2AClient("http://agent.example", colour="red")  # type: ignore[call-arg]


async def test_an_unknown_option_of_a_call_is_a_type_error(connect: Connect) -> None:
    with pytest.raises(TypeError, match="colour"):
        await connect().get_task("t-1", colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "make",
    [
        lambda: A2AClient("http://agent.example", auth="Bearer two\r\nlines"),
        lambda: A2AClient("http://agent.example", auth=""),
        lambda: ApiKeyAuth("two\nlines"),
    ],
)
def test_a_credential_that_is_not_a_valid_header_is_rejected_without_repeating_it(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="A credential must not be empty") as caught:
        make()
    assert "two" not in str(caught.value)


def test_a_repr_contains_no_secret() -> None:
    client = A2AClient("http://agent.example", auth="Bearer s3cret")
    key = ApiKeyAuth("s3cret")
    with Client("http://agent.example", auth="Bearer s3cret") as twin:
        assert "s3cret" not in repr([client, vars(client), key, twin])


async def test_calls_of_a_closed_client_raise_a_runtime_error(connect: Connect) -> None:
    client = connect()
    await client.close()
    await client.close()

    with pytest.raises(RuntimeError, match="closed"):
        _ = await client.agent_card


async def test_pending_readers_are_woken_when_a_client_closes(server: ScriptedServer, connect: Connect) -> None:
    asked = asyncio.Semaphore(0)

    async def half_an_answer(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        asked.release()
        await hang(request, writer)

    async def one_event(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(request, {"task": task("WORKING")}))
        await hang(request, writer)

    server.on("/", half_an_answer, one_event)
    client = connect(timeout=None)
    call = asyncio.create_task(client.get_task("t-1"))
    await asked.acquire()
    events = client.stream_message("hi")
    await anext(events)
    step = asyncio.create_task(anext(events))
    await asyncio.sleep(0)
    await client.close()

    for reader in (call, step):
        with pytest.raises(RuntimeError, match="closed"):
            async with asyncio.timeout(PATIENCE):
                await reader


async def test_a_client_raises_an_error_in_another_event_loop(server: ScriptedServer, connect: Connect) -> None:
    client = connect()
    await client.discover()

    def look_again() -> None:
        asyncio.run(client.refresh_card())

    with pytest.raises(RuntimeError, match="belongs to the event loop of its first call"):
        await asyncio.to_thread(look_again)


async def test_headers_of_a_call_are_sent_with_that_call_only(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result(task()))
    client = connect()
    await client.get_task("t-1", headers={"traceparent": "00-1"})
    await client.get_task("t-1")

    assert [request.headers.get("traceparent") for request in server.asked("/")] == ["00-1", None]


async def test_headers_of_a_call_replace_the_clients_in_any_letter_case(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on("/", result(task()))

    async with httpx.AsyncClient() as http:  # httpx sends headers as given, and aiohttp would hide a second spelling
        await connect(auth="Bearer mine", http=http).get_task("t-1", headers={"authorization": "Bearer theirs"})

    assert server.asked("/")[0].headers["authorization"] == "Bearer theirs"


async def test_a_timeout_of_a_token_provider_is_not_reported_as_the_clients(connect: Connect) -> None:
    async def provide() -> str:
        raise TimeoutError("the vault is slow")

    with pytest.raises(TimeoutError, match="the vault is slow"):
        await connect(auth=provide, timeout=None).get_task("t-1")


def test_the_package_exports_every_name_in_all() -> None:
    assert all(hasattr(apcore_a2a.client, name) for name in apcore_a2a.client.__all__)
