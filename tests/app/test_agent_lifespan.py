"""Agents that describe themselves, and agents with a lifespan."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from apcore_a2a import (
    A2AClient,
    About,
    Admission,
    AgentEvent,
    AgentSkill,
    Call,
    JWTAuthenticator,
    async_serve,
)
from apcore_a2a.app import application
from apcore_a2a.errors import A2AError, AgentError
from apcore_a2a.protocol.model import StatusUpdate, Task, TaskState, TaskStatus
from tests.auth.tokens import SECRET, bearer

SKILL = AgentSkill(id="pay", name="Pay", description="Pays", tags=("money",))


class Toolbox:
    """An agent that knows its skills only when it is open."""

    may_reply = False

    def __init__(self) -> None:
        self.about = About(name="toolbox", description="Tools", version="3")
        self.tasks: list[asyncio.Task[Any] | None] = []
        self.seen: list[str] = []

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self.tasks.append(asyncio.current_task())
        self.about = About(name="toolbox", description="Tools", version="3", skills=(SKILL,))
        self.seen.append("open")
        yield
        self.tasks.append(asyncio.current_task())
        self.seen.append("closed")

    async def admit(self, call: Call) -> Admission:
        return Admission()

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        self.seen.append("run")
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


async def test_a_card_is_built_from_what_the_agent_says() -> None:
    app = await async_serve(Toolbox(), version="4")
    card = app.cards.card
    assert (card.name, card.description, card.version) == ("toolbox", "Tools", "4")
    assert [skill.id for skill in card.skills] == ["toolbox"]  # itself, before it knows better


async def test_the_card_is_built_again_when_the_agent_is_open() -> None:
    agent = Toolbox()
    app = await async_serve(agent, on_startup=[lambda: agent.seen.append("hook")])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        async with A2AClient("http://agent", http=http) as client:  # the first request opens the application
            assert [skill.id for skill in (await client.agent_card).skills] == ["pay"]
            task = await client.send_message("go")
            assert isinstance(task, Task)
    await app.close()
    assert agent.seen == ["hook", "open", "run", "closed"]
    assert agent.tasks[0] is agent.tasks[1] is not asyncio.current_task()  # as anyio requires


async def test_scopes_apply_to_the_skills_of_the_open_agent() -> None:
    app = await async_serve(Toolbox(), auth=JWTAuthenticator(SECRET), skill_scopes={"pay": ["money"]})
    transport = httpx.ASGITransport(app)
    without = httpx.AsyncClient(transport=transport, headers=bearer())
    rich = httpx.AsyncClient(transport=transport, headers=bearer(scope="money"))
    async with (
        without,
        rich,
        A2AClient("http://agent", http=without) as anyone,
        A2AClient("http://agent", http=rich) as payer,
    ):
        with pytest.raises(A2AError):
            await anyone.send_message("go")
        assert isinstance(await payer.send_message("go"), Task)
    await app.close()


async def test_an_agent_that_does_not_open_is_reported() -> None:
    class Broken(Toolbox):
        @asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:
            if self.seen == []:
                raise AgentError("The tools are missing; install them")
            yield

    app = await async_serve(Broken())
    with pytest.raises(AgentError, match="tools are missing"):
        await app.open_or_keep_reason()
    assert app.why_not_open == "The tools are missing; install them"
    await app.close()


async def test_an_agent_that_does_not_close_does_not_stop_the_shutdown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Toolbox):
        @asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:
            yield
            await asyncio.Event().wait()

    monkeypatch.setattr(application, "CLOSE_TIME", 0.01)
    app = await async_serve(Stuck())
    await app.open()
    with caplog.at_level(logging.WARNING):
        await app.close()
    assert "agent did not close in time" in caplog.text
