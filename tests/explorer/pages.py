"""Helpers for tests of the page: browser flags, error recording, and the elements by their accessible names."""

from typing import Any

from playwright.async_api import Locator, Page

from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentSkill

PATIENCE = 20_000  # milliseconds; the browser shares two processors with other processes
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A host name other than localhost: browsers restrict features of plain-http pages elsewhere.
    "--host-resolver-rules=MAP agenthost 127.0.0.1",
]
_REPORT = """
document.addEventListener("securitypolicyviolation", event =>
    (window.violations ??= []).push(`${event.violatedDirective} ${event.blockedURI}`))
"""


class Watched:
    """A page and its recorded errors."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.elsewhere: list[str] = []

    async def check(self) -> None:
        assert self.errors == []
        assert self.elsewhere == [], "the page sent requests to another server"
        if not self.page.is_closed():
            assert await self.page.evaluate("window.violations ?? []") == [], "the page broke its own policy"


async def watch(page: Page, *, issuer: str = "") -> Watched:
    """Record the errors of a page, and its requests to other servers than its own and the issuer of its tokens."""
    watched = Watched(page)
    await page.add_init_script(_REPORT)
    page.on("pageerror", lambda error: watched.errors.append(str(error)))

    def note_request(request: Any) -> None:
        own = page.url.split("/")[2] if "://" in page.url else ""
        address = request.url
        if issuer and address.startswith(issuer):
            return
        if own and not address.startswith(("data:", "blob:")) and address.split("/")[2] != own:
            watched.elsewhere.append(address)

    page.on("request", note_request)
    return watched


def named(url: str, path: str = "/explorer/") -> str:
    """Return the page's URL with a host name for which plain http is restricted, unlike 127.0.0.1."""
    return url.replace("127.0.0.1", "agenthost") + path


def card(*skills: AgentSkill, **more: Any) -> AgentCard:
    fields: dict[str, Any] = {
        "name": "scripted",
        "description": "Does what a test wrote.",
        "version": "1.2.3",
        "supported_interfaces": (),
        "capabilities": AgentCapabilities(streaming=True),
        "default_input_modes": ("text/plain",),
        "default_output_modes": ("text/plain",),
        "skills": skills or (AgentSkill(id="play", name="Play", description="Plays a script.", tags=("test",)),),
    }
    return AgentCard(**fields | more)


async def choose(page: Page, skill: str) -> None:
    await page.locator(f'[data-skill="{skill}"]').click()


async def say(page: Page, text: str, *, how: str = "Stream") -> None:
    """Write a text and send it, as a user would."""
    await page.get_by_role("form", name="Message").get_by_role("button", name="Text", exact=True).click()
    await page.get_by_label("Message text").fill(text)
    await press(page, how)


async def press(page: Page, how: str = "Stream") -> None:
    await page.get_by_role("form", name="Message").get_by_role("button", name=how).click()


def runs(page: Page) -> Locator:
    return page.locator("article.run")


async def show(page: Page, tab: str) -> Locator:
    await page.get_by_role("tab", name=tab).click()
    return page.get_by_role("tabpanel")
