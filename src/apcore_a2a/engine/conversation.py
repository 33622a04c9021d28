"""Conversations: the earlier messages of a context and the referenced tasks, and what the agent remembers of it.

The messages of a conversation have no record of their own. They are derived from the tasks of one context: the user's
messages are in their histories, the agent's messages in their histories, statuses and artifacts. The memory of an agent
(`RunMemory`) is stored once for each owner and context.

Invariant: an agent receives only data of the caller, bounded in messages and in bytes. Long messages are truncated, and
the oldest messages are dropped first.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec import json
from msgspec.structs import replace

from apcore_a2a.agent import Call
from apcore_a2a.engine.context import CallContext
from apcore_a2a.engine.waiting import Turn
from apcore_a2a.protocol.lifecycle import is_progress, repeats_answer
from apcore_a2a.protocol.model import Artifact, Message, Part, Role, Task, encode
from apcore_a2a.storage.contract import ConversationMemory, ConversationWrite, Query, Record, Store

logger = logging.getLogger(__name__)

MAX_REFERENCES: Final = 10
MAX_BYTES: Final = 1024 * 1024  # of a conversation, as JSON
MAX_MESSAGE: Final = 256 * 1024  # bytes of one of its messages
LARGE: Final = 256 * 1024  # bytes of a page of tasks above which a thread decodes it
TRUNCATED: Final = "apcore.truncated"
"""The metadata key that is true in a truncated message."""


class EarlierTask(NamedTuple):
    """A task as it was before the turn that is run again, or None if it did not exist."""

    task_id: str
    task: Task | None


class Conversations:
    """Reads conversations from the store, at most `limit` messages of each."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit

    async def add_history(self, call: Call, context: CallContext, *, task: EarlierTask | None = None) -> None:
        """Add the earlier messages of the context, and the tasks that the message refers to, to the call.

        `task` replaces the stored task of the call.
        """
        if self._limit:
            context_id = call.task.context_id
            call.history = await read_conversation(self._store, context.owner, context_id, limit=self._limit, task=task)
        found: list[Task] = []
        for task_id in call.message.reference_task_ids[:MAX_REFERENCES]:
            record = await self._store.load(task_id, context.owner)
            if record is not None:  # a task of another owner is not found
                found.append(record.document.task())
        call.references = tuple(found)


async def read_conversation(
    store: Store, owner: str, context_id: str, *, limit: int, task: EarlierTask | None = None
) -> tuple[Message, ...]:
    """Return the latest messages of an owner's tasks in a context, oldest first: within `limit` and `MAX_BYTES`."""
    query = Query(owner=owner, limit=limit, context_id=context_id, by_creation=True)
    found = _Found(limit, task)
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

    def __init__(self, limit: int, replaced: EarlierTask | None) -> None:
        self._replaced = replaced
        self.newest_first: list[Message] = []
        self.is_full = False
        self._limit = limit
        self._room = MAX_BYTES

    def add(self, records: Sequence[Record]) -> None:
        """Add the messages of these tasks, which are ordered newest first."""
        for record in records:
            for message in reversed(self._messages_of(record.document.task())):
                size = len(encode(message))
                if size > MAX_MESSAGE:
                    message = _truncate(message)
                    size = len(encode(message))
                self._room -= size
                if len(self.newest_first) == self._limit or self._room < 0:
                    self.is_full = True
                    return
                self.newest_first.append(message)

    def _messages_of(self, task: Task) -> list[Message]:
        if self._replaced is None or task.id != self._replaced.task_id:
            return _messages_of(task)
        return _messages_of(self._replaced.task) if self._replaced.task is not None else []


def _messages_of(task: Task) -> list[Message]:
    """Return the messages of a task. Its artifacts count as answers of the agent, before its last status message."""
    said = [message for message in task.history if not repeats_answer(message)]
    for artifact in task.artifacts:
        parts = tuple(_join_texts(artifact.parts))
        if parts:
            said.append(_answer(artifact, parts, task))
    last = task.status.message
    if last is not None and not is_progress(last) and not repeats_answer(last):
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


