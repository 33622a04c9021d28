"""The synchronous client: the same behaviour, from a thread without an event loop."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from apcore_a2a.client import A2AClient, Client, OAuth2ClientCredentials, Retry
from apcore_a2a.client.sync import FORKED
from apcore_a2a.errors import A2AConnectionError, TaskNotFoundError
from apcore_a2a.protocol.model import StatusUpdate, Task, TaskState
from tests.client.scripted import (
    CARD,
    STREAM_HEAD,
    Request,
    ScriptedServer,
    card,
    chunk,
    error,
    event,
    hang,
    reset,
    respond,
    result,
    status,
    stream,
    task,
)
from tests.fakes import PATIENCE

PAGE = {"tasks": [task()], "nextPageToken": "", "pageSize": 50, "totalSize": 1}
PUSH = {"taskId": "t-1", "id": "p-1", "url": "https://example.com/hook"}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A scripted server on its own loop, because these tests block theirs."""
    ready = threading.Event()
    stop = asyncio.Event()
    running = ScriptedServer()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with running:
            running.on(CARD, respond(card(running.url)))
            ready.set()
            await stop.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=5)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(5)
    yield running
    loop.call_soon_threadsafe(stop.set)
    thread.join(5)
    loop.close()


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[Client]:
    with Client(server.url, timeout=5.0, retry=Retry(base=0.0)) as connected:
        yield connected


def test_a_message_is_sent_and_answered(server: ScriptedServer, client: Client) -> None:
    server.on("/", result({"task": task()}))

    answer = client.send_message("hi", skill="obey", timeout=3.0)

    assert isinstance(answer, Task)
    assert server.asked("/")[0].json["params"]["message"]["metadata"] == {"skillId": "obey"}


def test_the_card_is_an_attribute(server: ScriptedServer, client: Client) -> None:
    assert client.agent_card.name == "Scripted"
    assert client.interface.protocol_version == "1.0"
    assert client.agent_card is client.agent_card
    assert len(server.requests) == 1
    client.refresh_card()
    assert len(server.requests) == 2


def test_a_stream_is_iterated(server: ScriptedServer, client: Client) -> None:
    server.on("/", stream({"task": task("SUBMITTED")}, status("WORKING"), status("COMPLETED")))

    assert [type(one) for one in client.stream_message("hi")] == [Task, StatusUpdate, StatusUpdate]


def test_a_stream_may_be_left_early(server: ScriptedServer, client: Client) -> None:
    gone = threading.Event()

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(request, {"task": task("WORKING")}))
        with pytest.raises(ConnectionError):
            while True:
                writer.write(event(request, status("WORKING", metadata={"x": "y" * 65536})))
                await writer.drain()
        gone.set()

    server.on("/", write, result(task()))
    for _ in client.stream_message("hi"):
        break

    assert gone.wait(5)
    assert client.get_task("t-1").id == "t-1"


Ask = Callable[[Client], Any]


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda client: client.get_task("t-1", history_length=1), task()),
        (lambda client: client.cancel_task("t-1"), task("CANCELED")),
        (lambda client: client.list_tasks("c-1"), PAGE),
        (lambda client: list(client.iter_tasks()), PAGE),
        (lambda client: client.set_push_config("t-1", "https://example.com/hook"), PUSH),
        (lambda client: client.get_push_config("t-1", "p-1"), PUSH),
        (lambda client: client.list_push_configs("t-1"), {"configs": [PUSH]}),
        (lambda client: client.delete_push_config("t-1", "p-1") or True, {}),
        (lambda client: client.extended_card(), card("http://127.0.0.1:1")),
    ],
)
def test_every_operation_answers(server: ScriptedServer, client: Client, ask: Ask, answer: object) -> None:
    server.on("/", result(answer))

    assert ask(client)


def test_a_task_can_be_waited_for_and_subscribed_to(server: ScriptedServer, client: Client) -> None:
    server.on("/", stream({"task": task("WORKING")}, status("COMPLETED")), result(task()))
    assert client.wait("t-1").status.state is TaskState.COMPLETED

    server.on("/", stream({"task": task("COMPLETED")}))
    assert len(list(client.resubscribe("t-1"))) == 1


def test_errors_have_the_classes_of_the_async_client(server: ScriptedServer, client: Client) -> None:
    server.on("/", error(-32001), hang)

    with pytest.raises(TaskNotFoundError):
        client.get_task("t-1")
    with pytest.raises(A2AConnectionError, match="within"):
        client.get_task("t-1", timeout=0.05)


def test_threads_may_share_a_client(server: ScriptedServer, client: Client) -> None:
    server.on("/", result(task()))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: client.get_task("t-1").id, range(40)))

    assert found == ["t-1"] * 40
    assert len(server.asked(CARD)) == 1


async def test_the_synchronous_client_works_inside_a_running_loop(server: ScriptedServer, client: Client) -> None:
    server.on("/", result(task()))

    assert client.get_task("t-1").id == "t-1"


