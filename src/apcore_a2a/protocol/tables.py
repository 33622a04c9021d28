"""Tables that are read both ways: written once, inverted here, so that the two directions cannot differ."""

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def inverted(table: Mapping[K, V]) -> dict[V, K]:
    """The keys of a table by their values. Of several keys with one value, the last one counts."""
    return {value: key for key, value in table.items()}
