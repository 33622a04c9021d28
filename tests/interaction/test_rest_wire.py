"""REST on the wire: paths, methods, statuses, media types."""

import asyncio
import json
from asyncio.subprocess import PIPE
from typing import Any

import httpx
import pytest

from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk
from tests.interaction.conftest import Serve
from tests.interaction.peers.sdk03 import PYTHON as SDK03

MESSAGE = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
OLD_MESSAGE = {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]}}
V1 = {"A2A-Version": "1.0"}


@pytest.fixture
async def rest(serve: Serve, http: httpx.AsyncClient) -> httpx.AsyncClient:
    http.base_url = httpx.URL(await serve(ScriptedAgent({"hi": (chunk("done"), COMPLETED), "ask": (ASKS,)})))
    http.headers.update(V1)
    return http


async def sent(rest: httpx.AsyncClient, text: str = "hi", prefix: str = "") -> str:
    message = MESSAGE["message"] | {"parts": [{"text": text}]}
    task: dict[str, Any] = (await rest.post(f"{prefix}/message:send", json={"message": message})).json()["task"]
    return str(task["id"])


def reason(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["details"][0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert error["details"][0]["domain"] == "a2a-protocol.org"
    return str(error["details"][0]["reason"])


# ---- paths and methods -------------------------------------------------------------------------------------------


async def test_every_route_is_also_under_a_tenant_and_tenants_do_not_see_each_other(rest: httpx.AsyncClient) -> None:
    task_id = await sent(rest, "ask", "/acme")
    assert (await rest.get(f"/acme/tasks/{task_id}")).json()["id"] == task_id
    assert len((await rest.get("/acme/tasks")).json()["tasks"]) == 1
    for stranger in ("", "/other"):
        assert (await rest.get(f"{stranger}/tasks/{task_id}")).status_code == 404
        assert (await rest.post(f"{stranger}/tasks/{task_id}:cancel")).status_code == 404
        assert (await rest.get(f"{stranger}/tasks")).json()["tasks"] == []
    assert (await rest.post(f"/acme/tasks/{task_id}:cancel")).json()["status"]["state"] == "TASK_STATE_CANCELED"


async def test_the_tenant_of_the_path_overrides_that_of_the_body(rest: httpx.AsyncClient) -> None:
    task = (await rest.post("/acme/message:send", json=MESSAGE | {"tenant": "other"})).json()["task"]
    assert (await rest.get(f"/acme/tasks/{task['id']}")).status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_subscribe_is_a_get_and_a_post(serve: Serve, http: httpx.AsyncClient, method: str) -> None:
    gate = Gate()
    http.base_url = httpx.URL(await serve(ScriptedAgent({"hi": (gate, COMPLETED)})))
    configuration = {"configuration": {"returnImmediately": True}}
    task = (await http.post("/message:send", json=MESSAGE | configuration, headers=V1)).json()["task"]
    await gate.reached()
    async with http.stream(method, f"/tasks/{task['id']}:subscribe", headers=V1) as response:
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith("id: ")
        assert (await anext(lines)).startswith('data: {"task":')
        gate.open()
        last = [line async for line in lines if line.startswith("data: ")][-1]
    assert json.loads(last[6:])["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"metadata": {"why": "enough"}}'])
async def test_the_body_of_a_cancel_is_optional(rest: httpx.AsyncClient, body: bytes) -> None:
    headers = {"Content-Type": "application/json"} if body else {}
    response = await rest.post(f"/tasks/{await sent(rest, 'ask')}:cancel", content=body, headers=headers)
    assert response.json()["status"]["state"] == "TASK_STATE_CANCELED"


@pytest.mark.parametrize(("body", "why"), [(b"{", "PARSE_ERROR"), (b"[]", "INVALID_PARAMS")])
async def test_an_invalid_body_cancels_nothing(rest: httpx.AsyncClient, body: bytes, why: str) -> None:
    task_id = await sent(rest, "ask")
    response = await rest.post(f"/tasks/{task_id}:cancel", content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, reason(response)) == (400, why)
    assert (await rest.get(f"/tasks/{task_id}")).json()["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/", "POST"),
        ("GET", "/message:send", "POST"),
        ("PUT", "/message:stream", "POST"),
        ("POST", "/tasks", "GET"),
        ("DELETE", "/tasks/t", "GET"),
        ("PUT", "/tasks/t:subscribe", "GET, POST"),
        ("PATCH", "/tasks/t/pushNotificationConfigs/c", "DELETE, GET"),
    ],
)
async def test_a_405_response_lists_the_allowed_methods(
    rest: httpx.AsyncClient, method: str, path: str, allow: str
) -> None:
    response = await rest.request(method, path)
    assert (response.status_code, response.headers["allow"], reason(response)) == (405, allow, "METHOD_NOT_FOUND")


@pytest.mark.parametrize("path", ["/nothing", "/tasks/", "/message:fly", "/a/b/tasks", "/tasks/t/u", "/%00", "/..%2f"])
@pytest.mark.parametrize("headers", [{}, V1], ids=["0.3", "1.0"])
async def test_an_unknown_path_is_not_found(rest: httpx.AsyncClient, path: str, headers: dict[str, str]) -> None:
    rest.headers.pop("A2A-Version")
    assert (await rest.get(path, headers=headers)).status_code == 404


async def test_ids_in_paths_are_decoded_once(rest: httpx.AsyncClient) -> None:
    response = await rest.get("/tasks/a%2525b")
    assert response.json()["error"]["message"] == "Task not found: a%25b"


@pytest.mark.parametrize(("prefix", "version"), [("", "1.0"), ("/v1", "0.3")])
@pytest.mark.parametrize("body", [b"null", b" null\n", b"{}", b""])
async def test_a_null_body_counts_as_no_body(rest: httpx.AsyncClient, prefix: str, version: str, body: bytes) -> None:
    rest.headers["A2A-Version"] = version
    headers = {"Content-Type": "application/json"}
    response = await rest.post(f"{prefix}/tasks/unknown:cancel", content=body, headers=headers)
    assert (response.status_code, reason(response)) == (404, "TASK_NOT_FOUND")
    subscribed = await rest.post(f"{prefix}/tasks/unknown:subscribe", content=body, headers=headers)
    assert (subscribed.status_code, reason(subscribed)) == (404, "TASK_NOT_FOUND")


async def test_a_null_message_lacks_all_required_fields(rest: httpx.AsyncClient) -> None:
    response = await rest.post("/message:send", content=b"null", headers={"Content-Type": "application/json"})
    assert response.json()["error"]["message"] == "Missing required parameter: message"


# ---- versions ----------------------------------------------------------------------------------------------------


async def test_0_3_paths_begin_with_v1_and_need_no_header(rest: httpx.AsyncClient) -> None:
    rest.headers.pop("A2A-Version")
    answer = (await rest.post("/v1/message:send", json=OLD_MESSAGE)).json()
    assert answer["task"]["history"][0]["content"] == [{"text": "hi"}]
    listed = (await rest.get("/v1/tasks")).json()
    assert [task["id"] for task in listed] == [answer["task"]["id"]]


async def test_a_0_3_list_is_an_array_with_a_link_to_the_next_page(rest: httpx.AsyncClient) -> None:
    rest.headers.pop("A2A-Version")
    sent = [(await rest.post("/v1/message:send", json=OLD_MESSAGE)).json()["task"] for _ in range(3)]

    first = await rest.get("/v1/tasks", params={"limit": 2, "status": "TASK_STATE_COMPLETED"})
    second = await rest.get(first.url.join(first.links["next"]["url"]))

    assert first.json() + second.json() == sent[::-1]  # the newest first
    assert "link" not in second.headers


async def test_the_official_sdk_reads_each_task_of_a_0_3_list(rest: httpx.AsyncClient) -> None:
    rest.headers.pop("A2A-Version")
    task = (await rest.post("/v1/message:send", json=OLD_MESSAGE)).json()["task"]

    listed = await rest.get("/v1/tasks")

    # Its client has no method for lists. It reads each task like this, and rejects unknown fields.
    script = """if True:
        import json, sys
        from a2a.grpc import a2a_pb2
        from google.protobuf.json_format import ParseDict
        print(*(ParseDict(task, a2a_pb2.Task()).id for task in json.load(sys.stdin)))
    """
    reading = await asyncio.create_subprocess_exec(SDK03, "-c", script, stdin=PIPE, stdout=PIPE)
    ids, _ = await reading.communicate(listed.content)
    assert ids.decode().split() == [task["id"]]


async def test_the_error_for_a_1_0_path_without_the_header_names_the_header(rest: httpx.AsyncClient) -> None:
    rest.headers.pop("A2A-Version")
    response = await rest.post("/message:send", json=MESSAGE)
    assert response.status_code == 400
    text = "This path belongs to A2A 1.0: send A2A-Version: 1.0. Without it, a request is A2A 0.3, which is under /v1"
    assert response.json()["message"] == text
    assert (await rest.post("/message:send?A2A-Version=1.0", json=MESSAGE)).status_code == 200


@pytest.mark.parametrize("version", ["0.3", "0.3.0"])
async def test_the_error_for_0_3_on_a_1_0_path_does_not_suggest_0_3(rest: httpx.AsyncClient, version: str) -> None:
    response = await rest.post("/message:send", json=MESSAGE, headers={"A2A-Version": version})
    info = response.json()["error"]["details"][0]["metadata"]
    assert (response.status_code, reason(response)) == (400, "VERSION_NOT_SUPPORTED")
    assert (info["requestedVersion"], info["supportedVersions"]) == ("0.3", "1.0")
    assert response.json()["data"]["supportedVersions"] == "1.0"


@pytest.mark.parametrize(("path", "version"), [("//message:send", "1.0"), ("//v1/message:send", "0.3")])
async def test_a_path_with_a_double_slash_is_found(rest: httpx.AsyncClient, path: str, version: str) -> None:
    sent = MESSAGE if version == "1.0" else OLD_MESSAGE
    response = await rest.post(f"{rest.base_url}{path}", json=sent, headers={"A2A-Version": version})
    assert (response.status_code, response.request.url.path) == (200, path)


async def test_an_unsupported_version_is_rejected(rest: httpx.AsyncClient) -> None:
    response = await rest.get("/tasks", headers={"A2A-Version": "99.0"})
    assert (response.status_code, reason(response)) == (400, "VERSION_NOT_SUPPORTED")


# ---- queries -----------------------------------------------------------------------------------------------------


async def test_query_parameters_may_be_camel_case_or_snake_case(rest: httpx.AsyncClient) -> None:
    task_id = await sent(rest)
    for name in ("historyLength", "history_length"):
        assert "history" not in (await rest.get(f"/tasks/{task_id}", params={name: 0})).json()
    for name in ("includeArtifacts", "include_artifacts"):
        assert (await rest.get("/tasks", params={name: "true"})).json()["tasks"][0]["artifacts"]
    assert "artifacts" not in (await rest.get("/tasks")).json()["tasks"][0]


async def test_an_empty_page_has_all_fields_that_1_0_requires(rest: httpx.AsyncClient) -> None:
    assert (await rest.get("/tasks")).json() == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}


