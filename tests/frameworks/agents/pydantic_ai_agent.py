"""The agent of pydantic-ai."""

import json
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelRequest, RetryPromptPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from tests.frameworks.agents import script


class Report(BaseModel):
    title: str
    pages: int


def user_texts(messages: list[ModelMessage]) -> list[str]:
    texts: list[str] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                content = [part.content] if isinstance(part.content, str) else part.content
                texts.append(" ".join(each if isinstance(each, str) else f"<{each.media_type}>" for each in content))
    return texts


async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    last = messages[-1].parts[-1]
    assert isinstance(messages[-1], ModelRequest)
    if isinstance(last, ToolReturnPart | RetryPromptPart):
        step = script.last_step(last.content)
    else:
        said = user_texts(messages)
        step = script.first_step(said[-1], len(said))
    if step.report is not None:
        yield {0: DeltaToolCall(name=info.output_tools[0].name, json_args=Report(**step.report).model_dump_json())}
    for piece in step.pieces:
        if piece:
            yield piece
    for index, (name, arguments) in enumerate(step.calls):
        yield {index: DeltaToolCall(name=name, json_args=json.dumps(arguments))}


agent = Agent(
    FunctionModel(stream_function=answer),
    name=script.NAME,
    output_type=[str, Report],
    tools=[Tool(script.pay, requires_approval=True), script.look, script.slow],
    **({"description": script.DESCRIPTION} if hasattr(Agent, "description") else {}),
)

if __name__ == "__main__":
    script.run(agent)
