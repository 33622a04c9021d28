"""Agents of Strands, one for each run, with a tool that requires approval.

pip install apcore-a2a strands-agents
apcore-a2a serve examples/frameworks/strands_agent.py:make_agent --store sqlite:///tasks.db
apcore-a2a chat http://127.0.0.1:8000

The fake model needs no account: it pays if a message begins with "pay", and counts the messages. A real one:

    from strands.models import BedrockModel
    model = BedrockModel(model_id="…")
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from strands import Agent, ToolContext, tool
from strands.models.model import Model


@tool(context=True)
def pay(to: str, amount: int, tool_context: ToolContext) -> str:
    """Pay an amount, if the user approves."""
    if tool_context.interrupt("approval", reason="The money is gone then.") != "y":
        return "Not approved"
    return f"Paid {amount} to {to}"


class FakeModel(Model):
    """Calls `pay` if the message begins with "pay"."""

    def update_config(self, **config: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {}

    async def structured_output(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        yield {}

    async def stream(self, messages: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        last = messages[-1]["content"][0]
        yield {"messageStart": {"role": "assistant"}}
        if last.get("text", "").startswith("pay"):
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "pay", "toolUseId": str(len(messages))}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"to": "Ada", "amount": 5})}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}
            return
        text = f"That was message {len(messages) // 2 + 1} of our conversation."
        if "toolResult" in last:
            text = last["toolResult"]["content"][0]["text"]
        yield {"contentBlockStart": {"start": {}}}
        for word in text.split(" "):
            yield {"contentBlockDelta": {"delta": {"text": f"{word} "}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def make_agent() -> Agent:
    return Agent(FakeModel(), name="clerk", description="Pays.", tools=[pay], callback_handler=None)


if __name__ == "__main__":
    from apcore_a2a import serve

    serve(make_agent, store="sqlite:///tasks.db")
