"""The agent of the OpenAI Agents SDK."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, function_tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails, ResponseUsage
from pydantic import BaseModel

from tests.frameworks.agents import script


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(each.get("text", f"<{each['type']}>") for each in content)


def next_step(given: Any, handoffs: Any) -> script.Step:
    items = given if isinstance(given, list) else [{"role": "user", "content": given}]
    said = [text_of(item["content"]) for item in items if item.get("role") == "user"]
    if items[-1].get("type") == "function_call_output":
        if said[-1] != "report":
            return script.last_step(items[-1]["output"])
        report = script.first_step(said[-1], len(said)).report
        return script.Step(json.dumps(report))
    step = script.first_step(said[-1], len(said))
    if step.report is not None:  # another agent has the output type
        return script.Step(calls=((handoffs[0].tool_name, {}),))
    return step


def output_of(step: script.Step) -> list[Any]:
    output: list[Any] = []
    if step.text:
        content = ResponseOutputText(annotations=[], text=step.text, type="output_text")
        output.append(
            ResponseOutputMessage(id="m", content=[content], role="assistant", status="completed", type="message")
        )
    for name, arguments in step.calls:
        call_id = f"call_{uuid.uuid4().hex}"
        output.append(
            ResponseFunctionToolCall(
                arguments=json.dumps(arguments), call_id=call_id, name=name, type="function_call", id=call_id
            )
        )
    return output


class ScriptedModel(Model):
    async def get_response(self, *args: Any, **more: Any) -> ModelResponse:
        raise AssertionError("the agents of a server stream")

    async def stream_response(self, instructions: Any, given: Any, *args: Any, **more: Any) -> AsyncIterator[Any]:
        step = next_step(given, args[3])
        place = {"content_index": 0, "item_id": "m", "output_index": 0, "logprobs": []}
        for number, piece in enumerate(step.pieces):
            if piece:
                yield ResponseTextDeltaEvent(
                    delta=piece, sequence_number=number, type="response.output_text.delta", **place
                )
        for index, item in enumerate(output := output_of(step)):
            yield ResponseOutputItemDoneEvent(
                item=item, output_index=index, sequence_number=9998, type="response.output_item.done"
            )
        usage = ResponseUsage(
            input_tokens=10,
            output_tokens=5,
            total_tokens=15,
            input_tokens_details=InputTokensDetails.model_construct(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        )
        response = Response(
            id="r",
            created_at=0,
            model="scripted",
            object="response",
            output=output,
            tool_choice="none",
            tools=[],
            parallel_tool_calls=True,
            usage=usage,
        )
        yield ResponseCompletedEvent(response=response, sequence_number=9999, type="response.completed")


class Report(BaseModel):
    title: str
    pages: int


reporter = Agent(name="reporter", model=ScriptedModel(), output_type=Report)
agent = Agent(
    handoffs=[reporter],
    name=script.NAME,
    handoff_description=script.DESCRIPTION,
    model=ScriptedModel(),
    tools=[function_tool(needs_approval=True)(script.pay), function_tool(script.look), function_tool(script.slow)],
)

if __name__ == "__main__":
    script.run(agent)
