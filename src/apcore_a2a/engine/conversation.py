"""What an agent may know besides its message: what was said before in the context, and the tasks it refers to.

A conversation is not stored by itself. It is the tasks of one context: what the user said is in their histories, and
what the agent answered is in their histories, their statuses and their artifacts.

Rule: only what is the caller's own, bounded in messages and in bytes. What is too long is cut, and the oldest go first.
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
MAX_MESSAGE: Final = 256 * 1024  # bytes of one message of it
LARGE: Final = 256 * 1024  # bytes of tasks that are not read on the loop
TRUNCATED: Final = "apcore.truncated"
"""True in the metadata of a message of which something was left out."""


class Conversations:
    """Finds what was said; at most `limit` messages of it."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit

    async def tell(self, call: Call, context: CallContext) -> None:
        """Tell the agent what was said before in the context, and of the tasks that the message refers to."""
        if self._limit:
            call.history = await read_conversation(self._store, context.owner, call.task.context_id, limit=self._limit)
        found: list[Task] = []
        for task_id in call.message.reference_task_ids[:MAX_REFERENCES]:
            record = await self._store.load(task_id, context.owner)
            if record is not None:  # what is another's is not there
                found.append(record.document.task())
        call.references = tuple(found)


async def read_conversation(store: Store, owner: str, context_id: str, *, limit: int) -> tuple[Message, ...]:
    """The latest messages of an owner's tasks in a context, at most `limit`, and no more than `MAX_BYTES`."""
    query = Query(owner=owner, limit=limit, context_id=context_id, by_creation=True)
    found = _Found(limit)
    while True:  # a page ends early when its tasks are large
        page = await store.page(query)
        if sum(len(record.document.body) for record in page.records) > LARGE:
            await asyncio.to_thread(found.add, page.records)
        else:
            found.add(page.records)
        if found.is_full or not page.next_cursor:
            return tuple(reversed(found.newest_first))
        query = replace(query, cursor=page.next_cursor)


class _Found:
    """The messages of a conversation, the newest first, as long as there is room for them."""

    def __init__(self, limit: int) -> None:
        self.newest_first: list[Message] = []
        self.is_full = False
        self._limit = limit
        self._room = MAX_BYTES

    def add(self, records: Sequence[Record]) -> None:
        """What was said in these tasks, the newest of which comes first."""
        for record in records:
            for message in reversed(_messages_of(record.document.task())):
                size = len(encode(message))
                if size > MAX_MESSAGE:
                    message = _cut(message)
                    size = len(encode(message))
                self._room -= size
                if len(self.newest_first) == self._limit or self._room < 0:
                    self.is_full = True
                    return
                self.newest_first.append(message)


def _messages_of(task: Task) -> list[Message]:
    """What was said in a task. Its artifacts are what the agent answered, before its last word."""
    said = [*task.history]
    for artifact in task.artifacts:
        parts = tuple(_joined(artifact.parts))
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


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts of an artifact, with the pieces of a text as one."""
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


def _cut(message: Message) -> Message:
    """A message without what is too much of it: the end of a long text, and data and files that do not fit."""
    room = MAX_MESSAGE
    kept: list[Part] = []
    for part in message.parts:
        if isinstance(part.text, str):
            part = Part(text=part.text[: room // 8])  # a character is six bytes at most, when it is escaped
        size = len(encode(part))
        if size <= room:
            kept.append(part)
            room -= size
    if not kept:
        kept.append(Part(text=""))  # no message is without a part
    return replace(message, parts=tuple(kept), metadata={TRUNCATED: True})
