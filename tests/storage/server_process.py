"""An agent on an SQLite file, in its own process, and a client of it."""

import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from apcore_a2a import A2AClient
from tests.processes import Process, running

SERVER = """
import asyncio, sys
from apcore_a2a import serve

async def echo(text: str) -> str:
    if text == "wait":
        await asyncio.Event().wait()
    return text

serve(echo, host="127.0.0.1", port=0, store=sys.argv[1], shutdown_timeout=0.1)
"""


class Server:
    """An agent in its own process, and a client of it."""

    def __init__(self, process: Process, client: A2AClient, url: str) -> None:
        self.process = process
        self._client = client
        self._url = url

    async def send(self, text: str, **options: Any) -> Any:  # Any: a task, as the client answers it
        return await self._client.send_message(text, **options)

    async def get(self, task_id: str) -> Any:
        return await self._client.get_task(task_id)

    async def health(self) -> int:
        async with httpx.AsyncClient() as http:
            return (await http.get(f"{self._url}/health")).status_code

    async def status_of_send(self, text: str = "hello") -> int:
        """Return the status of one request without retries, which the client class would make."""
        parts = [{"text": text}]
        message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": parts}
        async with httpx.AsyncClient(headers={"A2A-Version": "1.0"}) as http:
            return (await http.post(f"{self._url}/message:send", json={"message": message})).status_code

    async def status_of_listing(self) -> int:
        async with httpx.AsyncClient(headers={"A2A-Version": "1.0"}) as http:
            return (await http.get(f"{self._url}/tasks")).status_code

    async def stop(self) -> None:
        self.process.signal(signal.SIGTERM)
        await self.process.ends()


def start(path: Path) -> AbstractAsyncContextManager[Process]:
    return running("-c", SERVER, f"sqlite:///{path}")


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Server]:
    async with start(path) as process:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        async with A2AClient(url) as client:
            yield Server(process, client, url)
