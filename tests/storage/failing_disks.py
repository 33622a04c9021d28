"""Disks and files that fail: a disk of a few megabytes, which fills up, and a file with a damaged page."""

import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def mount_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk of this size for the duration of a fixture."""
    path = place / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted here; max_page_count stands for the full disk in tests/storage")
    yield path
    subprocess.run(["umount", path], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)


def damage(path: Path, table: str) -> None:
    """Overwrite the first page of a table in a file that is not open."""
    database = sqlite3.connect(path)
    (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    (size,) = database.execute("PRAGMA page_size").fetchone()
    database.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
