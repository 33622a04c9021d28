"""`apcore-a2a serve --workers`: several processes on one port, one of which may die."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import httpx
import pytest

from apcore_a2a import A2AClient
from apcore_a2a.http.metrics import Metrics, make_board, reset_gauges
from apcore_a2a.http.traffic import Traffic
from apcore_a2a.protocol.model import Task
from apcore_a2a.storage.contract import Backlog, Usage
from tests.cli.conftest import RESTORE_SIGNALS
from tests.interaction.serving import listen
from tests.postgres_server import shared_server
from tests.processes import Process, running
from tests.sources import ROOT

AGENT = """
import asyncio
import os

from apcore_a2a import async_serve

async def who(text: str) -> str:
    if text == "die":
        os._exit(7)
    await asyncio.sleep(float(text.removeprefix("sleep ") if text.startswith("sleep ") else 0))
    return str(os.getpid())

def made():
    return asyncio.run(async_serve(who, store=os.environ["MADE_WITH"], on_startup=[die]))

def die():
    os.abort()
"""


@pytest.fixture
def agent(tmp_path: Path) -> str:
    (tmp_path / "agent.py").write_text(AGENT)
    return f"{tmp_path / 'agent.py'}:who"


async def ask(http: httpx.AsyncClient, url: str, text: str = "hello") -> int:
    """Which worker answers, on a connection of its own."""
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
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
        await process.says(
            rf"worker ended and is replaced worker=\d pid={victim} code=-9"
        )  # as the kernel's log has it
        assert len(after & before) == 1
        await until_counted(http, url, process)
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    for worker in after:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


async def test_every_worker_serves_grpc_and_finds_the_tasks_of_the_others(agent: str) -> None:
    arguments = ("serve", agent, "--port", "0", "--workers", "2", "--store", shared_server().url())
    async with running("-m", "apcore_a2a", *arguments) as process:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        await process.says(r"running on [^$]*running on")  # both of them
        seen: dict[str, str] = {}
        async with asyncio.timeout(20):
            while len(set(seen.values())) < 2:
                async with A2AClient(url, binding="GRPC") as client:  # each with a connection of its own
                    task = await client.send_message("hello")
                    assert isinstance(task, Task)
                    seen[task.id] = task.text
                    for id, text in seen.items():
                        assert (await client.get_task(id)).text == text
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0


async def test_the_task_of_a_dead_worker_does_not_wait_for_its_lease(agent: str) -> None:
    url = f"{shared_server().url()}&lease=600"
    arguments = ("serve", agent, "--port", "0", "--workers", "2", "--store", url, "--metrics")
    async with running("-m", "apcore_a2a", *arguments) as process, httpx.AsyncClient() as http:
        address = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        await process.says(r"running on [^$]*running on")
        said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "sleep 600"}]}
        body = {"message": said, "configuration": {"returnImmediately": True}}
        headers = {"A2A-Version": "1.0", "Connection": "close"}
        task = (await http.post(f"{address}/message:send", json=body, headers=headers)).json()["task"]
        schema = parse_qs(urlsplit(url).query)["schema"][0]
        admin = await asyncpg.connect(shared_server().dsn, server_settings={"search_path": schema})
        place = await admin.fetchval("SELECT place FROM replica JOIN task ON runner = name")
        await admin.close()
        os.kill(int(place.split(":")[1]), signal.SIGKILL)
        async with asyncio.timeout(60):
            while task["status"]["state"] != "TASK_STATE_FAILED":
                task = (await http.get(f"{address}/tasks/{task['id']}", headers=headers)).json()
        assert "Worker lost" in task["status"]["message"]["parts"][0]["text"]
        async with asyncio.timeout(20):
            while True:  # until the other worker has written its figures
                if (await http.get(f"{address}/metrics", headers=headers)).json()["failed_tasks"] == 1:
                    break
                await asyncio.sleep(0.1)
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0


async def test_workers_count_a_callers_requests_together(agent: str) -> None:
    arguments = ("serve", agent, "--port", "0", "--workers", "2", "--store", shared_server().url())
    limits = ("--max-requests-per-second", "0.001", "--request-burst", "30")
    async with running("-m", "apcore_a2a", *arguments, *limits) as process, httpx.AsyncClient() as http:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        await process.says(r"running on [^$]*running on")
        each = {"A2A-Version": "1.0", "Connection": "close"}  # a new connection, to either of them
        statuses = [(await http.get(f"{url}/tasks", headers=each)).status_code for _ in range(50)]
    assert statuses == [200] * 30 + [429] * 20


async def until_counted(http: httpx.AsyncClient, url: str, process: Process) -> None:
    """Every worker shows the same sum, once each has written down its own."""
    async with asyncio.timeout(10):
        while True:
            shown = [(await http.get(f"{url}/metrics", headers={"Connection": "close"})).json() for _ in range(8)]
            completed = {figures["completed_tasks"] for figures in shown}
            if len(completed) == 1 and min(completed) >= 3:
                return
            await asyncio.sleep(0.1)


STOPPED_WHILE_IT_STARTS = """
import os, signal, sys, time
from apcore_a2a.cli.serve.workers import Workers

