"""A server that cannot start prints one line with the reason and exits with 2. A signal ends a running server."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apcore_a2a import A2AClient
from tests.processes import Process, running
from tests.requirements import requirement

EXTENSIONS = Path(__file__).parents[2] / "examples" / "extensions"
SERVE = """
import sys
from apcore_a2a import serve

async def echo(text: str) -> str:
    return text

serve(echo, host="127.0.0.1", port=int(sys.argv[1]), store=sys.argv[2])
"""
AS_FUNCTION = ["-c", SERVE]
AS_COMMAND = ["-m", "apcore_a2a", "serve", "--host", "127.0.0.1", "--extensions-dir", str(EXTENSIONS)]
PLAIN_ASYNCIO = "import sys; sys.modules['uvloop'] = None\n"  # as if uvloop were not installed
BOTH = pytest.mark.parametrize("as_command", [False, True], ids=["function", "command"])


def arguments(*, port: int = 0, store: str = "memory://", as_command: bool) -> list[str]:
    if as_command:
        return [*AS_COMMAND, "--port", str(port), "--store", store]
    return [*AS_FUNCTION, str(port), store]


def reason(process: Process) -> str:
    """Return the line with the reason. Asserts that it is the only one, and that nothing looks like a start."""
    lines = [line for line in process.said.splitlines() if line.lower().startswith("error")]
    assert len(lines) == 1, process.said
    assert "Traceback" not in process.said
    assert "running on" not in process.said
    assert "agent-card.json" not in process.said  # part of the banner
    return lines[0]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@requirement("FR-CMD-002")
@BOTH
async def test_a_port_in_use_is_an_error_with_a_remedy(taken: int, as_command: bool, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with running(*arguments(port=taken, store=store, as_command=as_command)) as process:
        assert await process.ends() == 2
    said = reason(process)
    assert f"127.0.0.1:{taken}" in said
    assert "--port" in said
    assert os.listdir(tmp_path) == []  # the store was not opened


@requirement("FR-CMD-002")
async def test_a_foreign_host_address_is_an_error_with_a_remedy() -> None:
    script = SERVE.replace('host="127.0.0.1"', 'host="192.0.2.1"')
    async with running("-c", script, "0", "memory://") as process:
        assert await process.ends() == 2
    assert "--host" in reason(process)


@BOTH
@pytest.mark.parametrize(
    ("file", "cause", "way_out"),
    [
        ("missing/tasks.db", "there is no directory", "--store"),
        ("directory", "cannot be opened", "--store"),
        ("text.db", "not a database", "--store"),
    ],
)
async def test_a_store_that_cannot_be_opened_is_an_error_with_a_remedy(
    tmp_path: Path, as_command: bool, file: str, cause: str, way_out: str
) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "text.db").write_text("Dear diary, this is no database, however long I make it. " * 100)
    # The store's line may be long. It must not be truncated before the reason.
    store = f"sqlite:///{tmp_path}/{file}"
    async with running(*arguments(store=store, as_command=as_command)) as process:
        assert await process.ends() == 2
    said = reason(process)
    assert cause in said
    assert way_out in said


@BOTH
async def test_a_store_in_use_is_an_error_with_a_remedy(tmp_path: Path, as_command: bool) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with running(*arguments(store=store, as_command=False)) as first:
        await first.says("running on")
        async with running(*arguments(store=store, as_command=as_command)) as second:
            assert await second.ends() == 2
    said = reason(second)
    assert "in use by another process" in said
    assert "Stop that process" in said


async def test_a_failing_startup_hook_is_logged_with_its_traceback() -> None:
    script = SERVE.replace("store=sys.argv[2]", "on_startup=[lambda: 1 / 0]")
    async with running("-c", script, "0", "") as process:
        assert await process.ends() == 2
    assert process.said.count("ZeroDivisionError") == 1
    assert "running on" not in process.said


TAKEN_BEFORE_LISTEN = """
import socket, sys
from apcore_a2a import serve

async def echo(text: str) -> str:
    return text

def take_port() -> None:
    # Another process could do the same: two sockets may be bound to a port until one of them listens.
    global other
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.bind(("127.0.0.1", int(sys.argv[1])))
    other.listen()

serve(
    echo, host="127.0.0.1", port=int(sys.argv[1]), on_startup=[take_port],
    on_shutdown=[lambda: print("closed", file=sys.stderr, flush=True)],
)
"""


@pytest.mark.parametrize("before", ["", PLAIN_ASYNCIO], ids=["uvloop", "asyncio"])
async def test_a_port_that_is_taken_during_the_start_is_an_error_with_a_remedy(before: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with running("-c", before + TAKEN_BEFORE_LISTEN, str(port)) as process:
        assert await process.ends() == 2
    said = reason(process)
    assert f"127.0.0.1:{port}" in said
    assert "--port" in said
    assert "closed" in process.said  # the application, with its store


EXITING = """
import asyncio, sys
from apcore_a2a import serve

async def leave() -> None:
    sys.exit(0)

async def echo(text: str) -> str:
    if text == "leave":
        child = asyncio.create_task(leave())
        await asyncio.wait([child])
    return text

serve(echo, host="127.0.0.1", port=0)
"""


@requirement("NFR-REL-001")
@pytest.mark.parametrize("before", ["", PLAIN_ASYNCIO], ids=["uvloop", "asyncio"])
async def test_a_child_task_of_an_agent_that_exits_does_not_end_the_server(before: str) -> None:
    async with running("-c", before + EXITING) as process:
        url = (await process.says(r"running on (http://[\d.:]+)"))[1]
        async with A2AClient(url) as client:
            for text in ("leave", "stay", "leave", "stay"):
                task: Any = await client.send_message(text)
                assert task.artifacts[0].parts[0].text == text
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    assert process.said.count("called sys.exit()") == 2
