"""The agents that the peers call, each at a path of one server: one for each behaviour of the table."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from apcore_a2a import AgentError, Call, Part


async def whole(text: str) -> str:
    """Answers in one piece."""
    return "hello world"


async def streamed(text: str) -> AsyncIterator[str]:
    """Answers in pieces, one event each."""
    for piece in ("hel", "lo ", "world"):
        yield piece
        await asyncio.sleep(0)  # what is yielded without waiting is stored together, and still sent as it was yielded


async def question(text: str, call: Call) -> str:
    """Asks for a city."""
    city = call.ask("Which city?").text
    return f"2 seats in {city}"


async def data(text: str) -> dict[str, object]:
    """Answers with data."""
    return {"city": "Rome", "seats": 2}


async def file(text: str) -> Part:
    """Answers with a file."""
    return Part(raw=b"hello file", filename="hello.txt", media_type="text/plain")


async def failing(text: str) -> str:
    """Fails."""
    raise AgentError("No such city")


async def endless(text: str) -> AsyncIterator[str]:
    """Begins, and runs until it is canceled."""
    yield "begun"
    await asyncio.Event().wait()


AGENTS: Final[dict[str, Any]] = {
    f"/{agent.__name__}": agent for agent in (whole, streamed, question, data, file, failing, endless)
}
