"""Sums and products."""

from functools import reduce  # not ours, so it is no skill

__all__ = ["product", "total"]


def total(numbers: list[int]) -> int:
    """Adds numbers."""
    return sum(numbers)


def product(numbers: list[int]) -> int:
    """Multiplies numbers."""
    return reduce(lambda left, right: left * right, numbers, 1)


def internal(numbers: list[int]) -> int:
    return len(numbers)
