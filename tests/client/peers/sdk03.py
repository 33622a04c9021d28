# mypy: ignore-errors
# Typed against a2a-sdk 0.3.x, which cannot be installed beside the 1.x that mypy sees.
"""Servers of a2a-sdk 0.3.x: JSON-RPC at the root, REST at /rest, gRPC at a port of its own, all in the card."""

import asyncio
import socket

import uvicorn
from a2a import types as t
from a2a.grpc import a2a_pb2_grpc
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from a2a.utils import new_task
from grpc import aio
from starlette.routing import Mount


def text(words: str) -> t.Part:
    return t.Part(root=t.TextPart(text=words))


class Agent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        word, _, rest = context.get_user_input().partition(" ")
        if word == "message":
            await event_queue.enqueue_event(updater.new_agent_message([text("hello")]))
            return
        if context.current_task is None:
            await event_queue.enqueue_event(new_task(context.message))
        await updater.start_work()
        match word:
            case "ask":
                await updater.requires_input(updater.new_agent_message([text("which one?")]), final=True)
            case "fail":
                await updater.failed(updater.new_agent_message([text("no")]))
            case "hang":
                await asyncio.Event().wait()
            case "count":
                for n in range(int(rest)):
                    await updater.add_artifact([text(str(n))], "numbers", append=n > 0)
                await updater.complete()
            case _:
                await updater.add_artifact([text(rest)], "echo")
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(url: str, grpc_url: str, name: str) -> t.AgentCard:
    return t.AgentCard(
        name=name,
        description="does as it is told",
        version="1",
        url=f"{url}/",
        preferred_transport="JSONRPC",
        additional_interfaces=[
            t.AgentInterface(url=f"{url}/rest", transport="HTTP+JSON"),
            t.AgentInterface(url=grpc_url, transport="GRPC"),
        ],
        capabilities=t.AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[t.AgentSkill(id="obey", name="Obey", description="does as it is told", tags=["test"])],
        supports_authenticated_extended_card=True,
    )


async def main() -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    handler = DefaultRequestHandler(
        Agent(), InMemoryTaskStore(), push_config_store=InMemoryPushNotificationConfigStore()
    )
    grpc = aio.server()
    grpc_url = f"http://127.0.0.1:{grpc.add_insecure_port('127.0.0.1:0')}"
    public = card(url, grpc_url, "sdk03")
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(public, handler), grpc)
    await grpc.start()
    parts = {
        "agent_card": public,
        "http_handler": handler,
        "extended_agent_card": card(url, grpc_url, "sdk03, extended"),
    }
    app = A2AStarletteApplication(**parts).build()
    app.routes.append(Mount("/rest", A2ARESTFastAPIApplication(**parts).build()))
    print(sock.getsockname()[1], grpc_url.rpartition(":")[2], flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="error")).serve([sock])
    await grpc.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
