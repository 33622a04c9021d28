"""An agent of LangChain, which is a graph of LangGraph, with a tool that requires approval.

pip install apcore-a2a langchain
apcore-a2a serve examples/frameworks/langgraph_agent.py:agent --store sqlite:///tasks.db
apcore-a2a chat http://127.0.0.1:8000

The fake model needs no account: it pays if a message begins with "pay", and counts the messages. A real one:

    pip install langchain-openai
    agent = create_agent("openai:gpt-5.2", [pay], name="clerk", middleware=[…])
"""

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool


@tool
def pay(to: str, amount: int) -> str:
    """Pay an amount, if the user approves."""
    return f"Paid {amount} to {to}"


class FakeModel(BaseChatModel):
    """Calls `pay` if the message begins with "pay"."""

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        said = [message for message in messages if isinstance(message, HumanMessage)]
        if isinstance(messages[-1], ToolMessage):
            answer = AIMessage(messages[-1].content)
        elif said[-1].text.startswith("pay"):
            call = {"name": "pay", "args": {"to": "Ada", "amount": 5}, "id": f"call_{len(messages)}"}
            answer = AIMessage("", tool_calls=[call])
        else:
            answer = AIMessage(f"That was message {len(said)} of our conversation.")
        return ChatResult(generations=[ChatGeneration(message=answer)])


approvals = HumanInTheLoopMiddleware(interrupt_on={"pay": {"allowed_decisions": ["approve", "reject"]}})
agent = create_agent(FakeModel(), [pay], name="clerk", middleware=[approvals])

if __name__ == "__main__":
    from apcore_a2a import serve

    serve(agent, store="sqlite:///tasks.db")
