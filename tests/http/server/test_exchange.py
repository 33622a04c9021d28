"""An exchange: which task runs it, and what the bindings of this package may ask of it beyond ASGI."""

import asyncio
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from apcore_a2a.http.server.connection import GuardedProtocol
from tests.http.server.test_http1 import GET, HEAD, Endpoint, Recorded, hello


def connect(app: Endpoint) -> tuple[GuardedProtocol, Recorded, ServerState]:
    config = uvicorn.Config(app, log_config=None, access_log=False)
    config.load()
    state = ServerState()
    connection = GuardedProtocol(config, state, {}, asyncio.get_running_loop())
    transport = Recorded()
    connection.connection_made(transport)
    return connection, transport, state


# ---- the task -------------------------------------------------------------------------------------------------------


async def test_a_task_that_was_cancelled_is_not_running_any_more() -> None:
    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    connection, transport, state = connect(waiting)
    connection.data_received(GET)
    await asyncio.sleep(0)
    (task,) = state.tasks
    task.cancel()
    await asyncio.wait([task])
    assert not state.tasks
    assert transport.is_closing()


async def test_an_event_loop_that_runs_tasks_at_once_leaves_none_running() -> None:
    def run_at_once(loop: asyncio.AbstractEventLoop, work: Any, **_: Any) -> Any:
        with pytest.raises(StopIteration):
            work.send(None)
        done = loop.create_future()
        done.set_result(None)
        return done

    connection, transport, state = connect(hello)
    asyncio.get_running_loop().set_task_factory(run_at_once)  # as asyncio.eager_task_factory of Python 3.12 does
    try:
        connection.data_received(GET)
    finally:
        asyncio.get_running_loop().set_task_factory(None)
    assert transport.written == HEAD + b"hello"
    assert not state.tasks
