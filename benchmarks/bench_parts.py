"""The instructions of the parts of a message/send, counted by valgrind, so that every run gives the same figures.

Each part runs by itself, twice, with different numbers of repetitions. The difference is the cost of one repetition.
The server's protocol runs on a transport without a socket, so the kernel is not included. This is not part of `make
bench`: it takes minutes.

python -m benchmarks.bench_parts
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from apcore_a2a.agent import Call, Caller, CancelToken
from apcore_a2a.app.serve import build_app
from apcore_a2a.engine.agent_output import begin_task, check_event
from apcore_a2a.engine.context import CallContext, Observer
from apcore_a2a.engine.first_step import FirstStep
from apcore_a2a.engine.task import TaskRegistry
from apcore_a2a.http.server.connection import GuardedProtocol
from apcore_a2a.protocol import jsonrpc, v1
from apcore_a2a.protocol.model import Document, Operation
from benchmarks import wire
from benchmarks.measuring import ROOT, Table
from benchmarks.peers.ours import Obedient
from benchmarks.servers import OURS

FEW, MANY = 200, 1_000
TURNS = 3  # loop iterations that answer a request without waiting

Work = Callable[[], Awaitable[object]]


class Nowhere(asyncio.Transport):
    """A connection whose peer accepts everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""

    def write(self, data: Any) -> None:
        self.written = bytes(data)

    def is_closing(self) -> bool:
        return False


def request() -> bytes:
    body = wire.send(OURS).encode()
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nA2A-Version: 1.0\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def constant(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    head = [(b"content-type", b"application/json"), (b"content-length", b"500")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": b"x" * 500})


def through_uvicorn(app: Any, protocol: Any) -> Work:
    config = uvicorn.Config(app, access_log=False, log_level="warning", proxy_headers=False, server_header=False)
    config.load()
    connection = protocol(config, ServerState(), {}, asyncio.get_running_loop())
    transport, sent = Nowhere(), request()
    connection.connection_made(transport)

    async def ask() -> None:
        transport.written = b""
        connection.data_received(sent)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert len(transport.written) > 200, transport.written

    return ask


class Parts:
    """The repeated parts by name."""

    def __init__(self) -> None:
        self.agent = Obedient()
        self.app = build_app(self.agent)
        self.engine = self.app.engine
        self.asked: Any = v1.decode_request(Operation.SEND, jsonrpc.parse(wire.send(OURS).encode()).params)
        self.context = CallContext(rules=v1.RULES)
        self.registry = TaskRegistry(self.engine.store, Observer())

    async def open(self) -> None:
        await self.app.open()
        self.document = cast(Document, await self.engine.send_message(self.asked, self.context))
        task = self.document.task()
        self.call = Call(request=self.asked, task=task, caller=Caller(), cancel=CancelToken())
        self.events = [event async for event in self.agent.run(self.call)]

    def find(self, part: str) -> Work:
        if part == "binding":
            self.engine._operations[Operation.SEND] = self.answer
        if part in ("binding", "all"):
            return through_uvicorn(self.app, GuardedProtocol)
        if part == "server":
            return through_uvicorn(constant, GuardedProtocol)
        if part == "uvicorn":
            return through_uvicorn(constant, HttpToolsProtocol)
        work: Work = getattr(self, part)
        return work

    async def nothing(self) -> None: ...

    async def answer(self, *_: object) -> object:
        return self.document

    async def run_agent(self) -> None:
        async for _ in self.agent.run(self.call):
            pass

    async def start_task(self) -> None:
        await asyncio.create_task(self.nothing())

    async def check(self) -> None:
        for event in self.events:
            check_event(event, self.call.task)

    async def begin(self) -> Call:
        call = self.engine._intake._new_task(self.asked, self.context)
        begin_task(call.task, working=True)
        return call

    async def begin_and_step(self) -> None:
        call = self.engine._intake._new_task(self.asked, self.context)
        first = FirstStep(call, "anonymous", agent=self.agent, registry=self.registry, stored_run=None)
        assert first.execute() is None


async def repeat(part: str, times: int) -> None:
    parts = Parts()
    await parts.open()
    work = parts.find(part)
    for _ in range(times):
        await work()
        await asyncio.sleep(0)


def count(part: str) -> int:
    """Return the instructions of one repetition."""

    def collected(times: int) -> int:
        words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m", __spec__.name]
        run = subprocess.run(
            [*words, part, str(times)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"Collected : (\d+)", run.stderr)
        assert found is not None, run.stderr[-500:]
        return int(found[1])

    return (collected(MANY) - collected(FEW)) // (MANY - FEW)


def main() -> None:
    if len(sys.argv) == 3:
        time.time_ns = lambda: (
            1_800_000_000_000_000_000
        )  # under valgrind, each reading of the clock advances it by a millisecond
        uvloop.run(repeat(sys.argv[1], int(sys.argv[2])))
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is needed to count instructions: apt-get install valgrind")
    names = (
        "nothing",
        "uvicorn",
        "server",
        "binding",
        "all",
        "run_agent",
        "start_task",
        "check",
        "begin",
        "begin_and_step",
    )
    counted = {part: count(part) for part in names}
    loop = counted.pop("nothing")
    one = {part: instructions - loop for part, instructions in counted.items()}
    parts = {
        "the server's protocol, without the kernel": one["server"],
        "JSON-RPC: the request read and checked, the answer written": one["binding"] - one["server"],
        "the agent of this benchmark": one["run_agent"],
        "an asyncio task for the agent": one["start_task"],
        "two events checked, and copied from the agent": one["check"],
        "a new task: created and encoded": one["begin"],
    }
    parts["its events folded, the task encoded, stored and answered"] = (
        one["begin_and_step"] - one["begin"] - one["check"] - one["run_agent"]
    )
    parts["the message admitted, its limits, the wait for the answer"] = one["all"] - sum(parts.values())
    rows = [[name, f"{value / one['all']:.0%}", f"{value:,}"] for name, value in parts.items()]
    rows.append(["all of it", "100%", f"{one['all']:,}"])
    rows.append(["(uvicorn's protocol as it is)", f"{one['uvicorn'] / one['all']:.0%}", f"{one['uvicorn']:,}"])
    print(Table("Where the instructions of a message/send go", ("part", "share", "instructions"), rows).to_markdown())


if __name__ == "__main__":
    main()
