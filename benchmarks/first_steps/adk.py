# mypy: ignore-errors
"""An agent of ADK without a model, shown by `to_a2a`."""

import sys

import uvicorn
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import BaseAgent
from google.adk.events import Event
from google.genai import types

PORT = int(sys.argv[1])


class Shout(BaseAgent):
    async def _run_async_impl(self, ctx):
        text = ctx.user_content.parts[0].text.upper()
        yield Event(author=self.name, content=types.Content(role="model", parts=[types.Part(text=text)]))


app = to_a2a(Shout(name="shout", description="Return the text in upper case."), port=PORT, host="127.0.0.1")
uvicorn.run(app, host="127.0.0.1", port=PORT)
