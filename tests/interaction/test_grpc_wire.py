"""gRPC on a socket, with the official library and types: deadlines, cancels, compression, limits, health."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2

from apcore_a2a import AgentExtension, Call, Limits
from apcore_a2a.http import grpc as binding
from apcore_a2a.http.rest import NEEDS_HTTP_2
from apcore_a2a.protocol.grpc import PATHS
from apcore_a2a.testing.webhook import WebhookReceiver
from tests.fakes import ASKS, COMPLETED, PATIENCE, Gate, Keys, ScriptedAgent, chunk
from tests.interaction.conftest import Serve

grpc: Any = pytest.importorskip("grpc", reason="grpcio is not installed: run make setup")
from a2a.types.a2a_pb2_grpc import A2AServiceStub as TypedStub  # noqa: E402
from grpc import aio  # noqa: E402

UNLIMITED: Final = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
A2AServiceStub: Any = TypedStub  # it has no types
HEALTH: Final = "/grpc.health.v1.Health/"


@asynccontextmanager
async def stub_of(url: str) -> AsyncIterator[Any]:
    async with aio.insecure_channel(urlsplit(url).netloc, options=UNLIMITED) as channel:
        yield A2AServiceStub(channel)


def send(text: str, *, id: str = "m-1", **configuration: Any) -> pb.SendMessageRequest:
    message = pb.Message(message_id=id, role=pb.ROLE_USER, parts=[pb.Part(text=text)])
    return pb.SendMessageRequest(message=message, configuration=pb.SendMessageConfiguration(**configuration))


async def code_of(call: Any) -> Any:
    """Return the code with which a call fails."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def latest(stub: Any) -> pb.Task:
    tasks: list[pb.Task] = list((await stub.ListTasks(pb.ListTasksRequest())).tasks)
    return tasks[0]


async def until_completed(stub: Any) -> None:
    """Return when the latest task is complete."""
    async with asyncio.timeout(PATIENCE):
        for _ in range(10_000):
            if (await latest(stub)).status.state == pb.TASK_STATE_COMPLETED:
                return
    raise AssertionError("the task was never completed")


# ---- deadlines and cancels ------------------------------------------------------------------------------------------


async def test_a_deadline_ends_only_the_wait(serve: Serve) -> None:
    gate = Gate()
    async with stub_of(await serve(ScriptedAgent({"hi": (gate, COMPLETED)}))) as stub:
        for seconds in (0.2, 2, 20):  # a busy machine may not even send the call within its deadline
            assert await code_of(stub.SendMessage(send("hi"), timeout=seconds)) == grpc.StatusCode.DEADLINE_EXCEEDED
            if (await stub.ListTasks(pb.ListTasksRequest())).tasks:
                break
        task = await latest(stub)
        assert task.status.state == pb.TASK_STATE_WORKING
        stream = stub.SubscribeToTask(pb.SubscribeToTaskRequest(id=task.id))
        await stream.read()
        gate.open()
        assert (await stream.read()).status_update.status.state == pb.TASK_STATE_COMPLETED


async def test_the_server_itself_sends_the_status_of_a_deadline(serve: Serve) -> None:
    gate = Gate()
    url = await serve(ScriptedAgent({"hi": (gate, COMPLETED)}))
    async with aio.insecure_channel(urlsplit(url).netloc) as channel:
        call = channel.unary_unary("/lf.a2a.v1.A2AService/SendMessage")
        # Metadata and not `timeout`: the client does not know of the deadline.
        waiting = call(send("hi").SerializeToString(), metadata=[("grpc-timeout", "200m")])
        with pytest.raises(aio.AioRpcError) as caught:
            await waiting
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            binding.TOO_LATE,
        )
        gate.open()
        stub = A2AServiceStub(channel)
        await until_completed(stub)


async def test_a_deadline_ends_a_stream_with_its_status_and_the_task_goes_on(serve: Serve) -> None:
    gate = Gate()
    url = await serve(ScriptedAgent({"hi": (chunk("a"), gate, COMPLETED)}))
    async with aio.insecure_channel(urlsplit(url).netloc) as channel:
        stub = A2AServiceStub(channel)
        call = channel.unary_stream("/lf.a2a.v1.A2AService/SendStreamingMessage")
        stream = call(send("hi").SerializeToString(), metadata=[("grpc-timeout", "300m")])
        with pytest.raises(aio.AioRpcError) as caught:
            async for _ in stream:
                pass
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        gate.open()
        await until_completed(stub)


