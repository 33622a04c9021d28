"""The trace of a caller reaches the agent, the agents that it calls, and the webhooks. No library is needed for it."""

import asyncio
from typing import Any

import httpx
import pytest

from apcore_a2a import A2AClient, Call
from apcore_a2a.client import Client
from apcore_a2a.protocol.model import PushConfig, TaskState
from apcore_a2a.testing.webhook import WebhookReceiver
from tests.fakes import ASKS, COMPLETED, ScriptedAgent, chunk, status
from tests.interaction.conftest import Connect, Serve
from tests.interaction.webhook_conditions import open_to, state_of, until

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01", "tracestate": "a=1", "baggage": "user=ada,run=7"}
OTHER = {"traceparent": f"00-{'5' * 32}-00f067aa0ba902b7-01"}


async def test_the_trace_of_a_request_reaches_the_agent(connect: Connect) -> None:
    agent = ScriptedAgent()
    client = await connect(agent)
    client.headers |= TRACE
    await client.send("one")
    async with client.stream("two") as stream:
        await stream.rest()
    client.headers |= {"traceparent": "wrong", "baggage": "user=grace"}
    await client.send("three")
    assert [call.headers for call in agent.calls] == [TRACE, TRACE, {"baggage": "user=grace"}]


def forward_to(url: str, **options: Any) -> list[Any]:
    """Return functions that send their message on to another agent. Any: options of the client."""

    async def on_the_loop(text: str) -> str:
        async with A2AClient(url, **options) as client:
            await client.send_message(text)
            return "sent"

    async def as_a_stream(text: str) -> str:
        async with A2AClient(url, **options) as client:
            async for _ in client.stream_message(text):
                pass
            return "sent"

    async def in_a_child_task(text: str) -> str:
        async with A2AClient(url, **options) as client, asyncio.TaskGroup() as group:
            group.create_task(client.send_message(text))
        return "sent"

    def on_a_thread(text: str) -> str:
        with Client(url, **options) as client:
            client.send_message(text)
        return "sent"

    return [on_the_loop, as_a_stream, in_a_child_task, on_a_thread]


async def send(url: str, skill: str, headers: dict[str, str] = TRACE) -> None:
    async with A2AClient(url) as client:
        assert (await client.send_message("hi", skill=skill, headers=headers)).text == "sent"


@pytest.mark.parametrize("skill", ["on_the_loop", "as_a_stream", "in_a_child_task", "on_a_thread"])
async def test_the_agents_that_an_agent_calls_belong_to_the_trace(serve: Serve, skill: str) -> None:
    last = ScriptedAgent()
    url = await serve(forward_to(await serve(last)), card=None)
    await send(url, skill)
    await send(url, skill, {})
    await send(url, skill, OTHER)
    assert [call.headers for call in last.calls] == [TRACE, {}, OTHER]


async def test_propagate_trace_turns_it_off(serve: Serve) -> None:
    last = ScriptedAgent()
    url = await serve(forward_to(await serve(last), propagate_trace=False), card=None)
    await send(url, "on_the_loop")
    assert last.calls[0].headers == {}


async def test_a_trace_that_the_agent_names_replaces_that_of_its_caller(serve: Serve) -> None:
    last = ScriptedAgent()
    inner = await serve(last)

    async def forward(text: str) -> str:
        async with A2AClient(inner) as client:
            await client.send_message(text, headers={"TraceParent": OTHER["traceparent"]})
            return "sent"

    await send(await serve([forward], card=None), "forward")
    assert last.calls[0].headers == {**OTHER, "baggage": TRACE["baggage"]}


async def test_two_concurrent_runs_keep_their_traces_apart(serve: Serve) -> None:
    last = ScriptedAgent()
    inner = await serve(last)
    both = asyncio.Barrier(2)

    async def forward(call: Call) -> str:
        await both.wait()
        async with A2AClient(inner) as client:
            await client.send_message(call.text)
            return "sent"

    url = await serve(forward, card=None)
    async with A2AClient(url) as client, asyncio.TaskGroup() as group:
        group.create_task(client.send_message("traced", headers=TRACE))
        group.create_task(client.send_message("not traced"))
    assert {str(call.text): call.headers for call in last.calls} == {"traced": TRACE, "not traced": {}}


async def test_webhooks_receive_the_trace_of_the_turn_with_each_change_of_the_state(connect: Connect) -> None:
    async with WebhookReceiver() as hook:
        client = await connect(
            ScriptedAgent({"ask": (chunk("x"), status(TaskState.WORKING, "soon"), ASKS), "again": (ASKS,)}), **open_to()
        )
        client.headers |= TRACE
        task = await client.send("ask", task_push_notification_config=PushConfig(url=hook.url))
        got = await until(hook, "INPUT_REQUIRED")
        for name in TRACE:
            del client.headers[name]
        async with client.subscribe(task.id) as stream:  # the task stays in memory between the turns
            await stream.next()
            client.headers |= OTHER
            await client.send("again", task_id=task.id)
            del client.headers["traceparent"]
            await client.send("go", task_id=task.id)
        got += await until(hook, "COMPLETED")
    seen = [(state_of(each), each.headers.get("traceparent"), each.headers.get("baggage")) for each in got]
    mine = (TRACE["traceparent"], TRACE["baggage"])
    other = (OTHER["traceparent"], None)
    chunks = [("chunk", None, None)] if client.version == "1.0" else []
    assert seen == [
        ("SUBMITTED", *mine),
        ("WORKING", *mine),
        *chunks,
        ("WORKING", None, None),
        ("INPUT_REQUIRED", *mine),
        ("WORKING", *other),
        ("INPUT_REQUIRED", *other),
        ("WORKING", None, None),
        ("COMPLETED", None, None),
    ]
    assert got[0].headers["tracestate"] == "a=1"
    assert "trace" not in got[0].json and "trace" not in got[-1].json


async def test_streams_of_a_task_with_a_webhook_contain_no_trace(serve: Serve) -> None:
    async with WebhookReceiver() as hook, httpx.AsyncClient(base_url=await serve(ScriptedAgent(), **open_to())) as http:
        said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        params = {"message": said, "configuration": {"taskPushNotificationConfig": {"url": hook.url}}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": params}
        answer = await http.post("/", json=body, headers={"A2A-Version": "1.0", **TRACE})
        await until(hook, "COMPLETED")
    assert "COMPLETED" in answer.text and TRACE_ID not in answer.text and "trace" not in answer.text


async def test_browsers_may_send_a_trace(serve: Serve) -> None:
    url = await serve(ScriptedAgent({"hi": (COMPLETED,)}), cors_origins=("https://app.example",))
    asked = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "traceparent,tracestate,baggage",
    }
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.options("/", headers=asked)).status_code == 200
