"""An agent of Google ADK with the tools of a remote agent. Argument: address. Prints what was seen, as JSON.

Each turn has a runner and tools of its own, which remember no task, and the same sessions.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from apcore_a2a.toolkits import open_tools, to_adk

URL = sys.argv[1]
CONFIRMATION = "adk_request_confirmation"
SESSIONS = InMemorySessionService()


class Model(BaseLlm):
    """Calls one tool, and then repeats what the tool has returned."""

    call: dict[str, Any]

    async def generate_content_async(self, request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        returned = [part.function_response for part in request.contents[-1].parts if part.function_response]
        part = types.Part(function_call=types.FunctionCall(id="call-1", **self.call))
        if returned:
            response = returned[-1].response
            part = types.Part(text=json.dumps(response))
            again = re.search(r'{"a2a_task_id": .*}', response.get("error", ""))
            if again is not None:
                args = {**self.call["args"], **json.loads(again[0])}
                part = types.Part(function_call=types.FunctionCall(id="call-2", name=self.call["name"], args=args))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class Conversation:
    def __init__(self, name: str, args: dict[str, Any]) -> None:
        self.model = Model(model="script", call={"name": name, "args": args})
        self.session = ""

    async def say(self, part: types.Part) -> Any:
        """Return the answer of the model, or the request for a confirmation."""
        if not self.session:
            session = await SESSIONS.create_session(app_name="x", user_id="u")
            self.session = session.id
        async with open_tools(URL) as tools:
            agent = LlmAgent(name="x", model=self.model, tools=[to_adk(tool) for tool in tools])
            runner = Runner(agent=agent, app_name="x", session_service=SESSIONS)
            content = types.Content(role="user", parts=[part])
            said: Any = None
            async for event in runner.run_async(user_id="u", session_id=self.session, new_message=content):
                for each in event.content.parts if event.content else ():
                    if each.text:
                        said = said or each.text
                    if each.function_call and each.function_call.name == CONFIRMATION:
                        said = each.function_call
        return said

    async def go(self) -> Any:
        return await self.say(types.Part(text="go"))

    async def confirm(self, asked: Any, confirmed: bool, payload: Any = None) -> Any:
        answer = {"confirmed": confirmed}
        if payload is not None:
            answer["payload"] = payload
        response = types.FunctionResponse(id=asked.id, name=CONFIRMATION, response=answer)
        return await self.say(types.Part(function_response=response))


def confirmation(call: Any) -> Any:
    return call.args["toolConfirmation"]


async def main() -> None:
    seen: dict[str, Any] = {}
    async with open_tools(URL) as tools:
        declared = to_adk(tools["add"])._get_declaration()
        seen["schema"] = declared.parameters_json_schema
    seen["result"] = await Conversation("add", {"a": 2, "b": 3}).go()
    seen["wrong"] = await Conversation("add", {"a": "x", "b": 3}).go()
    seen["failed"] = await Conversation("refuse", {"text": "no"}).go()

    tour = Conversation("tour", {"text": "go"})
    first = await tour.go()
    second = await tour.confirm(first, True, {"answer": "Rome"})
    done = await tour.confirm(second, True, {"answer": 3})
    seen["tour"] = [confirmation(first)["hint"], confirmation(second)["payload"]["questions"], done]

    pay = Conversation("pay", {"amount": 5})
    asked = await pay.go()
    seen["asked"] = confirmation(asked)["payload"]["questions"]
    seen["paid"] = await pay.confirm(asked, True)
    again = Conversation("pay", {"amount": 5})
    seen["rejected"] = await again.confirm(await again.go(), False)
    declined = Conversation("tour", {"text": "go"})
    seen["declined"] = await declined.confirm(await declined.go(), False)
    print(json.dumps(seen))


asyncio.run(main())
