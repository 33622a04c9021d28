"""Conversations through a socket: the history has both sides, and a function that asks continues with the answers."""

from collections.abc import AsyncIterator
from pathlib import Path

from apcore_a2a import A2AClient, Call
from apcore_a2a.protocol.model import Task
from tests.interaction.serving import serving
from tests.requirements import requirement


async def chat(text: str, call: Call) -> AsyncIterator[str]:
    """Streams the conversation so far, word by word."""
    for said in call.history:
        yield f"[{said.role.name.lower()}: "
        yield f"{said.text}] "
    yield text.upper()


async def say(client: A2AClient, text: str) -> str:
    """Stream one turn, and return the answer."""
    pieces = ""
    async for event in client.stream_message(text, context_id="talk"):
        if getattr(event, "artifact", None) is not None:
            pieces += event.text
    return pieces


@requirement("FR-CTX-002")
async def test_the_history_contains_streamed_answers_of_the_agent() -> None:
    async with serving(chat, card=None) as url, A2AClient(url) as client:
        assert await say(client, "one") == "ONE"
        assert await say(client, "two") == "[user: one] [agent: ONE] TWO"
        assert await say(client, "three") == (
            "[user: one] [agent: ONE] [user: two] [agent: [user: one] [agent: ONE] TWO] THREE"
        )


@requirement("FR-CTX-004")
async def test_a_conversation_continues_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with serving(chat, card=None, store=store) as url, A2AClient(url) as client:
        await say(client, "one")
        await say(client, "two")
    async with serving(chat, card=None, store=store) as url, A2AClient(url) as client:
        assert await say(client, "three") == (
            "[user: one] [agent: ONE] [user: two] [agent: [user: one] [agent: ONE] TWO] THREE"
        )


async def test_another_context_and_a_message_without_context_have_no_history() -> None:
    async with serving(chat, card=None) as url, A2AClient(url) as client:
        await say(client, "one")
        assert (await client.send_message("two")).text == "TWO"
        assert (await client.send_message("two", context_id="elsewhere")).text == "TWO"


async def book(seats: int, call: Call) -> str:
    """Books seats, and asks twice."""
    city = call.ask("Which city?").text
    day = call.ask("Which day?").text
    return f"{seats} seats in {city} on {day}"


async def test_a_function_that_asks_continues_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with serving([book, chat], card=None, store=store) as url, A2AClient(url) as client:
        asked = await client.send_message({"seats": 2}, skill="book")
        assert isinstance(asked, Task)
    for answer, expected in [("Rome", "Which day?"), ("Monday", "2 seats in Rome on Monday")]:
        async with serving([book, chat], card=None, store=store) as url, A2AClient(url) as client:
            assert (await client.send_message(answer, task_id=asked.id)).text == expected