async def test_a_message_that_waits_for_its_turn_is_run_after_its_deadline(serve: Serve) -> None:
    gate = Gate()
    agent = ScriptedAgent({"one": (gate, ASKS)})
    async with stub_of(await serve(agent)) as stub:
        task = (await stub.SendMessage(send("one", return_immediately=True))).task
        await gate.reached()
        second = send("two", id="m-2")
        second.message.task_id = task.id
        for seconds in (0.2, 2):  # as above
            assert await code_of(stub.SendMessage(second, timeout=seconds)) == grpc.StatusCode.DEADLINE_EXCEEDED
        gate.open()
        await until_completed(stub)
    assert [call.text for call in agent.calls][:2] == ["one", "two"]


async def test_a_malformed_deadline_is_an_error(serve: Serve) -> None:
    url = await serve(ScriptedAgent())
    async with aio.insecure_channel(urlsplit(url).netloc) as channel:
        call = channel.unary_unary("/lf.a2a.v1.A2AService/GetTask")
        assert await code_of(call(b"", metadata=[("grpc-timeout", "soon")])) == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_canceled_call_ends_only_its_wait_and_the_connection_stays(serve: Serve) -> None:
    gate = Gate()
    async with stub_of(await serve(ScriptedAgent({"hi": (gate, COMPLETED)}))) as stub:
        for call in (stub.SendMessage(send("hi")), stub.SendStreamingMessage(send("hi"))):
            connected = asyncio.ensure_future(call.wait_for_connection())
            await gate.reached()
            call.cancel()
            await asyncio.gather(connected, return_exceptions=True)
        assert (await latest(stub)).status.state == pb.TASK_STATE_WORKING
        gate.open()
        await until_completed(stub)


async def test_hundreds_of_calls_that_time_out_do_not_end_the_connection(serve: Serve) -> None:
    gate = Gate()
    async with stub_of(await serve(ScriptedAgent({"hi": (gate, COMPLETED)}))) as stub:
        for _ in range(8):
            calls = [code_of(stub.SendMessage(send("hi"), timeout=0.05)) for _ in range(40)]
            assert set(await asyncio.gather(*calls)) == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert (await stub.ListTasks(pb.ListTasksRequest())).page_size
        gate.open()


# ---- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["Gzip", "Deflate"])
async def test_compressed_requests_are_read_within_the_limit(serve: Serve, compression: str) -> None:
    url = await serve(ScriptedAgent(), limits=Limits(max_request_bytes=100_000))
    kind = getattr(grpc.Compression, compression)
    async with stub_of(url) as stub:
        answer = await stub.SendMessage(send("x" * 90_000), compression=kind)
        assert answer.task.history[0].parts[0].text == "x" * 90_000
        bomb = stub.SendMessage(send("x" * 10_000_000), compression=kind)
        assert await code_of(bomb) == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_request_over_the_limit_is_rejected(serve: Serve) -> None:
    async with stub_of(await serve(ScriptedAgent(), limits=Limits(max_request_bytes=100_000))) as stub:
        assert await code_of(stub.SendMessage(send("x" * 200_000))) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.SendMessage(send("hi"))).task.id


async def test_files_and_data_arrive_as_the_official_types(serve: Serve) -> None:
    async def echo(call: Call) -> Any:
        yield call.message.parts[0].data
        yield call.message.parts[1]

    request = send("")
    del request.message.parts[:]
    value = {"whole": 3, "half": 0.5, "none": None, "list": [1, "a", {}], "exact": 2**53}
    json_format.ParseDict(value, request.message.parts.add().data)
    request.message.parts.add(raw=b"\0\1\2" * 50_000, filename="a.bin", media_type="application/octet-stream")
    from apcore_a2a import as_agent

    async with stub_of(await serve(as_agent(echo), card=None)) as stub:
        task = (await stub.SendMessage(request)).task
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    assert json_format.MessageToDict(parts[0].data) == value
    assert (parts[1].raw, parts[1].filename) == (b"\0\1\2" * 50_000, "a.bin")


async def test_an_answer_larger_than_the_windows_arrives_whole(serve: Serve) -> None:
    agent = ScriptedAgent({"hi": (chunk("x" * 5_000_000), COMPLETED)})
    async with stub_of(await serve(agent)) as stub:
        task = (await stub.SendMessage(send("hi"))).task
        assert len(task.artifacts[0].parts[0].text) == 5_000_000
        stream = stub.SendStreamingMessage(send("hi", id="m-2"))
        sizes = [event.ByteSize() async for event in stream]
        assert max(sizes) > 5_000_000


# ---- errors ---------------------------------------------------------------------------------------------------------


def details_of(error: Any) -> list[Any]:
    metadata = dict(error.trailing_metadata())
    found: list[Any] = []
    for detail in status_pb2.Status.FromString(metadata["grpc-status-details-bin"]).details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
            if detail.Is(kind.DESCRIPTOR):
                message = kind()
                detail.Unpack(message)
                found.append(message)
    return found


