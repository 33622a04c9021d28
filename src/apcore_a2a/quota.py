"""A counter of resources in use (runs, streams, connections), in total and by quota key. Its users have the limits."""

from typing import Final

ANONYMOUS_PREFIX: Final = "anonymous\n"
"""The prefix of the quota keys of anonymous callers. No other key has it, because names have no line break."""


class QuotaCounter:
    """Counts resources in use, in total and by quota key. A key that uses nothing takes no memory.

    Example:
        >>> connections = QuotaCounter()
        >>> connections.add("192.0.2.1")
        >>> connections.add("192.0.2.7", 2)
        >>> connections.total, connections.used_by("192.0.2.7"), connections.used_by("198.51.100.1")
        (3, 2, 0)
    """

    __slots__ = ("_by_key", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_key: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of keys that use something."""
        return len(self._by_key)

    def used_by(self, key: str) -> int:
        return self._by_key.get(key, 0)

    def is_used_up(self, key: str, limit: int, anonymous_divisor: int = 1) -> bool:
        """Return whether a key is at its limit. For anonymous callers the limit is divided by `anonymous_divisor`."""
        if anonymous_divisor != 1 and key.startswith(ANONYMOUS_PREFIX):
            limit = max(1, limit // anonymous_divisor)
        return self._by_key.get(key, 0) >= limit

    def add(self, key: str, amount: int = 1) -> None:
        self.total += amount
        self._by_key[key] = self._by_key.get(key, 0) + amount

    def subtract(self, key: str, amount: int = 1) -> None:
        """Undo `add` when the resource is not in use any more."""
        self.total -= amount
        left = self._by_key.get(key, 0) - amount
        if left > 0:
            self._by_key[key] = left
        else:
            self._by_key.pop(key, None)