@pytest.mark.parametrize(
    "query",
    [
        "pageSize=0",
        "pageSize=101",
        "pageSize=x",
        "historyLength=-1",
        "status=WORKING",
        "statusTimestampAfter=noon",
        "statusTimestampAfter=0001-01-01T00:00:00%2B14:00",
    ],
)
async def test_the_error_for_an_invalid_query_names_the_parameter(rest: httpx.AsyncClient, query: str) -> None:
    response = await rest.get(f"/tasks?{query}")
    assert (response.status_code, reason(response)) == (400, "INVALID_PARAMS")
    assert response.json()["error"]["details"][1]["fieldViolations"][0]["field"] == query.partition("=")[0]


async def test_a_foreign_page_token_is_rejected(rest: httpx.AsyncClient) -> None:
    response = await rest.get("/tasks?pageToken=made-up")
    assert (response.status_code, reason(response)) == (400, "INVALID_PARAMS")


# ---- media types and statuses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "answered"),
    [
        ("application/json", "application/json"),
        ("application/a2a+json", "application/a2a+json"),
        ("Application/A2A+JSON; charset=utf-8", "application/a2a+json"),
    ],
)
async def test_a_response_has_the_media_type_of_its_request(rest: httpx.AsyncClient, given: str, answered: str) -> None:
    body = json.dumps(MESSAGE).encode()
    response = await rest.post("/message:send", content=body, headers={"Content-Type": given})
    assert (response.status_code, response.headers["content-type"]) == (200, answered)
    response = await rest.post("/message:send", content=b"{}", headers={"Content-Type": given})
    assert (response.status_code, response.headers["content-type"]) == (400, answered)


