"""`apcore-a2a explore`: the page for a remote agent, through a loopback proxy."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from playwright.async_api import expect

from apcore_a2a import JWTAuthenticator
from apcore_a2a.protocol.card import AgentInterface
from apcore_a2a.protocol.model import TaskState
from tests.auth.tokens import SECRET, bearer
from tests.client.peers import running as peers
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import card, choose, runs, say, show
from tests.fakes import Gate, ScriptedAgent, chunk, status
from tests.interaction.serving import serving
from tests.processes import running

pytestmark = pytest.mark.asyncio(loop_scope="package")

COMPLETED = status(TaskState.COMPLETED)


@asynccontextmanager
async def exploring(url: str, *options: str, **environment: str) -> AsyncIterator[str]:
    """Run the command as a process, and yield the address of its page."""
    async with running("-m", "apcore_a2a", "explore", url, "--no-browser", *options, **environment) as process:
        said = await process.says(r"(http://127\.0\.0\.1:\d+/[\w-]{32}/explorer/)")
        yield said[1]


async def test_the_stream_of_a_remote_agent_is_shown_as_it_arrives(open_page: OpenPage) -> None:
    gate = Gate()
    script = (chunk("one "), gate, chunk("two", append=True, last=True), COMPLETED)
    async with serving(ScriptedAgent({"go": script}), card=card()) as url, exploring(url) as page_url:
        page = await open_page(page_url)
        await choose(page, "play")
        await say(page, "go")
        await expect(page.locator(".artifact .markdown")).to_have_text("one")
        gate.open()
        await expect(page.locator(".artifact .markdown")).to_have_text("one two")
        await page.get_by_label("A2A").select_option("0.3")
        await say(page, "go")
        await expect(runs(page).nth(1)).to_contain_text("one two")
        code = await show(page, "Code")
        await expect(code.locator("pre")).to_contain_text(f"curl -sN {url}/")  # the agent's own address


@pytest.mark.parametrize("name", ["sdk1", "sdk03"])
async def test_the_page_works_with_agents_of_the_official_sdks(open_page: OpenPage, name: str) -> None:
    with peers.running(name) as peer:
        async with exploring(peer.url) as page_url:
            page = await open_page(page_url)
            await choose(page, "obey")
            await say(page, "echo hello there")
            await expect(page.locator(".artifact")).to_have_text(re.compile("hello there"))
            await expect(runs(page)).to_contain_text("Completed")
            await say(page, "hello", how="Send")
            await expect(runs(page).nth(1)).to_contain_text("Completed")


async def test_requests_without_the_secret_or_a_loopback_host_are_rejected() -> None:
    async with serving(ScriptedAgent(), card=card()) as url, exploring(url) as page_url:
        origin = "/".join(page_url.split("/")[:3])
        asked = {
            page_url: {},
            f"{origin}/": {},
            f"{origin}/explorer/": {},
            f"{origin}/{'x' * 32}/explorer/": {},
            f"{origin}/{'x' * 32}/.well-known/agent-card.json": {},
            page_url + "?": {"Host": "evil.example"},
        }
        statuses = []
        async with aiohttp.ClientSession() as session:
            for address, headers in asked.items():
                async with session.get(address, headers=headers) as answer:
                    statuses.append(answer.status)
        assert statuses == [200, 404, 404, 404, 404, 404]


async def test_a_card_that_points_to_another_origin_is_not_followed(open_page: OpenPage) -> None:
    other = ScriptedAgent()
    async with serving(other, card=card()) as elsewhere:
        # Another port is another origin.
        where = AgentInterface(url=f"{elsewhere}/", protocol_binding="JSONRPC", protocol_version="1.0")
        pointing = card(supported_interfaces=(where,))
        async with serving(ScriptedAgent(), card=pointing) as url, exploring(url) as page_url:
            page = await open_page(page_url)
            await choose(page, "play")
            await say(page, "go")
            await expect(runs(page)).to_contain_text("--allow-origin")
            assert other.calls == []
        async with serving(ScriptedAgent(), card=pointing) as url:
            async with exploring(url, "--allow-origin", elsewhere) as page_url:
                page = await open_page(page_url)
                await choose(page, "play")
                await say(page, "go")
                await expect(runs(page)).to_contain_text("Completed")
                assert len(other.calls) == 1


async def test_credentials_of_the_command_are_added_and_not_shown(open_page: OpenPage) -> None:
    token = bearer()["authorization"].removeprefix("Bearer ")
    agent = ScriptedAgent({"go": (chunk("hello", last=True), COMPLETED)})
    async with serving(agent, card=card(), auth=JWTAuthenticator(SECRET)) as url:
        async with exploring(url, A2ACLI_BEARER=token) as page_url:
            page = await open_page(page_url)
            await choose(page, "play")
            await say(page, "go")
            await expect(runs(page)).to_contain_text("hello")
            assert token not in await page.content()


async def test_the_page_reports_that_the_agent_is_down(open_page: OpenPage) -> None:
    async with serving(ScriptedAgent(), card=card()) as url, exploring(url) as page_url:
        page = await open_page(page_url)
        await choose(page, "play")
        async with exploring("http://127.0.0.1:9") as nowhere:
            lost = await open_page(nowhere)
            await expect(lost.locator(".dot")).to_have_text("not reachable")
            await expect(lost.get_by_role("heading", name="No card")).to_be_visible()
