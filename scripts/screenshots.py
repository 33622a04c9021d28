"""Takes screenshots of every state of the Explorer, for visual review: `make screenshots`.

Starts the demo agent and a few agents with special behaviour, and operates a browser like a user.
"""

import asyncio
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apcore
from playwright.async_api import Browser, Page, async_playwright, expect

from apcore_a2a import Call, JWTAuthenticator, Question
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, TaskState
from tests.auth.tokens import SECRET, bearer
from tests.explorer.pages import FLAGS, card, choose, press, runs, say, show
from tests.fakes import Gate, ScriptedAgent, chunk, status
from tests.interaction.serving import serving
from tests.processes import running
from tests.sources import ROOT

SIZES: Any = {
    "wide": {"width": 1360, "height": 850},
    "tablet": {"width": 800, "height": 900},
    "phone": {"width": 390, "height": 800},
}
WIDE: Any = SIZES["wide"]
SEATS = Question(id="seats", text="How many seats?", schema={"type": "integer", "minimum": 1})
FARE = Question(id="fare", text="Which class?", schema={"enum": ["economy", "business"]}, optional=True)
PAY = Question(id="pay", text="Pay 50 EUR?", kind="approval", tool="pay", arguments={"amount": 50}, editable=True)
MARKDOWN = """## Three findings

1. **Latency** fell by *a third* after the change.
2. The cache answers `92 %` of all reads.
3. See [the report](https://example.com/report) for the rest.

| service | before | after |
|---|---|---|
| search | 240 ms | 160 ms |
| login | 90 ms | 61 ms |
"""


async def book(city: str, call: Call) -> dict[str, Any]:
    """Book a trip."""
    return call.ask_all(SEATS, FARE, PAY)


async def work(steps: int, call: Call) -> str:
    """Work, and say how far it is."""
    call.progress(0.4, "Reading page 2 of 5")
    await GOES_ON.wait()
    return "Read all pages."


def crash(number: int = 3) -> float:
    """Divide by zero."""
    return number / 0


GOES_ON = asyncio.Event()


def demo() -> Any:  # Any: apcore is untyped
    registry = apcore.Registry(extensions_dir=str(ROOT / "examples" / "extensions"))
    registry.discover()
    return registry


