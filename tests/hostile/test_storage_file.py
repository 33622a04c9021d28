"""The file of the SQLite store under a running server: removed, moved, replaced, or opened by another server."""

import asyncio
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from apcore_a2a.protocol.model import SendConfiguration, TaskState
from tests.processes import PATIENCE, running
from tests.storage.server_process import serving, start

AT_ONCE = SendConfiguration(return_immediately=True)
GONE = "task store unhealthy: the file of the task store was removed, moved or replaced"


def remove_all(path: Path) -> None:
    for each in path.parent.glob("tasks.db*"):
        each.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def replace(path: Path) -> None:
    path.rename(path.with_name("moved.db"))
    path.touch()


def move_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def make_unreachable(path: Path) -> None:
    path.rename(path.with_name("moved.db"))
    path.symlink_to(path)  # opening it is another kind of error


def remove_log(path: Path) -> None:
    path.with_name("tasks.db-wal").unlink()


async def test_a_server_whose_file_is_removed_acknowledges_no_further_write(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with serving(path) as server:
        await server.send("hello")
        assert await server.health() == 200
        remove_all(path)
        assert await server.status_of_send() == 503
        assert await server.status_of_listing() == 503
        assert await server.health() == 503
        await server.stop()
        assert server.process.said.count(GONE) == 1


@pytest.mark.parametrize("take_away", [remove_all, move, replace, move_directory, make_unreachable, remove_log])
async def test_the_health_check_notices_that_the_file_is_gone(tmp_path: Path, take_away: Any) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "tasks.db"
    async with serving(path) as server:
        await server.send("hello")
        assert await server.health() == 200
        take_away(path)
        async with asyncio.timeout(PATIENCE):
            while await server.health() == 200:  # the server checks its store once a second
                pass
        assert await server.health() == 503
        assert await server.status_of_listing() == 503
        await server.stop()
        assert server.process.said.count(GONE) == 1


async def test_a_server_without_its_file_does_not_touch_the_next_server_s_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with serving(path) as first:
        await first.send("hello")
        remove_all(path)
        async with serving(path) as second:
            task = await second.send("kept")
            await first.stop()
            assert await second.health() == 200
            assert (await second.get(task.id)).status.state is TaskState.COMPLETED
            second.process.signal(signal.SIGKILL)
            await second.process.ends()
    async with serving(path) as third:
        assert (await third.get(task.id)).status.state is TaskState.COMPLETED
        await third.stop()


async def refuses_a_second(path: Path) -> None:
    async with start(path) as process:
        await process.says("is in use by another process")
        await process.ends()


async def test_a_path_that_is_a_link_leads_to_the_same_lock(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with serving(path) as server:
        task = await server.send("wait", configuration=AT_ONCE)
        (tmp_path / "link.db").symlink_to(path)
        (tmp_path / "hard.db").hardlink_to(path)
        (tmp_path / "there").symlink_to(tmp_path, target_is_directory=True)
        for other in ("link.db", "hard.db", "there/tasks.db"):
            await refuses_a_second(tmp_path / other)
        assert (await server.get(task.id)).status.state is TaskState.WORKING
        assert await server.health() == 200
        await server.stop()


async def test_a_server_that_was_started_with_a_link_keeps_the_file_itself(tmp_path: Path) -> None:
    path = tmp_path / "real" / "tasks.db"
    path.parent.mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(path)
    async with serving(link) as server:
        await server.send("hello")
        await refuses_a_second(path)
        (tmp_path / "other.db").touch()
        link.unlink()
        link.symlink_to(tmp_path / "other.db")
        assert await server.health() == 503
        await server.stop()


def remove_what_sqlite_does_not_know(folder: Path) -> None:
    for each in folder.iterdir():
        if each.name not in ("tasks.db", "tasks.db-wal", "tasks.db-shm"):
            each.unlink()


async def test_removing_files_does_not_admit_a_second_server(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    (tmp_path / "tasks.db.lock").touch()  # as left by an earlier version
    async with serving(path) as server:
        task = await server.send("wait", configuration=AT_ONCE)
        remove_what_sqlite_does_not_know(tmp_path)
        await refuses_a_second(path)
        assert (await server.get(task.id)).status.state is TaskState.WORKING
        await server.stop()


async def test_another_program_can_back_up_the_file_of_a_running_server(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with serving(path) as server:
        task = await server.send("hello")
        backup = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))"
        async with running("-c", backup, str(path), str(tmp_path / "copy.db")) as program:
            assert await program.ends() == 0
        assert (await server.send("more")).status.state is TaskState.COMPLETED
        assert await server.health() == 200
        await server.stop()
    copy = sqlite3.connect(tmp_path / "copy.db")
    assert copy.execute("SELECT id FROM task").fetchall() == [(task.id,)]
    copy.close()


FORKING = """
import asyncio, os, sys, time
from apcore_a2a.storage.sqlite.store import SQLiteStore

async def main():
    store = SQLiteStore(sys.argv[1])
    await store.open()
    if os.fork() == 0:
        print("child", os.getpid(), file=sys.stderr, flush=True)
        time.sleep(60)
    else:
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with running("-c", FORKING, str(path)) as process:
        child = int((await process.says(r"child (\d+)"))[1])
        try:
            await refuses_a_second(path)
            process.signal(signal.SIGKILL)
            async with serving(path) as server:
                assert await server.health() == 200
                os.kill(child, 0)  # raises if the child has exited
                await server.stop()
        finally:
            os.kill(child, signal.SIGKILL)
            await process.ends()
