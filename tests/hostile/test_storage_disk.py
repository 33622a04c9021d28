"""A nearly full disk, and a file with a damaged page, under a running server: health check and log report them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.failing_disks import damage, enlarge, mount_disk
from tests.storage.server_process import serving

FULL = "task store unhealthy: the disk of the task store is full"
DAMAGED = "task store unhealthy: the file of the task store is damaged"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mount_disk(tmp_path, 2)


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
        assert "task was not stored" in server.process.said
        assert "taken over" not in server.process.said


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


async def test_health_reports_a_damaged_page_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with serving(path) as server:
        await server.send("hello")
        await server.stop()
    damage(path, "event")
    async with serving(path) as server:
        assert await server.health() == 503
        assert await server.status_of_send() == 503
        await server.stop()
        assert server.process.said.count(DAMAGED) == 1
