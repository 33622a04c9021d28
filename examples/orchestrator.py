"""An orchestrator of three agents. All four run in one server here; each could run on a machine of its own.

python examples/orchestrator.py
apcore-a2a send http://127.0.0.1:8000/plan/ Rome
"""

import asyncio
import os

from apcore_a2a import A2AClient, A2AError, Call, Task, serve

BASE = os.environ.get("AGENTS_URL", "http://127.0.0.1:8000")


async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def hotels(city: str) -> str:
    """Find a hotel."""
    return f"the Grand Hotel {city}"


async def trains(city: str) -> str:
    """Find a train."""
    if city == "Atlantis":
        raise ValueError("no rails under water")
    return f"the 8:15 to {city}"


async def ask(path: str, city: str) -> str:
    """Return the answer of one agent. A failed agent does not stop the others."""
    try:
        async with A2AClient(f"{BASE}{path}/", timeout=20) as client:
            answer = await client.send_message(city)
    except A2AError as error:
        return f"unknown ({type(error).__name__})"
    if isinstance(answer, Task) and answer.status.state != "completed":
        return f"unknown ({answer.status.state})"
    return answer.text


async def plan(city: str, call: Call) -> dict[str, str]:
    """Plan a journey with three other agents, which work at the same time."""
    call.progress(0.1, "Asking three agents")
    async with asyncio.TaskGroup() as group:
        asked = {name: group.create_task(ask(f"/{name}", city)) for name in ("weather", "hotels", "trains")}
    return {name: task.result() for name, task in asked.items()}


AGENTS = {"/plan": plan, "/weather": weather, "/hotels": hotels, "/trains": trains}

if __name__ == "__main__":
    serve(AGENTS, host="127.0.0.1", port=8000)
