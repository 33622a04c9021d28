"""An agent of the OpenAI Agents SDK with a tool that requires approval.

pip install apcore-a2a openai-agents
apcore-a2a serve examples/frameworks/openai_agent.py:agent --store sqlite:///tasks.db
apcore-a2a chat http://127.0.0.1:8000

The fake model needs no account: it pays if a message begins with "pay", and counts the messages. A real one:

    agent = Agent(name="clerk", model="gpt-5.2", tools=[pay])
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Usage, function_tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


@function_tool(needs_approval=True)
def pay(to: str, amount: int) -> str:
    """Pay an amount, if the user approves."""
    return f"Paid {amount} to {to}"


class FakeModel(Model):
    """Calls `pay` if the message begins with "pay"."""

    def answer(self, items: Any) -> Any:
        messages = [item for item in items if item.get("role") == "user"]
        text = f"That was message {len(messages)} of our conversation."
        if items[-1].get("type") == "function_call_output":
            text = items[-1]["output"]
        elif messages[-1]["content"][0]["text"].startswith("pay"):
            arguments = json.dumps({"to": "Ada", "amount": 5})
            call_id = f"call_{len(items)}"
            return ResponseFunctionToolCall(type="function_call", name="pay", call_id=call_id, arguments=arguments)
        content = [ResponseOutputText(type="output_text", text=text, annotations=[])]
        return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=content)

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        return ModelResponse(output=[self.answer(input)], usage=Usage(), response_id=None)

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **options: Any
    ) -> AsyncIterator[Any]:
        response = Response(
            id="r",
            created_at=0,
            model="fake",
            object="response",
            output=[self.answer(input)],
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


agent = Agent(name="clerk", handoff_description="Pays.", model=FakeModel(), tools=[pay])

if __name__ == "__main__":
    from apcore_a2a import serve

    serve(agent, store="sqlite:///tasks.db")
