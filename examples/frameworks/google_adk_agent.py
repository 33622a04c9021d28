"""An agent of Google's ADK, with a tool that requires approval.

pip install apcore-a2a google-adk
apcore-a2a serve examples/frameworks/google_adk_agent.py:agent --store sqlite:///tasks.db
apcore-a2a chat http://127.0.0.1:8000

The fake model needs no account: it pays if a message begins with "pay", and counts the messages. A real one:

    model = "gemini-2.5-flash"
    agent = LlmAgent(name="clerk", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
"""

from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import FunctionTool
from google.genai import types


def pay(to: str, amount: int) -> str:
    """Pay an amount."""
    return f"Paid {amount} to {to}"


class FakeModel(BaseLlm):
    """Calls `pay` if the message begins with "pay"."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = llm_request.contents
        last = (contents[-1].parts or [types.Part()])[-1]
        if last.text and last.text.startswith("pay"):
            call = types.FunctionCall(name="pay", args={"to": "Ada", "amount": 5})
            yield LlmResponse(content=types.ModelContent([types.Part(function_call=call)]), partial=False)
            return
        text = f"That was message {len(contents) // 2 + 1} of our conversation."
        if last.function_response:
            response = last.function_response.response or {}
            text = response.get("result") or response.get("error") or ""
        for word in text.split(" "):
            if stream:
                yield LlmResponse(content=types.ModelContent(f"{word} "), partial=True)
        yield LlmResponse(content=types.ModelContent(text), partial=False)


agent = LlmAgent(
    name="clerk",
    description="Pays.",
    model=FakeModel(model="fake"),
    tools=[FunctionTool(pay, require_confirmation=True)],
)

if __name__ == "__main__":
    from apcore_a2a import serve

    serve(agent, store="sqlite:///tasks.db")
