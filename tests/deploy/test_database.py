"""What docs/deploy.md says of the database, done as it stands there: two users, a backup, a look at who runs what."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest

from tests.deploy.balancers import DEADLINE, Replica
from tests.postgres_server import PostgresServer, programs
from tests.processes import running
from tests.sources import ROOT
from tests.test_docs import blocks_of

PAGE: Final = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def block(beginning: str) -> str:
    """The block of the page that begins so."""
    (found,) = [each.code for each in blocks_of(PAGE) if each.code.startswith(beginning)]
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One of its own: users and databases have the names that the page gives them."""
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


Shell = Callable[[str, str], str]


@pytest.fixture
def shell(server: PostgresServer, tmp_path: Path) -> Shell:
    """Runs a program in the language of `sh` or `psql`, as an administrator; what it says."""
    environment = {"PATH": f"{programs()}:{os.environ['PATH']}", "PGHOST": str(server.folder), "PGUSER": "postgres"}

    def run(language: str, program: str) -> str:
        command = {"sh": ["sh", "-eu"], "psql": ["psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1"]}[language]
        ran = subprocess.run(
            command, input=program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


def store(server: PostgresServer, user: str, database: str = "agents") -> str:
    return f"postgresql://{user}@/{database}?host={server.folder}&lease=2"


@asynccontextmanager
async def served(url: str) -> AsyncIterator[str]:
    replica = Replica({"APCORE_A2A_STORE": url, "APCORE_A2A_METRICS": "true"})
    try:
        await replica.start()
        yield replica.url
    finally:
        await replica.close()


async def send(http: httpx.AsyncClient, url: str, text: str, *, wait: bool) -> dict[str, Any]:
    said = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    body = {"message": said, "configuration": {"returnImmediately": not wait}}
    task: dict[str, Any] = (await http.post(f"{url}/message:send", json=body)).json()["task"]
    return task


async def migrate(url: str) -> tuple[int, str]:
    async with running("-m", "apcore_a2a", "migrate", "--store", url) as process:
        return await process.ends(), process.said


async def until_ended(http: httpx.AsyncClient, url: str, task_id: str) -> str:
    async with asyncio.timeout(DEADLINE):
        while True:
            state: str = (await http.get(f"{url}/tasks/{task_id}")).json()["status"]["state"]
            if state != "TASK_STATE_WORKING":
                return state
            await asyncio.sleep(0.1)


async def test_two_users_a_backup_and_a_restored_database(server: PostgresServer, shell: Shell) -> None:
    shell("psql", block("CREATE ROLE agent_owner"))
    code, said = await migrate(store(server, "agent"))
    assert (code, "have the owner of the schema run: apcore-a2a migrate" in said) == (2, True)
    for _ in range(2):  # the second time there is nothing to do
        assert await migrate(store(server, "agent_owner")) == (0, "")

    async with httpx.AsyncClient(headers={"A2A-Version": "1.0"}, timeout=DEADLINE) as http:
        async with served(store(server, "agent")) as url:
            done = await send(http, url, "count 3 0 safe", wait=True)
            under_way = await send(http, url, "count 100000 0.05 unsafe", wait=False)
            looked = shell("psql", f"\\connect agents\n{block('SELECT name, place')}")
            assert looked.count("(1 row)") >= 2  # one replica, which runs one task
            shell("sh", block("pg_dump"))
            await send(http, url, "count 3 0 safe", wait=True)
        shell("sh", block("createdb"))
        async with served(store(server, "agent", "agents_restored")) as url:
            found = (await http.get(f"{url}/tasks/{done['id']}")).json()
            assert found == done
            assert await until_ended(http, url, under_way["id"]) == "TASK_STATE_FAILED"
            assert (await http.get(f"{url}/tasks")).json()["totalSize"] == 2  # not what came after the backup
            assert (await send(http, url, "count 3 0 safe", wait=True))["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    "statement",
    ["DROP TABLE event", "CREATE TABLE more ()", "TRUNCATE task", "CREATE SCHEMA more", "CREATE TEMP TABLE more ()"],
)
async def test_the_agents_user_may_make_and_drop_nothing(server: PostgresServer, shell: Shell, statement: str) -> None:
    if "agent_owner" not in shell("psql", "SELECT rolname FROM pg_roles"):
        shell("psql", block("CREATE ROLE agent_owner"))
        await migrate(store(server, "agent_owner"))
    with pytest.raises(AssertionError, match=r"permission denied|must be owner"):
        shell("psql", f"\\connect agents agent\nSET search_path = apcore_a2a;\n{statement}")


async def test_a_store_in_memory_has_no_tables() -> None:
    code, said = await migrate("memory://")
    assert (code, said) == (1, "Error: A store in memory has no tables. Pass a durable store with --store.\n")
