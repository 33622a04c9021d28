"""What the two bindings have in common: where an agent listens, and one exchange with it.

Rule: a binding turns an operation into an HTTP request, and an answer into a value or an exception. It sends nothing.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from apcore_a2a.client.transport import HttpRequest, HttpResponse
from apcore_a2a.errors import InvalidAgentResponseError, InvalidParamsError, ParseError
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.dialect import VERSION_HEADER, Dialect
from apcore_a2a.protocol.model import ArtifactUpdate, Event, Message, StatusUpdate, Task, Value
from apcore_a2a.protocol.operations import Operation
from apcore_a2a.protocol.sse import ServerSentEvent

logger = logging.getLogger(__name__)

LEFT_OUT: Final = "apcore.leftOut"  # in the metadata of an answer: what of it could not be read
MAX_NAMED: Final = 20  # of what was left out; an agent may send thousands of parts that nobody knows

P = ParamSpec("P")
T = TypeVar("T")


class ChosenInterface(Struct, frozen=True):
    """One interface of an agent, as chosen from its card."""

    url: str
    binding: str
    dialect: Dialect
    tenant: str = ""
    extensions: tuple[str, ...] = ()

    def headers(self, media: str) -> dict[str, str]:
        # Both media types, always: an agent with one thing to say may answer a streaming request without a stream.
        headers = {"Content-Type": media, "Accept": f"{media}, text/event-stream"}
        # 1.0 §3.6.1: a missing header means 0.3, and 0.3 agents know no header.
        if self.dialect.VERSION != "0.3":
            headers[VERSION_HEADER] = self.dialect.VERSION
        if self.extensions:
            headers[self.dialect.EXTENSIONS_HEADER] = ", ".join(self.extensions)
        return headers


class Exchange(Protocol):
    """One request, and how to read what comes back."""

    @property
    def request(self) -> HttpRequest: ...

    def result(self, response: HttpResponse) -> Any:
        """The typed result, or the typed error raised."""
        ...

    def event(self, event: ServerSentEvent) -> Event:
        """One event of a stream, or the typed error raised."""
        ...


class Binding(Protocol):
    def __call__(self, interface: ChosenInterface, operation: Operation, request: Value) -> Exchange: ...


def decode_answer(decode: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `decode` makes of an agent's words; that they make no sense is the agent's fault, not the caller's."""
    # The decoders serve both sides of the wire. There, the same errors tell a client that its request is wrong.
    try:
        return decode(*args, **kwargs)
    except (ParseError, InvalidParamsError) as error:
        raise InvalidAgentResponseError(f"The agent's answer cannot be read: {error}") from error


def read_event(dialect: Dialect, data: bytes | Raw) -> Event:
    """An event of a stream, or what a message was answered with."""
    left_out: list[str] = []
    event = decode_answer(dialect.decode_event, data, left_out)
    return _note_left_out(event, left_out)


class ReceivedCard(Struct, frozen=True):
    """A card, and what it came as, decoded: that is what was signed."""

    card: AgentCard
    body: dict[str, Any]


def read_result(dialect: Dialect, operation: Operation, data: bytes | Raw) -> Any:
    """What an operation answered; a card as a ReceivedCard."""
    left_out: list[str] = []
    result = decode_answer(dialect.decode_result, operation, data, left_out)
    # A message is answered in the shape of an event; of events, these two are an answer.
    if operation is Operation.SEND and not isinstance(result, Task | Message):
        raise InvalidAgentResponseError("The agent answered a message with neither a task nor a message")
    if isinstance(result, AgentCard):
        return ReceivedCard(result, msgspec.json.decode(bytes(data), type=dict[str, Any]))
    return _note_left_out(result, left_out)


def _note_left_out(answer: T, left_out: list[str]) -> T:
    """The answer, marked if something of it could not be read: nothing is lost silently (docs/decisions/0045)."""
    if not left_out:
        return answer
    named = left_out[:MAX_NAMED]
    # The paths also in the text: a program that has not set up logging, as the command line, shows nothing else.
    text = "left out of the agent's answer, because it cannot be read: %s"
    logger.warning(text, "; ".join(named), extra={"left_out": named})
    if not isinstance(answer, Task | Message | StatusUpdate | ArtifactUpdate):
        return answer  # a page has no metadata
    metadata = {**(answer.metadata or {}), LEFT_OUT: named}
    return replace(answer, metadata=metadata)
