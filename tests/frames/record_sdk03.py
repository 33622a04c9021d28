# mypy: ignore-errors
# It is typed against a2a-sdk 0.3.x, which cannot be installed beside the 1.x that mypy sees.
"""Records what the client and the server of a2a-sdk 0.3.x say to each other, without a socket. See README.md."""

import asyncio

import httpx
from a2a import types as t
from a2a.client import A2ACardResolver
from a2a.client.errors import A2AClientError
from a2a.client.transports import JsonRpcTransport, RestTransport
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater

from tests.frames.recording import Recorder

PARTS = [
    t.Part(root=t.TextPart(text="grüße 👋 \u2028", metadata={"n": 1, "f": 1.5, "deep": {"list": [None, True]}})),
    t.Part(root=t.DataPart(data={"count": 42, "ratio": 0.1, "nested": {"big": 2**53 + 1}})),
    t.Part(root=t.FilePart(file=t.FileWithBytes(bytes="AP8=", name="a.bin", mime_type="application/octet-stream"))),
    t.Part(root=t.FilePart(file=t.FileWithUri(uri="https://example.com/a.txt", name="a.txt"), metadata={"x": "y"})),
]
EXTENSION = t.AgentExtension(uri="https://example.com/ext", description="an extension", params={"level": 3})
CARD = t.AgentCard(
    name="Recorder",
    description="says one of everything",
    version="1.2.3",
    url="http://jsonrpc.test/",
    preferred_transport="JSONRPC",
    additional_interfaces=[t.AgentInterface(url="http://rest.test", transport="HTTP+JSON")],
    capabilities=t.AgentCapabilities(
        streaming=True, push_notifications=True, state_transition_history=False, extensions=[EXTENSION]
    ),
    default_input_modes=["text/plain", "application/json"],
    default_output_modes=["text/plain"],
    skills=[
        t.AgentSkill(
            id="echo",
            name="Echo",
            description="repeats",
            tags=["text"],
            examples=["hello"],
            input_modes=["text/plain"],
            security=[{"bearer": []}],
        )
    ],
    provider=t.AgentProvider(organization="Example", url="https://example.com"),
    documentation_url="https://example.com/docs",
    supports_authenticated_extended_card=True,
    security_schemes={
        "bearer": t.SecurityScheme(root=t.HTTPAuthSecurityScheme(scheme="bearer", bearer_format="JWT")),
        "key": t.SecurityScheme(root=t.APIKeySecurityScheme(in_=t.In.header, name="X-API-Key")),
        "oauth": t.SecurityScheme(
            root=t.OAuth2SecurityScheme(
                flows=t.OAuthFlows(
                    client_credentials=t.ClientCredentialsOAuthFlow(
                        token_url="https://example.com/token", scopes={"read": "to read"}
                    )
                )
            )
        ),
        "oidc": t.SecurityScheme(root=t.OpenIdConnectSecurityScheme(open_id_connect_url="https://example.com/oidc")),
        "mtls": t.SecurityScheme(root=t.MutualTLSSecurityScheme(description="certificates")),
    },
    security=[{"bearer": []}, {"oauth": ["read"]}],
)


