# mypy: ignore-errors
"""ADK's server: `to_a2a` of an agent that needs no model. The first word of a message selects what it does."""

import asyncio
import socket
from collections.abc import AsyncGenerator

import uvicorn
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import BaseAgent
from google.adk.events import Event
from google.genai import types


def says_in(ctx):
    def says(part, **more) -> Event:
        if isinstance(part, str):
            part = types.Part(text=part)
        content = types.Content(role="model", parts=[part])
        return Event(author="demo", invocation_id=ctx.invocation_id, content=content, **more)

    return says


class Demo(BaseAgent):
    async def _run_async_impl(self, ctx) -> AsyncGenerator[Event, None]:
        says = says_in(ctx)

        match ctx.user_content.parts[0].text.partition(" ")[0]:
            case "streamed":
                for piece in ("hel", "lo ", "world"):
                    yield says(piece, partial=True)
                yield says("hello world")
            case "data":  # its form of a data part
                data = b'<a2a_datapart_json>{"city": "Rome", "seats": 2}</a2a_datapart_json>'
                yield says(types.Part.from_bytes(data=data, mime_type="text/plain"))
            case "file":
                yield says(types.Part.from_bytes(data=b"hello file", mime_type="text/plain"))
            case "failing":
                raise ValueError("No such city")
            case "endless":
                yield says("begun")
                await asyncio.Event().wait()
            case "question":
                call = types.FunctionCall(id="1", name="ask_city", args={"question": "Which city?"})
                yield says(types.Part(function_call=call), long_running_tool_ids={"1"})
            case "Rome":
                yield says("2 seats in Rome")
            case _:
                yield says("hello world")


def main() -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    app = to_a2a(Demo(name="demo", description="Answers without a model."), host="127.0.0.1", port=port)
    print(port, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run([sock])


if __name__ == "__main__":
    main()
