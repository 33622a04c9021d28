"""Functions that are no coroutines: each on a thread, none on the loop."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Iterator
from contextvars import ContextVar

import pytest

from apcore_a2a.agent import Call
from apcore_a2a.agents.threads import Threads
from apcore_a2a.protocol.model import TaskState
from tests.conversations import contents, talk_to
from tests.sources import ROOT


async def test_a_blocking_function_does_not_block_the_loop() -> None:
    gate = threading.Event()

    def block(text: str) -> str:
        assert gate.wait(5)
        return f"{text} on {threading.current_thread() is not threading.main_thread()}"

    async with talk_to(block) as user:
        task = await user.task("ran", now=True)
        gate.set()  # would never come if the loop were blocked
        task = await user.until(task, TaskState.COMPLETED)
    assert contents(task) == [["ran on True"]]


async def test_a_blocking_generator_stays_on_one_thread() -> None:
    def count() -> Iterator[str]:
        for _ in range(3):
            yield threading.current_thread().name + str(threading.get_ident())

    async with talk_to(count) as user:
        (pieces,) = contents(await user.task("?"))
    assert len({*pieces[:3]}) == 1 and pieces[3:] == [""]


async def test_a_cancelled_blocking_generator_is_closed_when_it_next_can_be() -> None:
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


async def test_a_blocking_function_may_ask_whether_it_is_still_wanted(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_a_blocking_function_that_goes_on_after_its_run_is_logged(caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize("error", [StopIteration("x"), SystemExit(1), ValueError("x")])
async def test_whatever_a_blocking_function_raises_fails_its_task(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async with talk_to(fail) as user:
        assert (await user.task("?")).status.state is TaskState.FAILED


async def test_more_blocking_functions_than_threads_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apcore_a2a.agents.functions.MAX_THREADS", 1)
    gate, running = threading.Event(), []

    def work(text: str) -> str:
        running.append(text)
        assert gate.wait(5)
        running.remove(text)
        return str(len(running))

    async with talk_to(work) as user:
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


async def test_an_iterator_that_is_no_generator_is_iterated_too() -> None:
    def give() -> Iterator[str]:
        return iter(["a", "b"])

    async with talk_to(give) as user:
        assert contents(await user.task("?")) == [["a", "b", ""]]


async def test_a_job_that_is_cancelled_before_its_turn_is_not_done() -> None:
    gate, done = threading.Event(), threading.Event()
    async with Threads(1).worker("test") as worker:
        worker.later(lambda: gate.wait(5))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.call(done.set), 0.01)
        gate.set()
        assert await worker.call(lambda: "alive") == "alive"
    assert not done.is_set()


async def test_a_coroutine_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apcore_a2a.agents.functions.MAX_THREADS", 0)

    class Greeter:
        async def __call__(self, text: str) -> str:
            return f"Hello, {text}"

    async with talk_to(Greeter()) as user:
        assert contents(await user.task("Ada")) == [["Hello, Ada"]]


async def test_a_function_that_returns_a_coroutine_keeps_its_thread_no_longer_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("apcore_a2a.agents.functions.MAX_THREADS", 1)
    together = asyncio.Barrier(2)

    async def meet(text: str) -> str:
        await together.wait()
        return text

    def wrapped(text: str) -> Awaitable[str]:
        return meet(text)

    async with talk_to(wrapped) as user, asyncio.TaskGroup() as group:
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
