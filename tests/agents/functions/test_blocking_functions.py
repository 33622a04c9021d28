"""Functions that block: each runs on a thread, none on the event loop."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from apcore_a2a.agent import Call, CancelToken
from apcore_a2a.agents.content import read_file
from apcore_a2a.agents.functions.agent import FunctionAgent
from apcore_a2a.agents.threads import Threads
from apcore_a2a.errors import OverloadedError
from apcore_a2a.protocol.model import TaskState
from tests.conversations import contents, make_call, talk_to
from tests.fakes import ScriptedAgent
from tests.sources import ROOT


async def test_a_blocking_function_does_not_block_the_loop() -> None:
    gate = threading.Event()

    def block(text: str) -> str:
        assert gate.wait(5)
        return f"{text} on {threading.current_thread() is not threading.main_thread()}"

    async with talk_to(block) as user:
        task = await user.task("ran", now=True)
        gate.set()  # unreachable if the loop were blocked
        task = await user.until(task, TaskState.COMPLETED)
    assert contents(task) == [["ran on True"]]


async def test_a_blocking_generator_stays_on_one_thread() -> None:
    def count() -> Iterator[str]:
        for _ in range(3):
            yield f"{threading.current_thread().name}{threading.get_ident()}\n"

    async with talk_to(count) as user:
        task = await user.task("?")
    threads = task.text.splitlines()
    assert len(threads) == 3 and len({*threads}) == 1


async def test_a_cancelled_blocking_generator_is_closed_at_its_next_yield() -> None:
    started, gate, closed = threading.Event(), threading.Event(), threading.Event()

    def count() -> Iterator[str]:
        try:
            started.set()
            gate.wait(5)
            yield "never seen"
        finally:
            closed.set()

    async with talk_to(count) as user:
        task = await user.task("?", now=True)
        assert await asyncio.to_thread(started.wait, 5)
        assert (await user.cancel(task)).status.state is TaskState.CANCELED
        gate.set()
        assert await asyncio.to_thread(closed.wait, 5)


async def test_a_blocking_function_can_poll_whether_it_is_cancelled() -> None:
    started, seen = threading.Event(), threading.Event()

    def poll(call: Call) -> None:
        started.set()
        while not call.cancel.is_cancelled:
            pass
        seen.set()

    async with talk_to(poll) as user:
        task = await user.task("?", now=True)
        assert await asyncio.to_thread(started.wait, 5)
        assert (await user.cancel(task)).status.state is TaskState.CANCELED
        assert await asyncio.to_thread(seen.wait, 5)


async def test_a_blocking_function_that_continues_after_its_run_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    started, gate = threading.Event(), threading.Event()

    def stuck() -> None:
        started.set()
        gate.wait(5)

    async with talk_to(stuck) as user:
        task = await user.task("?", now=True)
        assert await asyncio.to_thread(started.wait, 5)
        await user.cancel(task)
        assert "function goes on after its run has ended" in caplog.messages
        gate.set()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  # threads set no asyncio events
            await asyncio.sleep(0.001)


async def test_stuck_functions_are_counted_and_replaced_and_free_their_threads_when_they_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began = threading.Semaphore(0)
    gates = {name: threading.Event() for name in "abc"}

    def wait(text: str) -> str:
        if text in gates:
            began.release()
            gates[text].wait(5)
        return text

    agent = FunctionAgent(wait, threads=Threads(2, spare=1))
    async with talk_to(agent) as user:

        async def get_stuck(name: str) -> None:
            task = await user.task(name, now=True)
            assert await asyncio.to_thread(began.acquire, timeout=5)
            await user.cancel(task)

        assert (agent.stuck_threads, agent.thread_capacity) == (0, 2)
        await get_stuck("a")
        assert (agent.stuck_threads, agent.thread_capacity) == (1, 2)
        await get_stuck("b")
        assert (agent.stuck_threads, agent.thread_capacity) == (2, 1)
        assert contents(await user.task("served")) == [["served"]]
        assert not user.engine.out_of_threads
        await get_stuck("c")
        assert (user.engine.stuck_threads, user.engine.out_of_threads) == (3, True)
        goes_on = [record.__dict__["function"] for record in caplog.records if "goes on" in record.message]
        assert goes_on == ["wait"] * 3
        with pytest.raises(OverloadedError, match="does not return") as refused:
            await user.ask("refused")
        assert refused.value.retry_after == 30
        for left, name in enumerate("cab"):
            gates[name].set()
            await until(lambda: agent.stuck_threads == 2 - left)  # noqa: B023  # waited for at once
            assert agent.thread_capacity == min(1 + left, 2)
            assert contents(await user.task("served")) == [["served"]]


async def test_a_file_that_never_ends_is_read_on_a_thread_that_is_counted() -> None:
    source, sink = os.pipe()  # reading blocks until something is written
    readers = [os.fdopen(os.dup(source), "rb") for _ in range(3)]
    os.close(source)

    async def give() -> Any:
        return readers[0]

    def give_from_a_thread() -> Any:
        return readers[1]

    def yield_from_a_thread() -> Iterator[Any]:
        yield readers[2]

    try:
        for number, function in enumerate((give, give_from_a_thread, yield_from_a_thread)):
            agent = FunctionAgent(function)
            async with talk_to(agent) as user:
                task = await user.task("?", now=True)
                await until(lambda: is_read(readers[number]))  # noqa: B023  # waited for at once
                await user.cancel(task)
                assert agent.stuck_threads == 1
    finally:
        os.close(sink)


def is_read(reader: Any) -> bool:
    """Whether a thread is blocked in a read of this file."""
    for frame in sys._current_frames().values():
        if frame.f_code is read_file.__code__ and frame.f_locals["file"] is reader:
            return True
    return False


async def test_a_thread_that_cannot_be_started_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def shout(text: str) -> str:
        return text.upper()

    threads = Threads(1, spare=0)
    async with talk_to(FunctionAgent(shout, threads=threads)) as user:
        with monkeypatch.context() as without_threads:
            without_threads.setattr("threading.Thread.start", refuse)
            with pytest.raises(OverloadedError, match="cannot start another thread"):  # before a task exists
                await user.task("a")
            with pytest.raises(RuntimeError):  # after another call has taken the thread of this one
                async with threads.worker("shout", CancelToken()):
                    pass
        assert contents(await user.task("a")) == [["A"]]


async def test_a_generator_that_does_not_close_counts_as_stuck() -> None:
    gate = threading.Event()

    def close_slowly(text: str) -> Iterator[str]:
        try:
            yield text
            yield "never read"
        finally:
            if text == "slow":
                gate.wait(5)

    agent = FunctionAgent(close_slowly, threads=Threads(last_job_time=0.01))
    for text in ("quick", "slow"):
        run = agent.run(make_call(text))
        await anext(run)
        await run.aclose()
    await until(lambda: agent.stuck_threads == 1)
    gate.set()
    await until(lambda: agent.stuck_threads == 0)


async def test_an_agent_without_threads_has_no_stuck_threads() -> None:
    async with talk_to(ScriptedAgent()) as user:
        assert (user.engine.stuck_threads, user.engine.out_of_threads) == (0, False)


@pytest.mark.parametrize("error", [StopIteration("x"), GeneratorExit(), SystemExit(1), ValueError("x")])
async def test_any_exception_of_a_blocking_function_fails_its_task(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async with talk_to(fail) as user:
        assert (await user.task("?")).status.state is TaskState.FAILED


async def test_more_blocking_functions_than_threads_run_one_after_another() -> None:
    gate = threading.Event()
    running: list[str] = []

    def work(text: str) -> str:
        running.append(text)
        assert gate.wait(5)
        running.remove(text)
        return str(len(running))

    async with talk_to(FunctionAgent(work, threads=Threads(1))) as user:
        tasks = [await user.task(name, now=True) for name in "abc"]
        gate.set()
        done = [await user.until(task, TaskState.COMPLETED) for task in tasks]
    assert [contents(task) for task in done] == [[["0"]]] * 3


async def test_a_blocking_function_sees_the_context_variables_of_its_run() -> None:
    variable = ContextVar("variable", default="unset")

    def read() -> str:
        return variable.get()

    async with talk_to(read) as user:
        variable.set("set")
        assert contents(await user.task("?")) == [["set"]]


async def test_an_iterator_that_is_not_a_generator_is_iterated() -> None:
    def give() -> Iterator[str]:
        return iter(["a", "b"])

    async with talk_to(give) as user:
        assert contents(await user.task("?")) == [["ab"]]


async def test_a_job_that_is_cancelled_before_it_starts_does_not_run() -> None:
    gate, done = threading.Event(), threading.Event()
    async with Threads(1).worker("test", CancelToken()) as worker:
        worker.call_last(lambda: gate.wait(5))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.call(done.set), 0.01)
        gate.set()
        assert await worker.call(lambda: "alive") == "alive"
    assert not done.is_set()


async def test_a_coroutine_function_needs_no_thread() -> None:

    class Greeter:
        async def __call__(self, text: str) -> str:
            return f"Hello, {text}"

    async with talk_to(FunctionAgent(Greeter(), threads=Threads(0))) as user:
        assert contents(await user.task("Ada")) == [["Hello, Ada"]]


async def test_a_function_that_returns_a_coroutine_frees_its_thread_when_it_returns() -> None:
    together = asyncio.Barrier(2)

    async def meet(text: str) -> str:
        await together.wait()
        return text

    def wrapped(text: str) -> Awaitable[str]:
        return meet(text)

    async with talk_to(FunctionAgent(wrapped, threads=Threads(1))) as user, asyncio.TaskGroup() as group:
        tasks = [group.create_task(user.task(name)) for name in ("Ada", "Bob")]
    assert [contents(task.result()) for task in tasks] == [[["Ada"]], [["Bob"]]]


def test_a_function_that_never_returns_does_not_keep_the_process_alive() -> None:
    program = """
