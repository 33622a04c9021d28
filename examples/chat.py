"""A chat agent: it remembers the conversation, streams, and says what its model uses. The model is a fake one.

apcore-a2a serve examples/chat.py:chat --store sqlite:///tasks.db
apcore-a2a chat http://127.0.0.1:8000
"""

from collections.abc import AsyncIterator

from apcore_a2a import Call, ModelUsage, Remember, ToolCalled, ToolDone, serve

Messages = list[dict[str, str]]


async def complete(messages: Messages) -> AsyncIterator[str]:
    """Yield an answer in pieces. Replace this function with a call of your model."""
    earlier = [message["content"] for message in messages[:-1] if message["role"] == "user"]
    answer = f"You say {messages[-1]['content']}."
    if earlier:
        answer += f" Before, you said {', '.join(earlier)}."
    for word in answer.split():
        yield f"{word} "


async def chat(text: str, call: Call) -> AsyncIterator[str | ToolCalled | ToolDone | ModelUsage | Remember]:
    """Hold a conversation, and remember it."""
    messages: Messages = [*(await call.recall() or []), {"role": "user", "content": text}]
    yield ToolCalled(id="1", name="look_up", arguments={"words": len(text.split())})
    yield ToolDone(id="1", name="look_up", result="nothing to look up")
    answer = ""
    async for piece in complete(messages):
        answer += piece
        yield piece
    yield ModelUsage(requests=1, input_tokens=len(str(messages)) // 4, output_tokens=len(answer) // 4)
    yield Remember([*messages, {"role": "assistant", "content": answer}], scope="conversation")


if __name__ == "__main__":
    serve(chat, host="127.0.0.1", port=8000)
