"""The application under another ASGI server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config

from apcore_a2a.app.serve import build_app
from apcore_a2a.protocol.model import Task, TaskState
from tests.fakes import COMPLETED, PATIENCE, Gate, ScriptedAgent, chunk
from tests.interaction.conftest import WIRES
from tests.interaction.serving import CARD, listen
from tests.interaction.wire_client import Refused, WireClient
from tests.requirements import requirement


@asynccontextmanager
async def hypercorn(agent: ScriptedAgent) -> AsyncIterator[str]:
    app: Any = build_app(agent, card=CARD, shutdown_timeout=0.1)  # hypercorn has its own ASGI types
    listener = listen()
    url, config, end = f"http://127.0.0.1:{listener.getsockname()[1]}", Config(), asyncio.Event()
    config.bind, config.graceful_timeout, config.loglevel = [f"fd://{listener.detach()}"], 1, "CRITICAL"
    running = asyncio.create_task(serve(app, config, shutdown_trigger=end.wait))
    try:
        yield url
    finally:
        end.set()
        await running


@requirement("NFR-CMP-004")
@pytest.mark.parametrize(("binding", "version"), WIRES)
async def test_hypercorn_serves_every_binding_and_version(binding: str, version: str) -> None:
    gate = Gate()
    agent = ScriptedAgent(
        {"hi": (chunk("a"), COMPLETED), "slow": (chunk("a"), gate, chunk("b", append=True), COMPLETED)}
    )
    async with hypercorn(agent) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http:
        client = WireClient(http, rest=binding == "REST", version=version)
        task = await client.send("hi")
        assert (task.status.state, task.artifacts[0].parts[0].text) == (TaskState.COMPLETED, "a")
        assert await client.get(task.id) == task
        async with client.stream("slow") as stream:
            first = await stream.next()
            assert isinstance(first, Task)
            await gate.reached()
            async with client.subscribe(first.id) as again:
                snapshot = await again.next()
                assert isinstance(snapshot, Task) and snapshot.artifacts[0].parts[0].text == "a"
                gate.open()
                assert len(await again.rest()) == 2
        with pytest.raises(Refused):
            await client.cancel(task.id)
        card = await http.head("/.well-known/agent-card.json")
        assert card.status_code == 200 and int(card.headers["content-length"]) > 0
