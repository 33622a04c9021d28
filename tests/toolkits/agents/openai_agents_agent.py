"""An agent of the OpenAI Agents SDK with the tools of a remote agent. Argument: address. Prints what was seen, as JSON.

A paused run is JSON in between, and continues with tools of its own, as after a restart.
"""

import asyncio
import json
import sys
from typing import Any

from agents import Agent, Runner, RunState, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from apcore_a2a.toolkits import RemoteTools, open_tools, to_openai_agents

URL = sys.argv[1]
set_tracing_disabled(True)


def outputs(result: Any) -> list[Any]:
    return [each.output for each in result.new_items if each.type == "tool_call_output_item"]


def agent_with(tools: RemoteTools, *script: Any) -> Any:
    return Agent(name="x", model=ScriptedModel([*script]), tools=[to_openai_agents(tool) for tool in tools])


async def one_call(name: str, inputs: dict[str, Any]) -> Any:
    async with open_tools(URL) as tools:
        agent = agent_with(tools, [function_call(name, inputs, call_id="c")], [assistant_message("ok")])
        return outputs(await Runner.run(agent, "go"))


async def pay(decision: bool) -> Any:
    async with open_tools(URL) as tools:
        agent = agent_with(tools, [function_call("pay", {"amount": 5}, call_id="c")])
        paused = await Runner.run(agent, "go")
        arguments = [json.loads(each.raw_item.arguments) for each in paused.interruptions]
        stored = paused.to_state().to_json()
    async with open_tools(URL) as tools:
        agent = agent_with(tools, [assistant_message("ok")])
        state = await RunState.from_json(agent, stored)
        for item in state.get_interruptions():
            if decision:
                state.approve(item)
            else:
                state.reject(item)
        return [arguments, outputs(await Runner.run(agent, state))]


async def approve_itself() -> Any:
    """Let the model answer the approval of a task, and return the arguments of the call at which the run pauses."""
    async with open_tools(URL) as tools:
        waiting = await tools["pay"].call({"amount": 5})
        inputs = {"amount": 5, "a2a_task_id": waiting.task_id, "a2a_answer": "approve"}
        agent = agent_with(tools, [function_call("pay", inputs, call_id="c")])
        paused = await Runner.run(agent, "go")
        arguments = [json.loads(each.raw_item.arguments) for each in paused.interruptions]
        assert [each.pop("a2a_task_id") for each in arguments] == [waiting.task_id]
        return arguments


async def main() -> None:
    seen: dict[str, Any] = {}
    async with open_tools(URL) as tools:
        seen["schema"] = to_openai_agents(tools["add"]).params_json_schema
    seen["result"] = await one_call("add", {"a": 2, "b": 3})
    seen["wrong"] = await one_call("add", {"a": "x", "b": 3})
    seen["failed"] = await one_call("refuse", {"text": "no"})
    (asked,) = await one_call("trip_book", {"seats": 2})
    task = json.loads(asked.splitlines()[1])["task_id"]
    seen["asked"] = asked
    seen["answered"] = await one_call("trip_book", {"a2a_task_id": task, "a2a_answer": "Rome"})
    seen["paid"] = await pay(True)
    seen["rejected"] = await pay(False)
    seen["self_approved"] = await approve_itself()
    print(json.dumps(seen))


asyncio.run(main())
