"""What the users of each client see, behaviour by behaviour: the table of docs/interoperability.md.

A cell has the words on the page, and what the client must show in the test: so the page says what was seen.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from apcore_a2a.protocol.lifecycle import StreamFinal
from tests.sources import ROOT

Behaviour = Literal["whole", "streamed", "question", "data", "file", "failing", "endless"]
BEHAVIOURS: Final[dict[Behaviour, str]] = {
    "whole": "one piece of text",
    "streamed": "streamed text",
    "question": "question and answer",
    "data": "data",
    "file": "file",
    "failing": "failure",
    "endless": "cancel",
}
Shown = tuple[str | re.Pattern[str] | dict[str, Any] | None, ...]


def pinned_version(package: str, lock: str) -> str:
    """Return the version of a package in a lock file of pip or of npm."""
    found = re.search(rf"(?:^|\s){re.escape(package)}(?:==|@)(\S+)", (ROOT / lock).read_text(), re.MULTILINE)
    assert found is not None, package
    return found[1]


class Cell(NamedTuple):
    word: str
    shown: Shown | None = None
    """What the client shows. None if it has no way to do this at all."""
    action: str = "ask"
    """The action of the script: a client may have several ways to ask."""


class Client(NamedTuple):
    name: str
    package: str
    lock: str
    """The file that pins the version, below the root of this project."""
    command: tuple[str, ...]
    """Python or Node of the client's environment, and the script in `clients/`."""
    cells: dict[Behaviour, Cell]
    final: StreamFinal = "append"
    data_as_text: bool = False
    ends: Mapping[StreamFinal, Cell] = MappingProxyType({})
    """What it shows of a streamed text for each end that is not in its row."""

    @property
    def title(self) -> str:
        return f"{self.name} {pinned_version(self.package, self.lock)}"

    @property
    def row(self) -> str:
        """The row of docs/interoperability.md."""
        cells = [self.cells[behaviour].word for behaviour in BEHAVIOURS]
        return f"| {' | '.join([self.title, self.setting, *cells])} |"

    @property
    def ends_row(self) -> str:
        """The row of docs/agents.md, which says how each end of a streamed text suits the client."""
        words = []
        for final in ENDS:
            word = self.cells["streamed"].word if final == self.final else self.ends[final].word
            words.append(f"**{word}**" if final == self.final else word)
        return f"| {' | '.join([self.title, *words])} |"

    @property
    def setting(self) -> str:
        options = []
        if self.final != "append":
            options.append(f'`stream_final="{self.final}"`')
        if self.data_as_text:
            options.append("`data_as_text=True`")
        return ", ".join(options) or "none"


ENDS: Final[tuple[StreamFinal, ...]] = ("append", "replace", "status")
HELLO: Final[Shown] = ("hello world",)
TALK: Final[Shown] = ("Which city?", "2 seats in Rome")
DATA: Final[Shown] = ({"city": "Rome", "seats": 2},)
FILE: Final[Shown] = ("hello file",)
FAILURE: Final[Shown] = ("No such city",)

NVIDIA_FAILURE: Final = re.compile("Task failed: .*No such city.*", re.DOTALL)

YES: Final[dict[Behaviour, Cell]] = {
    "whole": Cell("yes", HELLO),
    "streamed": Cell("yes", HELLO),
    "question": Cell("yes", TALK),
    "data": Cell("yes", DATA),
    "file": Cell("yes", FILE),
    "failing": Cell("yes", FAILURE),
    "endless": Cell("it has none"),
}
ENDS_ALIKE: Final[dict[StreamFinal, Cell]] = dict.fromkeys(ENDS, YES["streamed"])


def in_environment(name: str, script: str) -> tuple[str, ...]:
    return (str(ROOT / ".venvs" / name / "bin" / "python"), str(Path(__file__).parent / "clients" / script))


def of_peer(name: str, package: str, lock: str, script: str, cells: dict[Behaviour, Cell], **more: Any) -> Client:
    command = in_environment(f"peer-{lock}", script)
    return Client(name, package, f"requirements/peers/{lock}.txt", command, YES | cells, **more)


