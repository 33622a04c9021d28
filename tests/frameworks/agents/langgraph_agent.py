"""The agent of LangChain, which is a graph of LangGraph."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool

from tests.frameworks.agents import script


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(each.get("text", f"<{each['type']}>") for each in content)


def next_step(messages: list[BaseMessage]) -> script.Step:
    if isinstance(messages[-1], ToolMessage):
        return script.last_step(messages[-1].content)
    said = [text_of(message.content) for message in messages if isinstance(message, HumanMessage)]
    return script.first_step(said[-1], len(said))


class ScriptedModel(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(next_step(messages).text))])

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        step = next_step(messages)
        message_id = f"run-{uuid.uuid4().hex}"
        for piece in step.pieces:
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece, id=message_id))
        calls = [
            {"name": name, "args": json.dumps(arguments), "id": f"call_{uuid.uuid4().hex}", "index": index}
            for index, (name, arguments) in enumerate(step.calls)
        ]
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        yield ChatGenerationChunk(
            message=AIMessageChunk(content="", id=message_id, usage_metadata=usage, tool_call_chunks=calls)
        )


agent = create_agent(
    ScriptedModel(),
    [
        StructuredTool.from_function(script.pay),
        StructuredTool.from_function(script.look),
        StructuredTool.from_function(coroutine=script.slow, name="slow", description="Never end."),
    ],
    name=script.NAME,
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})],
)

if __name__ == "__main__":
    script.run(agent)
