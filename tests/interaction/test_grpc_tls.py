"""gRPC over TLS: the choice of HTTP/2 in the handshake, and callers who show a certificate."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from grpc import aio

from apcore_a2a import A2AClient, ClientCertificateAuthenticator
from apcore_a2a.client.http2_transport import HTTP2Transport
from apcore_a2a.errors import TaskNotFoundError, UnauthenticatedError
from apcore_a2a.protocol.model import Task
from tests.fakes import COMPLETED, PATIENCE, ScriptedAgent
from tests.http.server.test_tls import Authority
from tests.interaction.serving import serving

AGENT = ScriptedAgent(default=(COMPLETED,))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def credentials(authority: Authority, name: str) -> grpc.ChannelCredentials:
    key = chain = None
    if name:
        paths = authority.files(name, f"{name}.example")
        chain = Path(paths[0]).read_bytes()
        key = Path(paths[1]).read_bytes()
    return grpc.ssl_channel_credentials(Path(authority.pem).read_bytes(), key, chain)


@asynccontextmanager
async def official(url: str, authority: Authority, name: str = "") -> AsyncIterator[Any]:
    """Open a channel of grpcio, with a certificate of that name, and yield the stub of the service."""
    async with aio.secure_channel(url.removeprefix("https://"), credentials(authority, name)) as channel:
        yield A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


@asynccontextmanager
async def ours(url: str, authority: Authority, name: str = "") -> AsyncIterator[A2AClient]:
    context: ssl.SSLContext = authority.trusting(authority.files(name, f"{name}.example") if name else None)
    context.set_alpn_protocols(["h2"])
    transport = HTTP2Transport(context)
    try:
        async with A2AClient(url, binding="GRPC", http=transport) as client:
            yield client
    finally:
        await transport.close()


def message(text: str) -> pb.SendMessageRequest:
    return pb.SendMessageRequest(message=pb.Message(message_id=text, role=pb.ROLE_USER, parts=[pb.Part(text=text)]))


async def test_each_certificate_owns_its_tasks_over_grpc(authority: Authority) -> None:
    tls = authority.context(ca_certs=authority.pem, client_certs="optional", http2=True)
    async with serving(AGENT, tls=tls, auth=ClientCertificateAuthenticator()) as url:
        async with official(url, authority, "one") as stub:
            sent = (await stub.SendMessage(message("hi"), timeout=PATIENCE)).task
            listed = await stub.ListTasks(pb.ListTasksRequest(), timeout=PATIENCE)
            assert [task.id for task in listed.tasks] == [sent.id]
        async with official(url, authority, "two") as stub:
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.GetTask(pb.GetTaskRequest(id=sent.id), timeout=PATIENCE)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        async with official(url, authority) as stub:
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.GetTask(pb.GetTaskRequest(id=sent.id), timeout=PATIENCE)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_our_client_shows_its_certificate_over_grpc(authority: Authority) -> None:
    tls = authority.context(ca_certs=authority.pem, client_certs="optional", http2=True)
    async with serving(AGENT, tls=tls, auth=ClientCertificateAuthenticator()) as url:
        async with ours(url, authority, "one") as client:
            task = await client.send_message("hi")
            assert isinstance(task, Task)
            assert (await client.get_task(task.id)).id == task.id
        async with ours(url, authority, "two") as client:
            with pytest.raises(TaskNotFoundError):
                await client.get_task(task.id)
        async with ours(url, authority) as client:
            with pytest.raises(UnauthenticatedError):
                await client.get_task(task.id)
