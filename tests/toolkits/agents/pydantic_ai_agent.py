"""A pydantic-ai agent with the tools of a remote agent. Argument: address. Prints what was seen, as JSON.

Each run has tools of its own, which remember no task, and messages that were JSON in between, as after a restart.
"""

import asyncio
import json
import sys
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, ModelMessagesTypeAdapter
from pydantic_ai.messages import ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from apcore_a2a.toolkits import open_tools, to_pydantic_ai

URL = sys.argv[1]


class Conversation:
    """The messages of a conversation, and the schemas that its model sees."""

    def __init__(self, name: str, args: dict[str, Any]) -> None:
        self.call = ToolCallPart(name, args, tool_call_id="call-1")
        self.messages = b"[]"
        self.schemas: dict[str, Any] = {}

    def model(self, messages: list[Any], info: AgentInfo) -> ModelResponse:
        self.schemas = {tool.name: tool.parameters_json_schema for tool in info.function_tools}
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart | RetryPromptPart):
            return ModelResponse(parts=[TextPart(f"{last.part_kind} {last.content}")])
        return ModelResponse(parts=[self.call])

    async def run(self, prompt: str | None, results: Any = None) -> Any:
        async with open_tools(URL) as tools:
            listed = [to_pydantic_ai(tool) for tool in tools]
            agent = Agent(FunctionModel(self.model), tools=listed, output_type=[str, DeferredToolRequests])
            history = ModelMessagesTypeAdapter.validate_json(self.messages)
            result = await agent.run(prompt, message_history=history, deferred_tool_results=results)
        self.messages = ModelMessagesTypeAdapter.dump_json(result.all_messages())
        return result.output


async def main() -> None:
    seen: dict[str, Any] = {}
    add = Conversation("add", {"a": 2, "b": 3})
    seen["result"] = await add.run("go")
    seen["schema"] = add.schemas["add"]
    seen["wrong"] = await Conversation("add", {"a": "x", "b": 3}).run("go")
    seen["failed"] = await Conversation("refuse", {"text": "no"}).run("go")

    tour = Conversation("tour", {"text": "go"})
    first = await tour.run("go")
    asked = first.metadata["call-1"]
    answer = {"answer": "Rome", "asked": asked["asked"]}
    second = await tour.run(None, first.build_results(approvals={"call-1": True}, metadata={"call-1": answer}))
    answer = {"answer": 3}
    results = second.build_results(approvals={"call-1": True}, metadata={"call-1": answer})
    seen["tour"] = [asked["text"], second.metadata["call-1"]["questions"], await tour.run(None, results)]

    pay = Conversation("pay", {"amount": 5})
    waiting = await pay.run("go")
    seen["asked"] = waiting.metadata["call-1"]["questions"]
    seen["paid"] = await pay.run(None, waiting.build_results(approve_all=True))
    # The same call once more in the same conversation, with the same id: another task.
    again = await pay.run("go")
    seen["rejected"] = await pay.run(None, again.build_results(approvals={"call-1": False}))
    print(json.dumps(seen))


asyncio.run(main())
