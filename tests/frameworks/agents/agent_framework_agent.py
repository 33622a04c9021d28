"""The agent of Microsoft's agent-framework."""

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    tool,
)

from tests.frameworks.agents import script


def text_of(message: Message) -> str:
    """Return the text and the types of the files of a message. Empty for answers to approvals."""
    texts: list[str] = []
    for content in message.contents:
        if content.type == "text":
            texts.append(content.text or "")
        elif content.type == "data":
            texts.append(f"<{content.media_type}>")
    return " ".join(texts)


def answer(messages: Sequence[Message]) -> script.Step:
    results = [content for content in messages[-1].contents if content.type == "function_result"]
    if results:
        return script.last_step(results[-1].result)
    said = [text_of(message) for message in messages if message.role == "user" and text_of(message)]
    return script.first_step(said[-1], len(said))


class FakeClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        updates = self._updates(messages)
        if stream:
            return ResponseStream(updates, finalizer=ChatResponse.from_updates)
        return ChatResponse.from_update_generator(updates)

    async def _updates(self, messages: Sequence[Message]) -> AsyncIterator[ChatResponseUpdate]:
        step = answer(messages)
        contents = [[Content.from_text(piece)] for piece in step.pieces if piece]
        calls = [Content.from_function_call(uuid.uuid4().hex, name, arguments=given) for name, given in step.calls]
        contents.append([*calls, Content.from_usage({"input_token_count": 10, "output_token_count": 5})])
        message_id = uuid.uuid4().hex
        for each in contents:
            yield ChatResponseUpdate(contents=each, role="assistant", message_id=message_id)


agent = Agent(
    FakeClient(),
    name=script.NAME,
    description=script.DESCRIPTION,
    tools=[
        tool(script.pay, approval_mode="always_require"),
        tool(script.look, approval_mode="never_require"),
        tool(script.slow, approval_mode="never_require"),
    ],
)

if __name__ == "__main__":
    script.run(agent)
