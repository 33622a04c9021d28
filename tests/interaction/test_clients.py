"""Our server and real clients, on a socket: a2a-sdk 1.x, as a 1.0 and as a 0.3 client; a2a-sdk 0.3.x;
@a2a-js/sdk 1.x; and our own.

Each test runs with each client over JSON-RPC, REST and gRPC.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Protocol

import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict

from apcore_a2a.agent import Agent
from apcore_a2a.client.options import BindingName
from apcore_a2a.testing.webhook import WebhookReceiver
from tests.fakes import ASKS, COMPLETED, Gate, Keys, ScriptedAgent, chunk, says
from tests.interaction.conftest import Serve
from tests.interaction.peers import Peer, PeerError, rest
from tests.interaction.peers.js import Js, ask_js
from tests.interaction.peers.ours import Ours
from tests.interaction.peers.process import Process
from tests.interaction.peers.sdk03 import Sdk03
from tests.interaction.peers.sdk1 import Sdk1
from tests.requirements import requirement

NAMES = ("sdk 1.x", "sdk 1.x as 0.3", "sdk 0.3.x", "js 1.x", "ours 1.0", "ours 0.3")
BINDINGS: tuple[BindingName, ...] = ("JSONRPC", "HTTP+JSON", "GRPC")
PEERS = [(name, binding) for name in NAMES for binding in BINDINGS]
WHO_LIST = [peer for peer in PEERS if peer[0] in ("sdk 1.x", "js 1.x")]  # the 0.3 clients have no list

WITH_CREDENTIALS = [peer for peer in PEERS if peer != ("sdk 0.3.x", "GRPC")]  # which has no metadata for them


class Connect(Protocol):
    async def __call__(self, agent: Agent, **options: Any) -> Peer: ...


@pytest.fixture(params=PEERS, ids=lambda peer: " ".join(peer))
async def connect(request: pytest.FixtureRequest, serve: Serve) -> AsyncIterator[Connect]:
    """Serves an agent and connects a client to it."""
    name, binding = request.param
    peers: list[Peer] = []

    async def start(agent: Agent, **options: Any) -> Peer:
        if name == "sdk 1.x as 0.3":  # it uses the version that the card offers
            options["card_mode"] = "0.3"
        headers = options.pop("headers", None)
        url = await serve(agent, **options)
        match name:
            case "sdk 0.3.x":
                peers.append(Sdk03(request.getfixturevalue("sdk03"), url, binding, headers))
            case "js 1.x":
                peers.append(Js(request.getfixturevalue("js1"), url, binding, headers))
            case "ours 1.0":
                peers.append(Ours(url, binding, headers, version="1.0"))
            case "ours 0.3":
                peers.append(Ours(url, binding, headers, version="0.3"))
            case _:
                peers.append(Sdk1(url, binding, headers))
        return peers[-1]

    yield start
    for peer in peers:
        await peer.close()


@requirement("NFR-CMP-005", "FR-MSG-001")
async def test_a_send_that_waits(connect: Connect) -> None:
    peer = await connect(ScriptedAgent({"hi": (chunk("done", last=True), COMPLETED)}))
    task = await peer.send("hi", context_id="talk")
    assert (task["state"], task["texts"], task["context"]) == ("completed", ["done"], "talk")


async def test_a_send_that_does_not_wait(connect: Connect) -> None:
    gate = Gate()
    peer = await connect(ScriptedAgent({"hi": (gate, COMPLETED)}))
    task = await peer.send("hi", wait=False)
    assert task["state"] in ("submitted", "working")
    await gate.reached()
    stream = await peer.subscribe(task["task"])
    assert (await stream.next())["state"] == "working"
    gate.open()
    await rest(stream)
    assert (await peer.get(task["task"]))["state"] == "completed"


async def test_an_answer_without_a_task(connect: Connect) -> None:
    peer = await connect(ScriptedAgent({"hi": (says("hello"),)}, may_reply=True))
    assert await peer.send("hi") == {"says": "hello"}


@requirement("FR-MSG-002")
async def test_a_stream_from_the_first_event_to_the_last(connect: Connect) -> None:
    script = (chunk("a"), chunk("b", append=True), chunk("c", append=True, last=True), COMPLETED)
    peer = await connect(ScriptedAgent({"hi": script}))
    stream = await peer.stream("hi")
    first, *received, end = await rest(stream)
    assert first["state"] == "submitted"
    assert [words["chunk"] for words in received if "chunk" in words] == ["a", "b", "c"]
    assert [words["append"] for words in received if "chunk" in words] == [False, True, True]
    assert [words["last"] for words in received if "chunk" in words] == [False, False, True]
    assert end["state"] == "completed" and end.get("final", True)
    assert (await peer.get(first["task"]))["texts"] == ["abc"]


@requirement("FR-MSG-006")
async def test_a_stream_that_is_closed_and_resubscribed(connect: Connect) -> None:
    gate = Gate()
    peer = await connect(ScriptedAgent({"hi": (chunk("a"), gate, chunk("b", append=True), COMPLETED)}))
    stream = await peer.stream("hi")
    first = await stream.next()
    await gate.reached()
    again = await peer.subscribe(first["task"])
    snapshot = await again.next()
    assert (snapshot["state"], snapshot["texts"]) == ("working", ["a"])
    await stream.close()
    gate.open()
    received = await rest(again)
    assert [words.get("chunk") for words in received] == ["b", None]
    assert received[-1]["state"] == "completed"


async def test_a_conversation_over_several_turns(connect: Connect) -> None:
    agent = ScriptedAgent({"enough": (COMPLETED,)}, default=(ASKS,))
    peer = await connect(agent)
    task = await peer.send("one")
    assert task["state"] == "input-required"
    for text in ("two", "three"):
        assert (await peer.send(text, task_id=task["task"]))["state"] == "input-required"
    last = await peer.send("enough", task_id=task["task"], context_id=task["context"])
    assert (last["task"], last["state"]) == (task["task"], "completed")
    said = (await peer.get(task["task"]))["history"]
    assert [text for text in said if text != "What next?"] == ["one", "two", "three", "enough"]


async def test_a_history_as_long_as_asked_for(connect: Connect) -> None:
    peer = await connect(ScriptedAgent(default=(ASKS,)))
    task = await peer.send("one")
    await peer.send("two", task_id=task["task"])
    assert len((await peer.get(task["task"], history_length=1))["history"]) == 1


@requirement("FR-TSK-005")
async def test_a_cancel(connect: Connect) -> None:
    gate = Gate()
    peer = await connect(ScriptedAgent({"hi": (gate, COMPLETED)}))
    task = await peer.send("hi", wait=False)
    await gate.reached()
    assert (await peer.cancel(task["task"]))["state"] == "canceled"
    with pytest.raises(PeerError, match=r"TaskNotCancelableError|HTTP 400|FAILED_PRECONDITION"):
        await peer.cancel(task["task"])


async def test_unknown_tasks_are_not_found(connect: Connect) -> None:
    peer = await connect(ScriptedAgent())
    for attempt in (
        partial(peer.get, "unknown"),
        partial(peer.cancel, "unknown"),
        partial(peer.send, "hi", task_id="no"),
    ):
        with pytest.raises(PeerError, match=r"TaskNotFoundError|HTTP 404|NOT_FOUND"):
            await attempt()
    stream = await peer.subscribe("unknown")
    with pytest.raises(PeerError, match=r"TaskNotFoundError|HTTP 40|NOT_FOUND"):
        await stream.next()


async def test_a_message_to_a_task_that_has_ended(connect: Connect) -> None:
    peer = await connect(ScriptedAgent())
    task = await peer.send("hi")
    with pytest.raises(PeerError, match=r"UnsupportedOperationError|HTTP 400|UNIMPLEMENTED|FAILED_PRECONDITION"):
        await peer.send("more", task_id=task["task"])


async def test_unsupported_operations_are_rejected(connect: Connect) -> None:
    peer = await connect(ScriptedAgent())
    task = await peer.send("hi")
    with pytest.raises(
        PeerError, match=r"PushNotificationNotSupportedError|HTTP 400|UNIMPLEMENTED|FAILED_PRECONDITION"
    ):
        await peer.set_webhook(task["task"], "https://example.com/hook")


@requirement("NFR-CMP-005", "FR-PSH-001", "FR-PSH-004")
async def test_a_webhook(connect: Connect) -> None:
    gate = Gate()
    options = {"push_notifications": True, "allow_insecure_webhooks": True}
    async with WebhookReceiver() as hook:
        peer = await connect(ScriptedAgent({"hi": (gate, COMPLETED)}), **options)
        task = (await peer.send("hi", wait=False))["task"]
        await gate.reached()
        made = await peer.set_webhook(task, hook.url)
        config = made.get("pushNotificationConfig", made)
        assert (made["taskId"], config["url"]) == (task, hook.url)
        assert await peer.get_webhook(task, config["id"]) == made
        gate.open()
        body = (await hook.next()).json
        if "statusUpdate" in body:
            assert ParseDict(body, pb.StreamResponse()).status_update.status.state == pb.TASK_STATE_COMPLETED
        else:
            assert (body["kind"], body["id"], body["status"]["state"]) == ("task", task, "completed")
        if (
            isinstance(peer, Sdk1) and "statusUpdate" in body
        ):  # as a 0.3 client it neither lists nor deletes webhooks over REST
            assert await peer.webhook_urls(task) == (hook.url,)
            await peer.delete_webhook(task, config["id"])
            assert await peer.webhook_urls(task) == ()


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_webhook_of_the_javascript_client(serve: Serve, binding: str) -> None:
    agent = ScriptedAgent({"hi": (COMPLETED,)})
    async with WebhookReceiver() as hook:
        url = await serve(agent, push_notifications=True, allow_insecure_webhooks=True)
        made, got, listed, left = await ask_js(url, binding, "webhook", hook.url)
        assert made["url"] == got["url"] == hook.url
        assert made["id"] == got["id"]
        assert {config["id"] for config in listed["configs"]} == {made["id"], "stays"}
        assert [config["id"] for config in left["configs"]] == ["stays"]
        body = (await hook.next()).json
        assert (body["kind"], body["id"], body["status"]["state"]) == ("task", made["taskId"], "completed")


@requirement("FR-AGC-003")
async def test_the_card(connect: Connect) -> None:
    peer = await connect(ScriptedAgent())
    card = await peer.card()
    assert (card["name"], card["version"]) == ("scripted", "1.2.3")
    assert card["skills"][0]["id"] == "play"
    assert card["capabilities"]["streaming"] is True


@pytest.mark.parametrize("connect", WITH_CREDENTIALS, ids=lambda peer: " ".join(peer), indirect=True)
async def test_the_extended_card(connect: Connect) -> None:
    peer = await connect(ScriptedAgent(), auth=Keys(), headers={"X-API-Key": "key of ada"})
    card = await peer.extended_card()
    assert (card["name"], card["skills"][0]["id"]) == ("scripted", "play")


async def test_a_client_without_credentials(connect: Connect) -> None:
    peer = await connect(ScriptedAgent(), auth=Keys(), headers={"X-API-Key": "made up"})
    with pytest.raises(PeerError):
        await peer.send("hi")


@requirement("FR-TSK-006")
@pytest.mark.parametrize("connect", WHO_LIST, ids=lambda peer: " ".join(peer), indirect=True)
async def test_a_list_page_by_page(connect: Connect) -> None:
    peer = await connect(ScriptedAgent())
    assert isinstance(peer, Sdk1 | Js)
    ids = [(await peer.send("hi", context_id="talk"))["task"] for _ in range(3)]
    first, token = await peer.list("talk", 2)
    second, end = await peer.list("talk", 2, token)
    assert first + second == ids[::-1]
    assert end == ""


async def test_a_failed_call_does_not_affect_the_next_test(sdk03: Process) -> None:
    """The client of a2a-sdk 0.3 is one process for many tests: an error or a crash affects only one call."""
    with pytest.raises(AssertionError, match="no attribute 'dance'"):
        await sdk03.ask(do="dance")
    with pytest.raises(AssertionError, match="has died"):
        await sdk03.ask(do="exit")
    with pytest.raises(AssertionError, match="no attribute 'dance'"):
        await sdk03.ask(do="dance")
