"""What a durable store keeps of a run, and of the messages that wait for it, so that another process can go on.

Rule: a message that was acknowledged is stored. It is run when its turn comes, here or after a restart, or it is
refused where its sender can see it: in the task's history and status.
"""

from typing import Any, Final

from msgspec import Struct, json
from msgspec.structs import replace

from apcore_a2a.agent import Caller
from apcore_a2a.protocol.model import SendMessage, encode

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


def encode_stored_run(run: StoredRun | None, queue: tuple[QueuedMessage, ...]) -> bytes:
    """Return what a durable store keeps of a run and of the messages that wait for it. Empty if there is neither."""
    if run is not None:
        return encode(replace(run, queue=queue))
    if queue:
        return encode(StoredRun(queue=queue))
    return b""
