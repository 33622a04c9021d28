# mypy: ignore-errors
"""Microsoft's agent-framework: the response of an A2AAgent, streamed or not."""

import base64

import httpx
from a2a.client import A2ACardResolver
from agent_framework_a2a import A2AAgent
from lines import serve

agents = {}


async def connect(url: str, talk: str):
    if (url, talk) not in agents:
        http = httpx.AsyncClient(timeout=30)
        card = await A2ACardResolver(http, url).get_agent_card()
        agent = A2AAgent(name="remote", agent_card=card, http_client=http)
        agents[url, talk] = agent, agent.create_session()
    return agents[url, talk]


def plain(content) -> str:
    if content.type == "data":
        return base64.b64decode(content.uri.partition(",")[2]).decode()
    return content.text


def shown(response) -> dict:
    return {"shown": [plain(content) for message in response.messages for content in message.contents]}


async def ask(url: str, text: str, talk: str) -> dict:
    agent, session = await connect(url, talk)
    return shown(await agent.run(text, session=session, stream=True).get_final_response())


async def ask_without_stream(url: str, text: str, talk: str) -> dict:
    agent, session = await connect(url, talk)
    return shown(await agent.run(text, session=session))


serve(ask=ask, ask_without_stream=ask_without_stream)
