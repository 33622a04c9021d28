"""Further agents of pydantic-ai: questions, dependencies, limits, and outputs that are not the text of the model."""

import json
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent, BinaryContent, CallDeferred, DeferredToolRequests, RunContext, TextOutput, Tool
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from tests.frameworks.agents import script
from tests.frameworks.agents.pydantic_ai_agent import answer, user_texts


async def call_named(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Call the tool that the user names: `book {"seats": 2}`."""
    name, _, given = user_texts(messages)[-1].partition(" ")
    assert isinstance(messages[-1], ModelRequest)
    last = messages[-1].parts[-1]
    tools = [tool.name for tool in (*info.function_tools, *info.output_tools)]
    if isinstance(last, ToolReturnPart) and name != "forever":
        yield f"The tool said: {last.content}."
    elif name == "forever":
        yield {0: DeltaToolCall(name="look", json_args=json.dumps({"query": "x"}))}
    elif name == "draw":
        yield {0: DeltaToolCall(name=tools[-1], json_args=given)}
    elif name in tools:
        yield {0: DeltaToolCall(name=name, json_args=given or "{}")}
    else:
        yield "small words"


def ask_user(question: str) -> str:
    """Ask the user."""
    raise CallDeferred


def book(seats: int, window: bool) -> str:
    """Book seats at another system, whose answer the user brings."""
    raise CallDeferred


def who(context: RunContext[str]) -> str:
    """Return the dependencies."""
    return str(context.deps)


def draw(color: str) -> BinaryContent:
    """Draw a picture."""
    return BinaryContent(b"\x89PNG\r\n\x1a\n" + color.encode(), media_type="image/png")


def shout(text: str) -> str:
    return text.upper()


model = FunctionModel(stream_function=call_named)
asking: Agent[str, Any] = Agent(
    model, deps_type=str, tools=[ask_user, book, who, script.look], output_type=[str, DeferredToolRequests]
)
upper = Agent(model, output_type=TextOutput(shout))
drawing = Agent(model, output_type=[draw, str])
validated = Agent(model, tools=[script.look])
paying = Agent(
    FunctionModel(stream_function=answer),
    tools=[Tool(script.pay, requires_approval=True)],
    output_type=[str, DeferredToolRequests],
)


@validated.output_validator
def check(output: str) -> str:
    return output


if __name__ == "__main__":
    with asking.override(deps="dependencies"):
        script.run(
            {"/asking": asking, "/upper": upper, "/drawing": drawing, "/validated": validated, "/paying": paying}
        )
