"""The client compared with that of a2a-sdk: calls per second, events per second, and the cost of the import.

python -m benchmarks.bench_client [--quick]

One raw ASGI server sends the same bytes to every client. Each client runs in its own process, 50 calls at a time.
Rounds are interleaved and medians shown, for imports the minimum. Compare figures of one run: machines and loads
differ.
"""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.measuring import FULL, Findings, Plan, Sample, Table, medians, ratio, run_alone, spread, versus
from benchmarks.servers import pinned

CONCURRENT = 50
EVENTS = 200
TASK = {
    "id": "3f1a9f0c-52f5-4a41-8f7e-2f6b5a0d9c11",
    "contextId": "9c1d7c5e-1f0a-4f7e-9d3b-0a5e8f2b7c22",
    "status": {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-01-01T00:00:00.000Z"},
    "artifacts": [{"artifactId": "answer", "parts": [{"text": "x" * 400}]}],
}


# ---- the server --------------------------------------------------------------------------------------------------


def card(url: str) -> dict[str, Any]:
    return {
        "name": "bench",
        "description": "answers at once",
        "version": "1",
        "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "a", "name": "A", "description": "a", "tags": ["a"]}],
    }


def events() -> list[bytes]:
    """Encode the results of a stream."""
    ids = {"taskId": TASK["id"], "contextId": TASK["contextId"]}
    piece = {**ids, "append": True, "artifact": {"artifactId": "a", "parts": [{"text": "x" * 50}]}}
    stream = [
        {"task": TASK | {"status": {"state": "TASK_STATE_WORKING"}}},
        *[{"artifactUpdate": piece}] * EVENTS,
        {"statusUpdate": {**ids, "status": TASK["status"]}},
    ]
    return [json.dumps(event).encode() for event in stream]


class Server:
    """Raw ASGI: the same bytes for every client."""

    def __init__(self, url: str) -> None:
        self._card, self._events = json.dumps(card(url)).encode(), events()
        self._task = json.dumps({"task": TASK}).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        media, answer = self._answer(scope["method"], body + message.get("body", b""))
        headers = [(b"content-type", media), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, method: str, body: bytes) -> tuple[bytes, bytes]:
        if method == "GET":
            return b"application/json", self._card
        head = b'{"jsonrpc":"2.0","id":%b,"result":' % json.dumps(json.loads(body)["id"]).encode()
        if b"SendStreamingMessage" in body:
            return b"text/event-stream", b"".join(b"data: %b%b}\n\n" % (head, one) for one in self._events)
        return b"application/json", head + self._task + b"}"


def serve() -> None:
    import uvicorn

    sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}/"
    app = Server(url)
    print(url, flush=True)
    config = uvicorn.Config(app, log_level="error", access_log=False, loop="uvloop", http="httptools", lifespan="off")
    uvicorn.Server(config).run([sock])


# ---- the clients -------------------------------------------------------------------------------------------------

Call = Callable[[], Awaitable[int]]


@asynccontextmanager
async def ours(url: str, streams: bool, http: str = "aiohttp") -> AsyncIterator[Call]:
    from apcore_a2a.client import A2AClient

    given = None
    if http == "httpx":
        import httpx

        given = httpx.AsyncClient()

    async with A2AClient(url, http=given) as client:

        async def send() -> int:
            answer = await client.send_message("hi")
            assert answer.to_dict()["status"]
            return 1

        async def stream() -> int:
            return len([event async for event in client.stream_message("hi")])

        yield stream if streams else send
    if given is not None:
        await given.aclose()


@asynccontextmanager
async def ours_httpx(url: str, streams: bool) -> AsyncIterator[Call]:
    async with ours(url, streams, "httpx") as call:
        yield call


@asynccontextmanager
async def sdk(url: str, streams: bool) -> AsyncIterator[Call]:
    import httpx
    from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
    from a2a.helpers import new_text_message
    from a2a.types import a2a_pb2 as pb

    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        client = ClientFactory(ClientConfig(streaming=streams, httpx_client=http)).create(card)

        async def call() -> int:
            request = pb.SendMessageRequest(message=new_text_message("hi", role=pb.Role.ROLE_USER))
            return len([event async for event in client.send_message(request)])

        yield call


CLIENTS: dict[str, Callable[[str, bool], Any]] = {"ours": ours, "ours over httpx": ours_httpx, "a2a-sdk": sdk}


async def drive(name: str, url: str, calls: int, streams: bool) -> dict[str, float]:
    async with CLIENTS[name](url, streams) as call:
        remaining = iter(range(calls))

        async def worker() -> int:
            return sum([await call() for _ in remaining])

        await call()
        started, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(worker()) for _ in range(CONCURRENT)]
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        count = sum(one.result() for one in workers)
    return {"rate": count / seconds, "cpu": cpu / count * 1e6}


# ---- the run -----------------------------------------------------------------------------------------------------


def child(*arguments: str) -> list[str]:
    core = 0 if arguments[0] == "serve" else -1
    return [*pinned(core), sys.executable, "-m", "benchmarks.bench_client", *arguments]


def measure(name: str, url: str, calls: int, kind: str) -> dict[str, float]:
    run = subprocess.run(child("drive", name, url, str(calls), kind), capture_output=True, check=True)
    measured: dict[str, float] = json.loads(run.stdout)
    return measured


def compare(found: Findings, kind: str, unit: str, url: str, calls: dict[str, int], rounds: int) -> Table:
    samples: dict[str, list[Sample]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, count in calls.items():
            samples[name].append(measure(name, url, count, kind))
    ours, rows = samples["ours"], []
    for name, taken in samples.items():
        one = medians(taken)
        found.figures[f"client/{kind}/{name}"] = times = versus(ours, taken)
        found.figures[f"client/{kind}/{name}/cpu"] = times_by_cpu = versus(taken, ours, "cpu")
        figures = [f"{one['rate']:,.0f}", f"{one['cpu']:,.0f}", f"{spread(taken, 'rate'):.0%}"]
        rows.append([name, ratio(times), ratio(times_by_cpu), *figures])
    each = f"CPU µs per {unit.removesuffix('s')}"
    columns = ("client", "ours is … times as fast", "by CPU", f"{unit}/s", each, "spread")
    title = f"Clients: streams of {EVENTS} chunks" if kind == "streams" else "Clients: message/send"
    return Table(title, columns, rows, f"{CONCURRENT} calls at a time to a server that answers with constant bytes.")


def bench(found: Findings, plan: Plan) -> None:
    calls = 4_000 if plan == FULL else 1_000
    with subprocess.Popen(child("serve"), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip().rstrip("/")
            few = max(CONCURRENT, calls // 8)  # enough for the slow ones
            counts = {"ours": calls, "ours over httpx": few, "a2a-sdk": few}
            found.add(compare(found, "sends", "calls", url, counts, plan.rounds))
            counts = {"ours": calls // 8, "a2a-sdk": max(CONCURRENT, calls // 40)}
            found.add(compare(found, "streams", "events", url, counts, plan.rounds))
        finally:
            server.terminate()


def main() -> None:
    match sys.argv[1:]:
        case ["serve"]:
            serve()
        case ["drive", name, url, calls, kind]:
            print(json.dumps(asyncio.run(drive(name, url, int(calls), kind == "streams"))))
        case _:
            run_alone(bench, __doc__)


if __name__ == "__main__":
    main()
