"""The gRPC binding of the client: requests, statuses and the addresses in cards. test_peers.py has every operation."""

import asyncio
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from apcore_a2a.client import A2AClient, ApiKeyAuth, Client
from apcore_a2a.client.auth import TrustedOrigins
from apcore_a2a.errors import (
    A2AConnectionError,
    A2ADiscoveryError,
    A2AError,
    A2AServerError,
    InvalidAgentResponseError,
    InvalidParamsError,
    LimitExceededError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol.grpc import error_status
from apcore_a2a.protocol.model import Task
from apcore_a2a.protocol.protobuf import v1
from tests.client.scripted import CARD, ScriptedServer, card, respond, result, stream
from tests.client.scripted import task as json_task
from tests.client.scripted_http2 import SENT, TASK, Call, Connection, an_event, answering, data
from tests.client.test_http2_transport import ONCE, calling
from tests.fakes import PATIENCE, Keys, ScriptedAgent
from tests.http2_peer import DATA, frame
from tests.interaction.serving import serving


def refusing(trailers: Mapping[str, str]) -> Any:  # Any: a script
    async def script(connection: Connection) -> None:
        await connection.begin()
        while True:
            connection.refuse((await connection.request()).stream, trailers)

    return script


def status(code: int, text: str = "", **more: str) -> dict[str, str]:
    return {"grpc-status": str(code), "grpc-message": text} | {name.replace("_", "-"): more[name] for name in more}


@pytest.mark.parametrize(
    ("trailers", "kind"),
    [
        (status(3, "bad"), InvalidParamsError),
        (status(5, "no"), TaskNotFoundError),
        (status(8, "calm", retry_after="7"), LimitExceededError),
        (status(8, "calm", grpc_retry_pushback_ms="7000"), LimitExceededError),
        (status(8, "too large"), A2AServerError),
        (status(12, "no"), UnsupportedOperationError),
        (status(13, "oops"), A2AServerError),
        (status(14, "down"), A2AConnectionError),
        (status(4, "late"), A2AConnectionError),
        (status(16, "who"), UnauthenticatedError),
        (status(12, "TaskNotCancelableError: it has ended"), TaskNotCancelableError),
        (status(99, "new"), A2AServerError),
    ],
    ids=lambda value: value.get("grpc-message") if isinstance(value, dict) else None,
)
async def test_a_status_without_a_reason_has_an_error_class(trailers: dict[str, str], kind: type[A2AError]) -> None:
    async with calling(refusing(trailers), retry=ONCE) as (client, _):
        with pytest.raises(kind) as caught:
            await client.get_task("t-1")

    assert type(caught.value) is kind
    assert trailers["grpc-message"] in str(caught.value)
    if isinstance(caught.value, LimitExceededError):
        assert caught.value.retry_after == 7


async def test_the_reason_of_a_status_takes_precedence_over_its_code() -> None:
    error = InvalidParamsError(None, [])
    trailers = {name.decode(): value.decode() for name, value in error_status(error, "UNAVAILABLE")}

    async with calling(refusing(trailers), retry=ONCE) as (client, _):
        with pytest.raises(InvalidParamsError):
            await client.get_task("t-1")


async def test_text_of_an_agent_is_sanitized() -> None:
    async with calling(refusing(status(13, "%1b[31mred%0aline")), retry=ONCE) as (client, _):
        with pytest.raises(A2AServerError) as caught:
            await client.get_task("t-1")

    assert str(caught.value).isprintable()


def http_response(code: str) -> Any:  # Any: a script
    async def script(connection: Connection) -> None:
        await connection.begin()
        while True:
            call = await connection.request()
            connection.send(connection.head(call.stream, {":status": code, "content-type": "text/html"}, ends=True))

    return script


@pytest.mark.parametrize(("code", "kind"), [("401", UnauthenticatedError), ("404", A2AServerError)])
async def test_a_response_of_a_proxy_is_an_error_with_its_status(code: str, kind: type[A2AError]) -> None:
    async with calling(http_response(code), retry=ONCE) as (client, _):
        with pytest.raises(kind, match=code):
            await client.get_task("t-1")
        with pytest.raises(A2AError):
            _ = [event async for event in client.stream_message("hi")]


async def test_a_web_page_is_not_an_answer() -> None:
    async with calling(http_response("200"), retry=ONCE) as (client, _):
        with pytest.raises(InvalidAgentResponseError, match="not one of gRPC"):
            await client.get_task("t-1")


async def test_an_answer_without_a_status_is_a_broken_connection() -> None:
    async def script(connection: Connection) -> None:
        await connection.begin()
        call = await connection.request()
        connection.send(connection.answer_head(call.stream), data(TASK, call.stream))
        connection.send(frame(DATA, flags=1, stream=call.stream))

    async with calling(script, retry=ONCE) as (client, _):
        with pytest.raises(A2AConnectionError, match="no status"):
            await client.get_task("t-1")


@pytest.mark.parametrize(
    "sent", [b"", b"\1\0\0\0\1x", b"\0\0\0\0\1\xff", b"\0\0\0\0\0" * 2], ids=["none", "compressed", "malformed", "two"]
)
async def test_an_answer_that_is_not_one_message_is_invalid(sent: bytes) -> None:
    async def script(connection: Connection) -> None:
        await connection.begin()
        call = await connection.request()
        connection.send(connection.answer_head(call.stream), frame(DATA, sent, stream=call.stream))
        connection.send(connection.head(call.stream, {"grpc-status": "0"}, ends=True))

    async with calling(script, retry=ONCE) as (client, _):
        with pytest.raises(InvalidAgentResponseError):
            await client.get_task("t-1")


async def test_a_request_has_the_metadata_of_the_other_bindings() -> None:
    calls: list[Call] = []

    async def script(connection: Connection) -> None:
        await connection.begin()
        calls.append(await connection.request())
        connection.answer(calls[0], SENT)

    options: dict[str, Any] = {"auth": ApiKeyAuth("s3cret"), "extensions": ["https://example.com/ext"]}
    async with calling(script, **options) as (client, server):
        await client.send_message("hi", headers={"Idempotency-Key": "k"})

    headers = calls[0].headers
    assert headers[":path"] == "/lf.a2a.v1.A2AService/SendMessage"
    assert (headers["content-type"], headers["te"], headers[":authority"]) == (
        "application/grpc",
        "trailers",
        server.target,
    )
    assert (headers["a2a-version"], headers["a2a-extensions"]) == ("1.0", "https://example.com/ext")
    assert (headers["x-api-key"], headers["idempotency-key"]) == ("s3cret", "k")


async def test_credentials_are_renewed_after_a_rejected_stream() -> None:
    tokens = iter(["old", "new"])
    seen: list[str] = []

    async def script(connection: Connection) -> None:
        await connection.begin()
        for _ in range(2):
            call = await connection.request()
            seen.append(call.headers["authorization"])
            if len(seen) == 1:
                connection.refuse(call.stream, status(16, "expired"))
            else:
                connection.answer(call, an_event("COMPLETED"))

    async def token() -> str:
        return next(tokens)

    async with calling(script) as (client, _):
        await client.agent_card
        assert len([event async for event in client.stream_message("hi", auth=token)]) == 1

    assert seen == ["Bearer old", "Bearer new"]


class CountingExecutor(ThreadPoolExecutor):
    """The default executor of an event loop, with a count of the functions that ran on its threads."""

    def __init__(self) -> None:
        super().__init__(1)
        self.count = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize(("size", "is_large"), [(1_000, False), (200_000, True)])
async def test_large_messages_are_decoded_on_a_thread(size: int, is_large: bool) -> None:
    artifacts = [{"artifactId": "a", "parts": [{"text": "x" * size}]}]
    task = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": artifacts}
    unary = v1.MESSAGES["Task"].encode(task)
    event = v1.MESSAGES["StreamResponse"].encode({"task": task})
    executor = CountingExecutor()
    asyncio.get_running_loop().set_default_executor(executor)

    for answer in (unary, event):
        async with calling(answering(answer)) as (client, _):
            await client.agent_card
            executor.count = 0
            if answer is unary:
                assert len((await client.get_task("t-1")).text) == size
            else:
                assert len([event async for event in client.stream_message("hi")]) == 1
            assert (executor.count > 0) is is_large


# ---- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "target", "url"),
    [
        ("http://a.example:8000", "a.example:8000", "http://a.example:8000"),
        ("https://a.example", "a.example:443", "https://a.example:443"),
        ("https://a.example", "a.example", "https://a.example"),
        ("https://a.example", "grpc.example:443", "https://grpc.example:443"),
        ("http://a.example", "grpcs://grpc.example:443", "https://grpc.example:443"),
        ("https://a.example", "grpc://plain.example:50051", "http://plain.example:50051"),
        ("https://a.example", "plain.example:50051", "http://plain.example:50051"),
        ("http://a.example", "http://a.example/", "http://a.example/"),
    ],
)
def test_a_target_is_called_with_the_scheme_of_a_trusted_origin(agent: str, target: str, url: str) -> None:
    trusted = TrustedOrigins(agent, ["https://grpc.example", "http://plain.example:50051"])

    assert trusted.complete(target) == url
    assert url in trusted


