"""Further agents of Strands: typed output, questions that are no approvals, and one agent for all runs."""

import json
from typing import Any

from strands import Agent, ToolContext, tool

from tests.frameworks.agents import script
from tests.frameworks.agents.strands_agent import FakeModel, Report

try:
    from strands.vended_interventions.hitl import HumanInTheLoop
except ImportError:  # an older version
    HumanInTheLoop = None


@tool(context=True)
def book(seats: int, tool_context: ToolContext) -> str:
    """Book seats."""
    city = tool_context.interrupt("city", reason="Which city?")
    price = tool_context.interrupt("price", reason={"message": "At which price?", "currency": "EUR"})
    return f"{seats} seats to {city} for {price}"


@tool(context=True)
def caller(tool_context: ToolContext) -> str:
    """Return the id of the caller."""
    return str(tool_context.invocation_state["call"].caller.id)


class ToolModel(FakeModel):
    """Calls the tool that the user names: `book {"seats": 2}`."""

    async def stream(self, messages: Any, *args: Any, **options: Any) -> Any:
        text = messages[-1]["content"][0].get("text", "")
        name, _, given = text.partition(" ")
        if name == "bytes":
            (file,) = messages[0]["content"][0].values()
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": repr(file["source"]["bytes"])}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}
            return
        if name not in ("book", "caller", "Report", "stop"):
            async for event in super().stream(messages, *args, **options):
                yield event
            return
        yield {"messageStart": {"role": "assistant"}}
        if name == "stop":
            yield {"messageStop": {"stopReason": "content_filtered"}}
            return
        yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": str(len(messages))}}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": given or json.dumps({})}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}


def typed() -> Agent:
    return Agent(ToolModel(), structured_output_model=Report, callback_handler=None)


def guarded() -> Agent:
    """Return an agent whose tools all require the approval of a human."""
    options: dict[str, Any] = {}
    if HumanInTheLoop is not None:
        options["interventions"] = [HumanInTheLoop()]
    return Agent(FakeModel(), tools=[tool(script.look)], callback_handler=None, **options)


shared = Agent(ToolModel(), tools=[tool(script.slow), book, caller], callback_handler=None)

if __name__ == "__main__":
    script.run({"/typed": typed, "/guarded": guarded, "/shared": shared})
