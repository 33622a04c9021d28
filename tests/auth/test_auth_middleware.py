"""The door: one set of credentials, an answer that says nothing. What stands beside it: test_open_routes.py."""

import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from apcore_a2a.agent import Caller
from apcore_a2a.app.access import AuthMiddleware
from apcore_a2a.errors import UnauthenticatedError
from apcore_a2a.protocol import jsonrpc, v1
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.requirements import requirement


class Accepts:
    def authenticate(self, headers: dict[str, str]) -> Caller | None:
        if headers.get("authorization") != "Bearer good":
            return None
        return Caller(id="ada", type="user")


class Room:
    """The application behind the door: remembers who came in."""

    def __init__(self) -> None:
        self.visitors: list[Caller | None] = []

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        self.visitors.append(scope.get("a2a.caller"))
        await send({"type": "http.response.start", "status": 200, "headers": []})


async def knock(
    path: str, *credentials: str, method: str = "GET", version: str = "", query: str = ""
) -> tuple[Room, MutableMapping[str, Any], bytes]:
    room = Room()
    sent: list[MutableMapping[str, Any]] = []
    headers = [(b"authorization", value.encode()) for value in credentials]
    if version:
        headers.append((b"a2a-version", version.encode()))
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": query.encode()}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("the door reads no body")

    await AuthMiddleware(room, Accepts())(scope, receive, send)
    return room, sent[0], b"".join(message.get("body", b"") for message in sent)


@requirement("FR-AUT-001", "FR-EXE-003")
async def test_an_authenticated_caller_is_passed_to_the_application() -> None:
    room, _, _ = await knock("/", "Bearer good", method="POST")
    assert room.visitors == [Caller(id="ada", type="user")]


@requirement("FR-AUT-001")
async def test_a_request_without_credentials_is_asked_for_a_token() -> None:
    room, start, body = await knock("/", method="POST")
    assert not room.visitors
    assert start["status"] == 401
    assert (b"www-authenticate", b"Bearer") in start["headers"]
    said = json.loads(body)
    assert (said["jsonrpc"], said["id"]) == ("2.0", None)
    data = {"type": "UnauthenticatedError"}
    assert said["error"] == {"code": -32603, "message": "Authentication required", "data": data}


@requirement("FR-AUT-001")
@pytest.mark.parametrize(
    ("method", "path", "version"),
    [
        ("POST", "/", ""),
        ("POST", "/", "0.3"),
        ("POST", "/", "1.0"),
        ("POST", "/", "99.0"),
        ("POST", "/v1/message:send", ""),
        ("POST", "/message:send", "1.0"),
        ("GET", "/tasks", "1.0"),
    ],
)
async def test_a_401_has_the_body_of_every_other_error(method: str, path: str, version: str) -> None:
    error = UnauthenticatedError()
    _, start, body = await knock(path, method=method, version=version)
    dialect = v03 if version in ("", "0.3") else v1
    if path == "/":
        expected = jsonrpc.format_error(jsonrpc.NULL, dialect.encode_error(error, typed=bool(version)))
    else:
        expected = dialect.encode_rest_error(error, 401)
    assert (start["status"], body) == (401, expected)


@requirement("FR-AUT-001")
async def test_a_401_speaks_the_version_that_the_query_names() -> None:
    _, _, body = await knock("/tasks", query="A2A-Version=1.0")
    assert body == v1.encode_rest_error(UnauthenticatedError(), 401)


@requirement("FR-AUT-001")
async def test_a_wrong_token_is_called_invalid_and_not_repeated() -> None:
    room, start, body = await knock("/", "Bearer bad-and-secret", method="POST")
    assert not room.visitors
    assert (b"www-authenticate", b'Bearer error="invalid_token"') in start["headers"]
    assert b"secret" not in body


async def test_two_sets_of_credentials_are_one_too_many() -> None:
    room, start, _ = await knock("/", "Bearer bad", "Bearer good", method="POST")
    assert not room.visitors
    assert start["status"] == 401
