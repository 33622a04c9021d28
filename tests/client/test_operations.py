"""Each operation over each binding and version: its request, and the result."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from apcore_a2a.client import A2AClient
from apcore_a2a.errors import A2AConnectionError, InvalidAgentResponseError, InvalidParamsError
from apcore_a2a.protocol.model import (
    AuthenticationInfo,
    Message,
    PushConfig,
    SendConfiguration,
    Task,
    TaskState,
    encode,
)
from tests.client.conftest import Connect
from tests.client.scripted import CARD, Answer, Request, ScriptedServer, card, respond, result, task
from tests.requirements import requirement

PUSH = {"taskId": "t-1", "id": "p-1", "url": "https://example.com/hook"}
PAGE = {"tasks": [task()], "nextPageToken": "", "pageSize": 50, "totalSize": 1}
MESSAGE = {"messageId": "m-2", "role": "ROLE_AGENT", "parts": [{"text": "hello"}]}

Ask = Callable[[A2AClient], Awaitable[Any]]

# the call, the method and params over JSON-RPC, the request over REST, the answer
OPERATIONS: dict[str, tuple[Ask, str, dict[str, Any], str, object]] = {
    "get": (
        lambda client: client.get_task("t-1", history_length=2),
        "GetTask",
        {"id": "t-1", "historyLength": 2},
        "GET /tasks/t-1?historyLength=2",
        task(),
    ),
    "cancel": (
        lambda client: client.cancel_task("t-1", metadata={"why": "late"}),
        "CancelTask",
        {"id": "t-1", "metadata": {"why": "late"}},
        "POST /tasks/t-1:cancel",
        task("CANCELED"),
    ),
    "list": (
        lambda client: client.list_tasks("c-1", status=TaskState.WORKING, page_size=5, include_artifacts=True),
        "ListTasks",
        {"contextId": "c-1", "status": "TASK_STATE_WORKING", "pageSize": 5, "includeArtifacts": True},
        "GET /tasks?contextId=c-1&status=TASK_STATE_WORKING&pageSize=5&includeArtifacts=true",
        PAGE,
    ),
    "list all": (lambda client: client.list_tasks(), "ListTasks", {}, "GET /tasks", PAGE),
    "set push": (
        lambda client: client.set_push_config("t-1", "https://example.com/hook"),
        "CreateTaskPushNotificationConfig",
        {"taskId": "t-1", "url": "https://example.com/hook"},
        "POST /tasks/t-1/pushNotificationConfigs",
        PUSH,
    ),
    "get push": (
        lambda client: client.get_push_config("t-1", "p-1"),
        "GetTaskPushNotificationConfig",
        {"taskId": "t-1", "id": "p-1"},
        "GET /tasks/t-1/pushNotificationConfigs/p-1",
        PUSH,
    ),
    "list push": (
        lambda client: client.list_push_configs("t-1"),
        "ListTaskPushNotificationConfigs",
        {"taskId": "t-1"},
        "GET /tasks/t-1/pushNotificationConfigs",
        {"configs": [PUSH]},
    ),
    "delete push": (
        lambda client: client.delete_push_config("t-1", "p-1"),
        "DeleteTaskPushNotificationConfig",
        {"taskId": "t-1", "id": "p-1"},
        "DELETE /tasks/t-1/pushNotificationConfigs/p-1",
        {},
    ),
    "extended card": (
        lambda client: client.extended_card(),
        "GetExtendedAgentCard",
        {},
        "GET /extendedAgentCard",
        card("http://127.0.0.1:1"),
    ),
}


@requirement("FR-CLI-005")
@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_over_json_rpc(server: ScriptedServer, connect: Connect, name: str) -> None:
    ask, method, params, _, answer = OPERATIONS[name]
    server.on("/", result(answer))

    got = await ask(connect())

    asked = server.asked("/")[0]
    assert (asked.method, asked.headers["content-type"]) == ("POST", "application/json")
    assert (asked.json["method"], asked.json["params"]) == (method, params)
    check(got, answer)


@requirement("FR-CLI-005")
@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_over_rest(server: ScriptedServer, connect: Connect, name: str) -> None:
    ask, _, params, request, answer = OPERATIONS[name]
    interfaces = [{"url": f"{server.url}/", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}]
    server.on(CARD, respond(card(server.url, supportedInterfaces=interfaces)))
    server.on(request.partition(" ")[2], respond(answer))

    got = await ask(connect())

    asked = server.requests[1]
    assert f"{asked.method} {asked.path}" == request
    if asked.method == "POST":
        assert (asked.headers["content-type"], asked.json) == ("application/a2a+json", params)
    check(got, answer)


def check(got: Any, answer: object) -> None:
    match got:
        case None:
            assert answer == {}
        case list():
            assert {"configs": json.loads(encode(got))} == answer
        case _:
            assert json.loads(encode(got)) == answer


@requirement("FR-CLI-003")
async def test_a_message_is_sent_and_its_task_returned(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result({"task": task(artifacts=[{"artifactId": "a-1", "parts": [{"data": {"n": 1}}]}])}))
    configuration = SendConfiguration(return_immediately=True, history_length=0)

    answer = await connect().send_message(
        "hi", skill="obey", metadata={"skillId": "also"}, context_id="c-1", task_id="t-1", configuration=configuration
    )

    assert isinstance(answer, Task)
    assert (answer.status.state, answer.artifacts[0].parts[0].data) == (TaskState.COMPLETED, {"n": 1})
    params = server.asked("/")[0].json["params"]
    assert params["configuration"] == {"returnImmediately": True, "historyLength": 0}
    assert params["metadata"] == {"skillId": "also"}
    sent = params["message"]
    assert sent.pop("messageId")
    assert sent == {
        "role": "ROLE_USER",
        "parts": [{"text": "hi"}],
        "metadata": {"skillId": "obey"},
        "contextId": "c-1",
        "taskId": "t-1",
    }


@requirement("FR-CLI-003")
async def test_an_agent_may_answer_with_a_bare_message(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result({"message": MESSAGE}))

    answer = await connect().send_message({"n": 1})

    assert isinstance(answer, Message)
    assert json.loads(encode(answer)) == MESSAGE


async def test_requests_to_a_0_3_agent_have_the_official_form(server: ScriptedServer, connect: Connect) -> None:
    interfaces = [{"url": f"{server.url}/", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"}]
    server.on(CARD, respond(card(server.url, supportedInterfaces=interfaces)))
    server.on("/", result({"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": "input-required"}}))

    answer = await connect().send_message("hi", context_id="c-1")

    assert isinstance(answer, Task)
    assert answer.status.state is TaskState.INPUT_REQUIRED
    asked = server.asked("/")[0].json
    assert asked["method"] == "message/send"
    assert asked["params"]["message"] | {"messageId": ""} == {
        "kind": "message",
        "messageId": "",
        "role": "user",
        "contextId": "c-1",
        "parts": [{"kind": "text", "text": "hi"}],
    }


async def test_a_push_config_is_sent_with_its_secrets(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result(PUSH))
    login = AuthenticationInfo(scheme="Bearer", credentials="s3cret")

    await connect().set_push_config(
        "t-1", PushConfig(url="https://example.com/hook", token="t0k", authentication=login)
    )

    params = server.asked("/")[0].json["params"]
    assert (params["token"], params["authentication"]) == ("t0k", {"scheme": "Bearer", "credentials": "s3cret"})


async def test_an_id_cannot_change_the_request_path(server: ScriptedServer, connect: Connect) -> None:
    interfaces = [{"url": server.url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}]
    server.on(CARD, respond(card(server.url, supportedInterfaces=interfaces)))
    server.on("/tasks/..%2F..%2Fadmin%3Fx", respond(task(id="../../admin?x")))

    assert (await connect().get_task("../../admin?x")).id == "../../admin?x"
    asked = len(server.requests)
    for id in ("..", ""):  # proxies resolve or drop every spelling of these
        with pytest.raises(InvalidParamsError, match="an id cannot be"):
            await connect().delete_push_config("t-1", id)
    assert {request.path for request in server.requests[asked:]} == {CARD}


def envelope() -> Answer:
    """Return a writer of a JSON-RPC response without result and error."""

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(respond({"jsonrpc": "2.0", "id": request.json["id"]}))

    return write


async def test_only_the_answer_to_a_deletion_may_be_empty(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", envelope())

    assert await connect().delete_push_config("t-1", "p-1") is None  # type: ignore[func-returns-value]  # that is it


@pytest.mark.parametrize(("version", "prefix"), [("1.0", ""), ("0.3", "/v1")])
async def test_over_rest_a_deletion_is_answered_without_a_body(
    server: ScriptedServer, connect: Connect, version: str, prefix: str
) -> None:
    interface = {"url": server.url, "protocolBinding": "HTTP+JSON", "protocolVersion": version}
    server.on(CARD, respond(card(server.url, supportedInterfaces=[interface])))
    server.on(f"{prefix}/tasks/t-1/pushNotificationConfigs/p-1", respond(b"", status=204))

    assert await connect().delete_push_config("t-1", "p-1") is None  # type: ignore[func-returns-value]  # that is it


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (respond(b'{"jsonrpc":"2.0","id":"1","resu'), "cannot be read"),
        (respond(b"<html>"), "cannot be read"),
        (respond(b"[1]"), "cannot be read"),
        (respond(b""), "cannot be read"),
        (respond({"jsonrpc": "2.0", "id": "another", "result": task()}), "its JSON-RPC id is unknown"),
        (respond({"jsonrpc": "2.0", "id": None, "result": task()}), "its JSON-RPC id is unknown"),
        (result(None), "cannot be read"),
        (envelope(), "neither a result nor an error"),
        (result({"id": "t-1"}), "cannot be read: .*status"),
        (result(task(status={"state": "TASK_STATE_DANCING"})), r"cannot be read: .*status\.state"),
    ],
)
async def test_an_invalid_answer_is_an_invalid_agent_response_error(
    server: ScriptedServer, connect: Connect, answer: Any, said: str
) -> None:
    server.on("/", answer)

    with pytest.raises(InvalidAgentResponseError, match=said):
        await connect().get_task("t-1")
    assert len(server.asked("/")) == 1


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_message_is_answered_with_a_task_or_a_message(
    server: ScriptedServer, connect: Connect, binding: str, version: str
) -> None:
    offer = {"url": f"{server.url}/", "protocolBinding": binding, "protocolVersion": version}
    state = "TASK_STATE_WORKING" if version == "1.0" or binding == "HTTP+JSON" else "working"
    update = {"taskId": "t-1", "contextId": "c-1", "status": {"state": state}}
    answer: dict[str, Any] = {"statusUpdate": update}
    if state == "working":
        answer = {"kind": "status-update", "final": False, **update}
    server.on(CARD, respond(card(server.url, supportedInterfaces=[offer])))
    server.on("/", result(answer)).on("/message:send", respond(answer)).on("/v1/message:send", respond(answer))

    with pytest.raises(InvalidAgentResponseError, match="neither a task nor a message"):
        await connect().send_message("hi")


async def test_an_incomplete_answer_is_a_connection_error(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"jsonrpc":')

    with pytest.raises(A2AConnectionError, match="broke"):
        await connect().send_message("hi")


async def test_an_answer_that_is_too_large_is_rejected(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result(task(metadata={"x": "y" * 5000})))

    with pytest.raises(InvalidAgentResponseError, match=r"larger than 4,096 bytes\. To accept it, raise max_response"):
        await connect(max_response=4096).get_task("t-1")


async def test_discovering_an_agent_gives_its_card(server: ScriptedServer, connect: Connect) -> None:
    client = connect()

    assert await client.discover() is await client.agent_card
    assert len(server.asked(CARD)) == 1
