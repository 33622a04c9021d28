"""Whatever an agent answers, a call ends with a value or an A2AError: no other exception escapes.

The answers are valid ones with random values in some places, from a fixed seed.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest

from apcore_a2a.client import A2AClient, Retry
from apcore_a2a.client.transport import HttpRequest, HttpResponse, HttpStream
from apcore_a2a.errors import A2AError
from tests.client.scripted import artifact, card, status, task

URL = "http://agent.test"
ROUNDS = 1_500
PUSH = {"taskId": "t-1", "id": "p-1", "url": "https://example.com/hook"}
ERROR = {"code": -32001, "message": "no", "data": [{"reason": "TASK_NOT_FOUND", "metadata": {"taskId": "t-1"}}]}
ANSWERS: tuple[Any, ...] = (
    task(),
    {"task": task(history=[{"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}])},
    {"message": {"messageId": "m-2", "role": "ROLE_AGENT", "parts": [{"data": {"n": 1}}]}},
    {"tasks": [task()], "nextPageToken": "more", "pageSize": 1, "totalSize": 2},
    {"configs": [PUSH]},
    PUSH,
    status("COMPLETED"),
    artifact("x"),
    {"kind": "status-update", "taskId": "t-1", "contextId": "c-1", "final": True, "status": {"state": "completed"}},
    {"webhooks": [PUSH | {"state": "failed"}]},
    {"error": ERROR},
    card(URL),
)
JUNK: tuple[Any, ...] = (None, True, 0, -1, 2**70, 1.5, "", "x", [], [None], {}, {"id": []}, "\u202e\x1b[31m", [[{}]])
NO_JSON = (b"", b"<html>", b"\xff", b"[" * 6_000, b'{"a": NaN}')
STATUSES = [200] * 20 + [204, 302, 401, 404, 429, 500]
LINKS = ("", "<http://[>; rel=next", "<?cursor=x>; rel=next")


def spoil(value: Any, chance: Random) -> Any:
    """Return the value with random replacements in some of its places."""
    if chance.random() < 0.05:
        return chance.choice(JUNK)
    if isinstance(value, dict):
        return {name: spoil(member, chance) for name, member in value.items() if chance.random() > 0.02}
    if isinstance(value, list):
        return [spoil(item, chance) for item in value]
    return value


class Stranger:
    """A transport to an agent that answers with arbitrary data."""

    def __init__(self, chance: Random, offer: dict[str, str]) -> None:
        self._chance = chance
        self._offer = offer

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        if "well-known" in request.url:
            return HttpResponse(200, {}, json.dumps(card(URL, supportedInterfaces=[self._offer])).encode())
        return HttpResponse(self._chance.choice(STATUSES), self._headers(), self._answer(request))

    @asynccontextmanager
    async def stream(self, request: HttpRequest, idle: float) -> AsyncIterator[HttpStream]:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(self._chance.randrange(4)):
                yield b"id: 1\ndata: " + self._answer(request) + b"\n\n"

        yield HttpStream(self._chance.choice(STATUSES), self._headers(), chunks())

    async def close(self) -> None:
        pass

    def _headers(self) -> dict[str, str]:
        return {
            "content-type": self._chance.choice(["application/json", "text/event-stream"]),
            "link": self._chance.choice(LINKS),
            "retry-after": self._chance.choice(["0", "soon", "٣"]),
        }

    def _answer(self, request: HttpRequest) -> bytes:
        if self._chance.random() < 0.05:
            return self._chance.choice(NO_JSON)
        answer = self._chance.choice(ANSWERS)
        if self._offer["protocolBinding"] == "JSONRPC" and request.body:
            if "error" not in answer:
                answer = {"result": answer}
            answer = answer | {"jsonrpc": "2.0", "id": json.loads(request.body).get("id")}
        return json.dumps(spoil(answer, self._chance)).encode()


async def read(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


CALLS: tuple[Callable[[A2AClient], Awaitable[object]], ...] = (
    lambda client: client.send_message("hi"),
    lambda client: client.get_task("t-1"),
    lambda client: client.list_tasks(),
    lambda client: client.extended_card(),
    lambda client: client.set_push_config("t-1", "https://example.com/hook"),
    lambda client: client.list_push_configs("t-1"),
    lambda client: client.webhooks("t-1"),
    lambda client: read(client.stream_message("hi")),
)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_call_ends_with_a_value_or_an_a2a_error(binding: str, version: str) -> None:
    chance = Random(binding + version)
    offer = {"url": f"{URL}/", "protocolBinding": binding, "protocolVersion": version}
    quick = Retry(attempts=2, reconnects=2, base=0.0, patience=0.0)
    for _ in range(ROUNDS):
        client = A2AClient(URL, http=Stranger(chance, offer), retry=quick, poll_interval=0.0, timeout=5.0)
        with suppress(A2AError):
            await chance.choice(CALLS)(client)
