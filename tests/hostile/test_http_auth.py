"""Tokens with a valid signature and invalid claims, and authenticators that fail: requests are rejected in JSON."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import sys
import time
from typing import Any

import httpx
import pytest

from apcore_a2a import JWTAuthenticator
from apcore_a2a.agent import Caller
from apcore_a2a.app.serve import build
from apcore_a2a.auth import authenticator
from tests.auth.tokens import SECRET
from tests.fakes import COMPLETED, PATIENCE, ScriptedAgent
from tests.interaction.serving import CARD
from tests.requirements import requirement

MESSAGE = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": MESSAGE}
ENDPOINTS = pytest.mark.parametrize("path", ["/", "/message:send"])


def sign(claims: str) -> str:
    """Return a token with this text as claims, even if a library would reject it."""

    def encode(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    body = encode(b'{"alg":"HS256","typ":"JWT"}') + b"." + encode(claims.encode())
    return (body + b"." + encode(hmac.new(SECRET.encode(), body, hashlib.sha256).digest())).decode()


def client(auth: Any) -> httpx.AsyncClient:
    app = build(ScriptedAgent({"hi": (COMPLETED,)}), {"card": CARD, "auth": auth})
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://agent.example", headers={"A2A-Version": "1.0"})


async def send(http: httpx.AsyncClient, path: str, token: str = "") -> httpx.Response:
    return await http.post(path, json=CALL if path == "/" else MESSAGE, headers={"Authorization": f"Bearer {token}"})


EXPIRES = int(time.time()) + 3600
DEEP = "[" * 5_000 + "]" * 5_000
ODD = {
    "deep": f'{{"sub":"ada","exp":{EXPIRES},"x":{DEEP}}}',
    "deep sub": f'{{"sub":{DEEP},"exp":{EXPIRES}}}',
    "half a character": f'{{"sub":"\\ud800","exp":{EXPIRES}}}',
    "a tenant and a name in one": f'{{"sub":"x\\n|ada","exp":{EXPIRES}}}',
    "half a character in a role": f'{{"sub":"ada","roles":["\\ud800"],"exp":{EXPIRES}}}',
    "half a character in a name": f'{{"sub":"ada","\\ud800":1,"exp":{EXPIRES}}}',
    "a number without end": f'{{"sub":"ada","exp":{EXPIRES},"x":{"9" * 5_000}}}',
    "a list": "[]",
    "nothing": "",
}


@requirement("FR-AUT-001")
@ENDPOINTS
@pytest.mark.parametrize("claims", ODD.values(), ids=ODD)
async def test_a_token_with_invalid_claims_is_rejected_like_any_other(path: str, claims: str) -> None:
    async with client(JWTAuthenticator(SECRET)) as http:
        answer = await send(http, path, sign(claims))
        assert answer.status_code == 401
        said = answer.json()["error"]
        details = said.get("details") or said["data"]
        assert (said["message"], details[0]["reason"]) == ("Authentication required", "UNAUTHENTICATED")
        good = await send(http, path, sign(f'{{"sub":"ada","exp":{EXPIRES}}}'))
        assert good.status_code == 200
        assert "error" not in good.json()


class Raises:
    def authenticate(self, headers: dict[str, str]) -> Any:
        raise RuntimeError("the directory is at ldap://secret.example")


class Exits:
    async def authenticate(self, headers: dict[str, str]) -> Any:
        sys.exit(0)


class ReturnsASurrogate:
    def authenticate(self, headers: dict[str, str]) -> Any:
        return Caller(id="\ud800", type="user")


class ReturnsNoCaller:
    def authenticate(self, headers: dict[str, str]) -> Any:
        return object()


class Hangs:
    async def authenticate(self, headers: dict[str, str]) -> Any:
        await asyncio.Event().wait()


@requirement("FR-AUT-004")
@ENDPOINTS
@pytest.mark.parametrize("auth", [Raises(), Exits(), ReturnsASurrogate(), ReturnsNoCaller(), Hangs()])
async def test_a_failing_authenticator_rejects_every_request(
    path: str, auth: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "MAX_SECONDS", 0.01)
    async with asyncio.timeout(PATIENCE), client(auth) as http:
        with caplog.at_level(logging.ERROR):
            answer = await send(http, path)
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["retry-after"]) > 0
    body = answer.json()
    assert body["error"]["code"] == (-32603 if path == "/" else 503)
    assert body["error"]["message"] == "Authentication is not available; try again later"
    assert "secret" not in json.dumps(body)
    assert "the authenticator failed" in caplog.text


class ExitsInAdmit(ScriptedAgent):
    async def admit(self, call: Any) -> Any:
        sys.exit(0)


@ENDPOINTS
async def test_an_agent_that_exits_in_admit_is_a_json_error(path: str) -> None:
    app = build(ExitsInAdmit(), {"card": CARD})
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://agent.example", headers={"A2A-Version": "1.0"}
    ) as http:
        answer = await send(http, path)
        assert answer.json()["error"]["message"].startswith("Internal error")
