# mypy: ignore-errors
"""Google ADK: the events that its Runner stores in the session for a RemoteA2aAgent."""

import re

from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.runners import InMemoryRunner
from google.genai import types
from lines import serve

runners = {}


def plain(part) -> str:
    if part.function_call is not None:  # a question: ADK shows it as a call that the user answers
        return part.function_call.args["input_required"]
    if part.inline_data is not None:
        return re.sub("</?a2a_datapart_json>", "", part.inline_data.data.decode())  # around data
    return part.text


async def ask(url: str, text: str, talk: str) -> dict:
    if (url, talk) not in runners:
        agent = RemoteA2aAgent(name="remote", agent_card=f"{url}/.well-known/agent-card.json")
        runner = InMemoryRunner(agent=agent, app_name="peer")
        await runner.session_service.create_session(app_name="peer", user_id="ada", session_id=talk)
        runners[url, talk] = runner
    runner = runners[url, talk]
    message = types.Content(role="user", parts=[types.Part(text=text)])
    shown = []
    pieces = []
    async for event in runner.run_async(user_id="ada", session_id=talk, new_message=message):
        for part in (event.content and event.content.parts) or ():
            (pieces if event.partial else shown).append(plain(part))  # the session keeps no partial event
    return {"shown": shown, "pieces": pieces}


serve(ask=ask)
