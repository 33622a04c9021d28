"""Records what the client and the server of a2a-sdk 1.x say to each other, without a socket. See README.md."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import httpx
from a2a.client.card_resolver import A2ACardResolver
from a2a.client.transports.jsonrpc import JsonRpcTransport
from a2a.client.transports.rest import RestTransport
from a2a.helpers import new_data_part, new_raw_part, new_task_from_user_message, new_text_part, new_url_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError
from google.protobuf.json_format import ParseDict
from starlette.applications import Starlette

from tests.frames.recording import Recorder

Transport = JsonRpcTransport | RestTransport

PARTS = [
    new_text_part("grüße 👋"),  # no U+2028: this SDK cannot read its own stream then
    new_data_part({"count": 42, "ratio": 0.1, "nested": {"list": [None, True]}}),
    new_data_part(["not", "an", "object"]),
    new_raw_part(b"\x00\xff", filename="a.bin", media_type="application/octet-stream"),
    new_url_part("https://example.com/a.txt", filename="a.txt", media_type="text/plain"),
]
CARD = ParseDict(
    {
        "name": "Recorder",
        "description": "says one of everything",
        "version": "1.2.3",
        "supportedInterfaces": [
            {"url": "http://jsonrpc.test/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": "http://rest.test", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": True,
            "extendedAgentCard": True,
            "extensions": [{"uri": "https://example.com/ext", "params": {"level": 3}}],
        },
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "echo", "name": "Echo", "description": "repeats", "tags": ["text"], "examples": ["hello"]}],
        "provider": {"organization": "Example", "url": "https://example.com"},
        "securitySchemes": {
            "bearer": {"httpAuthSecurityScheme": {"scheme": "bearer", "bearerFormat": "JWT"}},
            "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}},
        },
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}],
    },
    pb.AgentCard(),
)


class Executor(AgentExecutor):
    """Does what the first word of the message says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id and context.message
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        word = context.get_user_input().split(" ")[0]
        if word == "message":
            await event_queue.enqueue_event(updater.new_agent_message(PARTS))
            return
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        await updater.start_work(updater.new_agent_message([new_text_part("on it")]))
        match word:
            case "ask":
                await updater.requires_input(updater.new_agent_message([new_text_part("which one?")]))
            case "fail":
                await updater.failed(updater.new_agent_message([new_text_part("no")]))
            case "reject":
                await updater.reject()
            case _:
                for index, part in enumerate(PARTS):
                    await updater.add_artifact(
                        [part], "a-1", "result", append=index > 0, last_chunk=index == len(PARTS) - 1
                    )
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def request(text: str, **message: Any) -> pb.SendMessageRequest:
    asked = pb.SendMessageRequest(
        message=pb.Message(
            message_id=f"m-{text.replace(' ', '-')}",
            role=pb.Role.ROLE_USER,
            parts=[new_text_part(text), *(PARTS if "parts" in text else [])],
            **message,
        )
    )
    ParseDict({"skillId": "echo", "n": 1}, asked.metadata)
    if "configured" in text:
        asked.configuration.accepted_output_modes.append("text/plain")
        asked.configuration.history_length = 5
        asked.configuration.task_push_notification_config.CopyFrom(push("inline"))
    return asked


def push(id: str, task_id: str = "") -> pb.TaskPushNotificationConfig:
    authentication = pb.AuthenticationInfo(scheme="Bearer", credentials="secret")
    return pb.TaskPushNotificationConfig(
        id=id, task_id=task_id, url="https://example.com/hook", token="token", authentication=authentication
    )


async def converse(transport: Transport) -> None:
    await transport.send_message(request("message please"))
    done = (await transport.send_message(request("work configured with parts"))).task
    await transport.get_task(pb.GetTaskRequest(id=done.id, history_length=2))
    await transport.list_tasks(pb.ListTasksRequest(page_size=10, include_artifacts=True))
    await transport.list_tasks(pb.ListTasksRequest(context_id=done.context_id))
    await refused(transport.get_task(pb.GetTaskRequest(id="nobody")))
    await refused(transport.cancel_task(pb.CancelTaskRequest(id=done.id)))
    asked = (await transport.send_message(request("ask me", extensions=["https://example.com/ext"]))).task
    answer = request("fail now", task_id=asked.id, context_id=asked.context_id, reference_task_ids=[done.id])
    await transport.send_message(answer)
    waiting = (await transport.send_message(request("ask again"))).task
    await configure(transport, waiting.id)
    await transport.cancel_task(pb.CancelTaskRequest(id=waiting.id))
    for text in ("work with parts", "ask in a stream", "reject", "message in a stream"):
        async for _ in transport.send_message_streaming(request(text)):
            pass
    await transport.get_extended_agent_card(pb.GetExtendedAgentCardRequest())


async def configure(transport: Transport, task_id: str) -> None:
    await transport.create_task_push_notification_config(push("p-1", task_id))
    await transport.get_task_push_notification_config(
        pb.GetTaskPushNotificationConfigRequest(task_id=task_id, id="p-1")
    )
    await transport.list_task_push_notification_configs(pb.ListTaskPushNotificationConfigsRequest(task_id=task_id))
    await transport.delete_task_push_notification_config(
        pb.DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="p-1")
    )


async def refused(call: Awaitable[Any]) -> None:
    try:
        await call
    except A2AError:
        return
    raise AssertionError("this should have been refused")


async def main() -> None:
    handler = DefaultRequestHandlerV2(
        Executor(),
        InMemoryTaskStore(),
        CARD,
        push_config_store=InMemoryPushNotificationConfigStore(),
        extended_agent_card=CARD,
    )
    recorder = Recorder(
        jsonrpc=Starlette(routes=[*create_agent_card_routes(CARD), *create_jsonrpc_routes(handler, "/")]),
        rest=Starlette(routes=create_rest_routes(handler)),
    )
    async with httpx.AsyncClient(transport=recorder, headers={"A2A-Version": "1.0"}) as http:
        card = await A2ACardResolver(http, "http://jsonrpc.test").get_agent_card()
        await converse(JsonRpcTransport(http, card, "http://jsonrpc.test/"))
        await converse(RestTransport(http, card, "http://rest.test"))
    recorder.save("sdk-1")


if __name__ == "__main__":
    asyncio.run(main())
