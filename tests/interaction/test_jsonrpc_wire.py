"""JSON-RPC on the wire: what a client library hides."""

import json
from typing import Any

import httpx
import pytest

from tests.fakes import COMPLETED, Gate, ScriptedAgent, chunk
from tests.interaction.conftest import Serve
from tests.requirements import requirement

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
OLD_MESSAGE = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
V1 = {"A2A-Version": "1.0"}


def call(method: str, params: object, **more: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params} | more


@pytest.fixture
async def url(serve: Serve) -> str:
    return await serve(ScriptedAgent({"hi": (chunk("done"), COMPLETED)}))


# ---- the envelope ------------------------------------------------------------------------------------------------

WRONG_BODIES = [
    (b"{", -32700),
    (b"", -32700),
    (b"\xff", -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "t"}} more', -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": NaN}}', -32700),
    (b"[]", -32600),
    (json.dumps([call("tasks/get", {"id": "t"})]).encode(), -32600),
    (b"7", -32600),
    (b'{"id": 1, "method": "tasks/get"}', -32600),
    (b'{"jsonrpc": "1.0", "id": 1, "method": "tasks/get"}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', -32600),
    (b'{"jsonrpc": "2.0", "id": {}, "method": "tasks/get", "params": {"id": "t"}}', -32600),
    (b'{"jsonrpc": "2.0", "method": "tasks/get", "params": {"id": "t"}}', -32600),
    (b"[" * 65 + b"]" * 65, -32600),
    (json.dumps(call("tasks/make", {})).encode(), -32601),
    (json.dumps(call("tasks/get", {})).encode(), -32602),
    (json.dumps(call("tasks/get", [])).encode(), -32602),
    (json.dumps(call("tasks/get", {"id": "t", "historyLength": -1})).encode(), -32602),
    (b'{"jsonrpc": "2.0", "method": "tasks/get", "params": {}}', -32600),
]


@requirement("FR-SRV-004")
@pytest.mark.parametrize("headers", [{}, V1], ids=["0.3", "1.0"])
@pytest.mark.parametrize(("body", "code"), WRONG_BODIES, ids=[str(body[:60]) for body, _ in WRONG_BODIES])
async def test_invalid_requests_are_rejected_with_their_code(
    url: str, http: httpx.AsyncClient, body: bytes, code: int, headers: dict[str, str]
) -> None:
    if headers:
        body = body.replace(b"tasks/get", b"GetTask")
    response = await http.post(url, content=body, headers={"Content-Type": "application/json"} | headers)
    answer = response.json()
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert answer["error"]["code"] == code
    assert answer["jsonrpc"] == "2.0" and "result" not in answer and "id" in answer
    if headers:
        (info, *_) = answer["error"]["data"]
        assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
        assert info["domain"] == "a2a-protocol.org" and info["reason"].isupper()


@pytest.mark.parametrize("id", ["7", '"seven"', "null", "-1", "1.50", '"\\u00fc"'])
async def test_the_request_id_is_returned_unchanged(url: str, http: httpx.AsyncClient, id: str) -> None:
    body = f'{{"jsonrpc": "2.0", "id": {id}, "method": "tasks/get", "params": {{"id": "unknown"}}}}'
    response = await http.post(url, content=body.encode(), headers={"Content-Type": "application/json"})
    assert f'"id":{id},'.encode() in response.content


async def test_the_id_of_an_invalid_request_is_returned_if_it_is_readable(url: str, http: httpx.AsyncClient) -> None:
    answer = (await http.post(url, json={"jsonrpc": "2.0", "id": 9, "method": 7})).json()
    assert (answer["id"], answer["error"]["code"]) == (9, -32600)


# This tests only the rejection. FR-PSH covers what the operations do.
@pytest.mark.parametrize(
    "method",
    [
        "tasks/pushNotificationConfig/set",
        "tasks/pushNotificationConfig/get",
        "tasks/pushNotificationConfig/list",
        "tasks/pushNotificationConfig/delete",
    ],
)
async def test_webhook_operations_are_rejected_as_not_supported(url: str, http: httpx.AsyncClient, method: str) -> None:
    params = {"id": "t", "taskId": "t", "pushNotificationConfig": {"url": "https://example.com/hook"}}
    answer = (await http.post(url, json=call(method, params))).json()
    assert answer["error"]["code"] == -32003


# ---- versions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "query", "method", "code"),
    [
        ({}, "", "message/send", None),
        ({"A2A-Version": ""}, "", "message/send", None),
        ({"A2A-Version": "0.3"}, "", "message/send", None),
        ({"A2A-Version": "0.3.0"}, "", "message/send", None),
        ({"A2A-Version": "1.0"}, "", "SendMessage", None),
        ({"A2A-Version": "1.0.1"}, "", "SendMessage", None),
        ({"a2a-version": "1.0"}, "", "SendMessage", None),
        ({}, "?A2A-Version=1.0", "SendMessage", None),
        ({"A2A-Version": "1.0"}, "?A2A-Version=0.3", "SendMessage", None),
        ({}, "", "SendMessage", -32009),
        ({"A2A-Version": "0.3"}, "", "SendMessage", -32601),
        ({}, "?A2A-Version=0.3", "SendMessage", -32601),
        ({"A2A-Version": "1.0"}, "", "message/send", -32601),
        ({"A2A-Version": "99.0"}, "", "SendMessage", -32009),
        ({"A2A-Version": "1"}, "", "SendMessage", -32009),
        ({"A2A-Version": "one"}, "", "SendMessage", -32009),
    ],
)
async def test_the_version_is_taken_from_header_or_query(
    url: str, http: httpx.AsyncClient, headers: dict[str, str], query: str, method: str, code: int | None
) -> None:
    message = MESSAGE if method == "SendMessage" else OLD_MESSAGE
    answer = (await http.post(url + "/" + query, json=call(method, {"message": message}), headers=headers)).json()
    assert answer.get("error", {}).get("code") == code
    if code is None:
        assert ("task" in answer["result"]) is (method == "SendMessage")


