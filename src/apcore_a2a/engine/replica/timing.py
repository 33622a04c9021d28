"""The times and batch sizes of a replica."""

from msgspec import Struct


class ReplicaTiming(Struct, frozen=True, kw_only=True):
    """Times (in seconds) and batch sizes of a replica. Tests pass others."""

    renewals: float = 5
    """Renewals in the length of a lease. With five the store may be away for seven of fifteen seconds at any time."""
    retry: float = 0.25
    """The pause after a failed renewal, and between claims of further orphans."""
    stop_after: float = 2 / 3
    """The part of the lease after which runs are stopped if it was not renewed: no other replica may run them yet."""
    suspended: float = 1.0
    """A timer that is late by more shows that the whole process was suspended."""
    longest_hold: float = 100.0
    """How long after a renewal a store that says that it is down may keep runs from being stopped."""
    poll: float = 1.0
    """Between two reads of followed tasks, because wake-ups may get lost."""
    polls: float = 3
    """Reads in the length of a lease while no task is followed, because wake-ups may get lost."""
    queue_poll: float = 0.2
    """Between two attempts to claim queued tasks while tasks wait for room."""
    requests_valid: float = 3.0
    """How long a read of the requests from other replicas is valid. It is shorter than `Timing.peer_cancel`, after
    which another replica cancels a task without this one."""
    answer: float = 6.0
    """How long another replica may take to answer a request."""
    answer_poll: float = 0.5
    """Between two reads of the answer to a request, because wake-ups may get lost."""
    claim_batch: int = 100
    """Tasks claimed at once, so that other replicas get some, too."""
    read_batch: int = 500
    """Followed tasks read at once: fewer than the events of one read, so that each read has an event of each task."""
    max_queued: int = 10_000
    """New tasks that may wait for a replica with room."""
