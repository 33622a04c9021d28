"""Further graphs: fields instead of messages, questions, checkpointers, and models inside of tools."""

from typing import Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from tests.frameworks.agents import script
from tests.frameworks.agents.langgraph_agent import ScriptedModel


class Trip(TypedDict, total=False):
    city: str
    seats: int
    price: int


class Price(TypedDict):
    price: int


class Report(MessagesState):
    structured_response: Any


def book(state: Trip) -> Trip:
    get_stream_writer()("Looking for seats")
    script.note(f"asked for {state['seats']}")
    city = interrupt({"question": "Which city?", "seats": state["seats"]})
    return {"city": city, "price": 10 * state["seats"]}


def write_report(state: MessagesState) -> dict[str, Any]:
    get_stream_writer()({"page": 1})
    return {"messages": [AIMessage("Here it is.", id="a")], "structured_response": {"title": "Sales", "pages": 3}}


def answer_in_a_dict(state: MessagesState) -> dict[str, Any]:
    return {"messages": [{"role": "ai", "content": f"hello {len(state['messages'])}"}]}


async def copy_answer(state: MessagesState) -> dict[str, Any]:
    """Return what the model says in another message."""
    answer = await ScriptedModel().ainvoke(state["messages"])
    return {"messages": [AIMessage(answer.content)]}


async def copy_of_an_agent(state: MessagesState) -> dict[str, Any]:
    ended = await agent_with([]).ainvoke({"messages": state["messages"]})
    return {"messages": [AIMessage(ended["messages"][-1].content)]}


def graph_of(state: Any, node: Any, **options: Any) -> StateGraph[Any]:
    graph = StateGraph(state, **options)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph


@entrypoint()
async def shout(text: str) -> str:
    return text.upper()


async def ask_model(query: str) -> str:
    """Ask a model."""
    answer = await ScriptedModel().ainvoke("hello")
    return str(len(answer.content))


def agent_with(tools: list[Any], **options: Any) -> Any:
    return create_agent(ScriptedModel(), tools, **options)


pay = StructuredTool.from_function(script.pay)
inner = StructuredTool.from_function(coroutine=ask_model, name="look", description="Ask a model.")
graphs: dict[str, Any] = {
    "/trip": graph_of(Trip, book, output_schema=Price).compile(name="trip"),
    "/report": graph_of(Report, write_report),
    "/dict": graph_of(MessagesState, answer_in_a_dict),
    "/copy": graph_of(MessagesState, copy_answer),
    "/copy-of-agent": graph_of(MessagesState, copy_of_an_agent),
    "/shout": shout,
    "/kept": agent_with(
        [pay], middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})], checkpointer=InMemorySaver()
    ),
    "/inner": agent_with([inner]),
    "/respond": agent_with(
        [pay], middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": {"allowed_decisions": ["respond", "reject"]}})]
    ),
    "/edit": agent_with([pay], middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})]),
}
try:
    one_by_one = HumanInTheLoopMiddleware(interrupt_on={"pay": True}, interrupt_mode="per_call")
    graphs["/per-call"] = agent_with([pay], middleware=[one_by_one])
except TypeError:  # an older version
    pass

if __name__ == "__main__":
    script.run(graphs)
