"""Further agents of ADK: tools that wait, files, typed output, an App, a Workflow and a Runner."""

import json
import threading
import warnings
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.apps.app import App
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.workflow import START, Workflow
from google.genai import types
from pydantic import BaseModel

from tests.frameworks.agents import script
from tests.frameworks.agents.google_adk_agent import FakeModel, text_of

try:
    from google.adk.events import RequestInput
except ImportError:  # where version 2.0 has it
    from google.adk.events.request_input import RequestInput


class Report(BaseModel):
    title: str
    pages: int


def refuse_open_calls(contents: list[types.Content]) -> None:
    """Raise for a call of a tool without a result, as the providers of models do."""
    parts = [part for content in contents for part in content.parts or ()]
    called = {part.function_call.id for part in parts if part.function_call}
    if called - {part.function_response.id for part in parts if part.function_response}:
        raise ValueError("a call has no result")


class ToolModel(FakeModel):
    """Calls the tool that the user names, `vacation {"days": 3}`, or says what follows `say`."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        refuse_open_calls(llm_request.contents)
        name, _, given = text_of(llm_request.contents[-1]).partition(" ")
        if name == "max":
            yield LlmResponse(error_code=types.FinishReason.MAX_TOKENS, error_message="not for clients")
        elif name == "code":
            yield LlmResponse(error_code="QUOTA", error_message=script.SECRET)
        elif name == "say":
            if stream:
                yield LlmResponse(content=types.ModelContent(given), partial=True)
            yield LlmResponse(content=types.ModelContent(given), partial=False)
        elif name in ("vacation", "ticket", "save", "thread", "broken", "count"):
            call = types.Part(function_call=types.FunctionCall(name=name, args=json.loads(given or "{}")))
            yield LlmResponse(content=types.ModelContent([call]), partial=False)
        else:
            async for response in super().generate_content_async(llm_request, stream):
                yield response


def model() -> ToolModel:
    return ToolModel(model="fake")


# ---- tools ----------------------------------------------------------------------------------------------------------


def vacation(days: int, tool_context: ToolContext) -> dict[str, Any]:
    """Request days off. A human says how many are approved."""
    confirmation = tool_context.tool_confirmation
    if confirmation is None:
        tool_context.request_confirmation(hint="How many days are approved?", payload={"approved": 0})
        return {"status": "pending"}
    if not confirmation.confirmed:
        return {"result": "no days"}
    return {"result": f"{confirmation.payload['approved']} of {days} days"}


def ticket(title: str) -> dict[str, str]:
    """Open a ticket, which a human closes."""
    return {"status": "pending"}


async def save(text: str, tool_context: ToolContext) -> str:
    """Save a file."""
    blob = types.Blob(data=text.encode(), mime_type="text/plain")
    await tool_context.save_artifact("note.txt", types.Part(inline_data=blob))
    return "saved"


def thread() -> str:
    """Return whether this tool blocks the event loop."""
    return "main" if threading.current_thread() is threading.main_thread() else "other"


def count(tool_context: ToolContext) -> str:
    """Count the calls of a user, in all conversations."""
    number = tool_context.state.get("user:count", 0) + 1
    tool_context.state["user:count"] = number
    return str(number)


async def broken() -> str:
    """Fail."""
    raise RuntimeError(script.SECRET)


# ---- agents ---------------------------------------------------------------------------------------------------------


def first(node_input: Any) -> Any:
    """Ask for a city."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return RequestInput(interrupt_id="city", message="Which city?", response_schema=schema)


def second(node_input: Any) -> Any:
    """Return the answer."""
    return {"to": node_input}


class Note(BasePlugin):
    """Shows that the plugins of an App are used."""

    def __init__(self) -> None:
        super().__init__(name="note")

    async def on_user_message_callback(self, *, invocation_context: Any, user_message: Any) -> None:
        script.note("plugin called")


tools = LlmAgent(
    name="clerk",
    model=model(),
    tools=[vacation, LongRunningFunctionTool(ticket), save, thread, FunctionTool(broken)],
)
typed = LlmAgent(name="clerk", model=model(), output_schema=Report)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    team = SequentialAgent(
        name="team", sub_agents=[LlmAgent(name="one", model=model()), LlmAgent(name="two", model=model())]
    )
app = App(name="clerk", root_agent=LlmAgent(name="clerk", model=model()), plugins=[Note()])
flow = Workflow(name="flow", edges=[(START, first), (first, second)])
runner = InMemoryRunner(agent=LlmAgent(name="clerk", model=model(), tools=[vacation, count]), app_name="clerk")

if __name__ == "__main__":
    script.run({"/tools": tools, "/typed": typed, "/team": team, "/app": app, "/flow": flow, "/runner": runner})
