"""What a client sees of the same agent, on this server and on the framework's own: the table of docs/frameworks.md.

Each function has one conversation with a server, and returns the words of the cell.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from apcore_a2a import Message, Part, StatusUpdate, Task
from apcore_a2a.errors import A2AConnectionError, A2AError
from tests.frameworks.agents.script import SECRET
from tests.frameworks.conftest import Framework, begin, say, until
from tests.peers.table import pinned_version

WHOLE: Final = "You said 'hello'; turn 1."
NO_APPROVALS: Final = "the task completes without the call"

Answer = Callable[[Message], Part | None]


async def versions(server: Framework) -> str:
    async with server.client() as client:
        card = await client.agent_card
    return " and ".join(sorted({each.protocol_version[:3] for each in card.supported_interfaces}, reverse=True))


async def tokens(server: Framework) -> str:
    async with server.client() as client:
        heard = await say(client, "hello")
    if len(heard.pieces) == 1:
        return "as a whole"
    assert heard.text.startswith(WHOLE)
    return "in pieces, then as a whole" if heard.pieces[-1] == WHOLE else "in pieces"


async def tools(server: Framework) -> str:
    async with server.client() as client:
        heard = await say(client, "look")
    said = ""
    for event in heard.events:
        if isinstance(event, StatusUpdate) and event.status.message is not None:
            said += " ".join(str(part.data) for part in event.status.message.parts if part.data is not UNSET)
    if "private row" in said:
        return "name, arguments and result"
    return "name" if "look" in said else "no"


async def conversation(server: Framework) -> str:
    async with server.client() as client:
        first = await say(client, "hello")
        second = await say(client, "again", context_id=first.context_id)
    assert "turn 2." in second.text
    server.restart()
    async with server.client() as client:
        third = await say(client, "third", context_id=first.context_id)
    return "goes on" if "turn 3." in third.text else "begins again"


async def callers(server: Framework) -> str:
    async with server.client("ada") as ada, server.client("bob") as bob:
        first = await say(ada, "hello")
        other = await say(bob, "hello", context_id=first.context_id)
    return "two conversations" if "turn 1." in other.text else "one conversation"


def approval_by(answer: Answer, *, after_kill: bool) -> Callable[[Framework], Awaitable[str]]:
    """Return the function that looks for a way to approve a call: a word, or the data that the server expects."""

    async def approval(server: Framework) -> str:
        async with server.client() as client:
            if (await say(client, "pay")).state == "completed":
                return NO_APPROVALS
        for way in ("by a word or by data", "by data only"):
            if await _is_approved(server, answer, by_word=way.startswith("by a word"), after_kill=after_kill):
                return "runs the call" if after_kill else way
        return "the task is lost" if after_kill else "has no effect"

    return approval


async def _is_approved(server: Framework, answer: Answer, *, by_word: bool, after_kill: bool) -> bool:
    before = server.effects().count("paid Ada 5")
    async with server.client() as client:
        asked = await say(client, "pay")
    assert asked.state == "input-required"
    if after_kill:
        server.restart()
    async with server.client() as client:
        with suppress(A2AError):
            await say(client, "approve" if by_word else answer(asked.message), to=asked)
    return server.effects().count("paid Ada 5") == before + 1


async def cancel(server: Framework) -> str:
    began = server.effects().count("slow began")
    stopped = server.effects().count("slow stopped")
    async with server.client() as client:
        heard = await begin(client, "slow")
        await until(lambda: server.effects().count("slow began") > began)
        with suppress(A2AConnectionError):  # a server that does not answer until the tool ends
            await client.cancel_task(heard.task_id)
    try:
        await until(lambda: server.effects().count("slow stopped") > stopped)
    except AssertionError:
        server.restart()  # the tool runs on
        return "the tool runs on"
    return "stops the tool"


async def exception(server: Framework) -> str:
    async with server.client() as client:
        heard = await say(client, "fail")
        task = await client.get_task(heard.task_id)
    assert isinstance(task, Task)
    return "sent to the client" if SECRET in f"{heard.events} {task}" else "hidden"


async def data(server: Framework) -> str:
    async with server.client() as client:
        heard = await say(client, {"seats": 2})
    if heard.state != "completed":
        return "the task fails"
    if "seats" in heard.text:
        return "reaches the model as text"
    return "reaches the model as a file" if "<text/plain>" in heard.text else "is dropped"


# ---- the answers that the frameworks' own servers expect ------------------------------------------------------------


def data_of(message: Message) -> list[Any]:
    return [part.data for part in message.parts if isinstance(part.data, dict)]


def answer_fasta2a(message: Message) -> Part | None:
    """It has no way to answer: a run that waits for an approval has completed its task."""
    return None


def answer_google_adk(message: Message) -> Part | None:
    for each in data_of(message):
        if each.get("name") == "adk_request_confirmation":
            response = {"id": each["id"], "name": each["name"], "response": {"confirmed": True}}
            return Part(data=response, metadata={"adk_type": "function_response"})
    return None


def answer_strands(message: Message) -> Part | None:
    for each in data_of(message):
        for interrupt in each.get("interrupts", ()):
            return Part(data={"interruptResponse": {"interruptId": interrupt["interruptId"], "response": "y"}})
    return None


# ---- the table ------------------------------------------------------------------------------------------------------


class Own(NamedTuple):
    """A framework's own server."""

    title: str
    package: str
    lock: str
    """The lock file of its environment in `requirements`."""
    script: str
    answer: Answer
    cells: tuple[str, ...]
    prefix: str = "peer"
    """Of its environment: "framework" if that has the own server as well."""

    @property
    def heading(self) -> str:
        return f"{self.title} {pinned_version(self.package, f'requirements/{self.prefix}s/{self.lock}.txt')}"


