"""Conversation history: the earlier messages of a context and the referenced tasks, for the agent's `Call`.

A conversation has no record of its own. It is derived from the tasks of one context: the user's messages are in their
histories, the agent's messages in their histories, statuses and artifacts.

Invariant: an agent receives only data of the caller, bounded in messages and in bytes. Long messages are truncated, and
the oldest messages are dropped first.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from apcore_a2a.agent import Call
from apcore_a2a.engine.context import CallContext
from apcore_a2a.protocol.lifecycle import is_progress
from apcore_a2a.protocol.model import Artifact, Message, Part, Role, Task, encode
from apcore_a2a.storage.contract import Query, Record, Store

MAX_REFERENCES: Final = 10
MAX_BYTES: Final = 1024 * 1024  # of a conversation, as JSON
MAX_MESSAGE: Final = 256 * 1024  # bytes of one of its messages
LARGE: Final = 256 * 1024  # bytes of a page of tasks above which a thread decodes it
TRUNCATED: Final = "apcore.truncated"
"""The metadata key that is true in a truncated message."""


class Conversations:
    """Reads conversations from the store, at most `limit` messages of each."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit

    async def add_history(self, call: Call, context: CallContext) -> None:
        """Add the earlier messages of the context, and the tasks that the message refers to, to the call."""
        if self._limit:
            call.history = await read_conversation(self._store, context.owner, call.task.context_id, limit=self._limit)
        found: list[Task] = []
        for task_id in call.message.reference_task_ids[:MAX_REFERENCES]:
            record = await self._store.load(task_id, context.owner)
            if record is not None:  # a task of another owner is not found
                found.append(record.document.task())
        call.references = tuple(found)


async def read_conversation(store: Store, owner: str, context_id: str, *, limit: int) -> tuple[Message, ...]:
    """Return the latest messages of an owner's tasks in a context, oldest first: within `limit` and `MAX_BYTES`."""
    query = Query(owner=owner, limit=limit, context_id=context_id, by_creation=True)
    found = _Found(limit)
    while True:  # a page ends early if its tasks are large
        page = await store.page(query)
        if sum(len(record.document.body) for record in page.records) > LARGE:
            await asyncio.to_thread(found.add, page.records)
        else:
            found.add(page.records)
        if found.is_full or not page.next_cursor:
            return tuple(reversed(found.newest_first))
        query = replace(query, cursor=page.next_cursor)


class _Found:
    """The messages of a conversation, newest first, until the limits are reached."""

    def __init__(self, limit: int) -> None:
        self.newest_first: list[Message] = []
        self.is_full = False
        self._limit = limit
        self._room = MAX_BYTES

    def add(self, records: Sequence[Record]) -> None:
        """Add the messages of these tasks, which are ordered newest first."""
        for record in records:
            for message in reversed(_messages_of(record.document.task())):
                size = len(encode(message))
                if size > MAX_MESSAGE:
                    message = _truncate(message)
                    size = len(encode(message))
                self._room -= size
                if len(self.newest_first) == self._limit or self._room < 0:
                    self.is_full = True
                    return
                self.newest_first.append(message)


def _messages_of(task: Task) -> list[Message]:
    """Return the messages of a task. Its artifacts count as answers of the agent, before its last status message."""
    said = [*task.history]
    for artifact in task.artifacts:
        parts = tuple(_join_texts(artifact.parts))
        if parts:
            said.append(_answer(artifact, parts, task))
    last = task.status.message
    if last is not None and not is_progress(last):
        said.append(last)
    return said


def _answer(artifact: Artifact, parts: tuple[Part, ...], task: Task) -> Message:
    return Message(
        message_id=artifact.artifact_id, role=Role.AGENT, parts=parts, context_id=task.context_id, task_id=task.id
    )


def _join_texts(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts of an artifact, with adjacent texts joined."""
    pieces: list[str] = []
    for part in parts:
        if isinstance(part.text, str):
            pieces.append(part.text)
            continue
        if pieces:
            yield Part(text="".join(pieces))
            pieces = []
        yield part
    text = "".join(pieces)
    if text:
        yield Part(text=text)


def _truncate(message: Message) -> Message:
    """Return a message within `MAX_MESSAGE`: long texts are truncated, data and files that do not fit are omitted."""
    room = MAX_MESSAGE
    kept: list[Part] = []
    for part in message.parts:
        if isinstance(part.text, str):
            part = Part(text=part.text[: room // 8])  # JSON needs at most six bytes for a character
        size = len(encode(part))
        if size <= room:
            kept.append(part)
            room -= size
    if not kept:
        kept.append(Part(text=""))  # a message needs at least one part
    return replace(message, parts=tuple(kept), metadata={TRUNCATED: True})