# ---- memory ---------------------------------------------------------------------------------------------------------
# What an agent remembers of a conversation (`Remember(scope="conversation")`).
#
# Invariant: of the runs of one context in this process, one at a time has the memory. A piece of a run at another
# replica, based on the same memory, is void if it is stored second (docs/decisions/0157).

# A longer list of pieces is replaced by one, so that reading it stays cheap. The limit grows with the memory: to write
# a long memory again costs each turn 2 KiB on average, however long the memory is.
MAX_PIECES: Final = 32
LARGE_PIECE: Final = 2048  # bytes

ConversationTurns = dict[tuple[str, str], Turn]
"""The turns of the contexts whose memory is in use, by owner and context."""


class RunMemory:
    """The memory of a conversation for one run: read once, written in pieces, released when the run ends."""

    def __init__(self, store: Store, turns: ConversationTurns, owner: str, context_id: str) -> None:
        self._store = store
        self._turns = turns
        self._key = (owner, context_id)
        self._turn: Turn | None = None  # while this run has the memory
        self._reading = asyncio.Lock()  # the agent may call `recall` from several of its asyncio tasks
        self._base: ConversationMemory | None = None  # as it is stored, if this run has read it
        self._latest: bytes | None = None  # what the agent remembered last in this run
        self._is_written = True  # whether `_latest` has been passed to the store
        self._is_over = False  # the run has ended; its agent may go on if it was abandoned

    async def recall(self) -> Any:  # Any: the agent's memo
        async with self._reading:
            stored = await self._read_stored()
        if stored is None:
            return None
        body = stored.body if self._latest is None else self._latest
        if not body:
            return None
        try:
            return json.decode(body)
        except ValueError:
            logger.error("memory of a conversation is damaged: it begins again", extra={"context_id": self._key[1]})
            return None

    async def _read_stored(self) -> ConversationMemory | None:
        """Return the memory as it is stored, when it is the turn of this run. None if the run has ended meanwhile."""
        if self._turn is None:
            turn = self._turns.setdefault(self._key, Turn())
            await turn.take()
            if self._is_over:
                self._give(turn)
                return None
            self._turn = turn
        if self._base is None:
            self._base = await self._store.conversation(*self._key)
        return self._base

    def remember(self, body: bytes) -> None:
        self._latest = body
        self._is_written = False

    def next_write(self) -> ConversationWrite | None:
        """Return what the next write stores, or None if there is nothing new."""
        if self._is_written or self._latest is None:
            return None
        self._is_written = True
        base = self._base
        if base is None:  # not read, or it is unknown what is stored
            return ConversationWrite(base=None, keep=0, tail=self._latest)
        if base.body == self._latest:
            return None
        keep = common_length(base.body, self._latest)
        pieces = base.pieces + 1
        if pieces > max(MAX_PIECES, len(self._latest) // LARGE_PIECE) or keep < len(self._latest) // 2:
            keep = 0
            pieces = 1
        self._base = ConversationMemory(base.number + 1, self._latest, pieces)
        return ConversationWrite(base=base.number, keep=keep, tail=self._latest[keep:])

    def write_again(self) -> None:
        """Store the memory as a whole with the next write, because it is unknown whether the last one was stored."""
        self._base = None
        self._is_written = False

    def release(self) -> None:
        """Give the memory to the next run of the context. This run of the task has ended."""
        self._is_over = True
        turn = self._turn
        self._turn = None
        if turn is not None:
            self._give(turn)

    def _give(self, turn: Turn) -> None:
        turn.give()
        if not turn.is_taken:
            del self._turns[self._key]


def common_length(old: bytes, new: bytes) -> int:
    """Return the number of bytes with which both begin, by bisection: one comparison per byte would take long."""
    one = memoryview(old)
    two = memoryview(new)
    low = 0
    high = min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
