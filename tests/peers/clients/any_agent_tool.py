# mypy: ignore-errors
"""any-agent: the message that a remote agent returns as a tool."""

from any_agent.tools import a2a_tool_async
from lines import serve

tasks = {}


async def ask(url: str, text: str, talk: str) -> dict:
    tool = await a2a_tool_async(url)
    task_id, context_id = tasks.get((url, talk), (None, None))
    answer = await tool(text, task_id=task_id, context_id=context_id)
    if "task_id" in answer:
        tasks[url, talk] = answer["task_id"], answer["context_id"]
    return {"shown": list(answer.get("message", ()))}


serve(ask=ask)
