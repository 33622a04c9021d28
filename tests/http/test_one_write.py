"""An answer is one write; and what a server has made when it starts is nothing to the garbage collector."""

import asyncio
import gc
from typing import Any

import uvicorn

from apcore_a2a import async_serve
from apcore_a2a.http.guard import GuardedProtocol, OneWrite
from apcore_a2a.http.server import Server

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.writes: list[Any] = []

    def write(self, data: Any) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return bool(self.writes) and self.writes[-1] == "closed"

    def close(self) -> None:
        self.writes.append("closed")

    def pause_reading(self) -> None:
        self.writes.append("paused")


def one_write() -> tuple[OneWrite, Wire]:
    wire = Wire()
    return OneWrite(wire, asyncio.get_running_loop()), wire


async def test_the_head_of_an_answer_leaves_with_what_follows_it() -> None:
    transport, wire = one_write()
    transport.write(HEAD)
    transport.write(b"body")
    transport.write(b"more")
    await asyncio.sleep(0)
    assert wire.writes == [HEAD + b"body", b"more"]


async def test_a_head_that_nothing_follows_leaves_by_itself() -> None:
    transport, wire = one_write()
    transport.write(HEAD)
    await asyncio.sleep(0)
    transport.write(b"later")
    assert wire.writes == [HEAD, b"later"]


async def test_nothing_is_lost_when_the_connection_is_closed() -> None:
    transport, wire = one_write()
    transport.write(HEAD)
    transport.close()
    assert wire.writes == [HEAD, "closed"]
    assert transport.is_closing()


async def test_all_else_is_the_transports() -> None:
    transport, wire = one_write()
    transport.pause_reading()
    assert wire.writes == ["paused"]
    assert transport.get_extra_info("peername") == ("127.0.0.1", 1)


async def echo(message: str) -> str:
    return message


async def test_what_a_server_has_made_when_it_starts_is_never_looked_at_again() -> None:
    config = uvicorn.Config(await async_serve(echo), port=0, http=GuardedProtocol, log_level="error")
    config.load()
    server = Server(config)
    server.lifespan = config.lifespan_class(config)
    try:
        await server.startup()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
        await server.shutdown()