@pytest.mark.parametrize(
    ("old", "code"), [(False, "FAILED_PRECONDITION"), (True, "UNIMPLEMENTED")], ids=["1.0.1", "1.0.0"]
)
async def test_a_version_that_is_not_that_of_the_service_is_rejected(serve: Serve, old: bool, code: str) -> None:
    async with stub_of(await serve(ScriptedAgent(), old_statuses=old)) as stub:
        for version in ("99.0", "0.3"):
            call = stub.SendMessage(send("hi"), metadata=[("a2a-version", version)])
            assert (await code_of(call)).name == code
        for version in ("1.0", "1.0.1"):
            assert (await stub.SendMessage(send("hi"), metadata=[("a2a-version", version)])).task.id


async def test_missing_credentials_are_unauthenticated_with_a_challenge(serve: Serve) -> None:
    async with stub_of(await serve(ScriptedAgent(), auth=Keys())) as stub:
        for metadata in ([], [("x-api-key", "wrong")], [("x-api-key", "key of ada"), ("x-api-key", "key of eve")]):
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.ListTasks(pb.ListTasksRequest(), metadata=metadata)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert "www-authenticate" in dict(caught.value.trailing_metadata())
            assert details_of(caught.value)[0].reason == "UNAUTHENTICATED"
        assert await stub.ListTasks(pb.ListTasksRequest(), metadata=[("x-api-key", "key of ada")])


async def test_a_rate_limit_says_when_to_retry(serve: Serve) -> None:
    limits = Limits(max_requests_per_second=0.1, request_burst=1)
    async with stub_of(await serve(ScriptedAgent(), limits=limits)) as stub:
        await stub.ListTasks(pb.ListTasksRequest())
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.ListTasks(pb.ListTasksRequest())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        metadata = dict(caught.value.trailing_metadata())
        assert int(metadata["retry-after"]) > 1
        assert details_of(caught.value)[1].retry_delay.seconds == int(metadata["retry-after"])


@pytest.mark.parametrize("path", ["/lf.a2a.v1.A2AService/Nope", "/x.Y/Nope", HEALTH + "Watch"])
async def test_an_unknown_method_is_unimplemented(serve: Serve, path: str) -> None:
    url = await serve(ScriptedAgent())
    async with aio.insecure_channel(urlsplit(url).netloc) as channel:
        assert await code_of(channel.unary_unary(path)(b"")) == grpc.StatusCode.UNIMPLEMENTED


async def test_a_host_that_is_not_this_machine_is_rejected(serve: Serve) -> None:
    url = await serve(ScriptedAgent(), host="127.0.0.1")
    options = [("grpc.default_authority", "evil.example")]
    async with aio.insecure_channel(urlsplit(url).netloc, options=options) as channel:
        stub = A2AServiceStub(channel)
        assert await code_of(stub.ListTasks(pb.ListTasksRequest())) == grpc.StatusCode.INVALID_ARGUMENT


async def test_an_error_of_the_server_shows_only_a_reference(serve: Serve) -> None:
    class Broken(ScriptedAgent):
        async def admit(self, call: Call) -> Any:
            raise ValueError("secret")

    async with stub_of(await serve(Broken())) as stub:
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.SendMessage(send("hi"))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value.trailing_metadata()) + str(caught.value.details())


async def test_without_grpc_the_port_speaks_http_1_1_only(serve: Serve, http: httpx.AsyncClient) -> None:
    url = await serve(ScriptedAgent(), grpc=False)
    async with stub_of(url) as stub:
        assert await code_of(stub.ListTasks(pb.ListTasksRequest())) == grpc.StatusCode.UNAVAILABLE
    card = (await http.get(f"{url}/.well-known/agent-card.json")).json()
    assert "GRPC" not in {interface["protocolBinding"] for interface in card["supportedInterfaces"]}


@pytest.mark.parametrize("path", [path for path in PATHS.values() if path.endswith("/SendMessage")])
async def test_a_call_that_a_proxy_passes_on_as_http_1_1_is_explained_in_the_log(
    serve: Serve, http: httpx.AsyncClient, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = await serve(ScriptedAgent())
    with caplog.at_level(logging.INFO):
        answer = await http.post(f"{url}{path}", content=b"\0" * 5, headers={"Content-Type": "application/grpc"})
    assert answer.status_code == 404  # which gRPC clients take for UNIMPLEMENTED
    assert [vars(record)["reason"] for record in caplog.records if "refused" in record.message] == [NEEDS_HTTP_2]


# ---- the rest -------------------------------------------------------------------------------------------------------


async def test_webhooks_are_set_and_called(serve: Serve) -> None:
    gate = Gate()
    agent = ScriptedAgent({"hi": (gate, COMPLETED)})
    async with WebhookReceiver() as hook:
        url = await serve(agent, push_notifications=True, allow_insecure_webhooks=True)
        async with stub_of(url) as stub:
            task = (await stub.SendMessage(send("hi", return_immediately=True))).task
            config = pb.TaskPushNotificationConfig(task_id=task.id, id="hook", url=hook.url, token="t")
            assert (await stub.CreateTaskPushNotificationConfig(config)).id == "hook"
            gate.open()
            async with asyncio.timeout(PATIENCE):
                await hook.next()
            wanted = pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="hook")
            await stub.DeleteTaskPushNotificationConfig(wanted)
            listing = await stub.ListTaskPushNotificationConfigs(
                pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
            )
            assert list(listing.configs) == []


