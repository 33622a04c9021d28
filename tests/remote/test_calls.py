"""Calls of a mounted skill: their inputs, their results, and credentials, traces and deadlines."""

import asyncio
import time
from typing import Any

import apcore
import pytest

from apcore_a2a.agents.apcore.call import DEADLINE
from apcore_a2a.auth.jwt import JWTAuthenticator
from apcore_a2a.client import A2AClient
from apcore_a2a.client.calls import RemoteCall, follow
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, SendConfiguration, Task, TaskState
from apcore_a2a.testing import app_client
from tests.auth.tokens import SECRET, bearer
from tests.cli.conftest import hosted
from tests.client.scripted import (
    CARD,
    STREAM_HEAD,
    Request,
    ScriptedServer,
    artifact,
    card,
    event,
    hang,
    respond,
    result,
    task,
)
from tests.fakes import ASKS, COMPLETED, WORKING, Gate, ScriptedAgent, chunk, status
from tests.remote.conftest import (
    PLAY,
    Add,
    Count,
    Host,
    Mount,
    cancel,
    context_of,
    ends,
    fails,
    only_task,
    registry_of,
    said,
)


async def test_a_skill_of_a_remote_registry_is_a_module_with_the_same_schemas(host: Host, mount: Mount) -> None:
    url = host(registry_of(math__add=Add()), card=None)

    executor, agent = mount(url)

    assert agent.module_ids == ("partner.math.add",)
    module = executor.registry.get("partner.math.add")
    assert (module.description, module.tags) == ("Add two integers", ["math"])
    assert set(module.skill.input_schema["properties"]) == {"a", "b"}
    assert await executor.call_async("partner.math.add", {"a": 1, "b": 2}) == {"total": 3}


async def test_a_chain_of_mounted_agents_returns_the_result(host: Host, mount: Mount) -> None:
    executor, _ = mount(host(registry_of(math__add=Add()), card=None))

    async with app_client(executor.registry) as client:
        card = await client.agent_card
        task = await client.send_message({"a": 2**60, "b": 1}, skill="partner.math.add")
        wrong = await refused(client.send_message({"a": 1}, skill="partner.math.add"))

    assert [skill.id for skill in card.skills] == ["partner.math.add"]
    assert isinstance(task, Task)
    assert task.artifacts[0].parts[0].data == {"total": 2**60 + 1}
    assert "b" in wrong


async def refused(sending: Any) -> str:
    """Return the reason of a rejection: an error, or a failed task if apcore could not validate before."""
    try:
        task = await sending
    except A2AError as error:
        return str(error)
    assert task.status.state is TaskState.FAILED
    return str(task.status.message.parts[0].text)


async def test_a_skill_without_schema_accepts_text_or_any_object(host: Host, mount: Mount) -> None:
    agent = ScriptedAgent({"hi": (chunk("Hel"), chunk("lo", append=True), COMPLETED)})
    executor, _ = mount(host(agent))

    assert await executor.call_async(PLAY, {"text": "hi"}) == {"text": "Hello"}
    assert await executor.call_async(PLAY, {"city": "Paris", "n": 1}) == {}

    assert [part.to_dict() for call in agent.calls for part in call.message.parts] == [
        {"text": "hi"},
        {"data": {"city": "Paris", "n": 1}, "mediaType": "application/json"},
    ]
    assert agent.calls[0].message.metadata == {"skillId": "play"}


async def test_results_of_every_kind_are_returned(host: Host, mount: Mount) -> None:
    parts = [
        Part(raw=b"\x89PNG", filename="chart.png"),
        Part(data={"n": 1}),
        Part(data=[1, 2]),
        Part(url="https://example.com/x", filename="x", media_type="text/plain"),
    ]
    made = ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=parts))
    executor, _ = mount(host(ScriptedAgent(default=(made, COMPLETED))))

    assert await executor.call_async(PLAY, {"text": "go"}) == {
        "chart.png": b"\x89PNG",
        "n": 1,
        "data": [1, 2],
        "x": {"uri": "https://example.com/x", "name": "x", "mimeType": "text/plain"},
    }


