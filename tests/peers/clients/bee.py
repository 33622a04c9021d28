# mypy: ignore-errors
"""BeeAI framework: the content of the last message of an A2AAgent's output."""

import base64

from beeai_framework.adapters.a2a.agents import A2AAgent
from beeai_framework.memory import UnconstrainedMemory
from lines import serve

agents = {}


async def ask(url: str, text: str, talk: str) -> dict:
    if (url, talk) not in agents:
        agents[url, talk] = A2AAgent(url=url, memory=UnconstrainedMemory())
    output = await agents[url, talk].run(text)
    message = output.last_message
    files = [content.file["file_data"] for content in message.content if content.type == "file"]
    texts = [message.text] if message.text else []
    return {"shown": texts + [base64.b64decode(file).decode() for file in files]}


serve(ask=ask)
