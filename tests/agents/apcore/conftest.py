"""apcore modules on a real socket, and a client for every binding and version."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import httpx
import pytest

from tests.fakes import PATIENCE
from tests.interaction.conftest import WIRES
from tests.interaction.serving import serving
from tests.interaction.wire_client import WireClient


class SpeakTo(Protocol):
    async def __call__(self, source: Any, **options: Any) -> WireClient: ...


@pytest.fixture(params=WIRES, ids=lambda tongue: " ".join(tongue))
async def speak_to(request: pytest.FixtureRequest) -> AsyncIterator[SpeakTo]:
    """Serves a registry or an executor, with a client for each binding and version."""
    binding, version = request.param
    async with AsyncExitStack() as stack:

        async def start(source: Any, **options: Any) -> WireClient:
            url = await stack.enter_async_context(serving(source, card=None, **options))
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=PATIENCE))
            return WireClient(client, rest=binding == "REST", version=version)

        yield start
