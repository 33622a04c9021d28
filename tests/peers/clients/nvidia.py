# mypy: ignore-errors
"""NVIDIA NeMo Agent Toolkit: the text that the function of its A2A client returns to a model."""

from lines import serve
from nat.plugins.a2a.client.client_base import A2ABaseClient

tasks = {}


async def send(url: str, text: str, talk: str, streaming: bool) -> dict:
    task_id, context_id = tasks.get((url, talk), (None, None))
    async with A2ABaseClient(base_url=url, streaming=streaming) as client:
        events = [event async for event in client.send_message(text, task_id, context_id)]
        task = events[-1][0]
        tasks[url, talk] = task.id, task.context_id
        return {"shown": [client.extract_text_from_events(events)]}


async def ask(url: str, text: str, talk: str) -> dict:
    return await send(url, text, talk, False)  # its default


async def ask_with_stream(url: str, text: str, talk: str) -> dict:
    return await send(url, text, talk, True)


async def cancel(url: str) -> dict:
    async with A2ABaseClient(base_url=url, streaming=True) as client:
        async for task, _ in client.send_message("go"):
            if task.artifacts:
                return {"shown": [(await client.cancel_task(task.id)).status.state.value]}
    raise AssertionError("the task has ended by itself")


serve(ask=ask, ask_with_stream=ask_with_stream, cancel=cancel)