fork = os.fork

def fork_and_be_stopped():
    pid = fork()
    if pid:
        signal.raise_signal(signal.SIGTERM)
    return pid

def wait(worker, note_that_it_serves):
    note_that_it_serves()
    while True:
        time.sleep(60)

os.fork = fork_and_be_stopped
code = Workers(3, wait, [], on_ended=lambda worker: None).run()
sys.stderr.write(f"all have ended: {code}\\n")
"""


async def test_a_signal_that_comes_while_workers_are_started_ends_all_of_them() -> None:
    async with running("-c", STOPPED_WHILE_IT_STARTS) as process:
        await process.says("all have ended: 0")


NO_PROCESS_TO_BE_HAD = """
import errno, os, signal, sys, time
from apcore_a2a.cli.serve import workers

fork = os.fork
refused = set(map(int, sys.argv[1].split(",")))  # which calls of fork() are
calls = 0

def fork_if_there_is_room():
    global calls
    calls += 1
    if calls in refused:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()

def serve(worker, note_that_it_serves):
    sys.stderr.write(f"worker {worker} serves\\n")
    note_that_it_serves()
    while True:
        time.sleep(60)

os.fork = fork_if_there_is_room
workers.PAUSE = 0.01
code = workers.Workers(2, serve, [], on_ended=lambda worker: None).run()
sys.stderr.write(f"all have ended: {code}\\n")
"""


async def test_a_machine_without_room_for_a_process_is_asked_again_later() -> None:
    async with running("-c", NO_PROCESS_TO_BE_HAD, "2,3") as process:
        await process.says("worker 1 serves")
        process.signal(signal.SIGTERM)
        await process.says("all have ended: 0")
        assert process.said.count("cannot fork a worker process") == 2
        assert process.said.count("worker 0 serves") == 1


async def test_a_machine_without_room_for_the_first_worker_ends_the_command() -> None:
    async with running("-c", NO_PROCESS_TO_BE_HAD, "1") as process:
        await process.says("all have ended: 2")
        assert "cannot fork a worker process" in process.said


@pytest.mark.parametrize("store", [(), ("--store", "sqlite:///tasks.db")])
async def test_a_store_of_one_process_is_refused(agent: str, store: tuple[str, ...]) -> None:
    async with running("-m", "apcore_a2a", "serve", agent, "--workers", "2", *store) as process:
        assert await process.ends() == 1
        assert "--workers needs a store that processes can share: --store postgresql://" in process.said


@pytest.mark.parametrize("is_directory", [False, True], ids=["file", "directory"])
async def test_workers_are_not_reloaded(agent: str, is_directory: bool) -> None:
    target = str(ROOT / "examples" / "extensions") if is_directory else agent
    arguments = ("serve", target, "--port", "0", "--workers", "2", "--reload", "--store", shared_server().url())
    async with running("-m", "apcore_a2a", *arguments) as process:
        assert await process.ends() == 1
        assert process.said == "Error: Give either --workers or --reload, not both.\n"


@pytest.mark.parametrize("given", [("--workers", "2"), ()], ids=["flag", "variable"])
async def test_an_application_that_is_no_agent_has_no_workers(tmp_path: Path, given: tuple[str, ...]) -> None:
    (tmp_path / "web.py").write_text("from starlette.applications import Starlette\napp = Starlette()\n")
    variables = {} if given else {"APCORE_A2A_WORKERS": "2"}
    target = f"{tmp_path / 'web.py'}:app"
    async with running("-m", "apcore_a2a", "serve", target, "--port", "0", *given, **variables) as process:
        assert await process.ends() == 1
        assert f"--workers is for agents, and {target} is another ASGI application" in process.said


async def test_workers_that_cannot_start_end_with_the_reason_once(agent: str) -> None:
    url = shared_server().url("nowhere")
    async with running("-m", "apcore_a2a", "serve", agent, "--port", "0", "--workers", "2", "--store", url) as process:
        assert await process.ends() == 2
        assert process.said.count("has no such database") == 1


async def test_workers_end_when_the_database_says_nothing_for_long(agent: str) -> None:
    with listen() as silent:  # it takes connections, and that is all
        store = f"postgresql://agent@127.0.0.1:{silent.getsockname()[1]}/agents"
        arguments = ("serve", agent, "--port", "0", "--workers", "2", "--store", store)
        async with running("-m", "apcore_a2a", *arguments) as process:
            assert await process.ends() == 2
            assert process.said.count("does not answer; check that it runs") == 1


async def test_a_worker_that_is_killed_before_it_serves_ends_the_command(agent: str) -> None:
    target = agent.replace(":who", ":made")
    arguments = ("serve", target, "--factory", "--port", "0", "--workers", "2")
    async with running("-m", "apcore_a2a", *arguments, MADE_WITH=shared_server().url()) as process:
        assert await process.ends() == 2
        assert "the first worker was killed before it served signal=6" in process.said
        assert "replaced" not in process.said


async def test_who_dies_again_and_again_is_replaced_later_and_later(agent: str) -> None:
    arguments = ("serve", agent, "--port", "0", "--workers", "2", "--store", shared_server().url())
    async with running("-m", "apcore_a2a", *arguments) as process, httpx.AsyncClient(timeout=20) as http:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        await process.says(r"running on [^$]*running on")
        for pauses in (r"in_seconds=1\.0[^$]*in_seconds=1\.0", r"in_seconds=2\.0[^$]*in_seconds=2\.0"):
            for _ in range(2):  # both: when one is away, the other takes its messages
                with pytest.raises(httpx.TransportError):
                    await ask(http, url, "die")
            await process.says(pauses)
        assert await ask(http, url) > 0  # a connection waits until there is a worker
        assert process.said.count("store   postgresql") == 1  # the banner is shown once


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["SIGTERM", "SIGINT", "SIGHUP"])
async def test_shutdown_rejects_new_connections_and_finishes_runs(agent: str, number: signal.Signals) -> None:
    arguments = ("serve", agent, "--port", "0", "--workers", "2", "--store", shared_server().url(), "--metrics")
    command = ("-c", RESTORE_SIGNALS, sys.executable, "-m", "apcore_a2a", *arguments)
    async with running(*command) as process, httpx.AsyncClient(timeout=20) as http:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        await process.says(r"running on [^$]*running on")
        asked = asyncio.create_task(ask(http, url, "sleep 3"))
        await until_one_runs(http, url)
        process.signal(number)
        await until_refused(http, url)
        assert not asked.done()
        assert await asked > 0
        assert await process.ends() == 0
        assert "Traceback" not in process.said


async def test_a_terminal_that_is_closed_is_no_second_signal(agent: str) -> None:
    arguments = ("serve", agent, "--port", "0", "--workers", "2", "--store", shared_server().url(), "--metrics")
    command = ("-c", RESTORE_SIGNALS, sys.executable, "-m", "apcore_a2a", *arguments)
    async with running(*command) as process, httpx.AsyncClient(timeout=20) as http:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        await process.says(r"running on [^$]*running on")
        asked = asyncio.create_task(ask(http, url, "sleep 3"))
        await until_one_runs(http, url)
        process.signal(signal.SIGTERM)
        await until_refused(http, url)
        process.signal(signal.SIGHUP)
        assert await asked > 0
        assert await process.ends() == 0


async def test_under_nohup_workers_outlive_their_terminal(agent: str) -> None:
    # As `nohup` does it: what is ignored when a program begins stays so.
    nohup = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    )
    arguments = ("serve", agent, "--port", "0", "--workers", "2", "--store", shared_server().url())
    async with running("-c", nohup, sys.executable, "-m", "apcore_a2a", *arguments) as process:
        async with httpx.AsyncClient(timeout=20) as http:
            url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
            await process.says(r"running on [^$]*running on")
            process.signal(signal.SIGHUP)
            for worker in await all_workers(http, url, 2):
                os.kill(worker, signal.SIGHUP)
            await all_workers(http, url, 2)
            process.signal(signal.SIGTERM)
            assert await process.ends() == 0
            assert "replaced" not in process.said


async def test_a_second_signal_ends_all_of_them_at_once(agent: str) -> None:
    arguments = ("serve", agent, "--port", "0", "--workers", "2", "--store", shared_server().url(), "--metrics")
    async with running("-m", "apcore_a2a", *arguments) as process, httpx.AsyncClient(timeout=20) as http:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        await process.says(r"running on [^$]*running on")
        asked = asyncio.create_task(ask(http, url, "sleep 1000"))
        await until_one_runs(http, url)
        process.signal(signal.SIGTERM)
        await process.says("Waiting for connections to close")
        process.signal(signal.SIGTERM)
        assert await process.ends() == 1
        with pytest.raises((httpx.TransportError, AssertionError)):  # cut off, or told 500
            await asked


async def until_refused(http: httpx.AsyncClient, url: str) -> None:
    """Wait until connections are refused. A connection that is not accepted would wait instead."""
    async with asyncio.timeout(10):
        while True:
            try:
                await http.get(f"{url}/health", headers={"Connection": "close"})
            except httpx.ConnectError:
                return
            except httpx.TransportError:
                continue  # it was in line when the last worker went


async def until_one_runs(http: httpx.AsyncClient, url: str) -> None:
    async with asyncio.timeout(10):
        while True:
            figures = (await http.get(f"{url}/metrics", headers={"Connection": "close"})).json()
            if figures["active_tasks"] == 1:
                return
            await asyncio.sleep(0.05)


async def test_what_a_dead_worker_said_of_now_is_forgotten() -> None:
    board = make_board(2)
    board.write(0, [3.0] * len(board.read(0)))
    board.write(1, [5.0] * len(board.read(1)))
    reset_gauges(board, 1)
    metrics = Metrics(Traffic(), stuck_threads=lambda: 0, backlog=no_backlog, usage=no_usage)
    metrics.share(board, 0)
    values = metrics.values()
    assert str(values["completed_tasks"]) == "8"  # counters of all, also of the dead; whole, as one process has them
    assert values["active_tasks"] == 0


async def no_backlog() -> Backlog:
    return Backlog()


async def no_usage() -> Usage:
    return Usage(0, 0)
