# mypy: ignore-errors
"""crewAI: the result of the delegation to a remote agent, without the model that decides on the delegation."""

from crewai.a2a.updates import PollingConfig
from crewai.a2a.utils.delegation import aexecute_a2a_delegation
from lines import serve

talks = {}


async def delegate(url: str, text: str, talk: str, updates) -> dict:
    said = talks.get((url, talk), [])
    last = said[-1] if said else None
    result = await aexecute_a2a_delegation(
        endpoint=f"{url}/.well-known/agent-card.json",
        auth=None,
        timeout=30,
        task_description=text,
        task_id=last and last.task_id,
        context_id=last and last.context_id,
        conversation_history=said,
        updates=updates,
    )
    talks[url, talk] = result.get("history") or []
    return {"shown": [result.get("result") or result.get("error") or ""]}


async def ask(url: str, text: str, talk: str) -> dict:
    return await delegate(url, text, talk, None)


async def ask_by_polling(url: str, text: str, talk: str) -> dict:
    return await delegate(url, text, talk, PollingConfig(interval=0.1))


serve(ask=ask, ask_by_polling=ask_by_polling)