async def test_activated_extensions_are_metadata_of_the_answer(serve: Serve) -> None:
    declared = [AgentExtension(uri="urn:a"), AgentExtension(uri="urn:b")]
    metadata = [("a2a-extensions", "urn:b,urn:unknown,urn:a")]
    async with stub_of(await serve(ScriptedAgent(), extensions=declared)) as stub:
        call = stub.SendMessage(send("hi"), metadata=metadata)
        assert dict(await call.initial_metadata())["a2a-extensions"] == "urn:a, urn:b"
        await call
        events = stub.SendStreamingMessage(send("hi", id="m-2"), metadata=metadata)
        assert dict(await events.initial_metadata())["a2a-extensions"] == "urn:a, urn:b"
        assert [event async for event in events] != []


async def test_an_idempotency_key_and_a_trace_are_metadata(serve: Serve) -> None:
    agent = ScriptedAgent()
    metadata = [("idempotency-key", "k-1"), ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01")]
    async with stub_of(await serve(agent)) as stub:
        first = (await stub.SendMessage(send("hi"), metadata=metadata)).task
        assert (await stub.SendMessage(send("hi", id="m-2"), metadata=metadata)).task.id == first.id
    assert agent.calls[0].headers["traceparent"] == metadata[1][1]


def health_request(service: str) -> bytes:
    return b"\x0a" + bytes([len(service)]) + service.encode() if service else b""


@pytest.mark.parametrize("service", ["", "readiness", "lf.a2a.v1.A2AService", "a2a.v1.A2AService", "liveness"])
async def test_the_health_service_needs_no_credentials(serve: Serve, service: str) -> None:
    url = await serve(ScriptedAgent(), auth=Keys())
    async with aio.insecure_channel(urlsplit(url).netloc) as channel:
        assert await channel.unary_unary(HEALTH + "Check")(health_request(service)) == b"\x08\x01"
        assert await code_of(channel.unary_unary(HEALTH + "Check")(health_request("x"))) == grpc.StatusCode.NOT_FOUND
        for wrong in (b"\x0a\xff", b"x" * 100_000):
            code = await code_of(channel.unary_unary(HEALTH + "Check")(wrong))
            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)


async def test_the_health_service_says_when_the_store_does_not_answer(serve: Serve) -> None:
    from apcore_a2a.storage.memory import InMemoryTaskStore

    class Sick(InMemoryTaskStore):
        async def check(self) -> None:
            raise OSError("no disk")

    url = await serve(ScriptedAgent(), task_store=Sick())
    async with aio.insecure_channel(urlsplit(url).netloc) as channel:
        check = channel.unary_unary(HEALTH + "Check")
        assert await check(b"") == b"\x08\x02"
        assert await check(health_request("liveness")) == b"\x08\x01"


async def test_a_server_that_supports_trailers_serves_grpc_without_our_connections() -> None:
    """Hypercorn speaks HTTP/2 itself."""
    from hypercorn.asyncio import serve as hypercorn_serve
    from hypercorn.config import Config

    from apcore_a2a import create_app
    from tests.interaction.serving import listen

    async def shout(text: str) -> str:
        return text.upper()

    with listen() as free:
        port = free.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    stop = asyncio.Event()
    app: Any = create_app(shout, grpc=True)
    running = asyncio.create_task(hypercorn_serve(app, config, shutdown_trigger=stop.wait))
    try:
        async with stub_of(f"http://127.0.0.1:{port}") as stub:
            answer = await stub.SendMessage(send("hi"), wait_for_ready=True, timeout=PATIENCE)
            assert answer.task.artifacts[0].parts[0].text == "HI"
            stream = stub.SendStreamingMessage(send("hi"))
            states = [event.status_update.status.state async for event in stream]
            assert states[-1] == pb.TASK_STATE_COMPLETED
            assert await code_of(stub.GetTask(pb.GetTaskRequest(id="nope"))) == grpc.StatusCode.NOT_FOUND
    finally:
        stop.set()
        await running
