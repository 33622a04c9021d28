"""Sums and products."""

from functools import reduce  # imported, so it is not a skill

__all__ = ["product", "total"]


def total(numbers: list[int]) -> int:
    """Adds numbers."""
    return sum(numbers)


def product(numbers: list[int]) -> int:
    """Multiplies numbers."""
    return reduce(lambda left, right: left * right, numbers, 1)


def internal(numbers: list[int]) -> int:
    return len(numbers)