class Executor(AgentExecutor):
    """Does what the first word of the message says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        word = context.get_user_input().split(" ")[0]
        if word == "message":
            await event_queue.enqueue_event(updater.new_agent_message(PARTS, metadata={"direct": True}))
            return
        if context.current_task is None:
            await event_queue.enqueue_event(
                t.Task(
                    id=context.task_id,
                    context_id=context.context_id,
                    status=t.TaskStatus(state=t.TaskState.submitted),
                    history=[context.message],
                    metadata={"skillId": "echo"},
                )
            )
        await updater.start_work(updater.new_agent_message([t.Part(root=t.TextPart(text="on it"))]))
        match word:
            case "ask":
                question = updater.new_agent_message([t.Part(root=t.TextPart(text="which one?"))])
                await updater.requires_input(question, final=True)
            case "fail":
                await updater.failed(updater.new_agent_message([t.Part(root=t.TextPart(text="no"))]))
            case "reject":
                await updater.reject()
            case _:
                for index, part in enumerate(PARTS):
                    await updater.add_artifact(
                        [part], "a-1", "result", {"chunk": index}, index > 0, index == len(PARTS) - 1
                    )
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def params(text: str, **message: object) -> t.MessageSendParams:
    first = t.Part(root=t.TextPart(text=text))
    return t.MessageSendParams(
        message=t.Message(
            message_id=f"m-{text.replace(' ', '-')}",
            role=t.Role.user,
            parts=[first, *(PARTS if "parts" in text else [])],
            **message,
        ),
        configuration=t.MessageSendConfiguration(
            accepted_output_modes=["text/plain"],
            blocking=True,
            history_length=5,
            push_notification_config=t.PushNotificationConfig(
                id="inline",
                url="https://example.com/hook",
                token="token",
                authentication=t.PushNotificationAuthenticationInfo(schemes=["Bearer"], credentials="secret"),
            ),
        )
        if "configured" in text
        else None,
        metadata={"skillId": "echo"},
    )


async def converse(transport: JsonRpcTransport | RestTransport) -> str:
    """One of everything; answers with the id of a task that has a push config."""
    await transport.send_message(params("message please"))
    done = await transport.send_message(params("work configured with parts"))
    await transport.get_task(t.TaskQueryParams(id=done.id, history_length=2))
    await refused(transport.get_task(t.TaskQueryParams(id="nobody")))
    await refused(transport.cancel_task(t.TaskIdParams(id=done.id)))
    asked = await transport.send_message(params("ask me", context_id="c-1", extensions=["https://example.com/ext"]))
    answer = params("fail now", task_id=asked.id, context_id=asked.context_id, reference_task_ids=[done.id])
    await transport.send_message(answer)
    waiting = await transport.send_message(params("ask again"))
    config = t.PushNotificationConfig(id="p-1", url="https://example.com/hook", token="token")
    await transport.set_task_callback(t.TaskPushNotificationConfig(task_id=waiting.id, push_notification_config=config))
    await transport.get_task_callback(
        t.GetTaskPushNotificationConfigParams(id=waiting.id, push_notification_config_id="p-1")
    )
    await transport.cancel_task(t.TaskIdParams(id=waiting.id))
    for text in ("work with parts", "ask in a stream", "reject", "message in a stream"):
        async for _ in transport.send_message_streaming(params(text)):
            pass
    await transport.get_card()
    return waiting.id


async def refused(call: object) -> None:
    try:
        await call
    except A2AClientError:
        return
    raise AssertionError("this should have been refused")


async def main() -> None:
    push = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(Executor(), InMemoryTaskStore(), push_config_store=push)
    recorder = Recorder(
        jsonrpc=A2AStarletteApplication(CARD, handler, extended_agent_card=CARD).build(),
        rest=A2ARESTFastAPIApplication(CARD, handler, extended_agent_card=CARD).build(),
    )
    async with httpx.AsyncClient(transport=recorder) as http:
        card = await A2ACardResolver(http, "http://jsonrpc.test").get_agent_card()
        known = await converse(JsonRpcTransport(http, card))
        for method, body in (  # its client has no method for these
            ("tasks/pushNotificationConfig/list", {"id": known}),
            ("tasks/pushNotificationConfig/delete", {"id": known, "pushNotificationConfigId": "p-1"}),
            ("message/send", {"message": {"kind": "message", "role": "user", "parts": []}}),
        ):
            request = {"jsonrpc": "2.0", "id": "raw", "method": method, "params": body}
            await http.post("http://jsonrpc.test/", json=request)
        await converse(RestTransport(http, card, url="http://rest.test"))
    recorder.save("sdk-0.3")


if __name__ == "__main__":
    asyncio.run(main())
