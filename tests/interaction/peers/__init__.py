"""Clients that other people wrote, behind one small interface: what a test does with them, and what they saw.

What a peer saw is said in plain words, the same for all of them:

    {"task": id, "context": id, "state": "completed", "texts": [...]}     a task
    {"state": "working", "final": False}                                  a status update (1.0 has no `final`)
    {"chunk": "a", "append": False, "last": False}                        an artifact update
    {"says": "hello"}                                                     a message
"""

from typing import Any, Protocol

Words = dict[str, Any]


class PeerError(Exception):
    """The error that the peer raised: the name of the protocol's error, or `HTTP 404` if it knows only the status."""


class EventStream(Protocol):
    """An open stream."""

    async def next(self) -> Words:
        """Return the next event, or "" at the end."""
        ...

    async def close(self) -> None: ...


class Peer(Protocol):
    async def send(self, text: str, *, task_id: str = "", context_id: str = "", wait: bool = True) -> Words: ...
    async def stream(self, text: str) -> EventStream: ...
    async def subscribe(self, task_id: str) -> EventStream: ...
    async def get(self, task_id: str, history_length: int | None = None) -> Words: ...
    async def cancel(self, task_id: str) -> Words: ...
    async def card(self) -> Words: ...
    async def extended_card(self) -> Words: ...
    async def set_webhook(self, task_id: str, url: str) -> Words: ...

    async def get_webhook(self, task_id: str, config_id: str) -> Words: ...
    async def close(self) -> None: ...


async def rest(stream: EventStream) -> list[Words]:
    """Return all remaining events."""
    received = []
    while words := await stream.next():
        received.append(words)
    return received
