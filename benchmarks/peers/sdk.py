"""a2a-sdk's server: JSON-RPC 1.0 and 0.3 at the root, tasks in memory or in SQLite. With `--kind grpc` gRPC too, at the
next port.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from starlette.applications import Starlette

from benchmarks.peers.serving import CHUNK, arguments, finished, prepare, serve


class Obedient(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id and context.message
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        await updater.start_work()
        work = await prepare(context.get_user_input())
        for number in range(work.chunks):
            last = number == work.chunks - 1
            await updater.add_artifact([new_text_part(CHUNK)], "answer", append=number > 0, last_chunk=last)
            if work.yields:
                await asyncio.sleep(0)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def make_card(url: str) -> pb.AgentCard:
    interface = {"url": url, "protocolBinding": "JSONRPC"}
    return ParseDict(
        {
            "name": "bench",
            "description": "does as it is told",
            "version": "1",
            "supportedInterfaces": [{**interface, "protocolVersion": version} for version in ("1.0", "0.3")],
            "capabilities": {"streaming": True},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "obey", "name": "Obey", "description": "does as it is told", "tags": ["test"]}],
        },
        pb.AgentCard(),
    )


def make_store(path: str, url: str) -> Any:
    if not path and not url:
        return InMemoryTaskStore()
    from a2a.server.tasks import DatabaseTaskStore
    from sqlalchemy.ext.asyncio import create_async_engine  # type: ignore[import-not-found]  # installed only in that environment

    return DatabaseTaskStore(create_async_engine(url or f"sqlite+aiosqlite:///{path}"))


@asynccontextmanager
async def serving_grpc(handler: DefaultRequestHandler, target: str) -> AsyncIterator[None]:
    from a2a.server.request_handlers import GrpcHandler  # needs grpcio
    from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
    from grpc import aio

    server = aio.server()
    server.add_insecure_port(target)
    add_A2AServiceServicer_to_server(GrpcHandler(handler), server)  # type: ignore[no-untyped-call]  # generated
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def main() -> None:
    given = arguments()
    store = make_store(given.sqlite, given.postgres)
    card = make_card(f"http://127.0.0.1:{given.port}/")

    handler = DefaultRequestHandler(Obedient(), store, card)

    @asynccontextmanager
    async def lifespan(app: Any) -> Any:
        for number in range(given.fill):
            await store.save(ParseDict(finished(number), pb.Task()), ServerCallContext())
        async with AsyncExitStack() as stack:
            if given.kind == "grpc":
                target = f"127.0.0.1:{given.port + 1}"
                await stack.enter_async_context(serving_grpc(handler, target))
                card.supported_interfaces.add(url=target, protocol_binding="GRPC", protocol_version="1.0")
            yield

    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
    ]
    serve(Starlette(routes=routes, lifespan=lifespan), given.port)


if __name__ == "__main__":
    main()
