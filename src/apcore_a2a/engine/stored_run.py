"""The stored form of a run, of its message queue and of its runner, with which another process can continue.

Invariant: every acknowledged message is stored. It is run when its turn comes, by this process or by the next one. If
it is rejected instead, its sender finds it in the history of the task, and the reason in the status.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, json
from msgspec.structs import replace

from apcore_a2a.agent import Caller
from apcore_a2a.protocol.model import Message, SendMessage, encode
from apcore_a2a.trace_context import NO_TRACE, Trace

MAX_ATTEMPTS: Final = 3  # runs of a retry-safe task, if the process ends during each of them


class QueuedMessage(Struct, frozen=True, omit_defaults=True):
    """An acknowledged message that waits for the end of the run before it."""

    request: SendMessage
    caller: Caller
    trace: Trace = NO_TRACE

    @property
    def message_id(self) -> str:
        return self.request.message.message_id


class StoredRun(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run with its message queue. `request` is None if there is no run and only messages wait."""

    request: SendMessage | None = None
    caller: Caller = Caller()
    retry_safe: bool = False
    resumed: bool = False
    memo: Any = None
    attempt: int = 1
    start: int = 0
    """The version of the task before the message of this run. 0 for a new task."""
    trace: Trace = NO_TRACE
    """The trace of the request."""
    queue: tuple[QueuedMessage, ...] = ()

    def may_run_again(self) -> bool:
        """Return whether a restart may run the request again, or for the first time."""
        if self.request is None:
            return False
        # A run with attempt 0 waits for a replica with a free slot, and has not started.
        return self.attempt == 0 or (self.retry_safe and self.attempt < MAX_ATTEMPTS)


_STORED_RUN: Final = json.Decoder(StoredRun)


def decode_stored_run(body: bytes) -> StoredRun | None:
    """Return the run, or None if there is none or another version wrote it."""
    try:
        return _STORED_RUN.decode(body)
    except ValueError:
        return None


def encode_stored_run(run: StoredRun | None, queue: tuple[QueuedMessage, ...]) -> bytes:
    """Return what a durable store keeps of a run and of the messages that wait for it. Empty if there is neither."""
    if run is not None:
        return encode(replace(run, queue=queue))
    if queue:
        return encode(StoredRun(queue=queue))
    return b""


class MessageQueue:
    """The acknowledged messages of a task that wait for their turn, in the order in which they will be run.

    Invariant: a message leaves the queue only together with a write that succeeds. It leaves with the event that adds
    it to the history. If the write of this event fails, the message is in the queue again.
    """

    __slots__ = ("left", "saves", "waiting")

    def __init__(self) -> None:
        self.waiting: tuple[QueuedMessage, ...] = ()
        self.saves: dict[str, asyncio.Future[None]] = {}  # by id of the message: done when it is stored, or refused
        self.left: list[tuple[int, QueuedMessage]] = []  # those that left, until the event with this number is stored

    def __contains__(self, message_id: object) -> bool:
        return any(queued.message_id == message_id for queued in self.waiting)

    def load(self, messages: tuple[QueuedMessage, ...], history: Sequence[Message]) -> None:
        """Continue with the stored queue, without messages that are in the history of the task already.

        A read of the queue may be older than the write with which a message left it.
        """
        settled = {said.message_id for said in history} if messages else set()
        self.waiting = tuple(queued for queued in messages if queued.message_id not in settled)
        self.left.clear()

    def add(self, queued: QueuedMessage) -> None:
        self.waiting = (*self.waiting, queued)

    def remove(self, queued: QueuedMessage) -> None:
        """Remove a message that could not be stored."""
        self.waiting = tuple(other for other in self.waiting if other is not queued)

    def remove_all(self, message_id: str) -> tuple[QueuedMessage, ...]:
        """Remove and return the messages with this id, which are settled."""
        removed = tuple(queued for queued in self.waiting if queued.message_id == message_id)
        self.waiting = tuple(queued for queued in self.waiting if queued.message_id != message_id)
        return removed

    def put_back(self, messages: tuple[QueuedMessage, ...]) -> None:
        self.waiting = (*messages, *self.waiting)

    def leave(self, message_id: str, version: int) -> bool:
        """Remove the first message with this id, with the event of this number. Return whether there was one."""
        for place, queued in enumerate(self.waiting):
            if queued.message_id == message_id:
                self.left.append((version, queued))
                self.waiting = (*self.waiting[:place], *self.waiting[place + 1 :])
                return True
        return False

    def confirm(self, version: int) -> None:
        """Forget the messages that left with events that are stored now."""
        self.left = [(seq, queued) for seq, queued in self.left if seq > version]

    def restore(self, version: int) -> bool:
        """Return to the stored version. Return whether messages are in the queue again."""
        self.confirm(version)
        returned = tuple(queued for _, queued in self.left)
        self.left.clear()
        self.put_back(returned)
        return bool(returned)


class Runner(Struct, frozen=True):
    """Which other replica runs a task. One of three cases: `NO_RUNNER`, `ANY_RUNNER`, or a replica by its name."""

    stored: str | None
    """The value of the store's `runner` field: None, an empty string, or the replica's name."""

    @property
    def is_none(self) -> bool:
        """Return whether no other replica runs the task: this replica does, or the task is idle."""
        return self.stored is None

    @property
    def is_any(self) -> bool:
        """Return whether the task waits for any replica with a free slot."""
        return self.stored == ""

    @property
    def name(self) -> str:
        """Return the name of the replica that runs the task. Empty in the other two cases."""
        return self.stored or ""


NO_RUNNER: Final = Runner(None)
ANY_RUNNER: Final = Runner("")
