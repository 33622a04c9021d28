# mypy: ignore-errors
"""Strands: the content of the result of an A2AAgent. It sends no task id, so it cannot answer a question."""

from lines import serve
from strands.agent.a2a_agent import A2AAgent


async def ask(url: str, text: str, talk: str) -> dict:
    result = await A2AAgent(endpoint=url).invoke_async(text)
    return {"shown": [block["text"] for block in result.message["content"]]}


serve(ask=ask)
