"""Figures of several processes in one place: a piece of memory that they share, a row for each. No locks: one writes a
row, anybody reads; a figure may be half a second old.
"""

import mmap
import struct
from collections.abc import Sequence


class MetricsBoard:
    """Made before the processes are; each writes its own row."""

    def __init__(self, workers: int, figures: int) -> None:
        self._row = struct.Struct(f"{figures}d")
        self._workers = workers
        self._memory = mmap.mmap(-1, max(workers * self._row.size, 1))

    def write(self, worker: int, figures: Sequence[float]) -> None:
        self._row.pack_into(self._memory, worker * self._row.size, *figures)

    def read(self, worker: int) -> tuple[float, ...]:
        return self._row.unpack_from(self._memory, worker * self._row.size)

    def read_all(self) -> list[tuple[float, ...]]:
        return [self.read(worker) for worker in range(self._workers)]
