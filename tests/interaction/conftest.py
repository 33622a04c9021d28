"""Fixtures: a scripted agent on a socket, and a WireClient for every binding and version."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import httpx
import pytest

from apcore_a2a.agent import Agent
from tests.fakes import PATIENCE
from tests.interaction.peers import js
from tests.interaction.peers import sdk03 as sdk03_peer
from tests.interaction.peers.process import Process
from tests.interaction.serving import serving
from tests.interaction.wire_client import WireClient

WIRES = [(binding, version) for version in ("1.0", "0.3") for binding in ("JSON-RPC", "REST", "gRPC")]


class Serve(Protocol):
    """Any: what `serve` accepts."""

    async def __call__(self, agent: Any, **options: Any) -> str: ...


class Connect(Protocol):
    async def __call__(self, agent: Agent, **options: Any) -> WireClient: ...


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve agents until the test ends. A call returns the address of its agent."""
    async with AsyncExitStack() as stack:

        async def start(agent: Any, **options: Any) -> str:
            return await stack.enter_async_context(serving(agent, **options))

        yield start


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        yield client


@pytest.fixture(scope="session")
def sdk03() -> Iterator[Process]:
    process = Process(sdk03_peer.COMMAND)
    yield process
    process.end()


@pytest.fixture(scope="session")
def js1() -> Iterator[Process]:
    process = Process(js.COMMAND, cwd=js.installed())
    yield process
    process.end()


@pytest.fixture(params=WIRES, ids=lambda wire: " ".join(wire))
async def connect(request: pytest.FixtureRequest, serve: Serve) -> AsyncIterator[Connect]:
    """Serve an agent and return a WireClient to it, once for every binding and version."""
    binding, version = request.param
    async with AsyncExitStack() as stack:

        async def start(agent: Agent, **options: Any) -> WireClient:
            url = await serve(agent, **options)
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=PATIENCE))
            if binding != "gRPC":
                return WireClient(client, rest=binding == "REST", version=version)
            pytest.importorskip("grpc", reason="grpcio is not installed: run make setup")
            from tests.interaction.grpc_client import GRPCClient

            grpc = GRPCClient(client, version=version)
            stack.push_async_callback(grpc.channel.close)
            return grpc

        yield start
