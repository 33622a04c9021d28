"""A server of a2a-sdk 1.x: JSON-RPC at the root, REST under /rest, gRPC at a port of its own, all in the card."""

import asyncio
import socket

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc
from google.protobuf.json_format import ParseDict
from grpc import aio
from starlette.applications import Starlette


class Agent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id and context.message
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        word, _, rest = context.get_user_input().partition(" ")
        if word == "message":
            await event_queue.enqueue_event(updater.new_agent_message([new_text_part("hello")]))
            return
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        await updater.start_work()
        match word:
            case "ask":
                await updater.requires_input(updater.new_agent_message([new_text_part("which one?")]))
            case "fail":
                await updater.failed(updater.new_agent_message([new_text_part("no")]))
            case "hang":
                await asyncio.Event().wait()
            case "count":
                for n in range(int(rest)):
                    await updater.add_artifact([new_text_part(str(n))], "numbers", append=n > 0)
                await updater.complete()
            case _:
                await updater.add_artifact([new_text_part(rest)], "echo")
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(url: str, target: str = "", *, name: str) -> pb.AgentCard:
    interfaces = [(url + "/", "JSONRPC"), (url + "/rest", "HTTP+JSON")]
    if target:
        interfaces.append((target, "GRPC"))
    return ParseDict(
        {
            "name": name,
            "description": "does as it is told",
            "version": "1",
            "supportedInterfaces": [
                {"url": address, "protocolBinding": binding, "protocolVersion": "1.0"}
                for address, binding in interfaces
            ],
            "capabilities": {"streaming": True, "pushNotifications": True, "extendedAgentCard": True},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "obey", "name": "Obey", "description": "does as it is told", "tags": ["test"]}],
        },
        pb.AgentCard(),
    )


async def main() -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    grpc = aio.server()
    target = f"127.0.0.1:{grpc.add_insecure_port('127.0.0.1:0')}"
    public = card(url, target, name="sdk1")
    handler = DefaultRequestHandler(
        Agent(),
        InMemoryTaskStore(),
        public,
        push_config_store=InMemoryPushNotificationConfigStore(),
        extended_agent_card=card(url, target, name="sdk1, extended"),
    )
    routes = [
        *create_agent_card_routes(public),
        *create_jsonrpc_routes(handler, "/"),
        *create_rest_routes(handler, path_prefix="/rest"),
    ]
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), grpc)  # type: ignore[no-untyped-call]  # generated
    await grpc.start()
    print(sock.getsockname()[1], target.partition(":")[2], flush=True)
    await uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error")).serve([sock])
    await grpc.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
