"""One round: start a worker, kill it at a random moment, start the next one, perhaps kill it too, then check the file.

In some lives of a worker, the file is removed before the kill, and restored when the worker is dead. Without its file a
worker sends no more lines.

Invariants: every event that a reader received is in the file, unchanged. Every message that was acknowledged while it
waited in the queue is in its task, and the task's end names it. Every task has ended or waits for its user. A task that
may be repeated is complete, unless it was tried three times. Any other task that ran has lost its worker. What an
earlier turn of a task produced is kept.
"""

import asyncio
import os
import random
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from apcore_a2a.engine.agent_output import UNANSWERED_KEY
from apcore_a2a.engine.stored_run import MAX_ATTEMPTS
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import TERMINAL, join_texts
from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.storage.contract import Query
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.chaos.worker import ACK, ONCE, READY, TURNS, digest
from tests.engine.driving import ALICE, chunks_of, text_of
from tests.sources import ROOT

PATIENCE = 60.0  # seconds for one life
SILENCE = 2.0  # seconds without a line: longer than the longest pause of a worker that has its file
WITHOUT_FILE = 0.3  # of the lives of a worker
ENDLESS, SHORT = 1_000_000, 20  # chunks of a task in a life that ends by a kill, and in one that does not

Received = dict[tuple[str, int], str]


class Outcome(NamedTuple):
    tasks: int
    received: int
    """Events that readers received."""
    kills: int
    repeated: int
    lost: int


class End(NamedTuple):
    """How a life of a worker ends, `after` lines after all its tasks have begun."""

    after: int
    without_file: bool


def live(path: Path, *, tasks: int, chunks: int, end: End | None) -> Iterator[str]:
    """Return the lines of one worker, until it exits or is killed as in `end`."""
    command = [sys.executable, "-m", "tests.chaos.worker", str(path), str(tasks), str(chunks)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None and worker.stderr is not None
        too_late = threading.Timer(PATIENCE, worker.kill)
        too_late.start()
        try:
            left = None
            for line in worker.stdout:
                if line == READY and end is not None:
                    left = end.after
                elif line != READY and line.endswith("\n"):  # no reader received the event of a truncated line
                    yield line
                if left is not None:
                    left -= 1
                    if left < 0:
                        break
            if end is not None and end.without_file:
                yield from silence_without_file(path, worker.stdout)
            went_on = worker.poll() is None
            if end is not None:
                worker.kill()
            yield from complete_lines(worker.stdout)
            trouble, code = worker.stderr.read(), worker.wait()
        finally:
            too_late.cancel()
    assert code == (0 if end is None else -9), f"the worker ended with {code}: {trouble}"
    assert end is None or went_on, f"the worker had to be ended after {PATIENCE} s: {trouble}"


def complete_lines(said: IO[str]) -> Iterator[str]:
    for line in said:
        if line != READY and line.endswith("\n"):
            yield line


def silence_without_file(path: Path, said: IO[str]) -> Iterator[str]:
    """Remove the file, read until the worker sends no more lines, and restore the file."""
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    kept = [file.with_name("kept-" + file.name) for file in files]
    for file, link in zip(files, kept, strict=True):
        os.link(file, link)  # a second name for the file, which is then unlinked
        file.unlink()
    # `select` does not see lines that the text reader has buffered. They are read after the kill.
    while select.select([said], [], [], SILENCE)[0]:
        line = said.readline()
        if not line:  # the worker has exited, or was killed by the timer. The caller checks which
            break
        if line.endswith("\n"):
            yield line
    for file, link in zip(files, kept, strict=True):
        link.rename(file)


async def inspect(path: Path) -> dict[str, tuple[Task, list[bytes]]]:
    """Return every task in the file with its events. Asserts that the numbers of its events and its version agree."""
    store, found = SQLiteStore(path), {}
    await store.open()
    try:
        assert await store.orphans() == []
        cursor = ""
        while True:
            page = await store.page(Query(owner=ALICE.owner, limit=100, cursor=cursor, by_creation=True))
            for record in page.records:
                task = record.document.task()
                events = list(await store.events(task.id, ALICE.owner, 0) or [])
                assert len(events) == record.version
                found[task.id] = (task, events)
            cursor = page.next_cursor
            if not cursor:
                return found
    finally:
        await store.close()


def check_task(task: Task, events: list[bytes], lives: int) -> tuple[bool, bool]:
    """Return whether the task was repeated, and whether it lost its worker."""
    first, _ = v1.decode_record(events[0])
    assert isinstance(first, Task)
    v1.replay(first, events[1:])
    assert join_texts(first) == task
    states = [getattr(v1.decode_record(event)[0], "status", None) for event in events]
    ends = [index for index, status in enumerate(states) if status is not None and status.state in TERMINAL]
    kind, state = task.history[0].parts[0].text, task.status.state
    assert ends == ([] if state is TaskState.INPUT_REQUIRED else [len(events) - 1])
    lost = state is TaskState.FAILED and "Worker lost" in text_of(task)
    expected = ["".join(str(number) for number in range(SHORT if kind in ("safe", "unsafe") else 3))]
    if kind == TURNS:
        assert chunks_of(task)[:1] == expected, "the artifact of the first turn is lost"
        expected.append("".join(str(number) for number in range(SHORT)))
    if lost:
        assert kind != ONCE, "a task that is stored with its end has no run to lose"
        assert kind not in ("safe", TURNS) or lives > MAX_ATTEMPTS
    else:
        assert state is (TaskState.INPUT_REQUIRED if kind == "asks" else TaskState.COMPLETED)
        assert chunks_of(task) == expected, "the chunks are not complete, in order and unique"
        assert kind != "unsafe", "a task that may not be repeated was repeated"
    return kind in ("safe", TURNS) and not lost, lost


def run_round(path: Path, dice: random.Random, *, tasks: int) -> Outcome:
    kills = dice.choice((1, 1, 2, 3))
    received: Received = {}
    acknowledged: dict[str, str] = {}  # by task: the id of its message
    for life in range(kills + 1):
        is_last = life == kills
        new = (
            tasks if life == 0 else 0 if is_last else 8
        )  # without new tasks there would be no line after which to kill
        end = None
        if not is_last:
            end = End(dice.randrange(20 * tasks if life == 0 else 200), without_file=dice.random() < WITHOUT_FILE)
        for line in live(path, tasks=new, chunks=SHORT if is_last else ENDLESS, end=end):
            task_id, seq, said = line.split()
            if seq == ACK:
                acknowledged[task_id] = said
            else:
                assert received.setdefault((task_id, int(seq)), said) == said
    found = asyncio.run(inspect(path))
    for (task_id, number), said in received.items():
        event, _ = v1.decode_record(found[task_id][1][number - 1])
        assert digest(v1.encode_event(event)) == said, f"event {number} of {task_id} is not the event that was received"
    for task_id, message_id in acknowledged.items():
        task, _ = found[task_id]
        assert message_id in [said.message_id for said in task.history], f"{message_id} was acknowledged, but is lost"
        assert task.status.message is not None  # each of these tasks ended while the message was in its queue
        assert (task.status.message.metadata or {}).get(UNANSWERED_KEY) == [message_id]
    outcomes = [check_task(task, events, kills + 1) for task, events in found.values()]
    assert len(found) == tasks + 8 * (kills - 1)
    return Outcome(
        len(found), len(received), kills, sum(again for again, _ in outcomes), sum(lost for _, lost in outcomes)
    )
