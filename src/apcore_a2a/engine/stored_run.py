"""The stored form of a run, of its message queue and of its runner, with which another process can continue.

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
