"""What may be tried again, how often, and how soon.

Rule: a request that may have done something is not repeated unless the caller asked for it (`Retry(sends=True)`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from msgspec import Struct

from apcore_a2a.errors import A2AConnectionError, A2ADiscoveryError, A2AError, A2AServerError, OverloadedError
from apcore_a2a.protocol.operations import Operation

T = TypeVar("T")

# CANCEL, CREATE_PUSH and DELETE_PUSH are in neither set: they change something, and carry no key to be known again by.
SENDS: Final = frozenset({Operation.SEND, Operation.STREAM})
READS: Final = frozenset(
    {
        Operation.GET,
        Operation.LIST,
        Operation.SUBSCRIBE,
        Operation.GET_PUSH,
        Operation.LIST_PUSH,
        Operation.EXTENDED_CARD,
    }
)
BUSY: Final = frozenset({429, 502, 503, 504})  # HTTP: too much, or a proxy whose agent is away


class Retry(Struct, frozen=True, kw_only=True):
    """How a client deals with failures that pass.

    Example:
        >>> Retry(attempts=1) == Retry()
        False
    """

    attempts: int = 3
    """How often one call is tried in all, within its timeout."""
    reconnects: int = 10
    """How often in a row a broken stream is tried again before it is given up."""
    base: float = 0.2
    """The first pause, in seconds; each further one is twice as long."""
    cap: float = 5.0
    patience: float = 60.0
    """The longest pause that an agent may ask for with `Retry-After`; with a longer one its refusal is raised."""
    sends: bool = False
    """Repeat a message that may have arrived, with an Idempotency-Key. Only for agents that honour that header."""

    def may_repeat(self, operation: Operation, error: A2AError) -> bool:
        """Whether the operation may be tried again after this error."""
        # The order matters: A2ADiscoveryError is an A2AConnectionError, too.
        match error:
            case OverloadedError():
                return error.retry_after <= self.patience  # refused, not begun
            case A2ADiscoveryError():
                # The card was repeated already, where it was fetched; a stream that lost its agent waits on.
                return operation in READS and error.status in BUSY
            case A2AConnectionError(sent=False):
                return True  # it never left
            case A2AServerError() if error.code not in BUSY:
                return False
            case A2AConnectionError() | A2AServerError():
                return operation in READS or (self.sends and operation in SENDS)
        return False

    def pause(self, failures: int, error: A2AError) -> float:
        """Seconds to wait after so many failures in a row: what the agent asked for, or longer and longer."""
        doublings = min(failures - 1, 32)  # a number of any size, after a long outage, would be no float any more
        longest = min(self.cap, self.base * 2**doublings)
        # Many clients lose one agent at the same moment: they must not all come back at the same moment.
        pause = longest * random.uniform(0.5, 1)
        if isinstance(error, OverloadedError):
            pause = max(pause, error.retry_after)
        return float(pause)


async def repeat(retry: Retry, operation: Operation, once: Callable[[], Awaitable[T]], deadline: float | None) -> T:
    """Do `once`, and again while that is allowed, useful, and before `deadline` on the loop's clock."""
    failures = 0
    while True:
        try:
            return await once()
        except A2AError as error:
            failures += 1
            pause = retry.pause(failures, error)
            # Too late after the pause: then this error now, and not "did not answer in time" later.
            is_late = deadline is not None and asyncio.get_running_loop().time() + pause >= deadline
            if failures >= retry.attempts or is_late or not retry.may_repeat(operation, error):
                raise
        await asyncio.sleep(pause)