async def test_without_a_body_the_accept_header_determines_the_media_type(rest: httpx.AsyncClient) -> None:
    assert (await rest.get("/tasks")).headers["content-type"] == "application/json"
    accept = {"Accept": "application/a2a+json, text/event-stream"}
    assert (await rest.get("/tasks", headers=accept)).headers["content-type"] == "application/a2a+json"


@pytest.mark.parametrize(("old", "statuses"), [(False, (404, 400, 400, 400)), (True, (404, 409, 400, 400))])
async def test_statuses_are_those_of_1_0_1_or_of_1_0_0(
    serve: Serve, http: httpx.AsyncClient, old: bool, statuses: tuple[int, ...]
) -> None:
    http.base_url = httpx.URL(await serve(ScriptedAgent(), old_statuses=old))
    http.headers.update(V1)
    task_id = await sent(http)
    responses = [
        await http.get("/tasks/unknown"),
        await http.post(f"/tasks/{task_id}:cancel"),
        await http.post(f"/tasks/{task_id}:subscribe"),
        await http.post(f"/tasks/{task_id}/pushNotificationConfigs", json={"url": "https://example.com/hook"}),
    ]
    assert tuple(response.status_code for response in responses) == statuses
    reasons = ["TASK_NOT_FOUND", "TASK_NOT_CANCELABLE", "UNSUPPORTED_OPERATION", "PUSH_NOTIFICATION_NOT_SUPPORTED"]
    assert [reason(response) for response in responses] == reasons
