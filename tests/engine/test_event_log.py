"""The event log and its readers: each has a cursor, none has a queue, and none delays another."""

import asyncio
import gc
import threading

import pytest

from apcore_a2a.engine.context import EngineOptions, LogWindow, Timing
from apcore_a2a.engine.event_log import EventLog, Lagged, LogEntry
from apcore_a2a.engine.streams import Stream
from apcore_a2a.http.asgi import encode_entry
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import StatusUpdate, TaskState, TaskStatus
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.engine.driving import settle, soon

BODY = v1.encode_event(StatusUpdate(status=TaskStatus(state=TaskState.WORKING), task_id="t", context_id="c"))


def entry(seq: int) -> LogEntry:
    return LogEntry(seq, TaskState.WORKING, BODY)


def append(log: EventLog, number: int = 1) -> None:
    entries = [entry(log.version + 1 + index) for index in range(number)]
    log.append(entries, len(BODY) * number)


class Source:
    """A log whose task is what the log says."""

    def __init__(self, log: EventLog) -> None:
        self.log = log

    async def latest_entry(self) -> LogEntry:
        return entry(self.log.version)


def follow(log: EventLog, after: int, *, keep_alive_interval: float = 15) -> Stream:
    return Stream([], Source(log), after=after, keep_alive_interval=keep_alive_interval)


async def read(reader: Stream) -> list[int]:
    batch = reader.take()
    if batch is not None and not batch:
        await soon(reader.wait())
        batch = reader.take()
    if batch is None:
        raise EOFError
    return [item.seq for item in batch]


async def test_a_reader_gets_what_follows_its_cursor_and_waits_for_more() -> None:
    log = EventLog()
    append(log, 3)
    reader = follow(log, 1)
    assert await read(reader) == [2, 3]
    more = asyncio.create_task(read(reader))
    await settle()
    assert not more.done()
    append(log)
    assert await soon(more) == [4]


async def test_a_closed_log_is_read_to_its_end() -> None:
    log = EventLog()
    append(log, 2)
    log.close()
    reader = follow(log, 0)
    assert await read(reader) == [1, 2]
    assert reader.take() is None


async def test_a_reader_that_waits_learns_that_the_log_is_closed() -> None:
    log = EventLog()
    waiting = asyncio.create_task(read(follow(log, 0)))
    await settle()
    log.close()
    with pytest.raises(EOFError):
        await soon(waiting)


async def test_a_log_of_a_task_that_was_read_from_a_store_begins_after_its_version() -> None:
    log = EventLog(7)
    with pytest.raises(Lagged):
        log.after(6)
    append(log)
    assert await read(follow(log, 7)) == [8]


async def test_who_falls_out_of_the_window_is_told_so() -> None:
    log = EventLog(options=EngineOptions(log_window=LogWindow(events=10)))
    append(log, 10)
    assert len(log.after(0)) == 10
    append(log)
    with pytest.raises(Lagged):
        log.after(4)
    assert [item.seq for item in log.after(5)] == [6, 7, 8, 9, 10, 11]


async def test_the_window_is_bounded_in_bytes_too_those_of_every_dialect() -> None:
    log = EventLog(options=EngineOptions(log_window=LogWindow(bytes=100 * len(BODY))))
    append(log, 100)
    for item in log.after(90):
        encode_entry(item, v03)
    append(log)
    assert [item.seq for item in log.after(50)] == list(range(51, 102))
    append(log, 40)  # the ten that are in two dialects count twice now
    with pytest.raises(Lagged):
        log.after(51)


async def test_one_event_larger_than_the_window_does_not_stay() -> None:
    log = EventLog(options=EngineOptions(log_window=LogWindow(bytes=5)))
    append(log)
    assert log.version == 1
    with pytest.raises(Lagged):
        log.after(0)


async def test_a_restart_sends_every_reader_back_to_a_snapshot() -> None:
    log = EventLog()
    append(log, 2)
    reader = follow(log, 2)
    waiting = asyncio.create_task(read(reader))
    await settle()
    log.restart(5)
    assert await soon(waiting) == []  # what it waited for is not there
    assert await read(reader) == [5]  # the snapshot
    append(log)
    assert await read(reader) == [6]


async def test_an_idle_reader_gets_an_empty_batch_now_and_then_and_misses_nothing() -> None:
    log = EventLog()
    reader = follow(log, 0, keep_alive_interval=0.001)
    assert await read(reader) == []
    assert await read(reader) == []
    append(log)
    assert await read(reader) == [1]
    reader.close()


