# mypy: ignore-errors
"""An executor of a2a-sdk."""

import sys

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from starlette.applications import Starlette

PORT = int(sys.argv[1])
URL = f"http://127.0.0.1:{PORT}/"


class Shout(AgentExecutor):
    async def execute(self, context, event_queue):
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await updater.add_artifact([new_text_part(context.get_user_input().upper())])
        await updater.complete()

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


card = pb.AgentCard(
    name="shout",
    description="Return the text in upper case.",
    version="1",
    supported_interfaces=[
        pb.AgentInterface(url=URL, protocol_binding="JSONRPC", protocol_version="1.0"),
        pb.AgentInterface(url=URL, protocol_binding="JSONRPC", protocol_version="0.3"),
    ],
    capabilities=pb.AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[pb.AgentSkill(id="shout", name="Shout", description="Return the text in upper case.", tags=["text"])],
)
handler = DefaultRequestHandler(Shout(), InMemoryTaskStore(), card)
routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)]
uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=PORT)
