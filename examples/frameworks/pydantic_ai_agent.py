"""An agent of pydantic-ai with a tool that requires approval.

pip install apcore-a2a pydantic-ai-slim
apcore-a2a serve examples/frameworks/pydantic_ai_agent.py:agent --store sqlite:///tasks.db
apcore-a2a chat http://127.0.0.1:8000

The fake model needs no account: it pays if a message begins with "pay", and counts the messages. A real one:

    pip install 'pydantic-ai-slim[openai]'
    agent = Agent("openai:gpt-5.2", name="clerk", tools=[Tool(pay, requires_approval=True)])
"""

import json
from collections.abc import AsyncIterator

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel


def pay(to: str, amount: int) -> str:
    """Pay an amount, if the user approves."""
    return f"Paid {amount} to {to}"


async def fake_model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    """Call `pay` if the message begins with "pay"."""
    last = messages[-1].parts[-1]
    prompts = [part for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    if isinstance(last, ToolReturnPart):
        yield str(last.content)
    elif "".join(map(str, prompts[-1].content)).startswith("pay"):
        yield {0: DeltaToolCall(name="pay", json_args=json.dumps({"to": "Ada", "amount": 5}))}
    else:
        for word in f"That was message {len(prompts)} of our conversation.".split():
            yield f"{word} "


agent = Agent(FunctionModel(stream_function=fake_model), name="clerk", tools=[Tool(pay, requires_approval=True)])

if __name__ == "__main__":
    from apcore_a2a import serve

    serve(agent, store="sqlite:///tasks.db")
