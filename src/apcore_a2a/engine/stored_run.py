"""The stored form of a run and of its message queue, with which another process can continue.

Invariant: every acknowledged message is stored. It is run when its turn comes, by this process or by the next one. If
it is rejected instead, its sender finds it in the history of the task, and the reason in the status.
"""

from typing import Any, Final

from msgspec import Struct, json
from msgspec.structs import replace

from apcore_a2a.agent import Caller
from apcore_a2a.protocol.model import SendMessage, encode

MAX_ATTEMPTS: Final = 3  # runs of a retry-safe task, if the process ends during each of them


class QueuedMessage(Struct, frozen=True):
    """An acknowledged message that waits for the end of the run before it."""

    request: SendMessage
    caller: Caller


class StoredRun(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run with its message queue. `request` is None if there is no run and only messages wait."""

    request: SendMessage | None = None
    caller: Caller = Caller()
    retry_safe: bool = False
    resumed: bool = False
    memo: Any = None
    attempt: int = 1
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
