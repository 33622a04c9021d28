"""The trace of a message on the timeline, if the server names an address of traces."""

import re

import httpx
import pytest
from playwright.async_api import expect

from apcore_a2a.app.serve import build_app
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import card, choose, named, say
from tests.fakes import ScriptedAgent
from tests.interaction.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="package")

TRACE_URL = "http://jaeger.example:16686/trace/{trace_id}?uiFind=a2a"


async def test_the_timeline_links_to_the_trace_that_the_agent_continues(open_page: OpenPage) -> None:
    agent = ScriptedAgent()
    async with serving(agent, card=card(), explorer=True, explorer_trace_url=TRACE_URL) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "hello")
        link = page.locator(".timeline .facts-list a")
        await expect(link).to_have_text(re.compile("[0-9a-f]{32}"))
        trace_id = await link.inner_text()
        assert await link.get_attribute("href") == TRACE_URL.replace("{trace_id}", trace_id)
    assert {call.headers["traceparent"][3:35] for call in agent.calls} == {trace_id}


async def test_without_an_address_there_is_no_trace(open_page: OpenPage) -> None:
    agent = ScriptedAgent()
    async with serving(agent, card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "hello")
        await expect(page.locator(".timeline .facts-list")).to_be_visible()
        await expect(page.locator(".timeline .facts-list a")).to_have_count(0)
    assert [call.headers for call in agent.calls] == [{}]


@pytest.mark.parametrize("wrong", ["javascript:alert({trace_id})", "http://jaeger.example/trace"])
async def test_an_address_that_names_no_trace_is_rejected(wrong: str) -> None:
    with pytest.raises(ValueError, match="explorer_trace_url must be an http or https address with"):
        build_app(ScriptedAgent(), explorer=True, explorer_trace_url=wrong)


async def test_the_address_cannot_break_out_of_the_page() -> None:
    address = 'http://x.example/"><script>alert(1)</script>{trace_id}'
    async with serving(ScriptedAgent(), explorer=True, explorer_trace_url=address) as url:
        async with httpx.AsyncClient() as client:
            page = await client.get(f"{url}/explorer/")
    assert "<script>alert" not in page.text
