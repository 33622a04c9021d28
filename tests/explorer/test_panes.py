"""Navigation: the lists on the left, the tabs on the right, and keyboard shortcuts."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.routing import Mount

from apcore_a2a import JWTAuthenticator, async_serve
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, TaskState
from tests.auth.tokens import SECRET, bearer
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import card, choose, named, press, runs, say, show
from tests.fakes import Gate, ScriptedAgent, chunk, status
from tests.interaction.serving import listen, serving

pytestmark = pytest.mark.asyncio(loop_scope="package")

COMPLETED = status(TaskState.COMPLETED)


async def test_skills_are_grouped_and_can_be_searched_by_keyboard(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True) as url:
        page = await open_page(named(url))
        await expect(page.locator(".skill-group h3")).to_have_text(
            ["demo", "files", "jobs", "payments", "text", "units"]
        )
        await page.keyboard.press("/")
        await page.keyboard.type("approval")
        await expect(page.locator("[data-skill]")).to_have_count(1)
        await page.keyboard.press("Enter")
        await expect(page.locator(".skill-intro h2")).to_have_text("Payments Transfer")
        await page.get_by_label("Search skills").fill("")
        await expect(page.locator("[data-skill]")).to_have_count(8)
        await page.keyboard.press("Escape")
        await page.keyboard.press("j")
        await expect(page.locator('[data-skill="text.stats"]')).to_be_focused()
        await page.keyboard.press("k")
        await page.keyboard.press("k")
        await page.keyboard.press("Enter")
        await expect(page.locator(".skill-intro h2")).to_have_text("Jobs Simulate")


async def test_the_palette_and_the_list_of_shortcuts_open_by_keyboard(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True) as url:
        page = await open_page(named(url))
        await expect(page.locator("[data-skill]")).to_have_count(8)
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("combobox", name="Search commands")).to_be_focused()
        await page.keyboard.type("convert")
        await page.keyboard.press("Enter")
        await expect(page.locator(".skill-intro h2")).to_have_text("Units Convert")
        await page.locator(".talk").focus()
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_task_is_reopened_by_its_address(open_page: OpenPage) -> None:
    gate = Gate()
    agent = ScriptedAgent(
        {"go": (chunk("first half"), gate, chunk(", second half", append=True, last=True), COMPLETED)}
    )
    async with serving(agent, card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "go")
        await gate.reached()
        await expect(page).to_have_url(re.compile("#/task/.+"))
        await page.reload()
        await expect(runs(page)).to_contain_text("first half")  # a running task is followed again
        gate.open()
        await expect(runs(page)).to_contain_text("first half, second half")
        await expect(runs(page)).to_contain_text("Completed")
        await page.goto(named(url) + "#/task/unknown")
        await expect(page.get_by_role("alert")).to_contain_text("cannot be shown")


async def test_two_thousand_tasks_are_paged_and_filtered_on_the_server(open_page: OpenPage) -> None:
    agent = ScriptedAgent({"fail": (status(TaskState.FAILED, "no"),)})
    async with serving(agent, card=card(), explorer=True) as url:
        await send_many(url, 2000)
        page = await open_page(named(url))
        tasks = page.get_by_role("region", name="List of tasks")
        await expect(page.locator(".tasks .count")).to_have_text("2,000")
        assert await page.locator(".task-row").count() < 40  # rows outside the viewport are not rendered
        while await page.locator(".list-foot", has_text="of 2,000").count():
            await tasks.evaluate("each => each.scrollTo(0, each.scrollHeight)")
        assert await tasks.evaluate("each => each.scrollHeight") == 2000 * 46
        await expect(page.locator(".task-row").last).to_be_visible()
        await page.get_by_label("State of tasks").select_option("failed")
        await expect(page.locator(".tasks .count")).to_have_text("1")
        await expect(page.locator(".task-row")).to_have_count(1)
        await page.get_by_label("Time of tasks").select_option("10 min")
        await expect(page.locator(".task-row")).to_have_count(1)
        await page.locator(".task-row").click()
        await expect(runs(page).get_by_role("alert")).to_contain_text("no")


async def send_many(url: str, count: int) -> None:
    """Send this many messages to the agent. One task fails."""
    async with aiohttp.ClientSession(headers={"A2A-Version": "1.0"}) as session:

        async def send(number: int) -> None:
            text = "fail" if number == 7 else "go"
            message = {"messageId": f"m{number}", "role": "ROLE_USER", "parts": [{"text": text}]}
            body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
            async with session.post(f"{url}/", json=body) as answer:
                assert answer.status == 200

        for start in range(0, count, 50):
            async with asyncio.TaskGroup() as group:
                for number in range(start, start + 50):
                    group.create_task(send(number))


async def test_the_wire_shows_everything_but_secrets_and_replays(open_page: OpenPage) -> None:
    agent = ScriptedAgent({"go": (chunk("x", last=True), COMPLETED)})
    auth = JWTAuthenticator(SECRET)
    token = bearer()["authorization"].removeprefix("Bearer ")
    async with serving(agent, card=card(), explorer=True, auth=auth) as url:
        page = await open_page(named(url))
        # The field opened by itself, because the request for tasks was answered with 401.
        await page.get_by_label("Bearer token").fill(token)
        await page.get_by_role("button", name="Done").click()
        await choose(page, "play")
        await say(page, "go")
        await expect(runs(page)).to_contain_text("Completed")
        wire = await show(page, "Wire")
        await expect(wire.locator(".wire-row.frame")).to_have_count(4)
        await wire.locator(".wire-row", has_text="SendStreamingMessage").click()
        detail = wire.locator(".wire-detail")
        await expect(detail).to_contain_text("Bearer •••")
        await expect(detail).to_contain_text('"method": "SendStreamingMessage"')
        assert token not in await page.content()
        await detail.get_by_role("button", name="Replay").click()
        await expect(detail).to_contain_text("HTTP 200")
        assert len(agent.calls) == 2
        await wire.locator(".wire-row.frame").nth(1).click()
        await expect(wire.locator(".wire-detail")).to_contain_text("TASK_STATE_WORKING")


async def test_the_token_field_opens_on_a_401_and_shows_the_gated_skills(open_page: OpenPage, demo: Any) -> None:
    asked: list[str] = []
    async with serving(demo, card=None, explorer=True, auth=JWTAuthenticator(SECRET)) as url:
        page = await open_page(named(url))
        page.on("request", lambda request: asked.append(request.post_data or ""))
        await choose(page, "text.stats")
        await expect(page.get_by_role("dialog", name="Credentials")).to_contain_text("requires credentials")
        await expect(page.locator('[data-skill="payments.transfer"]')).to_have_count(0)
        await page.get_by_label("Bearer token").fill(bearer(sub="ada")["authorization"])
        box = page.get_by_role("dialog", name="Credentials")
        await expect(box).to_contain_text("Expires in")
        await expect(box).to_contain_text("ada")
        await expect(page.locator('[data-skill="payments.transfer"]')).to_have_count(1)
        await box.get_by_role("button", name="Done").click()
        await page.get_by_role("button", name="A proverb").click()
        await press(page)
        await expect(runs(page)).to_contain_text("26")
        shown = await show(page, "Card")
        await expect(shown).to_contain_text("extended only")
        kept = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert "eyJ" not in kept
        # Once, and not again because of its content. A second fetch may fall into this time.
        assert 1 <= sum("GetExtendedAgentCard" in body for body in asked) <= 2
        await page.reload()
        await expect(page.locator("[data-skill]").first).to_be_visible()
        await expect(page.get_by_role("button", name="Sign in")).to_be_visible()


async def test_the_card_is_checked_with_pointers(open_page: OpenPage) -> None:
    async with serving(ScriptedAgent(), card=card(description="", default_input_modes=("text",)), explorer=True) as url:
        page = await open_page(named(url))
        shown = await show(page, "Card")
        await expect(shown.locator(".findings li")).to_have_text(
            [re.compile("/description description is empty"), re.compile("/defaultInputModes/0 not a media type")]
        )
        await shown.get_by_role("button", name="Raw").click()
        await expect(shown.locator("pre")).to_contain_text('"name": "scripted"')


@pytest.mark.parametrize(("version", "is_open"), [("1.0", True), ("0.3", False)])
async def test_the_generated_code_makes_the_same_call(
    open_page: OpenPage, demo: Any, version: str, is_open: bool, tmp_path: Path
) -> None:
    auth = None if is_open else JWTAuthenticator(SECRET)
    async with serving(demo, card=None, explorer=True, auth=auth) as url:
        page = await open_page(f"{url}/explorer/")
        if not is_open:
            await page.get_by_label("Bearer token").fill(TOKEN)
            await page.get_by_role("button", name="Done").click()
        await page.get_by_label("A2A").select_option(version)
        await choose(page, "text.stats")
        await page.get_by_label("text").fill('it\'s "quoted" $HOME `x` \\ ok')
        await press(page)
        await expect(runs(page)).to_contain_text("longest_word")
        code = await show(page, "Code")
        for language in FAST if is_open else LANGUAGES:
            chosen = code.get_by_role("button", name=language, exact=True)
            await chosen.press("Enter")  # by keyboard: the content moves, and a click could miss
            await expect(chosen).to_have_attribute("aria-pressed", "true")
            await page.evaluate(COPY_TO_US)
            await code.get_by_role("button", name="Copy code").press("Enter")
            source = await page.evaluate("window.copied")
            assert TOKEN not in source
            said = await run_code(language, source, tmp_path)
            assert re.search("[\"']?words[\"']?: ?6", said), said
            await expect(code.get_by_role("button", name="Copy code")).to_be_visible()


TOKEN = bearer()["authorization"].removeprefix("Bearer ")
FAST = ["curl", "JavaScript"] if shutil.which("node") else ["curl"]
LANGUAGES = [*FAST, "Python", "apcore-a2a"]
COPY_TO_US = """() => {
    window.copied = new Promise(done => {
        navigator.clipboard.writeText = async text => done(text)
        setTimeout(() => done("nothing was copied"), 10000)
    })
}"""


async def run_code(language: str, source: str, folder: Path) -> str:
    script = folder / "call.mjs"
    script.write_text(source)
    ours = source.replace("apcore-a2a ", f"{sys.executable} -m apcore_a2a ", 1) + " --json"
    command = {
        "curl": ["sh", "-c", source],
        "Python": [sys.executable, str(script)],
        "apcore-a2a": ["sh", "-c", ours],
        "JavaScript": ["node", str(script)],
    }[language]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env={**os.environ, "A2A_TOKEN": TOKEN}
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_copying_works_without_a_clipboard(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True) as url:
        page = await open_page(named(url))
        assert await page.evaluate("navigator.clipboard === undefined")  # as in browsers on plain http
        await choose(page, "text.story")
        code = await show(page, "Code")
        await page.evaluate("addEventListener('copy', () => { window.copied = document.activeElement.value })")
        await code.get_by_role("button", name="Copy code").click()
        await expect(code.get_by_role("button", name="Copied")).to_be_visible()
        assert "curl -sN http://agenthost:" in await page.evaluate("window.copied")


async def test_the_health_tab_shows_health_and_metrics(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True, metrics=True) as url:
        page = await open_page(named(url))
        health = await show(page, "Health")
        await expect(health).to_contain_text("healthy")
        await expect(health.locator(".tile", has_text="active tasks")).to_contain_text("0")
        await expect(health).to_contain_text("p99")


async def test_tables_trees_and_markdown_are_rendered(open_page: OpenPage) -> None:
    text = "# Title\n\nSome **bold** `code`.\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nx < y\n```"
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    deep = {"deep": {"er": [1, {"z": 12345678901234567890}]}}
    parts = [Part(text=text), Part(data=rows), Part(data=deep)]
    update = ArtifactUpdate(artifact=Artifact(artifact_id="out", parts=parts), last_chunk=True)
    async with serving(ScriptedAgent({"go": (update, COMPLETED)}), card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "go")
        answer = page.locator(".artifact")
        await expect(answer.locator("h3")).to_have_text("Title")
        await expect(answer.locator("li")).to_have_text(["one", "two"])
        await expect(answer.locator("pre")).to_have_text("x < y")
        await expect(answer.locator("table")).to_have_count(2)
        await expect(answer.locator(".tree").first).to_contain_text("deep")
        await answer.locator(".twist", has_text="er[").click()
        await answer.locator(".twist", has_text="1{").click()
        await expect(answer.locator(".tree").first).to_contain_text("12345678901234567890")  # not rounded


async def test_the_page_works_below_a_mount_path(open_page: OpenPage, demo: Any) -> None:
    agent = await async_serve(demo, explorer=True, explorer_prefix="/tools/explorer")
    app = Starlette(routes=[Mount("/deep/down", app=agent)])
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    server.install_signal_handlers = lambda: None  # type: ignore[method-assign, attr-defined, unused-ignore] # pytest's
    with listen() as listener:
        running = asyncio.create_task(server.serve([listener]))
        page = await open_page(f"http://agenthost:{listener.getsockname()[1]}/deep/down/tools/explorer")
        await choose(page, "text.stats")
        await page.get_by_role("button", name="A proverb").click()
        await press(page)
        await expect(runs(page)).to_contain_text("26")
        server.should_exit = True
        server.force_exit = True
        await running
    await agent.close()
