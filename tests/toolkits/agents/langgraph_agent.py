"""A LangChain agent with the tools of a remote agent. Arguments: address, database, what to do. Prints JSON.

Each run of this program is a process of its own, so a question is asked in one process and answered in another.
"""

import asyncio
import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from apcore_a2a.toolkits import RemoteTools, open_tools, to_langchain

URL, DATABASE, DEED = sys.argv[1:4]
GIVEN = json.loads(sys.argv[4])


class Model(GenericFakeChatModel):
    """Calls the tools that it is told to call, and then ends."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def model(calls: list[dict[str, Any]]) -> Model:
    return Model(messages=iter([AIMessage("", tool_calls=calls), AIMessage("done")]))


async def run(tools: RemoteTools, saver: Any, calls: list[dict[str, Any]], given: Any) -> dict[str, Any]:
    agent = create_agent(model(calls), [to_langchain(tool) for tool in tools], checkpointer=saver)
    thread = {"configurable": {"thread_id": GIVEN["thread"]}}
    state = await agent.ainvoke(given, thread)
    asked = [each.value for each in state.get("__interrupt__", ())]
    outputs = [(each.content, each.status) for each in state["messages"] if isinstance(each, ToolMessage)]
    return {"asked": asked, "outputs": outputs}


async def main() -> None:
    async with open_tools(URL) as tools, AsyncSqliteSaver.from_conn_string(DATABASE) as saver:
        if DEED == "direct":
            tool = to_langchain(tools[GIVEN["tool"]])
            said = await tool.ainvoke(GIVEN["args"])
            blocking = await asyncio.to_thread(tool.invoke, GIVEN["args"])
            print(json.dumps({"schema": tool.tool_call_schema, "said": said, "blocking": blocking}))
            return
        if DEED == "call":
            calls = [{"name": name, "args": args, "id": call_id} for name, args, call_id in GIVEN["calls"]]
            print(json.dumps(await run(tools, saver, calls, {"messages": [HumanMessage("go")]})))
            return
        print(json.dumps(await run(tools, saver, [], Command(resume=GIVEN["answer"]))))


asyncio.run(main())
