"""Further agents of the OpenAI Agents SDK: guardrails, limits, and output that the model does not stream."""

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, GuardrailFunctionOutput, function_tool, input_guardrail, set_trace_processors
from agents.tracing import TracingProcessor
from openai.types.responses import ResponseCompletedEvent

from tests.frameworks.agents import script
from tests.frameworks.agents.openai_agent import ScriptedModel, reporter


class NotedTraces(TracingProcessor):
    """Notes each trace. The default processor sends it to OpenAI."""

    def on_trace_start(self, trace: Any) -> None:
        script.note("trace began")

    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def on_span_end(self, span: Any) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


class LoopingModel(ScriptedModel):
    """Calls the same tool in every turn."""

    def stream_response(self, instructions: Any, given: Any, *args: Any, **more: Any) -> AsyncIterator[Any]:
        return super().stream_response(instructions, [{"role": "user", "content": "look"}], *args, **more)


class WholeModel(ScriptedModel):
    """Sends its text only as a whole."""

    async def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        async for event in super().stream_response(*args, **more):
            if isinstance(event, ResponseCompletedEvent):
                yield event


@input_guardrail
async def no_secrets(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="secret" in str(given))


look = function_tool(script.look)
agents = {
    "/guarded": Agent(name="guarded", model=ScriptedModel(), input_guardrails=[no_secrets]),
    "/looping": Agent(name="looping", model=LoopingModel(), tools=[look]),
    "/whole": Agent(name="whole", model=WholeModel(), tools=[look]),
    "/stopping": Agent(name="stopping", model=ScriptedModel(), tools=[look], tool_use_behavior="stop_on_first_tool"),
    "/paying": Agent(name="paying", model=ScriptedModel(), tools=[function_tool(needs_approval=True)(script.pay)]),
    "/handing": Agent(name="handing", model=ScriptedModel(), handoffs=[reporter]),
}

if __name__ == "__main__":
    set_trace_processors([NotedTraces()])
    script.run(agents)
