"""`apcore-a2a serve --workers`: several processes on one port, one of which may die."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.postgres_server import shared_server
from tests.processes import Process, running

AGENT = """
import os

async def who(text: str) -> str:
    return str(os.getpid())
"""


@pytest.fixture
def agent(tmp_path: Path) -> str:
    (tmp_path / "agent.py").write_text(AGENT)
    return f"{tmp_path / 'agent.py'}:who"


async def ask(http: httpx.AsyncClient, url: str) -> int:
    """Which worker answers, on a connection of its own."""
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
    headers = {"A2A-Version": "1.0", "Connection": "close"}
    answer = await http.post(f"{url}/message:send", json={"message": said}, headers=headers)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["task"]["artifacts"][0]["parts"][0]["text"])


async def all_workers(http: httpx.AsyncClient, url: str, count: int, *, without: int = 0) -> set[int]:
    """Ask until so many workers have answered."""
    found: set[int] = set()
    async with asyncio.timeout(20):
        while len(found) < count:
            found.add(await ask(http, url))
            found.discard(without)
    return found


async def test_workers_share_a_port_a_dead_one_is_replaced_and_figures_are_added_up(agent: str) -> None:
    arguments = ("serve", agent, "--port", "0", "--workers", "2", "--store", shared_server().url(), "--metrics")
    async with running("-m", "apcore_a2a", *arguments) as process, httpx.AsyncClient() as http:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        await process.says(r"running on [^$]*running on")  # both of them
        before = await all_workers(http, url, 2)
        assert process.pid not in before
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        after = await all_workers(http, url, 2, without=victim)
        assert len(after & before) == 1
        await until_counted(http, url, process)
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    for worker in after:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


async def until_counted(http: httpx.AsyncClient, url: str, process: Process) -> None:
    """Every worker shows the same sum, once each has written down its own."""
    async with asyncio.timeout(10):
        while True:
            shown = [(await http.get(f"{url}/metrics", headers={"Connection": "close"})).json() for _ in range(8)]
            completed = {figures["completed_tasks"] for figures in shown}
            if len(completed) == 1 and min(completed) >= 3:
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("store", [(), ("--store", "sqlite:///tasks.db")])
async def test_a_store_of_one_process_is_refused(agent: str, store: tuple[str, ...]) -> None:
    async with running("-m", "apcore_a2a", "serve", agent, "--workers", "2", *store) as process:
        assert await process.ends() == 1
        assert "--workers needs a store that processes can share: --store postgresql://" in process.said


async def test_workers_that_cannot_start_end_with_the_reason(agent: str) -> None:
    url = shared_server().url("nowhere")
    async with running("-m", "apcore_a2a", "serve", agent, "--port", "0", "--workers", "2", "--store", url) as process:
        assert await process.ends() != 0
        assert "has no such database" in process.said
