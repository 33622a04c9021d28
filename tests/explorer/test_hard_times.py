"""The page under faults: servers that stop, endless streams, hostile agents, small screens."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from apcore_a2a.protocol.card import AgentCapabilities, AgentExtension, AgentProvider, AgentSkill
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Message, Part, Role, StatusUpdate, TaskState, TaskStatus
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import card, choose, named, runs, say, show
from tests.fakes import Gate, ScriptedAgent, chunk, status
from tests.interaction.serving import serving
from tests.processes import running
from tests.sources import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="package")

COMPLETED = status(TaskState.COMPLETED)
CHUNKS = 5000
AXE = ROOT / "explorer" / "node_modules" / "axe-core" / "axe.min.js"


# ---- servers that stop --------------------------------------------------------------------------------------------


async def serve_demo(port: int, store: Path) -> Any:
    arguments = ["-m", "apcore_a2a", "serve", "--extensions-dir", str(ROOT / "examples" / "extensions")]
    return running(*arguments, "--port", str(port), "--store", f"sqlite:///{store}", "--explorer")


async def test_the_page_reports_a_restart_and_reconnects(open_page: OpenPage, tmp_path: Path) -> None:
    store = tmp_path / "tasks.db"
    async with await serve_demo(0, store) as first:
        said = await first.says(r"Uvicorn running on http://[\d.]+:(\d+)")
        port = int(said[1])
        page = await open_page(f"http://agenthost:{port}/explorer/")
        await choose(page, "jobs.simulate")
        await page.get_by_label("steps").fill("600")
        await page.get_by_label("seconds").fill("0.2")
        await page.keyboard.press("Control+Enter")
        await expect(runs(page)).to_contain_text("Working")
        await expect(page.get_by_role("progressbar")).to_be_visible()
    # Killed, as in a power failure.
    await expect(page.get_by_text("The server is down")).to_be_visible()
    await expect(runs(page)).to_contain_text("Reconnecting after event")
    async with await serve_demo(port, store) as second:
        await second.says("Uvicorn running")
        await expect(page.locator(".dot")).to_have_text("back online", timeout=20_000)
        # The module is idempotent, so it is run again, and the page follows it.
        await expect(runs(page)).to_contain_text("Reconnected after", timeout=30_000)
        await expect(page.get_by_text("The server is down")).to_have_count(0)
        await page.get_by_role("button", name="Cancel").click()
        await expect(runs(page)).to_contain_text("Canceled", timeout=20_000)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_broken_stream_resumes_where_it_broke(open_page: OpenPage, version: str) -> None:
    gate = Gate()
    script = (chunk("one "), chunk("two ", append=True), gate, chunk("three", append=True, last=True), COMPLETED)
    async with serving(ScriptedAgent({"go": script}), card=card(), explorer=True) as url, cutting(url) as line:
        page = await open_page(named(line.url))
        await page.get_by_label("A2A").select_option(version)
        await choose(page, "play")
        await say(page, "go")
        await expect(page.locator(".artifact")).to_contain_text("one two")
        line.cut()
        await expect(runs(page)).to_contain_text("Reconnecting after event 4")
        gate.open()
        line.mend()
        await expect(page.locator(".artifact .markdown")).to_have_text("one two three", timeout=15_000)
        await expect(runs(page)).to_contain_text("Completed")
        await expect(page.locator(".run .resumed")).to_contain_text("Reconnected after")


class Line:
    """A connection to a server that can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    def cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pump(reader, far_writer))
                group.create_task(pump(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the connection was cut
    finally:
        writer.close()


class cutting:
    def __init__(self, url: str) -> None:
        self._line = Line(int(url.rpartition(":")[2]))
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Line:
        self._server = await asyncio.start_server(self._line.accept, "127.0.0.1", 0)
        self._line.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self._line

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._line.cut()
        self._server.close()


# ---- long streams -------------------------------------------------------------------------------------------------


async def test_five_thousand_chunks_do_not_freeze_the_page(open_page: OpenPage) -> None:
    words = [chunk(f"word{number} ", append=number > 0, last=number == CHUNKS - 1) for number in range(CHUNKS)]
    async with serving(ScriptedAgent({"go": (*words, COMPLETED)}), card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await show(page, "Wire")
        await page.evaluate(
            """() => {
                window.blocks = [];
                new PerformanceObserver(list => blocks.push(...list.getEntries().map(each => each.duration)))
                    .observe({entryTypes: ["longtask"]});
            }"""
        )
        await say(page, "go")
        await expect(runs(page)).to_contain_text("Completed", timeout=30_000)
        text = await page.locator(".artifact .markdown").inner_text()
        assert text.split() == [f"word{number}" for number in range(CHUNKS)]
        blocks = await page.evaluate("window.blocks")
        # About 60 ms on an idle machine. Rendering everything again for each chunk would take half a minute.
        assert max(blocks, default=0) < 1_000, blocks
        assert await page.locator(".wire-row").count() < 80  # thousands are listed, a few are rendered


# ---- hostile agents -----------------------------------------------------------------------------------------------

SCRIPT = "window.pwned = 1"
EVIL = f"<img src=x onerror='{SCRIPT}'></script><script>{SCRIPT}</script>"
LINK = f'[click](javascript:{SCRIPT}) ![x](http://evil.test/x.png) <http://evil.test/"onmouseover="{SCRIPT}>'
SVG = base64.b64encode(f"<svg xmlns='http://www.w3.org/2000/svg' onload='{SCRIPT}'/>".encode()).decode()
HTML = base64.b64encode(f"<script>{SCRIPT}</script>".encode())


def hostile_card() -> Any:
    schema = {
        "type": "object",
        "title": EVIL,
        "properties": {
            EVIL: {"type": "string", "description": EVIL, "default": EVIL, "title": EVIL, "pattern": "(a+)+$"},
            "__proto__": {"type": "string", "description": EVIL},
            "pick": {"enum": [EVIL, "b"], "description": EVIL},
            "loop": {"$ref": "#/properties/loop"},
        },
    }
    about = {"inputSchema": schema, "examples": [{"name": EVIL, "input": {EVIL: EVIL}}]}
    extension = AgentExtension(
        uri="urn:apcore:a2a:modules:1", description=EVIL, params={"skills": {"evil": about, EVIL: about}}
    )
    skill = AgentSkill(id=EVIL, name=EVIL, description=EVIL + LINK, tags=(EVIL,), examples=(EVIL,), input_modes=(EVIL,))
    return card(
        skill,
        AgentSkill(id="play", name=EVIL, description=EVIL, tags=(EVIL,)),
        name=EVIL,
        description=EVIL,
        version=EVIL,
        documentation_url=f"javascript:{SCRIPT}",
        provider=AgentProvider(organization=EVIL, url=f"javascript:{SCRIPT}"),
        capabilities=AgentCapabilities(streaming=True, extensions=(extension,)),
    )


def hostile_answer() -> tuple[Any, ...]:
    parts = [
        Part(text=EVIL + "\n\n" + LINK + "\n\n" + "`" * 3 + EVIL),
        Part(text="[" * 20_000 + "*" * 20_000 + "`" * 20_001 + "_a" * 20_000),
        Part(text="> " * 5000 + "- " * 5000),
        Part(data={EVIL: EVIL, "__proto__": EVIL, "percent": 1e308}),
        Part(data=[{EVIL: EVIL}, {EVIL: EVIL}]),
        Part(raw=HTML, filename=f"../../{EVIL}.html", media_type="text/html"),
        Part(raw=base64.b64encode(base64.b64decode(SVG)), filename="a.svg", media_type="image/svg+xml"),
        Part(raw=HTML, filename="a.png", media_type="image/png"),
        Part(url=f"javascript:{SCRIPT}", filename=EVIL, media_type=EVIL),
        Part(url=f"data:text/html,<script>{SCRIPT}</script>", filename=EVIL),
    ]
    artifact = Artifact(artifact_id=EVIL[:200], name=EVIL, description=EVIL, parts=parts)
    other = Artifact(artifact_id="two", name=EVIL, parts=[Part(text=EVIL)])
    said = Message(message_id="m", role=Role.AGENT, parts=(Part(text=EVIL),), metadata={"reference": EVIL})
    return (
        StatusUpdate(status=TaskStatus(state=TaskState.WORKING, message=said)),
        ArtifactUpdate(artifact=artifact),
        ArtifactUpdate(artifact=other, last_chunk=True),
        StatusUpdate(status=TaskStatus(state=TaskState.FAILED, message=said)),
    )


async def test_text_of_an_agent_is_never_executed(open_page: OpenPage) -> None:
    asks = StatusUpdate(
        status=TaskStatus(
            state=TaskState.INPUT_REQUIRED,
            message=Message(
                message_id="q",
                role=Role.AGENT,
                parts=(Part(text=EVIL),),
                metadata={"approvalId": EVIL, "skillId": EVIL},
            ),
        )
    )
    agent = ScriptedAgent({"go": hostile_answer(), "ask": (asks,)})
    async with serving(agent, card=hostile_card(), explorer=True, metrics=True) as url:
        page = await open_page(named(url))
        await expect(page.locator(".pick-card")).to_have_count(2)
        await page.locator("[data-skill]").last.click()
        await expect(page.locator(".skill-intro")).to_be_visible()
        await page.locator(".chip").first.click()
        await choose(page, "play")
        await say(page, "go")
        await expect(runs(page)).to_contain_text("Failed")
        await say(page, "ask")
        await expect(page.get_by_role("group", name="Approval")).to_be_visible()
        for tab in ("Timeline", "Wire", "Card", "Code", "Webhooks", "Health"):
            panel = await show(page, tab)
            await expect(panel).to_be_visible()
            if tab == "Wire":
                await panel.locator(".wire-row").last.click()
            if tab == "Card":
                await panel.get_by_role("button", name="Raw").click()
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("dialog", name="Commands")).to_be_visible()
        await page.keyboard.press("Escape")
        await is_unharmed(page)
        await page.goto(named(url) + "#/task/" + EVIL)
        await page.reload()
        await expect(page.get_by_role("alert").first).to_be_visible()
        await is_unharmed(page)


async def is_unharmed(page: Page) -> None:
    assert await page.evaluate("window.pwned") is None
    hrefs = await page.evaluate("[...document.querySelectorAll('a')].map(each => each.href)")
    assert not [href for href in hrefs if not href.startswith(("http://", "https://"))]
    sources = await page.evaluate("[...document.querySelectorAll('img, audio, iframe')].map(each => each.src)")
    assert not [source for source in sources if not source.startswith("blob:")]


# ---- accessibility and layout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_serious_violation(browser: Browser, demo: Any, scheme: Any) -> None:
    if not AXE.is_file():
        pytest.skip("no axe: `make setup` with npm installs it")
    # Bypasses the policy for axe, which is injected into the page.
    context = await browser.new_context(bypass_csp=True, color_scheme=scheme, viewport={"width": 1360, "height": 850})
    page = await context.new_page()
    async with serving(demo, card=None, explorer=True, metrics=True) as url:
        await page.goto(named(url))
        await expect(page.locator(".pick-card")).to_have_count(3)
        await page.add_script_tag(path=str(AXE))
        await has_no_findings(page, "welcome")
        await choose(page, "payments.transfer")
        await page.get_by_role("button", name="Lunch").click()
        await page.keyboard.press("Control+Enter")
        await page.get_by_role("form", name="Message").get_by_role("button", name="Stream").click()
        await expect(page.get_by_role("group", name="Approval").first).to_be_visible()
        await has_no_findings(page, "approval")
        await choose(page, "demo.flaky")
        await page.get_by_role("form", name="Message").get_by_role("button", name="Stream").click()
        await expect(runs(page).last.get_by_role("alert")).to_be_visible()
        for tab in ("Wire", "Card", "Code", "Health"):
            await show(page, tab)
            await has_no_findings(page, tab)
        await page.locator(".talk").focus()
        await page.keyboard.press("Control+k")
        await has_no_findings(page, "palette")
    await context.close()


async def has_no_findings(page: Page, where: str) -> None:
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(result => result.violations)")
    serious = [
        f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == [], where


async def test_the_page_is_usable_on_a_small_screen(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True) as url:
        page = await open_page(named(url), viewport={"width": 400, "height": 800}, has_touch=True)
        await expect(page.locator(".pick-card").first).to_be_visible()
        await page.get_by_role("button", name="Skills", exact=True).tap()
        await page.locator('[data-skill="text.stats"]').tap()
        await page.get_by_role("button", name="A proverb").tap()
        await page.get_by_role("form", name="Message").get_by_role("button", name="Stream").tap()
        await expect(runs(page)).to_contain_text("26")
        await page.get_by_role("button", name="Inspect").tap()
        await expect(page.get_by_role("tabpanel")).to_contain_text("completed")
        for pane in ("Skills", "Conversation", "Inspect"):
            await page.get_by_role("button", name=pane, exact=True).tap()
            assert await page.evaluate("document.documentElement.scrollWidth") <= 400


async def test_the_colours_follow_the_system_and_the_switch(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True) as url:
        page = await open_page(named(url), color_scheme="dark")
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        await page.get_by_role("button", name="Colours: auto").click()
        await expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
        light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark, light) == ("rgb(14, 17, 22)", "rgb(244, 246, 249)")
        await page.reload()
        await expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