def test_an_interrupted_call_is_cancelled(
    server: ScriptedServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the caller's thread cancels the request, and the client stays usable."""
    asked = threading.Event()
    gone = threading.Event()

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.write(STREAM_HEAD)
        with pytest.raises(ConnectionError):
            while True:
                writer.write(chunk(b" "))
                await writer.drain()
                await asyncio.sleep(0)
        gone.set()

    class Interrupted:
        def __init__(self, future: Any) -> None:
            self._future = future

        def result(self) -> object:
            assert asked.wait(5)
            raise KeyboardInterrupt

        def cancel(self) -> bool:
            return bool(self._future.cancel())

    submit = asyncio.run_coroutine_threadsafe
    server.on("/", write, result(task()))
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", lambda work, loop: Interrupted(submit(work, loop)))
        with pytest.raises(KeyboardInterrupt):
            client.get_task("t-1")

    assert gone.wait(5)
    assert client.get_task("t-1").id == "t-1"


def test_a_closed_client_leaves_no_thread(server: ScriptedServer) -> None:
    before = threading.active_count()
    client = Client(server.url)
    assert client.agent_card.name == "Scripted"
    client.close()
    client.close()

    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        client.get_task("t-1")


def test_a_call_of_another_thread_ends_when_the_client_is_closed(server: ScriptedServer) -> None:
    asked = threading.Event()

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        asked.set()
        reset(writer)

    server.on("/", write)
    client = Client(server.url, timeout=None, retry=Retry(base=3600.0, cap=3600.0))  # closed during a pause
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.get_task, "t-1")
        assert asked.wait(5)
        client.close()

        with pytest.raises(RuntimeError, match="closed"):
            call.result(5)


def test_a_stream_may_be_closed_after_its_client(server: ScriptedServer) -> None:
    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(request, {"task": task("WORKING")}))
        await hang(request, writer)

    server.on("/", write)
    with Client(server.url) as client:
        events = client.stream_message("hi")
        next(events)

    events.close()


def test_two_clients_may_share_credentials(server: ScriptedServer) -> None:
    asked = threading.Semaphore(0)
    go = threading.Event()

    async def give_token(request: Request, writer: asyncio.StreamWriter) -> None:
        asked.release()
        await asyncio.to_thread(go.wait, 5)
        writer.write(respond({"access_token": "t0k"}))

    server.on("/token", give_token).on("/", result(task()))
    auth = OAuth2ClientCredentials("app", "s3cret", token_url=f"{server.url}/token", scopes=())
    with Client(server.url, auth=auth) as one, Client(server.url, auth=auth) as other, ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.get_task, "t-1")
        assert asked.acquire(timeout=5)
        second = pool.submit(other.get_task, "t-1")
        asked.acquire(timeout=2)  # each client has its own loop, and requests its own token
        go.set()

        assert first.result(5).id == second.result(5).id


def test_a_wrong_address_starts_no_thread() -> None:
    before = threading.active_count()

    with pytest.raises(ValueError, match="Not an http"):
        Client("agent.example")
    assert threading.active_count() == before


def test_both_clients_have_the_same_methods_and_arguments() -> None:
    def offers(kind: type) -> dict[str, list[str]]:
        """Return the public methods with the names of their arguments, and the properties."""
        offered: dict[str, list[str]] = {}
        for name, member in vars(kind).items():
            if name.startswith("_"):
                continue
            offered[name] = []
            if inspect.isfunction(member):
                offered[name] = list(inspect.signature(member).parameters)
        return offered

    ours = offers(Client)
    theirs = offers(A2AClient)
    ours.pop("url")  # an attribute of the other class
    assert ours == theirs
    assert inspect.signature(Client).parameters.keys() == inspect.signature(A2AClient).parameters.keys()


# ---- programs that do not clean up. Each runs in a process, because a failure is a hang -----------------------------

LEAVES_ALL_OPEN = """
import sys
from apcore_a2a import Client

client = Client(sys.argv[1])
events = client.stream_message("hi")
print(next(events).id)
"""
FORGETS_A_STREAM = """
import gc
import sys
from apcore_a2a import Client

gc.disable()


def forget_a_stream():
    events = client.stream_message("hi")
    next(events)
    cycle = [events]
    cycle.append(cycle)  # so that only the collector finds it


async def collect_garbage():  # on the thread of the client
    gc.collect()
    return "t0k"


with Client(sys.argv[1]) as client:
    forget_a_stream()
    print(client.get_task("t-1", auth=collect_garbage).id)
"""
FORKS = """
import os
import sys
from apcore_a2a import Client

with Client(sys.argv[1]) as client:
    events = client.stream_message("hi")
    print(next(events).id, flush=True)
    child = os.fork()
    if child == 0:
        try:
            client.get_task("t-1")
        except RuntimeError as error:
            print(error, flush=True)
        events.close()
        client.close()
        os._exit(0)
    os.waitpid(child, 0)
    print(client.get_task("t-1").id)
"""


@pytest.mark.parametrize(
    ("program", "output"),
    [
        pytest.param(LEAVES_ALL_OPEN, "t-1\n", id="it ends with a client and a stream open"),
        pytest.param(FORGETS_A_STREAM, "t-1\n", id="a stream is collected on the thread of its client"),
        pytest.param(FORKS, f"t-1\n{FORKED}\nt-1\n", id="it forks"),
    ],
)
def test_a_program_with_an_open_stream_exits(server: ScriptedServer, program: str, output: str) -> None:
    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(request, {"task": task("WORKING")}))
        await hang(request, writer)

    server.on("/", write, result(task()))
    # Python 3.12 and newer warn about a fork in a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, server.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, output, "")