class Album:
    """Takes screenshots into a folder, in light and dark mode."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._folder = folder

    @asynccontextmanager
    async def open(self, url: str, size: Any = None, scheme: Any = "light") -> AsyncIterator[Page]:
        context = await self._browser.new_context(viewport=size or WIDE, color_scheme=scheme, reduced_motion="reduce")
        page = await context.new_page()
        await page.goto(url)
        yield page
        await context.close()

    async def take(self, page: Page, name: str) -> None:
        await page.wait_for_timeout(250)  # until animations have ended
        await page.screenshot(path=self._folder / f"{name}.png")
        print(name)


async def picture_demo(album: Album, url: str, scheme: str) -> None:
    async with album.open(url, scheme=scheme) as page:
        await picture_talking(album, page, scheme)
        await picture_tabs(album, page, scheme)
        await picture_keys(album, page, scheme)


async def picture_talking(album: Album, page: Page, scheme: str) -> None:
    await expect(page.locator(".pick-card")).to_have_count(3)
    await album.take(page, f"welcome-{scheme}")
    await page.locator(".pick-card").first.click()
    await expect(page.locator(".skill-intro")).to_be_visible()
    await album.take(page, f"skill-{scheme}")
    await press(page)
    await expect(page.locator(".artifact")).to_contain_text("One day")
    await album.take(page, f"streaming-{scheme}")
    await expect(runs(page)).to_contain_text("Completed")
    await choose(page, "payments.transfer")
    await page.get_by_role("button", name="Lunch").click()
    await press(page)
    await expect(page.get_by_role("group", name="Approval")).to_be_visible()
    await album.take(page, f"approval-{scheme}")
    await page.get_by_role("button", name="Approve").click()
    await expect(runs(page).last).to_contain_text("12.50")
    await album.take(page, f"approved-{scheme}")


async def picture_tabs(album: Album, page: Page, scheme: str) -> None:
    await choose(page, "files.chart")
    await page.get_by_role("button", name="A week").click()
    await press(page)
    await expect(page.locator("figure img")).to_be_visible()
    await show(page, "Code")
    await album.take(page, f"file-and-code-{scheme}")
    await choose(page, "demo.flaky")
    await press(page)
    await expect(runs(page).last.get_by_role("alert")).to_be_visible()
    wire = await show(page, "Wire")
    await wire.locator(".wire-row.frame").last.click()
    await album.take(page, f"failure-and-wire-{scheme}")
    await choose(page, "jobs.simulate")
    await press(page)
    await expect(page.get_by_role("progressbar").last).to_have_attribute("value", "30")
    await show(page, "Health")
    await album.take(page, f"progress-and-health-{scheme}")
    await show(page, "Card")
    await album.take(page, f"card-{scheme}")


async def picture_keys(album: Album, page: Page, scheme: str) -> None:
    await choose(page, "units.convert")
    await press(page)
    await album.take(page, f"complaints-{scheme}")
    await page.locator(".talk").focus()
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("combobox", name="Search commands")).to_be_focused()
    await page.keyboard.type("show")
    await album.take(page, f"palette-{scheme}")
    await page.keyboard.press("Escape")
    await page.locator(".talk").focus()
    await page.keyboard.press("?")
    await album.take(page, f"keys-{scheme}")


async def picture_small(album: Album, url: str, size: str) -> None:
    async with album.open(url, SIZES[size]) as page:
        await expect(page.locator(".pick-card")).to_have_count(3)
        await album.take(page, f"{size}-welcome")
        await page.get_by_role("button", name="Skills", exact=True).click()
        await album.take(page, f"{size}-skills")
        await choose(page, "text.stats")
        await page.get_by_role("button", name="A proverb").click()
        await press(page)
        await expect(runs(page)).to_contain_text("26")
        await album.take(page, f"{size}-conversation")
        for name in ("Timeline", "Wire", "Card", "Code", "Health"):
            await page.get_by_role("button", name="Inspect").click()
            await show(page, name)
            await album.take(page, f"{size}-{name.lower()}")
        for skill, sample in (("payments.transfer", "Lunch"), ("files.chart", "A week"), ("demo.flaky", "")):
            await page.get_by_role("button", name="Skills", exact=True).click()
            await choose(page, skill)
            if sample:
                await page.get_by_role("button", name=sample).click()
            await press(page)
            await expect(runs(page).last).to_contain_text(re.compile("Input needed|Completed|Failed"))
            await album.take(page, f"{size}-{skill}")
        await page.get_by_role("button", name="Skills", exact=True).click()
        await album.take(page, f"{size}-tasks")


async def picture_functions(album: Album, size: str) -> None:
    """Take the states of functions: questions, progress, an exception during development."""
    options: dict[str, Any] = {"explorer": True, "name": "travel", "host": "127.0.0.1", "show_exceptions": True}
    GOES_ON.clear()
    async with serving([book, work, crash], card=None, **options) as url:
        async with album.open(f"{url}/explorer/#/skill/book", SIZES[size]) as page:
            await page.get_by_label("Message text").fill("Rome, next week")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("group", name="Questions")).to_be_visible()
            await album.take(page, f"{size}-questions")
            await page.get_by_role("button", name="Send the answers").click()
            await album.take(page, f"{size}-questions-complaints")
            await page.get_by_label("Answer").first.fill("2")
            await page.get_by_role("button", name="Reject").click()
            await page.get_by_role("button", name="Send the answers").click()
            await expect(runs(page)).to_contain_text("Completed")
            await album.take(page, f"{size}-answered")
            await page.goto(f"{url}/explorer/#/skill/work")
            await page.get_by_label("steps").fill("5")
            await press(page)
            await expect(page.get_by_role("progressbar")).to_be_visible()
            await album.take(page, f"{size}-progress")
            GOES_ON.set()
            await expect(runs(page).last).to_contain_text("Read all pages.")
            await page.goto(f"{url}/explorer/#/skill/crash")
            await press(page)
            await expect(runs(page).last).to_contain_text("ZeroDivisionError")
            await album.take(page, f"{size}-exception")


async def picture_credentials(album: Album) -> None:
    async with serving(demo(), card=None, explorer=True, name="demo", auth=JWTAuthenticator(SECRET)) as url:
        async with album.open(f"{url}/explorer/") as page:
            await choose(page, "text.stats")
            await expect(page.get_by_role("dialog", name="Credentials")).to_be_visible()
            await album.take(page, "credentials-needed")
            await page.get_by_label("Bearer token").fill(bearer()["authorization"])
            await expect(page.get_by_role("dialog", name="Credentials")).to_contain_text("Accepted")
            await album.take(page, "credentials-shown")
            await page.get_by_role("button", name="Done").click()
            await show(page, "Card")
            await album.take(page, "extended-card")


async def picture_sign_in(album: Album, size: str) -> None:
    """Take the dialogs for the schemes of a card: an issuer, an API key, and a scheme that a page cannot use."""
    flow: dict[str, Any] = {"authorizationUrl": "https://id.example.com/authorize", "scopes": {"read": "", "write": ""}}
    flow["tokenUrl"] = "https://id.example.com/token"
    schemes = {
        "oauth": {
            "oauth2SecurityScheme": {"flows": {"authorizationCode": {**flow, "scopes": {"read": "", "write": ""}}}}
        },
        "key": {"apiKeySecurityScheme": {"name": "X-API-Key", "location": "header"}},
        "certificate": {"mtlsSecurityScheme": {}},
    }
    async with serving(ScriptedAgent(), card=card(security_schemes=schemes), explorer=True) as url:
        async with album.open(f"{url}/explorer/", SIZES[size]) as page:
            await page.get_by_role("button", name="Sign in").click()
            await album.take(page, f"{size}-sign-in")


async def picture_answers(album: Album) -> None:
    rows = [{"city": name, "degrees": number, "rain": number > 15} for name, number in (("Oslo", 4), ("Rome", 19))]
    parts = [Part(text=MARKDOWN), Part(data=rows), Part(data={"deep": {"list": [1, {"id": 12345678901234567890}]}})]
    update = ArtifactUpdate(artifact=Artifact(artifact_id="out", parts=parts), last_chunk=True)
    scripts = {
        "report": (update, status(TaskState.COMPLETED)),
        "ask": (status(TaskState.INPUT_REQUIRED, "Which **colour** should the door have?"),),
    }
    async with serving(ScriptedAgent(scripts), card=card(), explorer=True) as url:
        async with album.open(f"{url}/explorer/") as page:
            await choose(page, "play")
            await say(page, "report")
            await expect(runs(page)).to_contain_text("Completed")
            await album.take(page, "markdown-table-tree")
            await say(page, "ask")
            await expect(page.get_by_role("group", name="Input needed")).to_be_visible()
            await album.take(page, "input-needed")


async def picture_webhooks(album: Album) -> None:
    development: Any = {"explorer": True, "push_notifications": True, "allow_insecure_webhooks": True}
    gate = Gate()
    script = (gate, chunk("hello", last=True), status(TaskState.COMPLETED))
    async with serving(ScriptedAgent({"go": script}), card=card(), **development) as url:
        async with album.open(f"{url}/explorer/") as page:
            await choose(page, "play")
            await say(page, "go")
            await gate.reached()
            tab = await show(page, "Webhooks")
            await tab.get_by_role("button", name="Use the inbox").click()
            gate.open()
            await expect(tab.get_by_role("region", name="Inbox").locator("li").nth(1)).to_be_visible()
            await tab.get_by_role("region", name="Inbox").locator("summary").first.click()
            await album.take(page, "webhooks")


async def picture_outage(album: Album, store: Path) -> None:
    command = ["-m", "apcore_a2a", "serve", "--extensions-dir", str(ROOT / "examples" / "extensions"), "--explorer"]
    command += ["--host", "127.0.0.1", "--name", "demo", "--store", f"sqlite:///{store}"]
    async with running(*command, "--port", "0") as first:
        port = (await first.says(r"Uvicorn running on http://127.0.0.1:(\d+)"))[1]
        context = album.open(f"http://127.0.0.1:{port}/explorer/")
        page = await context.__aenter__()
        await choose(page, "jobs.simulate")
        await page.get_by_label("steps").fill("100")
        await press(page)
        await expect(page.get_by_role("progressbar")).to_be_visible()
    await expect(page.get_by_text("The server is down")).to_be_visible()
    await album.take(page, "server-gone")
    async with running(*command, "--port", port) as second:
        await second.says("Uvicorn running")
        await expect(runs(page)).to_contain_text("Reconnected after", timeout=30_000)
        await album.take(page, "server-back")
        await context.__aexit__(None, None, None)


async def main(folder: Path, store: Path) -> None:
    expect.set_options(timeout=15_000)
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium on PATH: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        album = Album(browser, folder)
        about = "A demo agent: text, units, files, jobs, approvals"
        for scheme in ("light", "dark"):
            async with serving(demo(), card=None, explorer=True, metrics=True, name="demo", description=about) as url:
                await picture_demo(album, f"{url}/explorer/", scheme)
                if scheme == "light":
                    for size in ("tablet", "phone"):
                        await picture_small(album, f"{url}/explorer/", size)
        for size in SIZES:
            await picture_functions(album, size)
            await picture_sign_in(album, size)
        await picture_credentials(album)
        await picture_answers(album)
        await picture_webhooks(album)
        await picture_outage(album, store)
        await browser.close()


if __name__ == "__main__":
    pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots")
    pictures.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        asyncio.run(main(pictures, Path(scratch, "tasks.db")))
