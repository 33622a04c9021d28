"""An agent as a2a-sdk 1.3 has it: everything around the executor is written by hand. See README.md.

python -m examples.migration.before
"""

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from starlette.applications import Starlette


class Shout(AgentExecutor):
    """Returns text in upper case."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id and context.message
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await updater.add_artifact([new_text_part(context.get_user_input().upper())], last_chunk=True)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def make_app(url: str = "http://127.0.0.1:8000/") -> Starlette:
    skill = {"id": "shout", "name": "Shout", "description": "Returns text in upper case", "tags": ["text"]}
    interfaces = [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version} for version in ("1.0", "0.3")]
    card = ParseDict(
        {
            "name": "shout",
            "description": "Returns text in upper case",
            "version": "1",
            "supportedInterfaces": interfaces,
            "capabilities": {"streaming": True},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [skill],
        },
        pb.AgentCard(),
    )
    handler = DefaultRequestHandler(Shout(), InMemoryTaskStore(), card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)]
    return Starlette(routes=routes)


if __name__ == "__main__":
    uvicorn.run(make_app(), host="127.0.0.1", port=8000)
