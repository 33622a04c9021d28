"""Runs commands in tests, with arguments, exit code and both outputs, and serves agents to call."""

import asyncio
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar

import pytest

from apcore_a2a.agent import Agent
from apcore_a2a.agents.apcore.agent import ModuleAgent
from apcore_a2a.agents.apcore.executor import open_modules
from apcore_a2a.app.serve import build
from apcore_a2a.cli import main
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, TaskState
from tests.cli.functions import FUNCTIONS
from tests.client.peers.running import running
from tests.client.scripted import ScriptedServer
from tests.fakes import ASKS, COMPLETED, PATIENCE, WORKING, Gate, ScriptedAgent, chunk, says, status
from tests.interaction.serving import serving
from tests.modules import Pay, registry

T = TypeVar("T")

EVIL = "\x1b]0;owned\x07\x1b[31mred\x1b[0m\x9b2J\u202eesrever\r\nTask: t-forged"


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # Any: the command's JSON output
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def fields(self) -> dict[str, str]:
        """The labelled lines of text output. Indented lines are not fields."""
        pairs = (line.partition(": ") for line in self.out.splitlines() if line and not line.startswith(" "))
        return {label.rstrip(":"): value for label, _, value in pairs}


Terminal = Callable[..., Ran]


@pytest.fixture
def terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Run a command in this process, as the installed program would."""

    def run(*args: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit:
            main(list(args))
        out, err = capfd.readouterr()
        assert isinstance(exit.value.code, int)
        assert "Traceback" not in err
        return Ran(exit.value.code, out, err)

    return run


# Background tests ignore SIGINT, and under `nohup` also SIGHUP, and their child processes inherit that. `preexec_fn` is
# not used, because newer Pythons warn about it in a process with threads.
RESTORE_SIGNALS = (
    "import os, signal, sys; "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "os.execv(sys.executable, sys.argv[1:])"
)


@contextmanager
def interruptible(*args: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a command in a process with default signal handlers."""
    command = [sys.executable, "-c", RESTORE_SIGNALS, sys.executable, "-m", "apcore_a2a", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def produce(*parts: Part, name: str = "") -> ArtifactUpdate:
    return ArtifactUpdate(artifact=Artifact(artifact_id="made", name=name, parts=list(parts)), last_chunk=True)


def scripts() -> dict[str, Any]:
    return {
        "hello": (WORKING, chunk("Hello"), chunk(",\nworld", append=True), COMPLETED),
        "ask": (ASKS,),
        "login": (status(TaskState.WORKING), status(TaskState.AUTH_REQUIRED, "go there"), Gate()),
        "fail": (status(TaskState.FAILED, "not today"),),
        "hang": (WORKING, Gate()),
        "think": (status(TaskState.WORKING, "thinking"), Gate()),
        "evil": (produce(Part(text=EVIL), Part(data={"x": EVIL}), name=EVIL), COMPLETED),
        "files": (
            produce(
                Part(raw=b"\x89PNG", filename="../../escape.png", media_type="image/png"),
                Part(data={"n": 1}),
                Part(url="https://example.com/far.txt", filename="far.txt"),
                name="bundle",
            ),
            COMPLETED,
        ),
    }


@contextmanager
def elsewhere(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Run a server in a loop and thread of its own, because the commands run their own loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(_enter(server), loop).result(PATIENCE)
    finally:
        asyncio.run_coroutine_threadsafe(_leave(server), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


async def _enter(server: AbstractAsyncContextManager[T]) -> T:
    return await server.__aenter__()


async def _leave(server: AbstractAsyncContextManager[Any]) -> None:
    await server.__aexit__(None, None, None)


def hosted(agent: Agent, **options: Any) -> AbstractContextManager[str]:
    """Serve an agent, and yield its address."""
    return elsewhere(serving(agent, **options))


def scripted() -> AbstractContextManager[ScriptedServer]:
    """Run a server with scripted answers."""
    return elsewhere(ScriptedServer())


@pytest.fixture
def agent() -> ScriptedAgent:
    return ScriptedAgent(scripts())


@pytest.fixture
def url(agent: ScriptedAgent) -> Iterator[str]:
    with hosted(agent) as address:
        yield address


@pytest.fixture
def replying() -> Iterator[str]:
    """Serve an agent that answers with a message instead of a task."""
    with hosted(ScriptedAgent(default=(says("Hi!"),), may_reply=True)) as address:
        yield address


@pytest.fixture(scope="session")
def functions() -> Iterator[str]:
    """Serve functions with typed inputs."""
    with elsewhere(serving(FUNCTIONS, card=None, default_skill="tell")) as address:
        yield address


@pytest.fixture
def paying() -> Iterator[str]:
    """Serve an agent whose only skill asks for approval."""
    modules = registry(pay=Pay())
    with hosted(ModuleAgent(open_modules(modules)), card=build(modules, {}).cards.card) as address:
        yield address


@pytest.fixture(scope="session")
def peer() -> Iterator[Callable[[str], str]]:
    """Start agents of other implementations, each at its first use."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(running(name)).url)
