"""A real browser, shared by the tests of this folder, and pages that fail the test on any error."""

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import apcore
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.explorer.pages import FLAGS, PATIENCE, Watched, watch
from tests.sources import ROOT

HOW_TO_GET_ONE = "no chromium on PATH: apt-get install chromium (Debian), and these tests run"

OpenPage = Callable[..., Awaitable[Page]]

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="package")
def chromium() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail(HOW_TO_GET_ONE)
        pytest.skip(HOW_TO_GET_ONE)
    return path


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS, headless=True)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="package")
async def open_page(browser: Browser) -> AsyncIterator[OpenPage]:
    """Open pages in contexts of their own. At the end, no page may have had an error or a policy violation."""
    opened: list[Watched] = []

    async def open_one(url: str, *, issuer: str = "", **options: Any) -> Page:
        context = await browser.new_context(**{"viewport": {"width": 1360, "height": 850}} | options)
        context.set_default_timeout(PATIENCE)
        page = await context.new_page()
        opened.append(await watch(page, issuer=issuer))
        await page.goto(url)
        return page

    yield open_one
    for watched in opened:
        await watched.check()
        await watched.page.context.close()


@pytest.fixture
def demo() -> Any:
    """The modules of the demo agent, as in `make run`."""
    registry = apcore.Registry(extensions_dir=str(ROOT / "examples" / "extensions"))
    registry.discover()
    return registry
