"""The page over TLS, where browsers choose HTTP/2."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from apcore_a2a.protocol.model import TaskState
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import card, choose, named, runs, say
from tests.fakes import Gate, ScriptedAgent, chunk, status
from tests.http.server.test_tls import Authority
from tests.interaction.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="package")

COMPLETED = status(TaskState.COMPLETED)
PROTOCOLS = """performance.getEntries()
  .filter((entry) => "nextHopProtocol" in entry && entry.name.startsWith("https:"))
  .map((entry) => entry.nextHopProtocol)"""
# Each opens an event stream and reads its first event. Over HTTP/1.1 a browser has six connections to a server.
TEN_STREAMS = """async () => {
  const headers = { "Content-Type": "application/json", "A2A-Version": "1.0" };
  const open = async (_, number) => {
    const message = { messageId: `m-${number}`, role: "ROLE_USER", parts: [{ text: "wait" }] };
    const body = JSON.stringify({ message });
    const response = await fetch("/message:stream", { method: "POST", headers, body });
    const { value } = await response.body.getReader().read();
    return value.length > 0;
  };
  return (await Promise.all(Array.from({ length: 10 }, open))).filter(Boolean).length;
}"""


async def test_the_page_and_its_streams_use_http_2(open_page: OpenPage, tmp_path: Path) -> None:
    gate = Gate()
    script = {"go": (chunk("Hello"), COMPLETED), "wait": (chunk("a"), gate, COMPLETED)}
    tls = Authority(tmp_path).context(http2=True)
    async with serving(ScriptedAgent(script), card=card(), tls=tls, explorer=True) as url:
        page = await open_page(named(url), ignore_https_errors=True)
        await choose(page, "play")
        await say(page, "go")
        await expect(runs(page)).to_contain_text("Completed")
        await expect(page.locator(".artifact")).to_contain_text("Hello")

        assert await page.evaluate(TEN_STREAMS) == 10
        protocols = await page.evaluate(PROTOCOLS)

        gate.open()
    assert len(protocols) > 3
    assert set(protocols) == {"h2"}