@pytest.mark.parametrize(
    "target", ["evil.example:443", "a.example:8000@evil.example:1", "a.example:1/..", "", "\u202e:1"]
)
async def test_a_target_that_is_not_trusted_is_not_called(server: ScriptedServer, target: str) -> None:
    offer = {"url": target, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    server.on(CARD, respond(card(server.url, supportedInterfaces=[offer])))

    async with A2AClient(server.url, auth="Bearer s3cret") as client:
        with pytest.raises(A2ADiscoveryError, match="another origin"):
            await client.get_task("t-1")


# ---- with our server -------------------------------------------------------------------------------------------------


async def test_the_extended_card_is_returned_to_authenticated_callers() -> None:
    async with serving(ScriptedAgent(), auth=Keys()) as url, A2AClient(url, binding="GRPC") as client:
        with pytest.raises(UnauthenticatedError):
            await client.extended_card()
        extended = await client.extended_card(auth=ApiKeyAuth("key of ada"))

    assert extended.name == "scripted"


async def test_the_wrong_fields_of_a_message_are_named() -> None:
    async with serving(ScriptedAgent()) as url, A2AClient(url, binding="GRPC") as client:
        with pytest.raises(InvalidParamsError) as caught:
            await client.list_tasks(page_size=-1)

    assert [violation.field for violation in caught.value.violations] == ["pageSize"]


async def test_0_3_cannot_list_tasks_over_grpc() -> None:
    async with serving(ScriptedAgent()) as url, A2AClient(url, binding="GRPC", version="0.3") as client:
        with pytest.raises(UnsupportedOperationError, match=r"A2A 0\.3 has no ListTasks over gRPC"):
            await client.list_tasks()


async def test_the_webhooks_of_an_agent_are_asked_for_over_http() -> None:
    """Their status is an extension of this package, which is no method of gRPC."""
    async with serving(ScriptedAgent(), push_notifications=True) as url, A2AClient(url, binding="GRPC") as client:
        assert await client.webhooks() == []


async def test_the_synchronous_client_uses_grpc() -> None:
    def use(url: str) -> None:
        with Client(url, binding="GRPC") as client:
            task = client.send_message("hi")
            assert isinstance(task, Task)
            assert client.interface.protocol_binding == "GRPC"
            assert list(client.stream_message("hi"))

    async with serving(ScriptedAgent()) as url:
        await asyncio.to_thread(use, url)


async def test_a_card_that_lists_grpc_first_is_called_over_grpc() -> None:
    async with calling(answering(TASK)) as (client, server):
        assert (await client.interface).protocol_binding == "GRPC"
        await client.get_task("t-1")

    assert len(server.connections) == 1


@pytest.mark.parametrize("streams", [False, True])
async def test_another_interface_is_used_if_the_server_has_no_http_2(
    server: ScriptedServer, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    offer = {"url": f"127.0.0.1:{server.port}", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    other = {"url": f"{server.url}/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    server.on(CARD, respond(card(server.url, supportedInterfaces=[offer, other])))
    server.on("/", stream({"task": json_task()}) if streams else result({"task": json_task()}))

    async with A2AClient(server.url) as client:
        if streams:
            assert len([event async for event in client.stream_message("hi")]) == 1
        else:
            for _ in range(2):
                assert isinstance(await client.send_message("hi"), Task)
        assert (await client.interface).protocol_binding == "JSONRPC"
    assert [record.levelname for record in caplog.records if "offers gRPC first" in record.message] == ["WARNING"]
    async with A2AClient(server.url, binding="GRPC", retry=ONCE) as client:
        with pytest.raises(A2AConnectionError, match="does not speak HTTP/2"):
            await client.get_task("t-1")


WITHOUT_H2 = """
import asyncio, sys
sys.modules["h2"] = None  # as if it were not installed
from apcore_a2a import A2AClient
from apcore_a2a.errors import A2ADiscoveryError

try:
    A2AClient(sys.argv[1], binding="GRPC")
except ValueError as error:
    print(error)

async def main():
    async with A2AClient(sys.argv[1]) as client:
        try:
            await client.get_task("t-1")
        except A2ADiscoveryError as error:
            print(error)

asyncio.run(main())
"""


async def test_without_h2_the_error_says_how_to_install_it(server: ScriptedServer) -> None:
    offer = {"url": f"127.0.0.1:{server.port}", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    server.on(CARD, respond(card(server.url, supportedInterfaces=[offer])))

    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT_H2, server.url, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        said, _ = await run.communicate()

    install = "gRPC needs h2: pip install 'apcore-a2a[grpc]'"
    offered = "The agent offers GRPC 1.0, but this client is set to JSONRPC or HTTP+JSON, A2A 1.0 or 0.3"
    assert said.decode().splitlines() == [install, f"{offered}. {install}"]