async def test_the_error_for_a_method_of_another_version_names_that_version(url: str, http: httpx.AsyncClient) -> None:
    error = (await http.post(url, json=call("SendMessage", {"message": MESSAGE}))).json()["error"]
    assert error["message"] == "SendMessage needs the header A2A-Version: 1.0"
    assert error["data"]["supportedVersions"] == "1.0"  # not 0.3, the version that the request defaulted to


async def test_the_error_for_an_unsupported_version_lists_the_supported_ones(url: str, http: httpx.AsyncClient) -> None:
    headers = {"A2A-Version": "2.0"}
    error = (await http.post(url, json=call("SendMessage", {"message": MESSAGE}), headers=headers)).json()["error"]
    assert error["message"] == "A2A version 2.0 is not supported; supported versions: 1.0, 0.3"
    assert error["data"][0]["reason"] == "VERSION_NOT_SUPPORTED"
    assert error["data"][0]["metadata"]["supportedVersions"] == "1.0, 0.3"


@pytest.mark.parametrize("path", ["", "/"])
async def test_the_root_is_found_with_and_without_a_slash(url: str, http: httpx.AsyncClient, path: str) -> None:
    answer = (await http.post(url + path, json=call("message/send", {"message": OLD_MESSAGE}))).json()
    assert answer["result"]["kind"] == "task"


async def test_names_may_be_in_snake_case(url: str, http: httpx.AsyncClient) -> None:
    message = {"message_id": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}], "context_id": "talk"}
    params = {"message": message, "configuration": {"history_length": 0}}
    answer = (await http.post(url, json=call("SendMessage", params), headers=V1)).json()
    assert answer["result"]["task"]["contextId"] == "talk"
    assert "history" not in answer["result"]["task"]


# ---- streams -----------------------------------------------------------------------------------------------------


@requirement("FR-MSG-002")
async def test_a_stream_is_framed_as_server_sent_events_with_ids(url: str, http: httpx.AsyncClient) -> None:
    response = await http.post(url, json=call("message/stream", {"message": OLD_MESSAGE}, id="s"))
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-store"
    assert response.content.endswith(b"\n\n")
    frames = response.content.decode().removesuffix("\n\n").split("\n\n")
    lines = [frame.split("\n") for frame in frames]
    assert all(len(pair) == 2 and pair[0].startswith("id: ") and pair[1].startswith("data: ") for pair in lines)
    assert [int(pair[0].removeprefix("id: ")) for pair in lines] == [1, 2, 3, 4]
    events = [json.loads(pair[1].removeprefix("data: ")) for pair in lines]
    assert all(event["jsonrpc"] == "2.0" and event["id"] == "s" for event in events)
    kinds = [event["result"]["kind"] for event in events]
    assert kinds == ["task", "status-update", "artifact-update", "status-update"]
    assert [event["result"]["final"] for event in events if "final" in event["result"]] == [False, True]


async def test_1_0_events_have_neither_kind_nor_final(url: str, http: httpx.AsyncClient) -> None:
    response = await http.post(url, json=call("SendStreamingMessage", {"message": MESSAGE}), headers=V1)
    datas = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    assert [next(iter(data["result"])) for data in datas] == ["task", "statusUpdate", "artifactUpdate", "statusUpdate"]
    assert '"kind"' not in response.text and '"final"' not in response.text


async def test_an_idle_stream_sends_keep_alive_comments(serve: Serve, http: httpx.AsyncClient) -> None:
    gate = Gate()
    url = await serve(ScriptedAgent({"hi": (gate, COMPLETED)}), keep_alive_interval=0.01)
    body = call("SendStreamingMessage", {"message": MESSAGE})
    async with http.stream("POST", url, json=body, headers=V1) as response:
        text = ""
        async for piece in response.aiter_text():
            text += piece
            if ": keep-alive\n\n" in text:
                gate.open()
    assert text.index(": keep-alive\n\n") < text.index("COMPLETED")


async def test_an_error_of_a_stream_is_json_in_1_0_and_an_event_in_0_3(url: str, http: httpx.AsyncClient) -> None:
    accept = {"Accept": "text/event-stream"}
    new = await http.post(url, json=call("SubscribeToTask", {"id": "unknown"}), headers=V1 | accept)
    assert new.headers["content-type"] == "application/json" and new.json()["error"]["code"] == -32001
    old = await http.post(url, json=call("tasks/resubscribe", {"id": "unknown"}), headers=accept)
    assert old.headers["content-type"] == "text/event-stream"
    assert json.loads(old.text.removeprefix("data: "))["error"]["code"] == -32001
    plain = await http.post(url, json=call("tasks/resubscribe", {"id": "unknown"}))
    assert plain.json()["error"]["code"] == -32001
