"""A task in memory that others write, too: it goes on from what the store has, and never back."""

import logging
from typing import Literal

import pytest
from msgspec.structs import replace

from apcore_a2a.engine.context import Observer
from apcore_a2a.engine.event_log import Lagged
from apcore_a2a.engine.stored_run import QueuedMessage, encode_stored_run
from apcore_a2a.engine.task import LiveTask, TaskRegistry
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import Document, Task, TaskState, TaskStatus, encode
from apcore_a2a.storage.contract import Record, Store
from tests.engine.driving import ALICE, QUICK, User, request, serving
from tests.engine.fake_disk import FakeDisk
from tests.fakes import WORKING, ScriptedAgent, chunk

S = TaskState


class SharedDisk(FakeDisk):
    """A store that says that several processes have it open."""

    shared: Literal[True] = True


def record(version: int, state: TaskState, *, memo: bytes = b"") -> Record:
    """What the store has of the task after so many events."""
    task = Task(id="t", context_id="c", status=TaskStatus(state=state))
    return Record(
        document=Document(encode(task)), owner="alice", state=state, version=version, epoch=version, memo=memo, run=b""
    )


def live_at(version: int, store: Store | None = None) -> LiveTask:
    known = record(version, S.WORKING)
    registry = TaskRegistry(store or SharedDisk(), Observer())
    return LiveTask(known.document.task(), "alice", registry, known)


def test_an_older_look_at_the_store_changes_nothing() -> None:
    live = live_at(5)
    live.follow(record(4, S.SUBMITTED, memo=b"old"))
    assert (live.version, live.state, live.memo) == (5, S.WORKING, b"")


def test_a_look_at_what_is_known_takes_the_memo_and_keeps_the_events_for_readers() -> None:
    live = live_at(5)
    live.follow_events([v1.encode_event(WORKING)], epoch=1, memo=b"")
    live.follow(record(6, S.WORKING, memo=b"new"))
    assert (live.memo, live.is_in_step) == (b"new", True)
    assert [entry.seq for entry in live.log.after(5)] == [6]  # no reader has to start again


def test_a_read_that_began_before_a_message_left_the_queue_does_not_queue_it_again() -> None:
    said = [request("one", message_id="a"), request("two", message_id="b")]
    queue = tuple(QueuedMessage(each, ALICE) for each in said)
    live = live_at(5)
    live.task.history.append(said[0].message)
    live.follow(replace(record(5, S.WORKING), run=encode_stored_run(None, queue)))
    assert ("a" in live.queue, "b" in live.queue) == (False, True)


def test_a_newer_look_is_told_to_readers_as_a_snapshot() -> None:
    live = live_at(5)
    live.snapshot()  # kept until the task changes
    live.follow(record(8, S.INPUT_REQUIRED))
    assert (live.version, live.state, live.is_in_step) == (8, S.INPUT_REQUIRED, True)
    assert live.snapshot().task().status.state is S.INPUT_REQUIRED
    with pytest.raises(Lagged):
        live.log.after(5)
    assert not live.log.closed


def test_a_look_at_a_task_that_has_ended_ends_its_streams() -> None:
    live = live_at(5)
    live.follow(record(6, S.COMPLETED))
    assert (live.has_ended(), live.log.closed) == (True, True)


def test_a_task_that_is_lost_to_another_replica_is_followed_even_back_to_an_older_version() -> None:
    live = live_at(5)
    live.lose()
    assert (live.is_in_step, live.log.closed) == (False, False)
    live.follow(record(4, S.WORKING))  # the last event was folded here, and never stored
    assert (live.version, live.is_in_step) == (4, True)


def test_a_task_that_is_lost_in_an_unshared_store_ends_its_streams() -> None:
    live = live_at(5, FakeDisk())
    live.lose()
    assert (live.is_in_step, live.log.closed) == (False, True)


async def test_a_run_whose_task_was_never_stored_is_no_line_in_the_log_of_tasks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "apcore_a2a")
    disk = FakeDisk()
    disk.fault = lambda number: "before"
    agent = ScriptedAgent(default=(chunk("a"),), may_reply=True)
    async with serving(agent, disk, timing=QUICK) as engine:
        with pytest.raises(StoreUnavailableError):
            await User(engine).send("hi")
    assert (len(agent.calls), disk.rows) == (1, {})
    assert [line for line in caplog.messages if line in ("task ended", "task waits", "message answered")] == []