HERE: Final = Path(__file__).parent / "clients"
CLIENTS: Final = (
    Client(
        "a2a-sdk",
        "a2a-sdk",
        "requirements/dev.txt",
        (sys.executable, str(HERE / "sdk1.py")),
        YES | {"endless": Cell("yes", ("TASK_STATE_CANCELED",), "cancel")},
        ends=ENDS_ALIKE,
    ),
    Client(
        "a2a-sdk",
        "a2a-sdk",
        "requirements/sdk03.txt",
        in_environment("sdk03", "sdk03.py"),
        YES | {"endless": Cell("yes", ("canceled",), "cancel")},
        ends=ENDS_ALIKE,
    ),
    Client(
        "@a2a-js/sdk",
        "@a2a-js/sdk",
        "requirements/js.npm",
        ("node", str(HERE / "js.cjs")),
        YES | {"endless": Cell("yes", ("TASK_STATE_CANCELED",), "cancel")},
        ends=ENDS_ALIKE,
    ),
    of_peer(
        "Google ADK",
        "google-adk",
        "adk",
        "adk.py",
        {"question": Cell("yes, the question twice", ("Which city?", *TALK))},
        final="replace",
        ends={"append": Cell("partial events, none of which it keeps", ()), "status": Cell("yes", HELLO)},
    ),
    of_peer(
        "Strands",
        "strands-agents",
        "strands",
        "strands_agent.py",
        {
            "question": Cell("shows the question, sends no task id with the answer", ("Which city?", "Which city?")),
            "file": Cell("reads only text", ()),
        },
        final="replace",
        data_as_text=True,
        ends={"append": Cell("one block for each piece", ("hel", "lo ", "world")), "status": Cell("yes", HELLO)},
    ),
    of_peer(
        "agent-framework",
        "agent-framework-a2a",
        "microsoft",
        "microsoft.py",
        {},
        ends={"replace": YES["streamed"], "status": Cell("twice", ("hello world", "hello world"))},
    ),
    of_peer(
        "crewAI",
        "crewai",
        "crewai",
        "crew.py",
        {
            "streamed": Cell("yes, with `updates=PollingConfig()`", HELLO, "ask_by_polling"),
            "file": Cell("reads only text", ("",)),
        },
        data_as_text=True,
        ends={
            "replace": Cell("yes, with `updates=PollingConfig()`", HELLO, "ask_by_polling"),
            "status": Cell("twice", ("hello world hello world",), "ask_by_polling"),
        },
    ),
    of_peer(
        "NVIDIA NAT",
        "nvidia-nat-a2a",
        "nvidia",
        "nvidia.py",
        {
            "streamed": Cell("yes", HELLO, "ask_with_stream"),
            "question": Cell(
                "shows the state, not the question",
                ("Task in progress (state: TaskState.input_required)", "2 seats in Rome"),
            ),
            "file": Cell("reads only text", ("No response",)),
            "failing": Cell("yes, within a dump of the message", (NVIDIA_FAILURE,)),
            "endless": Cell("yes", ("canceled",), "cancel"),
        },
        data_as_text=True,
        final="replace",
        ends={
            "append": Cell("a space between the pieces, if it streams", ("hel lo  world",), "ask_with_stream"),
            "status": Cell("a space between the pieces, if it streams", ("hel lo  world",), "ask_with_stream"),
        },
    ),
    of_peer(
        "AG2",
        "ag2",
        "ag2",
        "ag2_agent.py",
        {
            "file": Cell("reads only text", (None,)),
            "failing": Cell("raises, with the task", FAILURE),
            "endless": Cell("yes", ("TASK_STATE_CANCELED",), "cancel"),
        },
        data_as_text=True,
        ends={
            "replace": Cell("twice", ("hello worldhello world",)),
            "status": Cell("twice", ("hello worldhello world",)),
        },
    ),
    of_peer("BeeAI framework", "beeai-framework", "beeai", "bee.py", {}, ends=ENDS_ALIKE),
    of_peer(
        "agno",
        "agno",
        "agno",
        "agno_agent.py",
        {
            "question": Cell("reads no questions", ("", "")),
            "file": Cell("reads only text", ("",)),
            "failing": Cell("reads no failures", ("",)),
        },
        final="status",
        data_as_text=True,
        ends={
            "append": Cell("only if it streams", HELLO, "ask_with_stream"),
            "replace": Cell("nothing", ("",)),
        },
    ),
    of_peer(
        "any-agent",
        "any-agent",
        "any-agent",
        "any_agent_tool.py",
        {"file": Cell("reads only text", ())},
        final="status",
        data_as_text=True,
        ends={"append": Cell("nothing", ()), "replace": Cell("nothing", ())},
    ),
)


class Server(NamedTuple):
    """A server of another project, called by our client: `test_servers.py`."""

    name: str
    package: str
    lock: str
    cells: dict[Behaviour, str]

    @property
    def row(self) -> str:
        version = pinned_version(self.package, self.lock)
        return f"| {' | '.join([f'{self.name} {version}', *(self.cells[behaviour] for behaviour in BEHAVIOURS)])} |"


ALL: Final[dict[Behaviour, str]] = dict.fromkeys(BEHAVIOURS, "yes")
SERVERS: Final = (
    Server(
        "LangGraph's server",
        "langgraph-api",
        "requirements/peers/langgraph.txt",
        ALL | {"question": "yes, as data", "data": "sends only questions as data", "failing": "it names the exception"},
    ),
    Server("ADK's `to_a2a`", "google-adk", "requirements/peers/adk.txt", ALL | {"question": "yes, as data"}),
)
