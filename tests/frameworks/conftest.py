"""Servers in the environments of the frameworks: one process for each, which a test may kill."""

import asyncio
import os
import re
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from apcore_a2a import A2AClient, ArtifactUpdate, Message, Part, Role, StatusUpdate, Task
from apcore_a2a.client.auth import ApiKeyAuth
from apcore_a2a.protocol.questions import PART_TYPE, Question, questions_of
from tests.fakes import PATIENCE
from tests.frameworks.table import ENVIRONMENTS, Environment
from tests.processes import SOURCES
from tests.sources import ROOT

MISSING: Final = "the environment of the framework is missing: make test-frameworks"
START: Final = 180.0  # seconds: frameworks load for long
ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+")


class Framework:
    """An agent of a framework, served by a process of its own with a store on disk."""

    def __init__(self, environment: Environment, directory: Path) -> None:
        self.environment = environment
        self.effects_file = directory / "effects.txt"
        self.store = directory / "tasks.db"
        self.url = ""
        self.log: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        self.effects_file.touch()
        self._process = subprocess.Popen(
            [str(self.environment.python), "-m", self.environment.module, f"sqlite:///{self.store}"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(SOURCES), "EFFECTS": str(self.effects_file)},
            stderr=subprocess.PIPE,
            text=True,
        )
        started = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process, started), daemon=True)
        self._reader.start()
        assert started.wait(START), "\n".join(self.log)
        assert self.url, "\n".join(self.log)

    def _read(self, process: subprocess.Popen[str], started: threading.Event) -> None:
        """Read the log. The banner has the address."""
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line.rstrip())
            address = ADDRESS.search(line)
            if address is not None and not started.is_set():
                self.url = address[0]
                started.set()
        started.set()

    def kill(self) -> None:
        """End the process by SIGKILL."""
        process = self._process
        if process is None:
            return
        assert self._reader is not None and process.stderr is not None
        process.kill()
        process.wait()
        self._reader.join()
        process.stderr.close()
        self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def effects(self) -> list[str]:
        return self.effects_file.read_text().splitlines()

    @asynccontextmanager
    async def client(self, user: str = "ada", *, path: str = "") -> AsyncIterator[A2AClient]:
        async with A2AClient(self.url + path, auth=ApiKeyAuth(f"key-of-{user}"), timeout=PATIENCE) as client:
            yield client


class Heard:
    """What a client hears of one message."""

    def __init__(self) -> None:
        self.task_id = ""
        self.context_id = ""
        self.pieces: list[str] = []
        self.texts: dict[str, str] = {}
        """The text of each artifact."""
        self.data: list[Any] = []
        self.tools: list[tuple[str, dict[str, Any]]] = []
        """The type and the data of each status of a tool."""
        self.states: list[str] = []
        self.questions: list[Question] = []
        self.words = ""
        """The text of the last status."""
        self.metadata: dict[str, Any] = {}
        """The metadata of the task."""
        self.message = Message(message_id="", role=Role.AGENT, parts=())
        """The message of the last status."""
        self.events: list[Any] = []
        self.details: dict[str, Any] = {}
        """The metadata of the message of the last status."""

    @property
    def text(self) -> str:
        return " | ".join(text.strip() for text in self.texts.values())

    @property
    def state(self) -> str:
        return self.states[-1]

    def add(self, event: Any) -> None:
        self.events.append(event)
        match event:
            case Task():
                self.task_id = event.id
                self.context_id = event.context_id
                self.states.append(str(event.status.state))
                for artifact in event.artifacts:
                    self.texts[artifact.artifact_id] = artifact.text
            case ArtifactUpdate():
                self._add_artifact(event)
            case StatusUpdate():
                self._add_status(event)

    def _add_artifact(self, event: ArtifactUpdate) -> None:
        for part in event.artifact.parts:
            if isinstance(part.text, str):
                self.pieces.append(part.text)
                before = self.texts.get(event.artifact.artifact_id, "") if event.append else ""
                self.texts[event.artifact.artifact_id] = before + part.text
            elif not part.is_file:
                self.data.append(part.data)

    def _add_status(self, event: StatusUpdate) -> None:
        message = event.status.message
        self.states.append(str(event.status.state))
        self.questions = questions_of(message)
        self.metadata.update(event.metadata or {})
        if message is None:
            return
        self.message = message
        self.words = message.text
        self.details = dict(message.metadata or {})
        for part in message.parts:
            kind = (part.metadata or {}).get(PART_TYPE, "")
            if kind in ("tool_call", "tool_result") and isinstance(part.data, dict):
                self.tools.append((kind, part.data))


async def say(client: A2AClient, content: Any, *, to: Heard | None = None, context_id: str = "") -> Heard:
    """Send a message to the agent, or to the task that waits, and read its stream to the end."""
    heard = Heard()
    if to is not None:
        heard.task_id = to.task_id
        context_id = heard.context_id = to.context_id
    async for event in client.stream_message(content, task_id=heard.task_id, context_id=context_id):
        heard.add(event)
    return heard


def file_part() -> Part:
    return Part(raw=b"\x89PNG\r\n\x1a\n123", media_type="image/png", filename="a.png")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for an effect in another process."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def begin(client: A2AClient, content: Any) -> Heard:
    """Send a message, and return once its task exists."""
    heard = Heard()
    async for event in client.stream_message(content):
        heard.add(event)
        if heard.task_id:
            break
    return heard


async def begin_slowly(framework: Framework, *, path: str = "") -> Heard:
    """Start a task whose tool never ends. Return it once the call is stored, and the tool runs."""
    heard = Heard()
    began = framework.effects().count("slow began")
    async with framework.client(path=path) as client:
        async for event in client.stream_message("slow"):
            heard.add(event)
            if heard.tools:
                break
    await until(lambda: framework.effects().count("slow began") > began)
    return heard


def environments_of(title: str) -> list[Environment]:
    """Return the environments of one framework, for tests of what only that framework has."""
    return [environment for environment in ENVIRONMENTS if environment.title == title]


def require(environment: Environment) -> None:
    """Skip a test if its environment is missing."""
    if environment.python.exists():
        return
    if os.environ.get("FRAMEWORKS") == "required":
        pytest.fail(f"{environment.python} is missing")
    pytest.skip(MISSING)


def serve_agent(environment: Environment, directory: Path) -> Iterator[Framework]:
    """Serve the agent of an environment until the tests have ended."""
    require(environment)
    served = Framework(environment, directory)
    try:
        served.start()
        yield served
    finally:
        served.kill()


@pytest.fixture(scope="module", params=ENVIRONMENTS, ids=lambda environment: environment.id)
def framework(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framework]:
    yield from serve_agent(request.param, tmp_path_factory.mktemp("framework"))
