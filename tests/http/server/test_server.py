"""What a server has made when it starts is nothing to the garbage collector."""

import gc

import uvicorn

from apcore_a2a import async_serve
from apcore_a2a.http.server.connection import GuardedProtocol
from apcore_a2a.http.server.server import Server


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
