"""Blocking functions that never return: counted, replaced up to a limit, and then messages are rejected."""

import signal
from typing import Any

import httpx

from apcore_a2a.http.health import NO_THREADS
from tests.processes import Process, running

# On request, blocks until the process receives SIGUSR1.
SERVER = """
import itertools, signal, sys, threading
from apcore_a2a import serve

gate = threading.Event()
calls = itertools.count(1)
signal.signal(signal.SIGUSR1, lambda *_: gate.set())

def answer(text: str) -> str:
    if text == "wait":
        print("waiting:", next(calls), file=sys.stderr, flush=True)
        gate.wait()
    return "answered " + text

serve(answer, host="127.0.0.1", port=0, metrics=True)
"""
V1 = {"A2A-Version": "1.0"}


class User:
    def __init__(self, client: httpx.AsyncClient, process: Process) -> None:
        self.client = client
        self.process = process
        self.waiting = 0

    async def send(self, text: str, *, at_once: bool = False) -> httpx.Response:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
        request = {"message": message, "configuration": {"returnImmediately": at_once}}
        return await self.client.post("/message:send", json=request, headers=V1)

    async def get_stuck(self, count: int) -> None:
        """Start so many calls that never return, and cancel them."""
        for _ in range(count):
            begun = (await self.send("wait", at_once=True)).json()["task"]
            self.waiting += 1
            await self.process.says(f"waiting: {self.waiting}\n")
            canceled = await self.client.post(f"/tasks/{begun['id']}:cancel", headers=V1)
            assert canceled.json()["status"]["state"] == "TASK_STATE_CANCELED"

    async def tasks(self) -> int:
        page = await self.client.get("/tasks", headers=V1)
        return int(page.json()["totalSize"])

    async def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get("/metrics")).json()
        return found


async def address(process: Process) -> str:
    return (await process.says(r"running on (http://[\d.]+:\d+)"))[1]


async def test_functions_that_never_return_are_replaced_up_to_a_limit() -> None:
    async with running("-c", SERVER) as process, httpx.AsyncClient(base_url=await address(process)) as client:
        user = User(client, process)
        await user.get_stuck(64)
        assert "answered hello" in (await user.send("hello")).text  # as many as may run concurrently are stuck
        await user.get_stuck(63)
        assert "answered hello" in (await user.send("hello")).text  # on the last free thread
        assert (await user.metrics())["abandoned_runs"] == 127
        await user.get_stuck(1)
        assert "every thread is held by a function that does not return" not in process.said
        await process.says("every thread is held by a function that does not return")
        assert process.said.count("function goes on after its run has ended") == 128
        assert (await user.metrics())["stuck_threads"] == 128
        health = await client.get("/health")
        assert (health.status_code, health.json()["reason"]) == (503, NO_THREADS)
        before = await user.tasks()
        for at_once in (False, True):
            refused = await user.send("hello", at_once=at_once)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "30"
            assert "held by a function that does not return; try again later" in refused.text
        assert await user.tasks() == before
        process.signal(signal.SIGUSR1)  # now they return
        while (await user.send("hello")).status_code == 503:
            pass
        assert "answered hello" in (await user.send("hello")).text


# The same with modules of apcore.
MODULES = """
import itertools, signal, sys, threading
import apcore
from apcore_a2a import serve

gate = threading.Event()
calls = itertools.count(1)
signal.signal(signal.SIGUSR1, lambda *_: gate.set())

class Answer:
    description = "Answers"
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    output_schema = {"type": "object"}

    def execute(self, inputs, context):
        if inputs["text"] == "wait":
            print("waiting:", next(calls), file=sys.stderr, flush=True)
            gate.wait()
        if inputs["text"] == "other":
            return context.executor.call("a.other", {"text": "other"}, context)
        return {"answered": inputs["text"]}

class Other:
    description = "Called by another module, and not in an event loop"
    input_schema = output_schema = Answer.output_schema

    def execute(self, inputs, context):
        return {"answered": "by the other"}

registry = apcore.Registry()
registry.register("an.answer", Answer())
registry.register("a.other", Other())
serve(registry, host="127.0.0.1", port=0, metrics=True, default_skill="an.answer")
"""


async def test_modules_that_never_return_are_counted_and_block_no_other() -> None:
    async with running("-c", MODULES) as process, httpx.AsyncClient(base_url=await address(process)) as client:
        user = User(client, process)
        await user.get_stuck(40)  # asyncio's default pool has at most 32 threads
        assert '"answered":"hello"' in (await user.send("hello")).text
        assert '"answered":"by the other"' in (await user.send("other")).text
        metrics = await user.metrics()
        assert (metrics["stuck_threads"], metrics["abandoned_runs"]) == (40, 40)
        await user.get_stuck(88)
        await process.says("every thread is held by a function that does not return")
        health = await client.get("/health")
        assert (health.status_code, health.json()["reason"]) == (503, NO_THREADS)
        refused = await user.send("hello")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")

        process.signal(signal.SIGUSR1)
        while (await user.send("hello")).status_code == 503:
            pass
        assert '"answered":"hello"' in (await user.send("hello")).text