async def test_results_of_a_remote_stream_are_streamed(host: Host, mount: Mount) -> None:
    executor, _ = mount(host(registry_of(count=Count()), card=None))

    got = [dict(part) async for part in executor.stream("partner.count", {"a": 0, "b": 3}, context_of())]

    assert got[:3] == [{"n0": 0}, {"n1": 1}, {"n2": 2}]
    assert got[-1] == {"n0": 0, "n1": 1, "n2": 2}


async def test_text_is_returned_with_leading_and_trailing_spaces(host: Host, mount: Mount) -> None:
    long = "long " * 300_000
    agent = ScriptedAgent(
        {"hi": (chunk("Once "), chunk("there was\n", append=True), COMPLETED), "long": (chunk(long), COMPLETED)}
    )
    executor, _ = mount(host(agent))

    got = [part["text"] async for part in executor.stream(PLAY, {"text": "hi"}, context_of())]

    assert got[:2] == ["Once ", "there was\n"]
    assert await executor.call_async(PLAY, {"text": "hi"}) == {"text": "Once there was\n"}
    assert await executor.call_async(PLAY, {"text": "long"}) == {"text": long}


async def test_text_is_returned_without_control_characters(host: Host, mount: Mount) -> None:
    executor, _ = mount(host(ScriptedAgent(default=(chunk("\x1b[31mred\x1b[0m\x07"), COMPLETED))))

    assert await executor.call_async(PLAY, {"text": "hi"}) == {"text": "red"}


async def test_a_chunk_arrives_before_the_remote_task_ends(host: Host, mount: Mount) -> None:
    url = host(ScriptedAgent(default=(chunk("first"), Gate(), COMPLETED)))
    executor, _ = mount(url)

    async with asyncio.timeout(10):
        results = executor.stream(PLAY, {"text": "go"}, context_of())
        assert await anext(results) == {"text": "first"}  # the gate is still closed
        await asyncio.to_thread(cancel, url)
        assert said(await fails(anext(results))).startswith("The remote task ended as CANCELED")


async def test_canceling_the_local_task_cancels_the_remote_task(host: Host, mount: Mount) -> None:
    url = host(ScriptedAgent(default=(WORKING, Gate())))
    executor, _ = mount(url)
    later = SendConfiguration(return_immediately=True)

    async with app_client(executor.registry, shutdown_timeout=0.1) as client, asyncio.timeout(10):
        task = await client.send_message("go", configuration=later)
        remote = await asyncio.to_thread(only_task, url, TaskState.WORKING)
        assert isinstance(task, Task)
        await client.cancel_task(task.id)

        assert await asyncio.to_thread(ends, url, remote) is TaskState.CANCELED


async def test_the_remote_task_is_canceled_at_the_local_deadline(host: Host, mount: Mount) -> None:
    url = host(ScriptedAgent(default=(WORKING, Gate())))
    executor, _ = mount(url)
    context = context_of(**{DEADLINE: time.time() + 0.3})

    with pytest.raises(Exception) as late:
        await executor.call_async(PLAY, {"text": "go"}, context)

    assert said(late.value) == "The remote agent did not answer in time"
    assert await asyncio.to_thread(only_task, url, TaskState.CANCELED)


async def test_a_task_known_only_from_an_artifact_is_canceled() -> None:
    async def begin(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(request, artifact("x")))
        await hang(request, writer)

    async with asyncio.timeout(10), ScriptedServer() as server, A2AClient(server.url) as client:
        server.on(CARD, respond(card(server.url))).on("/", begin, result(task("CANCELED")))
        events = follow(client, RemoteCall([Part(text="go")], {"headers": {}}))
        await anext(events)
        await events.aclose()
        last = server.asked("/")[-1].json

    assert (last["method"], last["params"]["id"]) == ("CancelTask", "t-1")