ROWS: Final = (
    "protocol versions",
    "text",
    "what clients see of a tool",
    "conversation after `kill -9`",
    "two callers with one `contextId`",
    "an approval is given",
    "the approved task after `kill -9`",
    "cancel",
    "the text of an exception",
    "data in a message",
)
OURS: Final = (
    "1.0 and 0.3",
    "in pieces",
    "name",
    "goes on",
    "two conversations",
    "by a word or by data",
    "runs the call",
    "stops the tool",
    "hidden",
    "reaches the model as text",
)
ADK: Final = (
    "1.0",
    "as a whole",
    "name, arguments and result",
    "begins again",
    "one conversation",
    "by data only",
    "the task is lost",
    "stops the tool",
    "sent to the client",
    "reaches the model as a file",
)
STRANDS: Final = (
    "0.3",
    "in pieces",
    "no",
    "begins again",
    "one conversation",
    "by data only",
    "the task is lost",
    "stops the tool",
    "hidden",
    "reaches the model as text",
)
FASTA2A: Final = (
    "1.0",
    "in pieces, then as a whole",
    "no",
    "begins again",
    "one conversation",
    NO_APPROVALS,
    NO_APPROVALS,
    "the tool runs on",
    "hidden",
    "the task fails",
)
OWN: Final = (
    Own("fasta2a", "fasta2a", "pydantic-ai", "own_pydantic_ai", answer_fasta2a, FASTA2A, "framework"),
    Own("ADK's `to_a2a`", "google-adk", "adk", "own_google_adk", answer_google_adk, ADK),
    Own("Strands' `A2AServer`", "strands-agents", "strands", "own_strands", answer_strands, STRANDS),
)


def observers(answer: Answer) -> tuple[Callable[[Framework], Awaitable[str]], ...]:
    """Return the functions of the rows."""
    now = approval_by(answer, after_kill=False)
    later = approval_by(answer, after_kill=True)
    return (versions, tokens, tools, conversation, callers, now, later, cancel, exception, data)
