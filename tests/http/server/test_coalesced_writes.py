"""The head of an answer goes with its body, and waits for it no longer than a turn of the loop."""

import asyncio
from typing import Any, cast

import pytest

from apcore_a2a.http.server.connection import LARGE, CoalescingTransport

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Recorded:
    """A transport that only writes down what is done with it."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.done


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def transport(recorded: Recorded) -> CoalescingTransport:
    return CoalescingTransport(cast(Any, recorded))


async def test_head_and_body_are_one_write(recorded: Recorded, transport: CoalescingTransport) -> None:
    for body in (b"first", b"second"):
        transport.write(HEAD)
        transport.write(body)
    await asyncio.sleep(0)
    assert recorded.done == [HEAD + b"first", HEAD + b"second"]


async def test_a_large_body_is_not_copied(recorded: Recorded, transport: CoalescingTransport) -> None:
    body = b"x" * (LARGE + 1)
    transport.write(HEAD)
    transport.write(body)
    assert recorded.done == [HEAD, body]
    assert recorded.done[1] is body


async def test_a_head_without_a_body_waits_one_turn(recorded: Recorded, transport: CoalescingTransport) -> None:
    transport.write(HEAD)
    assert recorded.done == []
    await asyncio.sleep(0)
    transport.write(b"much later")
    transport.write(b"later still")
    assert recorded.done == [HEAD, b"much later", b"later still"]


async def test_what_waits_is_written_before_the_connection_closes(
    recorded: Recorded, transport: CoalescingTransport
) -> None:
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert recorded.done == [HEAD, "closed"]
    assert transport.is_closing()
