"""A restart after kill -9: acknowledged messages, and agents that need a resource from a start-up hook."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from apcore_a2a import A2AClient
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import SendConfiguration, Task, TaskState
from tests.processes import PATIENCE, Process, running

AT_ONCE = SendConfiguration(return_immediately=True)

# The agent waits for a file, outputs the content of a pool that a hook creates, and then asks. "end" ends its task.
SERVER = """
import asyncio, sys
from pathlib import Path
from apcore_a2a import serve
from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.agents.functions.agent import ask

pool = []

async def open_pool():
    await asyncio.sleep(0.05)
    pool.append("open")

async def agent(text: str):
    while not Path(sys.argv[2]).exists():
        await asyncio.sleep(0.01)
    yield f"{text}: {pool[0]}"
    if text != "end":
        yield ask("And then?")

serve(
    as_agent(agent, retry_safe=True), host="127.0.0.1", port=0, store=f"sqlite:///{sys.argv[1]}", on_startup=[open_pool]
)
"""


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[tuple[Process, A2AClient]]:
    async with running("-c", SERVER, str(folder / "tasks.db"), str(folder / "go")) as process:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        async with A2AClient(url) as client:
            yield process, client


async def rest(client: A2AClient, task_id: str, messages: int) -> Task:
    """Return the task when it is at rest with so many messages of the user."""
    async with asyncio.timeout(PATIENCE):
        while True:
            task = await client.get_task(task_id)
            said = [message for message in task.history if message.role == "ROLE_USER"]
            if task.status.state in AT_REST and len(said) == messages:
                return task
            await asyncio.sleep(0.02)


async def test_acknowledged_messages_are_run_after_kill_9(tmp_path: Path) -> None:
    async with server(tmp_path) as (process, client):
        task = await client.send_message("begin", configuration=AT_ONCE)
        assert isinstance(task, Task)
        for text in ("more", "end"):
            await client.send_message(text, task_id=task.id, configuration=AT_ONCE)
        process.signal(signal.SIGKILL)
        await process.ends()
    (tmp_path / "go").touch()
    async with server(tmp_path) as (_, client):
        done = await rest(client, task.id, 3)
    assert done.status.state is TaskState.COMPLETED
    told = ["".join(str(part.text) for part in artifact.parts) for artifact in done.artifacts]
    assert told == ["begin: open", "more: open", "end: open"]
