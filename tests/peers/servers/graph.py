# mypy: ignore-errors
"""A graph that needs no model, for LangGraph's server. The first word of a message selects what it does."""

import asyncio
from typing import Annotated

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from typing_extensions import TypedDict


class State(TypedDict):
    messages: Annotated[list, add_messages]


async def answer(state: State):
    content = state["messages"][-1].content
    text = content if isinstance(content, str) else content[0]["text"]
    match text.partition(" ")[0]:
        case "failing":
            raise ValueError("No such city")
        case "question":
            return {"messages": [AIMessage(f"2 seats in {interrupt('Which city?')}")]}
        case "file":
            return {
                "messages": [AIMessage([{"type": "file", "base64": "aGVsbG8gZmlsZQ==", "mime_type": "text/plain"}])]
            }
        case "endless":
            await asyncio.Event().wait()
    model = GenericFakeChatModel(messages=iter([AIMessage("hello world")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END).compile()
