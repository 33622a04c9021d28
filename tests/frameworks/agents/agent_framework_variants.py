"""Further agents of agent-framework: typed output, arguments in pieces, and a history of their own."""

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agent_framework import (
    Agent,
    ChatResponseUpdate,
    Content,
    InMemoryHistoryProvider,
    Message,
    WorkflowBuilder,
    tool,
)
from pydantic import BaseModel

from apcore_a2a import as_agent
from tests.frameworks.agents import script
from tests.frameworks.agents.agent_framework_agent import FakeClient, text_of


class Report(BaseModel):
    title: str
    pages: int


class PieceClient(FakeClient):
    """Streams the arguments of a call as OpenAI does."""

    async def _updates(self, messages: Sequence[Message]) -> AsyncIterator[ChatResponseUpdate]:
        said = text_of(messages[-1])
        message_id = uuid.uuid4().hex
        if said == "pieces":
            first = Content.from_function_call("call-1", "look", arguments="")
            rest = [Content.from_function_call("call-1", "", arguments=piece) for piece in ('{"que', 'ry": "x"}')]
            for content in (first, *rest, Content.from_function_call("call-2", "broken", arguments="")):
                yield ChatResponseUpdate(contents=[content], role="assistant", message_id=message_id)
        elif said == "image":
            content = Content.from_data(b"\x89PNG\r\n", "image/png")
            yield ChatResponseUpdate(contents=[content], role="assistant", message_id=message_id)
        elif said == "report":
            content = Content.from_text(Report(title="Sales", pages=3).model_dump_json())
            yield ChatResponseUpdate(contents=[content], role="assistant", message_id=message_id)
        else:
            async for update in super()._updates(messages):
                yield update


def broken() -> str:
    """Fail."""
    raise RuntimeError(script.SECRET)


pieces = Agent(
    PieceClient(),
    tools=[
        tool(script.look, approval_mode="never_require"),
        tool(broken, approval_mode="never_require"),
        tool(script.pay, approval_mode="always_require"),
    ],
)
typed: Any = Agent(PieceClient(), default_options={"response_format": Report})
named = Agent(PieceClient(), context_providers=[InMemoryHistoryProvider("of its own")])

if __name__ == "__main__":
    try:
        as_agent(WorkflowBuilder(start_executor=pieces).build().as_agent())
    except TypeError as error:
        script.note(str(error))
    script.run({"/pieces": pieces, "/typed": typed, "/named": named}, show_tools="results")
