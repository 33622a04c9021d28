"""A server that sends the exact bytes of a test, and records the requests.

An answer is bytes, or a function that writes them. One connection carries one request, so that a fault of a connection
affects one request only.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

CARD = "/.well-known/agent-card.json"
OLD_CARD = "/.well-known/agent.json"


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # Any: JSON
        return json.loads(self.body)


Writer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]
Answer = bytes | Writer


class ScriptedServer:
    """Answers each path with its scripted answers, in order. The last one repeats.

    With `keep_alive` a connection may carry several requests. `connections` counts them.
    """

    def __init__(self, port: int = 0, *, keep_alive: bool = False) -> None:
        self.port = port  # 0 until it runs: the system chooses a port
        self.url = ""
        self.connections = 0
        self.requests: list[Request] = []
        self._keep_alive = keep_alive
        self._server: asyncio.Server | None = None
        self._answers: dict[str, list[Answer]] = {}
        self._connections: set[asyncio.Task[None]] = set()

    def on(self, path: str, *answers: Answer) -> Self:
        self._answers[path] = list(answers)
        return self

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        self.connections += 1
        try:
            await self._answer(await _read(reader), writer)
            while self._keep_alive:
                await self._answer(await _read(reader), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client closed the connection
        finally:
            self._connections.discard(connection)
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.requests.append(request)
        answers = self._answers.get(request.path, [respond({"detail": "nothing here"}, 404)])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, bytes):
            writer.write(answer)
        else:
            await answer(request, writer)
        if not writer.is_closing():
            await writer.drain()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ")
    headers: dict[str, str] = {}
    for line in head[1:]:
        if not line:
            continue
        spelled, _, value = line.partition(":")
        name = spelled.lower()
        if name in headers:  # make a repeated header visible
            headers[name] += f", {value.strip()}"
        else:
            headers[name] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)


def respond(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """Encode a whole response: JSON, or the bytes given."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(content)), "Connection": "close"}
    fields |= headers or {}
    lines = [f"HTTP/1.1 {status} X"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def result(value: object) -> Writer:
    """Return a writer of a JSON-RPC result with the id of the request."""

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(respond({"jsonrpc": "2.0", "id": request.json["id"], "result": value}))

    return write


def error(code: int, message: str = "no", data: object = None, *, status: int = 200) -> Writer:
    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        body = {"jsonrpc": "2.0", "id": request.json["id"], "error": {"code": code, "message": message, "data": data}}
        writer.write(respond(body, status))

    return write


# ---- streams -----------------------------------------------------------------------------------------------------

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(request: Request, value: object, id: int | str | None = None) -> bytes:
    """Encode a JSON-RPC result as one server-sent event and one HTTP chunk."""
    data = json.dumps({"jsonrpc": "2.0", "id": request.json["id"], "result": value})
    frame = f"data: {data}\n\n"
    if id is not None:
        frame = f"id: {id}\n{frame}"
    return chunk(frame.encode())


def stream(*values: object, end: bool = True, first_id: int | None = None) -> Writer:
    """Return a writer of a stream. Without `end` the connection is reset after the last event."""

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for number, value in enumerate(values):
            id = None if first_id is None else first_id + number
            writer.write(event(request, value, id))
        if end:
            writer.write(STREAM_END)
            return
        await writer.drain()
        reset(writer)

    return write


def reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection instead of closing it."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def hang(request: Request, writer: asyncio.StreamWriter) -> None:
    """Send nothing for as long as the server runs."""
    await asyncio.Event().wait()


# ---- cards -------------------------------------------------------------------------------------------------------


def card(url: str, **changes: Any) -> dict[str, Any]:
    """Return a 1.0 card with JSON-RPC at the root."""
    return {
        "name": "Scripted",
        "description": "says what it was told to",
        "version": "1",
        "supportedInterfaces": [{"url": f"{url}/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "obey", "name": "Obey", "description": "obeys", "tags": ["test"]}],
    } | changes


def card_03(url: str, **changes: Any) -> dict[str, Any]:
    """Return a 0.3 card with JSON-RPC at the root."""
    old = {"protocolVersion": "0.3.0", "url": f"{url}/", "preferredTransport": "JSONRPC"}
    new = card(url)
    del new["supportedInterfaces"]
    return new | old | changes


# ---- tasks -------------------------------------------------------------------------------------------------------


def task(state: str = "COMPLETED", **changes: Any) -> dict[str, Any]:
    return {"id": "t-1", "contextId": "c-1", "status": {"state": f"TASK_STATE_{state}"}} | changes


def status(state: str, **changes: Any) -> dict[str, Any]:
    return {"statusUpdate": {"taskId": "t-1", "contextId": "c-1", "status": {"state": f"TASK_STATE_{state}"}} | changes}


def artifact(text: str, *, append: bool = True) -> dict[str, Any]:
    piece = {"artifactId": "a-1", "parts": [{"text": text}]}
    return {"artifactUpdate": {"taskId": "t-1", "contextId": "c-1", "artifact": piece, "append": append}}
