"""The webhook receiver: recorded requests, configured answers, and timeouts."""

import asyncio
from typing import Any

import httpx
import pytest

from apcore_a2a.protocol.model import StatusUpdate, TaskState
from apcore_a2a.protocol.v1 import encode_event
from apcore_a2a.testing import WebhookReceiver, status


async def test_a_delivery_is_recorded_completely() -> None:
    event = status("COMPLETED", "done")
    async with WebhookReceiver() as hook, httpx.AsyncClient() as http:
        answer = await http.post(hook.url, content=encode_event(event), headers={"X-Token": "s"})
        delivery = await hook.next()

    assert answer.status_code == 200
    assert (delivery.method, delivery.path, delivery.headers["x-token"]) == ("POST", "/hook", "s")
    assert isinstance(delivery.event, StatusUpdate)
    assert delivery.event.status.state is TaskState.COMPLETED
    assert hook.received == [delivery]


async def test_the_receiver_answers_with_its_statuses_in_order() -> None:
    async with WebhookReceiver([503, 429, 200]) as hook, httpx.AsyncClient() as http:
        answers = [(await http.post(hook.url, json={"n": n})).status_code for n in range(4)]
        got = [(await hook.next()).json for _ in range(4)]

    assert answers == [503, 429, 200, 200]
    assert got == [{"n": n} for n in range(4)]


async def test_waiting_for_a_delivery_times_out() -> None:
    async with WebhookReceiver() as hook:
        with pytest.raises(TimeoutError):
            await hook.next(timeout=0.01)


async def test_an_invalid_request_is_not_a_delivery() -> None:
    async with WebhookReceiver() as hook:
        for noise in (b"\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(hook.url.split(":")[2].split("/")[0]))
            writer.write(noise)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        assert hook.received == []


async def test_the_plugin_offers_the_receiver(a2a_webhook: Any) -> None:
    async with a2a_webhook() as hook, httpx.AsyncClient() as http:
        await http.post(hook.url, json={})
        assert (await hook.next()).json == {}
