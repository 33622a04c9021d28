# mypy: ignore-errors
"""AG2: the reply of an Agent whose model is a remote agent, and the questions that its hook for people gets."""

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as pb
from ag2 import Agent
from ag2.a2a import A2AConfig
from ag2.a2a.errors import A2ATaskTerminalError
from ag2.a2a.tasks import cancel_task
from lines import serve


async def ask(url: str, text: str, talk: str, answer: str = "") -> dict:
    asked = []

    def human(event) -> str:
        asked.append(event.content)
        return answer

    try:
        reply = await Agent("remote", config=A2AConfig(card_url=url)).ask(text, hitl_hook=human)
    except A2ATaskTerminalError as error:
        return {"shown": [error.task.status.message.parts[0].text]}
    return {"shown": [*asked, reply.body]}


async def cancel(url: str) -> dict:
    async with httpx.AsyncClient(timeout=30) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        message = pb.Message(message_id="1", role=pb.Role.ROLE_USER, parts=[pb.Part(text="go")])
        async for event in client.send_message(pb.SendMessageRequest(message=message)):
            if event.HasField("artifact_update"):
                task = await cancel_task(A2AConfig(card_url=url), event.artifact_update.task_id)
                return {"shown": [pb.TaskState.Name(task.status.state)]}
    raise AssertionError("the task has ended by itself")


serve(ask=ask, cancel=cancel)
