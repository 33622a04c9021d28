"""The options of the store in memory that few use."""

from typing import Final, TypedDict

TTL: Final = 3600.0  # seconds


class MoreOptions(TypedDict, total=False):
    """What is seldom given."""

    max_tasks_per_owner: int
    """Most tasks of one owner, whatever tenants they name; without it, as many as there may be of all."""
    ttl: float
    """The old name of `ttl_seconds`."""


def read_ttl(ttl_seconds: float, more: MoreOptions) -> float:
    """The time for which finished tasks are kept, by either of its names.

    Raises:
        TypeError: it has both, or there is an option that does not exist.
    """
    unknown = sorted(more.keys() - MoreOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"InMemoryTaskStore has no parameter {', '.join(unknown)}")
    if "ttl" not in more:
        return ttl_seconds
    if ttl_seconds != TTL:
        raise TypeError("ttl is the old name of ttl_seconds: give one of the two")
    return more["ttl"]
