"""The agents of Strands: a new one for each run."""

import json
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from strands import Agent, ToolContext, tool
from strands.models.model import Model

from tests.frameworks.agents import script


class Report(BaseModel):
    title: str
    pages: int


@tool(context=True)
def pay(to: str, amount: int, tool_context: ToolContext) -> str:
    """Pay an amount, if the user approves."""
    if tool_context.interrupt("approval") != "y":
        return "not approved"
    return script.pay(to, amount)


def texts_of(message: Any) -> list[str]:
    """Return the texts and the kinds of files in a message of the user. Empty for the results of tools."""
    return [block.get("text", f"<{next(iter(block))}>") for block in message["content"] if "toolResult" not in block]


class FakeModel(Model):
    def update_config(self, **config: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {}

    async def structured_output(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        yield {}

    async def stream(self, messages: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        results = [block["toolResult"] for block in messages[-1]["content"] if "toolResult" in block]
        said = [texts for message in messages if message["role"] == "user" and (texts := texts_of(message))]
        if results:
            step = script.last_step(results[-1]["content"][0].get("text"))
        else:
            step = script.first_step(" ".join(said[-1]), len(said))
        yield {"messageStart": {"role": "assistant"}}
        if step.text:
            yield {"contentBlockStart": {"start": {}}}
            for piece in step.pieces:
                yield {"contentBlockDelta": {"delta": {"text": piece}}}
            yield {"contentBlockStop": {}}
        for number, (name, arguments) in enumerate(step.calls):
            use = {"name": name, "toolUseId": f"{len(messages)}-{number}"}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if step.calls else "end_turn"}}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def make() -> Agent:
    return Agent(
        FakeModel(),
        name=script.NAME,
        description=script.DESCRIPTION,
        tools=[pay, tool(script.look), tool(script.slow)],
        callback_handler=None,
    )


if __name__ == "__main__":
    script.run(make)
