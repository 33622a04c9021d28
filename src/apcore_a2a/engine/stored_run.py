"""What a durable store keeps of a run, and of the messages that wait for it, so that another process can go on.

Rule: a message that was acknowledged is stored. It is run when its turn comes, here or after a restart, or it is
refused where its sender can see it: in the task's history and status.
"""

from typing import Any, Final

from msgspec import Struct, json
from msgspec.structs import replace

from apcore_a2a.agent import Caller
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import SendMessage, TaskState, encode
from apcore_a2a.storage.contract import Webhook

MAX_ATTEMPTS: Final = 3  # runs of a retry-safe task whose process died


class QueuedMessage(Struct, frozen=True):
    """A message that was acknowledged, and waits for the run before it to end."""

    request: SendMessage
    caller: Caller


class StoredRun(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run, or none (`request` is None) if only messages wait."""

    request: SendMessage | None = None
    caller: Caller = Caller()
    retry_safe: bool = False
    resumed: bool = False
    memo: Any = None
    attempt: int = 1
    queue: tuple[QueuedMessage, ...] = ()

    def may_run_again(self) -> bool:
        if self.request is None:
            return False
        # The attempt 0 is one that waits for a replica with room: nobody has begun with it.
        return self.attempt == 0 or (self.retry_safe and self.attempt < MAX_ATTEMPTS)


_STORED_RUN: Final = json.Decoder(StoredRun)


def decode_stored_run(body: bytes) -> StoredRun | None:
    """None where there is none, or one that another version wrote."""
    try:
        return _STORED_RUN.decode(body)
    except ValueError:
        return None


class RunKeeper:
    """The run, the queue and the webhook of one task, and what a durable store keeps of the first two, encoded."""

    def __init__(self, *, durable: bool) -> None:
        self.run: StoredRun | None = None
        self.queue: tuple[QueuedMessage, ...] = ()  # in the order in which they will be run
        self.has_webhook = False  # then the task is not canceled for want of streams
        self.webhook: Webhook | None = None  # that a new task is stored with
        self._durable = durable
        self._run_body = b""  # the run and the queue
        self._queue_body = b""  # the queue alone

    def set_run(self, run: StoredRun | None) -> None:
        self.run = run
        self._encode()

    def set_queue(self, queue: tuple[QueuedMessage, ...]) -> None:
        self.queue = queue
        self._encode()

    def expect_webhook(self, webhook: Webhook | None) -> None:
        """The task has a webhook; one that is given is to be stored with the task, which is new."""
        self.has_webhook = True
        self.webhook = webhook

    def _encode(self) -> None:
        if not self._durable:  # nothing outlives the process
            return
        self._queue_body = b""
        if self.queue:
            self._queue_body = encode(StoredRun(queue=self.queue))
        self._run_body = self._queue_body
        if self.run is not None:
            self._run_body = encode(replace(self.run, queue=self.queue))

    def body(self, state: TaskState) -> bytes:
        """What to store with a task in that state."""
        if state in TERMINAL:
            return b""
        if state in AT_REST and state is not TaskState.AUTH_REQUIRED:
            return self._queue_body  # nothing is run again after a crash but what waits
        return self._run_body  # an agent that waits for a login is run again, too
