"""An agent of Microsoft's agent-framework, with a tool that requires approval.

pip install apcore-a2a agent-framework-core
apcore-a2a serve examples/frameworks/agent_framework_agent.py:agent --store sqlite:///tasks.db
apcore-a2a chat http://127.0.0.1:8000

The fake client needs no account: it pays if a message begins with "pay", and counts the messages. A real one:

    from agent_framework.openai import OpenAIChatClient
    client = OpenAIChatClient(model="…")
"""

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    tool,
)


@tool(approval_mode="always_require")
def pay(to: str, amount: int) -> str:
    """Pay an amount."""
    return f"Paid {amount} to {to}"


class FakeClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """Calls `pay` if the message begins with "pay"."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        updates = self._updates(messages)
        if stream:
            return ResponseStream(updates, finalizer=ChatResponse.from_updates)
        return ChatResponse.from_update_generator(updates)

    async def _updates(self, messages: Sequence[Message]) -> AsyncIterator[ChatResponseUpdate]:
        last = messages[-1]
        text = f"That was message {sum(message.role == 'user' for message in messages)} of our conversation."
        contents = [Content.from_text(f"{word} ") for word in text.split(" ")]
        if last.role == "tool":
            contents = [Content.from_text(str(last.contents[-1].result))]
        elif last.text.startswith("pay"):
            contents = [Content.from_function_call(uuid.uuid4().hex, "pay", arguments={"to": "Ada", "amount": 5})]
        message_id = uuid.uuid4().hex
        for content in contents:
            yield ChatResponseUpdate(contents=[content], role="assistant", message_id=message_id)


agent = Agent(FakeClient(), name="clerk", description="Pays.", tools=[pay])

if __name__ == "__main__":
    from apcore_a2a import serve

    serve(agent, store="sqlite:///tasks.db")