async def test_a_reader_that_gave_up_waiting_is_passed_over() -> None:
    log = EventLog()
    gone = asyncio.create_task(read(follow(log, 0)))
    stays = asyncio.create_task(read(follow(log, 0)))
    await settle()
    gone.cancel()
    await settle()
    append(log)
    assert await soon(stays) == [1]


async def test_closing_a_reader_ends_its_pending_wait_and_its_timer() -> None:
    log = EventLog()
    reader = follow(log, 0)
    waiting = asyncio.create_task(read(reader))
    await settle()
    reader.close()
    reader.close()
    with pytest.raises(EOFError):
        await soon(waiting)


async def test_readers_are_told_at_once_and_then_of_several_events_together() -> None:
    log = EventLog(options=EngineOptions(timing=Timing(wake_interval=0.3)))
    reader = follow(log, 0)
    first = asyncio.create_task(read(reader))
    await settle()
    append(log)
    await settle()
    assert first.result() == [1]
    second = asyncio.create_task(read(reader))
    await settle()
    append(log)
    await settle()
    append(log)
    assert not second.done()
    assert await soon(second) == [2, 3]


async def test_a_crowd_is_told_less_often() -> None:
    timing = Timing(wake_interval=0.1, max_wake_interval=0.3)
    log = EventLog(options=EngineOptions(timing=timing, log_window=LogWindow(readers_per_wake=3)))
    readers = [follow(log, 0) for _ in range(3)]
    for seqs in ([1, 2], [3, 4]):  # the first time, too, though they have been told of nothing yet
        crowd = [asyncio.create_task(read(reader)) for reader in readers]
        await settle()
        for _ in seqs:
            append(log)
            await settle()
        assert await soon(asyncio.gather(*crowd)) == [seqs] * 3


@pytest.mark.parametrize("end", ["close", "restart"])
async def test_readers_are_told_of_the_end_at_once(end: str) -> None:
    log = EventLog(options=EngineOptions(timing=Timing(wake_interval=60.0)))
    reader = follow(log, 0)
    append(log)
    assert await read(reader) == [1]
    log._wake()  # the readers were told of it just now
    waiting = asyncio.create_task(read(reader))
    await settle()
    append(log)
    await settle()
    assert not waiting.done()
    log.close() if end == "close" else log.restart(7)
    await settle()
    if end == "close":
        assert waiting.result() == [2]
    else:
        assert waiting.result() == []
        assert await read(reader) == [7]


def waiters() -> int:
    gc.collect()
    return sum(type(each) is asyncio.Future for each in gc.get_objects())


@pytest.mark.parametrize("how", ["close", "cancel", "idle"])
async def test_who_came_and_went_leaves_nothing_behind_in_a_silent_log(how: str) -> None:
    interval = 15.0
    if how == "idle":
        interval = 0.001
    log, before = EventLog(), waiters()
    for _ in range(10):
        reader = follow(log, 0, keep_alive_interval=interval)
        waiting = asyncio.create_task(read(reader))
        await settle()
        if how == "cancel":
            waiting.cancel()
        elif how == "close":
            reader.close()
        await asyncio.wait({waiting}, timeout=5)
        assert waiting.cancelled() if how == "cancel" else waiting.done()
        assert how == "cancel" or isinstance(waiting.exception(), EOFError if how == "close" else type(None))
        reader.close()
    del reader, waiting
    assert waiters() < before + 5  # asyncio may still have one of its own


def test_an_entry_is_encoded_once_by_each_encoder() -> None:
    calls: list[bytes] = []

    def encode(body: bytes) -> bytes:
        calls.append(body)
        return b"{}"

    item = entry(1)
    assert {item.encoded(encode) for _ in range(50)} == {b"{}"}
    assert calls == [BODY]
    assert item.encoded(bytes.upper) == BODY.upper()
    assert item.size == len(BODY) * 2 + len(b"{}")
    assert item.encoded(lambda body: body) == BODY
    assert item.size == len(BODY) * 2 + len(b"{}")  # a form that is the stored one takes no memory


async def test_concurrent_readers_of_a_large_entry_share_the_encoding_that_a_thread_makes() -> None:
    threads: list[int] = []

    def encode(body: bytes) -> bytes:
        threads.append(threading.get_ident())
        return b"{}"

    item = entry(1)
    made = await soon(asyncio.gather(*(item.encoded_on_thread(encode) for _ in range(50))))
    assert set(made) == {b"{}"}
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