async def test_a_cancelled_token_cancels_the_remote_task(host: Host, mount: Mount) -> None:
    url = host(ScriptedAgent(default=(WORKING, Gate())))
    executor, _ = mount(url)
    context = context_of()
    context.cancel_token = apcore.CancelToken()

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        call = group.create_task(fails(executor.call_async(PLAY, {"text": "go"}, context)))
        await asyncio.to_thread(only_task, url, TaskState.WORKING)
        context.cancel_token.cancel()
        await call

    assert await asyncio.to_thread(only_task, url, TaskState.CANCELED)


async def test_the_trace_continues_at_the_remote_agent(host: Host, mount: Mount) -> None:
    agent = ScriptedAgent()
    executor, _ = mount(host(agent))
    context = context_of()

    await executor.call_async(PLAY, {"text": "go"}, context)

    assert context.trace_id.replace("-", "") in agent.calls[0].headers["traceparent"]


async def test_credentials_of_callers_are_sent_only_with_delegate(host: Host, mount: Mount) -> None:
    url = host(ScriptedAgent(), auth=JWTAuthenticator(SECRET))
    tokens = {"ada": bearer(sub="ada", aud=None)["authorization"]}
    seen: list[str] = []

    async def delegate(context: Any) -> str | None:
        seen.append(context.identity.id)
        return tokens.get(context.identity.id)

    closed, _ = mount(url)
    opened, _ = mount(url, delegate=delegate)

    def run_of(name: str) -> Any:
        return apcore.Context.create(identity=apcore.Identity(id=name, type="user"))

    refusal = "The remote agent rejects our credentials"
    assert said(await fails(closed.call_async(PLAY, {"text": "go"}, run_of("ada")))) == refusal
    assert await opened.call_async(PLAY, {"text": "go"}, run_of("ada")) == {}
    assert said(await fails(opened.call_async(PLAY, {"text": "go"}, run_of("bob")))) == refusal
    assert seen == ["ada", "bob"]


async def test_own_credentials_are_sent_with_every_call(host: Host, mount: Mount) -> None:
    executor, _ = mount(host(ScriptedAgent(), auth=JWTAuthenticator(SECRET)), auth=bearer(aud=None)["authorization"])

    assert await executor.call_async(PLAY, {"text": "go"}) == {}


async def test_the_final_message_is_the_result_of_a_task_without_artifacts(host: Host, mount: Mount) -> None:
    done = status(TaskState.COMPLETED, "It is 9 degrees")
    talks, _ = mount(host(ScriptedAgent(default=(done,))))
    makes, _ = mount(host(ScriptedAgent(default=(chunk("9"), done))))

    assert await talks.call_async(PLAY, {"text": "weather?"}) == {"text": "It is 9 degrees"}
    assert await makes.call_async(PLAY, {"text": "weather?"}) == {"text": "9"}


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ((status(TaskState.FAILED, "no\x1b[31m paper"),), "The remote task ended as FAILED: no paper"),
        ((ASKS,), "The remote task ended as INPUT_REQUIRED: What next?"),
        ((status(TaskState.REJECTED),), "The remote task ended as REJECTED"),
    ],
)
async def test_a_remote_task_that_does_not_succeed_fails_the_module(
    host: Host, mount: Mount, script: Any, text: str
) -> None:
    executor, _ = mount(host(ScriptedAgent(default=script)))

    assert said(await fails(executor.call_async(PLAY, {"text": "go"}))) == text


async def test_a_remote_task_that_waits_for_input_is_canceled(host: Host, mount: Mount) -> None:
    url = host(ScriptedAgent(default=(ASKS,)))
    executor, _ = mount(url)

    await fails(executor.call_async(PLAY, {"text": "go"}))

    assert await asyncio.to_thread(only_task, url, TaskState.CANCELED)


async def test_the_remote_address_is_not_shown_to_callers(mount: Mount) -> None:
    with hosted(ScriptedAgent()) as url:
        executor, _ = mount(url)

    text = said(await fails(executor.call_async(PLAY, {"text": "go"})))

    assert text == "The remote agent is not available or returns errors"
