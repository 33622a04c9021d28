"""The Explorer page: self-contained, closed to everything but its agent, off unless asked for."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from apcore_a2a import JWTAuthenticator, async_serve
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentSkill
from tests.app.test_app import browsing, send
from tests.auth.tokens import SECRET
from tests.fakes import ScriptedAgent
from tests.interaction.serving import serving
from tests.modules import registry

HOSTILE = '<img src=x onerror="document.title=1"></script><script>document.title=2</script>'


async def test_it_is_off_unless_asked_for() -> None:
    async with browsing(await async_serve(registry())) as client:
        assert (await client.get("/explorer/")).status_code != 200


async def test_it_is_one_page_that_asks_nobody_else() -> None:
    async with browsing(await async_serve(registry(), explorer=True)) as client:
        page = await client.get("/explorer/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert not re.findall(r"""(?:src|href)\s*=\s*["'](?:https?:)?//""", page.text)
        assert "innerHTML" not in page.text
        assert (await client.get("/explorer")).headers["location"] == "/explorer/"


async def test_nothing_runs_in_it_that_is_not_its_own() -> None:
    async with browsing(await async_serve(registry(), explorer=True)) as client:
        one, two = await client.get("/explorer/"), await client.get("/explorer/")
        policy = one.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'nonce-")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        (nonce,) = set(re.findall(r'nonce="([^"]+)"', one.text))
        assert f"'nonce-{nonce}'" in policy
        assert policy != two.headers["content-security-policy"]


async def test_its_prefix_is_yours_to_choose() -> None:
    async with browsing(await async_serve(registry(), explorer=True, explorer_prefix="/try")) as client:
        assert (await client.get("/try/")).status_code == 200
        assert (await client.get("/explorer/")).status_code != 200


async def test_the_page_is_open_and_what_it_sends_is_not() -> None:
    app = await async_serve(registry(), explorer=True, auth=JWTAuthenticator(SECRET))
    async with browsing(app) as client:
        assert (await client.get("/explorer/")).status_code == 200
        assert (await client.post("/explorer/", json=send())).status_code == 401
        assert (await client.post("/", json=send())).status_code == 401


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium (a Debian package) is not installed")
@pytest.mark.timeout(90)
async def test_a_browser_shows_the_skills_and_runs_nothing_an_agent_says(tmp_path: Path) -> None:
    card = AgentCard(
        name=HOSTILE,
        description=HOSTILE,
        version="1",
        supported_interfaces=(),
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=("text/plain",),
        default_output_modes=("text/plain",),
        skills=(AgentSkill(id="a.skill", name="A Skill", description=HOSTILE, tags=(HOSTILE,), examples=(HOSTILE,)),),
    )
    async with serving(ScriptedAgent(), card=card, explorer=True) as url:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        command = ["chromium", *flags, f"--user-data-dir={tmp_path}", "--virtual-time-budget=5000", "--dump-dom"]
        seen = await asyncio.to_thread(
            subprocess.run, [*command, f"{url}/explorer/"], capture_output=True, text=True, timeout=60, check=False
        )
    assert 'data-skill="a.skill"' in seen.stdout
    assert "A Skill (a.skill)" in seen.stdout
    assert "&lt;img src=x onerror" in seen.stdout
    assert not re.search(r"<title>[12]</title>", seen.stdout)
