"""`/` as a browser sees it."""

import asyncio
import re
import shlex
import shutil
import sys
from html import unescape
from typing import Annotated, Any, Literal

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from apcore_a2a import APIKeyAuthenticator, async_serve, skill
from apcore_a2a.agent import Caller
from apcore_a2a.auth.api_keys import hash_key
from tests.fakes import PATIENCE
from tests.interaction.serving import serving
from tests.requirements import requirement

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def shout(text: str) -> str:
    """Says <b>it</b> louder."""
    return text.upper()


class RejectAll:
    def authenticate(self, headers: Any) -> Caller | None:
        return None


def browser(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=BROWSER)


@pytest.mark.parametrize("auth", [None, RejectAll()], ids=["open", "closed"])
async def test_without_the_explorer_the_page_says_what_this_is(auth: Any) -> None:
    async with browser(await async_serve(shout, name="<i>x</i>", auth=auth)) as http:
        page = await http.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "<h1>&lt;i&gt;x&lt;/i&gt;</h1>" in page.text
        assert "Says &lt;b&gt;it&lt;/b&gt; louder." in page.text
        assert "apcore-a2a chat http://localhost/" in page.text
        assert "script" not in page.text and "default-src 'none'" in page.headers["content-security-policy"]
        assert (await http.get("/.well-known/agent-card.json")).status_code == 200


@requirement("FR-EXP-001")
@pytest.mark.parametrize("prefix", ["/explorer", "/ui"])
async def test_with_the_explorer_the_page_leads_there(prefix: str) -> None:
    async with browser(await async_serve(shout, explorer=True, explorer_prefix=prefix)) as http:
        for path in ("/", prefix):
            found = await http.get(path, follow_redirects=True)
            assert (found.status_code, found.url.path) == (200, f"{prefix}/")


async def test_it_is_found_under_a_mount_and_behind_a_proxy_too() -> None:
    inner = await async_serve(shout, explorer=True)
    plain = await async_serve(shout)
    async with browser(Starlette(routes=[Mount("/agent", inner), Mount("/plain", plain)])) as http:
        assert (await http.get("/agent/", follow_redirects=True)).url.path == "/agent/explorer/"
        assert 'href="./.well-known/agent-card.json"' in (await http.get("/plain/")).text
    async with browser(inner) as http:  # what a proxy sees that has taken away a prefix
        assert (await http.get("/")).headers["location"] == "./explorer/"


async def test_a_request_that_does_not_accept_html_gets_no_page() -> None:
    async with browser(await async_serve(shout, explorer=True)) as http:
        answer = await http.get("/", headers={"Accept": "application/json"})
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    async with browser(await async_serve(shout, auth=RejectAll())) as http:
        assert (await http.get("/", headers={"Accept": "application/json"})).status_code == 401


# ---- the commands on the page ------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    item: str
    pieces: int


async def add(a: int, b: int, note: str = "") -> int:
    return a + b


async def paint(colour: Literal["red", "green"], size: Annotated[int, msgspec.Meta(ge=5, le=9)], on: bool) -> str:
    return f"{colour} {size} {on}"


async def order(orders: list[Order], by: Order) -> str:
    return f"{orders[0].item} {by.pieces}"


@skill(examples=[{"iban": "DE02"}])
async def check(iban: Annotated[str, msgspec.Meta(pattern="^[A-Z]{2}[0-9]{2}$")]) -> str:
    return f"checked {iban}"


async def unknown(iban: Annotated[str, msgspec.Meta(pattern="^[A-Z]{2}[0-9]{2}$")]) -> str:
    raise AssertionError


async def commands_at(url: str) -> list[str]:
    async with httpx.AsyncClient(headers=BROWSER) as http:
        found = re.search("<pre>(.*)</pre>", (await http.get(url)).text, re.DOTALL)
    assert found is not None
    return unescape(found[1]).splitlines()


async def run_command(command: str, **environment: str) -> str:
    """Return what a command of the page prints on standard output. It must end without an error."""
    program, *words = shlex.split(command)
    start = [sys.executable, "-m", "apcore_a2a"]
    if program == "curl":
        start = [program, "--silent", "--fail"]
    words = [environment.get(word.removeprefix("$"), word) for word in words]
    process = await asyncio.create_subprocess_exec(
        *start, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        out, error = await process.communicate()
    assert process.returncode == 0, (command, error)
    return out.decode()


@pytest.mark.parametrize(
    ("target", "options", "answer"),
    [
        (shout, {}, "HELLO"),
        ([add, shout], {"default_skill": "shout"}, "HELLO"),
        ([add, shout], {}, "4"),
        (paint, {}, " 5 True"),
        (order, {}, "hello 2"),
        (check, {}, "checked DE02"),
    ],
    ids=["text", "default", "typed", "limits", "nested", "example"],
)
async def test_the_commands_on_the_page_work_as_they_are_printed(target: Any, options: Any, answer: str) -> None:
    async with serving(target, card=None, **options) as url:
        commands = await commands_at(url)
        assert [command.split()[:2] for command in commands[:2]] == [["apcore-a2a", "chat"], ["apcore-a2a", "send"]]
        if shutil.which("curl") is None:
            commands = commands[:2]
        printed = [await run_command(command) for command in commands]
        assert [answer in text for text in printed[1:]] == [True] * (len(commands) - 1)


async def test_the_page_prints_no_message_that_the_schema_may_reject() -> None:
    async with serving(unknown, card=None) as url:
        commands = await commands_at(url)
        assert [command.split()[1] for command in commands] == ["chat"]
        await run_command(commands[0])


async def test_with_authentication_the_commands_read_the_credentials_from_a_variable() -> None:
    async with serving([add, shout], card=None, auth=APIKeyAuthenticator({"ada": hash_key("key-of-ada")})) as url:
        commands = await commands_at(url)
        assert all(command.endswith('--api-key "$API_KEY"') for command in commands)
        assert "4" in await run_command(commands[1], API_KEY="key-of-ada")
