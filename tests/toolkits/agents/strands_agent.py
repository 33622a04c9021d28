"""An agent of strands with the tools of a remote agent. Argument: address. Prints what was seen, as JSON.

Each turn has an agent and tools of its own, which remember no task, and a snapshot of the turn before.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

from strands import Agent
from strands.models import Model

from apcore_a2a.toolkits import open_tools, to_strands

URL = sys.argv[1]


class Script(Model):
    """Calls one tool, and then repeats what the tool has returned."""

    def __init__(self, name: str, inputs: dict[str, Any]) -> None:
        self.name = name
        self.inputs = inputs
        self.schemas: dict[str, Any] = {}

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    async def structured_output(self, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        yield {}

    async def stream(self, messages: Any, tool_specs: Any = None, *args: Any, **options: Any) -> Any:
        self.schemas = {spec["name"]: spec["inputSchema"]["json"] for spec in tool_specs or ()}
        returned = [block["toolResult"] for block in messages[-1]["content"] if "toolResult" in block]
        yield {"messageStart": {"role": "assistant"}}
        if returned:
            text = f"{returned[-1]['status']} {returned[-1]['content'][0]['text']}"
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": text}}}
        else:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": self.name, "toolUseId": "call-1"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(self.inputs)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if returned else "tool_use"}}


class Conversation:
    def __init__(self, name: str, inputs: dict[str, Any]) -> None:
        self.script = Script(name, inputs)
        self.snapshot: Any = None

    async def say(self, given: Any) -> Any:
        """Return the text of the model, or the interrupt."""
        async with open_tools(URL) as tools:
            agent = Agent(model=self.script, tools=[to_strands(tool) for tool in tools], callback_handler=None)
            if self.snapshot is not None:
                agent.load_snapshot(self.snapshot)
            result = await agent.invoke_async(given)
            self.snapshot = agent.take_snapshot(preset="session")
        if result.interrupts:
            return result.interrupts[0]
        return str(result).strip()

    async def go(self) -> Any:
        return await self.say("go")

    async def answer(self, interrupt: Any, response: Any) -> Any:
        return await self.say([{"interruptResponse": {"interruptId": interrupt.id, "response": response}}])


async def main() -> None:
    seen: dict[str, Any] = {}
    add = Conversation("add", {"a": 2, "b": 3})
    seen["result"] = await add.go()
    seen["schema"] = add.script.schemas["add"]
    seen["wrong"] = await Conversation("add", {"a": "x", "b": 3}).go()
    seen["failed"] = await Conversation("refuse", {"text": "no"}).go()

    tour = Conversation("tour", {"text": "go"})
    first = await tour.go()
    second = await tour.answer(first, "Rome")
    seen["tour"] = [first.reason["text"], second.reason["questions"], await tour.answer(second, 3)]

    pay = Conversation("pay", {"amount": 5})
    asked = await pay.go()
    seen["asked"] = asked.reason["questions"]
    seen["paid"] = await pay.answer(asked, True)
    again = Conversation("pay", {"amount": 5})
    seen["rejected"] = await again.answer(await again.go(), False)
    print(json.dumps(seen))


asyncio.run(main())
