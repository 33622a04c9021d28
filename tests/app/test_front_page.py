"""`/` as a browser sees it."""

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from apcore_a2a import async_serve
from apcore_a2a.agent import Caller
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