import asyncio, threading
from apcore_a2a.agents.as_agent import as_agent
from tests.conversations import make_call

started = threading.Event()
def stuck():
    started.set()
    threading.Event().wait()

async def main():
    run = asyncio.create_task(anext(as_agent(stuck).run(make_call())))
    await asyncio.to_thread(started.wait)
    run.cancel()
    await asyncio.wait({run})

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20, cwd=ROOT)


async def test_an_idle_thread_takes_the_next_run_and_ends_after_its_idle_time() -> None:
    workers = Threads(2, idle_time=0.05)
    seen: list[threading.Thread] = []
    for name in ("first", "second"):
        async with workers.worker(name, CancelToken()) as worker:
            seen.append(await worker.call(threading.current_thread))
            assert seen[-1].name == name

    assert seen[0] is seen[1]
    await until(lambda: not seen[0].is_alive())
    async with workers.worker("third", CancelToken()) as worker:  # the ended thread does not count
        assert await worker.call(threading.current_thread) is not seen[0]
    assert (workers.stuck, workers.capacity) == (0, 2)


def test_a_thread_of_a_closed_event_loop_is_not_reused() -> None:
    workers = Threads(2, idle_time=0.05)

    async def run() -> threading.Thread:
        async with workers.worker("a run", CancelToken()) as worker:
            return await worker.call(threading.current_thread)

    threads = [asyncio.run(run()) for _ in range(3)]
    assert len(set(threads)) == 3
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert workers.capacity == 2
