"""A nearly full disk, and a file with a damaged page, under a running server: health check and log report them."""

import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.server_process import serving

FULL = "task store unhealthy: the disk of the task store is full"
DAMAGED = "task store unhealthy: the file of the task store is damaged"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of two megabytes."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted here; max_page_count stands for the full disk in tests/storage")
    yield path
    subprocess.run(["umount", path], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)


async def test_health_reports_a_nearly_full_disk_even_if_small_writes_succeed(small_disk: Path) -> None:
    async with serving(small_disk / "tasks.db") as server:
        assert await server.status_of_send("x" * 2_000_000) == 503
        assert await server.health() == 503
        assert await server.status_of_send("small") == 200
        assert await server.health() == 503
        enlarge(small_disk)
        await server.process.says("task store unhealthy")
        while await server.health() == 503:  # until the next probe succeeds
            pass
        assert await server.status_of_send("x" * 2_000_000) == 200
        await server.stop()
        assert server.process.said.count(FULL) == 1


def damage(path: Path, table: str) -> None:
    """Overwrite the first page of a table in a file that is not open."""
    database = sqlite3.connect(path)
    (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    (size,) = database.execute("PRAGMA page_size").fetchone()
    database.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


async def test_a_damaged_page_is_logged_once(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with serving(path) as server:
        await server.send("hello")
        await server.stop()
    damage(path, "task_status")
    async with serving(path) as server:
        for _ in range(3):
            assert await server.status_of_listing() == 503
        await server.stop()
        assert server.process.said.count(DAMAGED) == 1


async def test_health_reports_a_damaged_page_found_by_a_write(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with serving(path) as server:
        await server.send("hello")
        await server.stop()
    damage(path, "event")
    async with serving(path) as server:
        assert await server.health() == 200
        assert await server.status_of_send() == 503
        assert await server.health() == 503
        await server.stop()
        assert server.process.said.count(DAMAGED) == 1
