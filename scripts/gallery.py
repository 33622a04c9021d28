"""Take the pictures of docs/examples.md: each example in the Explorer, operated as a user would. `make gallery`."""

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

from playwright.async_api import Page, async_playwright, expect

from examples import approvals, chat, files, long_job
from tests.explorer.pages import FLAGS, choose, press, say
from tests.interaction.serving import serving
from tests.sources import ROOT

PICTURES: Final = ROOT / "docs" / "images"
SIZE: Final[Any] = {"width": 1200, "height": 680}
Act = Callable[[Page], Awaitable[None]]


async def send_data(page: Page, skill: str, data: str) -> None:
    await choose(page, skill)
    await page.get_by_role("form", name="Message").get_by_role("button", name="JSON", exact=True).click()
    await page.get_by_label("Input as JSON").fill(data)
    await press(page)


async def act_approvals(page: Page) -> None:
    await send_data(page, "order", '{"item": "a lamp", "price": 250}')
    await expect(page.get_by_text("requires approval")).to_be_visible()


async def act_long_job(page: Page) -> None:
    await send_data(page, "index", '{"pages": 8}')
    await expect(page.get_by_text("Indexed page 4 of 8").first).to_be_visible()


async def act_files(page: Page) -> None:
    await send_data(page, "draw", '{"values": [3, 5, 2, 8, 4]}')
    await expect(page.get_by_text("chart.svg").first).to_be_visible()


async def act_chat(page: Page) -> None:
    await choose(page, "chat")
    await say(page, "hello")
    await expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
    await say(page, "and again")
    await expect(page.get_by_text("Before, you said hello.").first).to_be_visible()


GALLERY: Final[dict[str, tuple[Any, Act]]] = {
    "approvals": ([approvals.transfer, approvals.order], act_approvals),
    "long-job": (long_job.index, act_long_job),
    "files": ([files.count, files.draw], act_files),
    "chat": (chat.chat, act_chat),
}


async def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium on PATH: apt-get install chromium")
    long_job.Work.seconds = 0.8
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for name, (agent, act) in GALLERY.items():
            async with serving(agent, card=None, name=name, version="1.0", explorer=True) as url:
                page = await browser.new_page(viewport=SIZE, color_scheme="light")
                await page.goto(f"{url}/explorer/")
                await act(page)
                await page.screenshot(path=PICTURES / f"example-{name}.png")
                await page.close()
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
