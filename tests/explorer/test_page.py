"""The page as the server sends it: self-contained, restricted to its agent, and off by default."""

import re

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from apcore_a2a import JWTAuthenticator, async_serve
from tests.app.test_app import browsing, send
from tests.auth.tokens import SECRET
from tests.modules import registry
from tests.requirements import requirement

MAX_BYTES = 200_000


@requirement("FR-EXP-001")
async def test_the_explorer_is_off_by_default() -> None:
    async with browsing(await async_serve(registry())) as client:
        assert (await client.get("/explorer/")).status_code != 200


@requirement("FR-EXP-001")
async def test_the_page_is_one_small_file_without_external_requests() -> None:
    async with browsing(await async_serve(registry(), explorer=True)) as client:
        page = await client.get("/explorer/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert len(page.content) <= MAX_BYTES
        assert not re.findall(r"""<[^>]+\s(?:src|href)\s*=\s*["'](?!data:)""", page.text.partition("<script>")[0])
        assert "@import" not in page.text and "url(" not in page.text


async def test_the_policy_allows_only_the_built_script_and_style() -> None:
    async with browsing(await async_serve(registry(), explorer=True)) as client:
        page = await client.get("/explorer/")
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "style-src 'sha256-" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["referrer-policy"] == "no-referrer"


@requirement("FR-EXP-001")
@pytest.mark.parametrize(("prefix", "root"), [("/try", "../"), ("/tools/explorer", "../../")])
async def test_the_page_finds_the_agent_below_any_prefix(prefix: str, root: str) -> None:
    async with browsing(await async_serve(registry(), explorer=True, explorer_prefix=prefix)) as client:
        page = await client.get(f"{prefix}/")
        assert page.status_code == 200
        assert f'<meta name="a2a-root" content="{root}">' in page.text
        assert (await client.get("/explorer/")).status_code != 200


async def test_the_prefix_without_a_slash_redirects_relatively() -> None:
    agent = await async_serve(registry(), explorer=True)
    async with browsing(Starlette(routes=[Mount("/deep/down", app=agent)])) as client:
        lead = await client.get("/deep/down/explorer")
        assert lead.status_code == 307
        assert lead.headers["location"] == "explorer/"
        assert (await client.get("/deep/down/explorer/")).status_code == 200


@requirement("FR-EXP-001")
async def test_the_page_is_public_and_its_requests_require_authentication() -> None:
    app = await async_serve(registry(), explorer=True, auth=JWTAuthenticator(SECRET))
    async with browsing(app) as client:
        assert (await client.get("/explorer/")).status_code == 200
        assert (await client.post("/explorer/", json=send())).status_code == 401
        assert (await client.get("/explorer/page.html")).status_code == 401
        assert (await client.post("/", json=send())).status_code == 401
