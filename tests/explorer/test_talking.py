"""Conversations through the page, as a user has them: typing, clicking, reading."""

import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from apcore_a2a.protocol.model import TaskState
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import card, choose, named, press, runs, say, show
from tests.fakes import Gate, ScriptedAgent, chunk, says, status
from tests.interaction.serving import serving
from tests.requirements import requirement

pytestmark = pytest.mark.asyncio(loop_scope="package")

COMPLETED = status(TaskState.COMPLETED)


@requirement("FR-EXP-001")
async def test_the_page_shows_the_card_and_every_skill(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True, name="demo", description="What it is") as url:
        page = await open_page(named(url))
        await expect(page.get_by_role("heading", name="demo", level=2)).to_be_visible()
        await expect(page.locator(".pick-card")).to_have_count(3)
        await expect(page.locator("[data-skill]")).to_have_count(8)
        await choose(page, "text.stats")
        intro = page.locator(".skill-intro")
        await expect(intro).to_contain_text("Count the characters, words and lines of a text")
        await expect(intro).to_contain_text("application/json, text/plain")
        await expect(intro.locator(".tag")).to_have_text(["text"])
        await expect(page.get_by_role("button", name="A proverb")).to_be_visible()
        await expect(intro.locator(".badge")).to_have_text(["read-only"])


@requirement("FR-EXP-001")
async def test_a_form_sends_and_the_result_is_shown(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "units.convert")
        await press(page, "Send")
        await expect(page.locator(".complaint")).to_have_count(3)  # an incomplete form is not sent
        await page.get_by_label("value").fill("5")
        await page.get_by_label("source").select_option("km")
        await page.get_by_label("target").select_option("m")
        await press(page, "Send")
        await expect(runs(page)).to_contain_text("5000")
        await expect(runs(page)).to_contain_text("Completed")


@requirement("FR-EXP-001")
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_stream_is_rendered_in_steps(open_page: OpenPage, version: str) -> None:
    one, two = Gate(), Gate()
    script = (chunk("Hello"), one, chunk(", wor", append=True), two, chunk("ld.", append=True, last=True), COMPLETED)
    async with serving(ScriptedAgent({"go": script}), card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await page.get_by_label("A2A").select_option(version)
        await choose(page, "play")
        await say(page, "go")
        artifact = page.locator(".artifact .markdown")
        await expect(artifact).to_have_text("Hello")
        await expect(runs(page)).to_contain_text("Working")
        one.open()
        await expect(artifact).to_have_text("Hello, wor")
        two.open()
        await expect(artifact).to_have_text("Hello, world.")
        await expect(artifact.locator("p")).to_have_count(1)  # one text, not one paragraph per chunk
        await expect(runs(page)).to_contain_text("Completed")


async def test_concurrent_runs_are_not_mixed(open_page: OpenPage) -> None:
    first, second = Gate(), Gate()
    agent = ScriptedAgent(
        {
            "one": (chunk("a1"), first, chunk("a2", append=True, last=True), COMPLETED),
            "two": (chunk("b1"), second, chunk("b2", append=True, last=True), COMPLETED),
        }
    )
    async with serving(agent, card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "one")
        await first.reached()
        await say(page, "two")
        await second.reached()
        second.open()
        await expect(runs(page).nth(1)).to_contain_text("b1b2")
        first.open()
        await expect(runs(page).nth(0)).to_contain_text("a1a2")
        assert "b" not in await runs(page).nth(0).locator(".artifact .markdown").inner_text()
        assert "a" not in await runs(page).nth(1).locator(".artifact .markdown").inner_text()


async def test_an_approval_shows_the_call_and_is_granted_by_keyboard(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "payments.transfer")
        await page.get_by_role("button", name="Lunch").click()
        await press(page)
        question = page.get_by_role("group", name="Approval")
        await expect(question).to_contain_text("Ada")
        await expect(question).to_contain_text("1250")
        await expect(question).to_contain_text("destructive")
        await page.locator(".talk").focus()
        await page.keyboard.press("a")
        await expect(runs(page)).to_contain_text("12.50 sent to Ada")
        await press(page)
        await page.get_by_role("button", name="Reject").click()
        await expect(runs(page).nth(1)).to_contain_text("Rejected")
        await expect(runs(page).nth(1)).to_contain_text("rejected by the caller")


async def test_a_request_for_input_is_answered_in_place(open_page: OpenPage) -> None:
    script = (status(TaskState.INPUT_REQUIRED, "Which colour?"),)
    agent = ScriptedAgent({"go": script, "blue": (chunk("It is blue", last=True), COMPLETED)})
    async with serving(agent, card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "go", how="Send")
        await expect(page.get_by_role("group", name="Input needed")).to_contain_text("Which colour?")
        await page.get_by_label("Your reply").fill("blue")
        await page.keyboard.press("Control+Enter")
        await expect(runs(page)).to_have_count(1)
        await expect(runs(page)).to_contain_text("It is blue")
        await expect(runs(page)).to_contain_text("Which colour?")


async def test_a_task_that_needs_authorization_shows_it_while_its_stream_is_open(open_page: OpenPage) -> None:
    gate = Gate()
    needs = status(TaskState.AUTH_REQUIRED, "Sign in to the calendar")
    script = (needs, gate, status(TaskState.WORKING), chunk("done", last=True), COMPLETED)
    async with serving(ScriptedAgent({"go": script}), card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "go")
        question = page.get_by_role("group", name="Credentials needed")
        await expect(question).to_contain_text("Sign in to the calendar")
        await question.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_label("Bearer token")).to_be_focused()
        gate.open()  # the agent received its credentials elsewhere, and continues
        await expect(runs(page)).to_contain_text("Completed")
        await expect(question).to_have_count(0)


async def test_a_running_task_shows_its_time_and_is_canceled(open_page: OpenPage) -> None:
    gate = Gate()
    agent = ScriptedAgent({"go": (chunk("some"), gate, COMPLETED)})
    async with serving(agent, card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "go")
        await gate.reached()
        await expect(page.locator(".elapsed")).to_have_text(re.compile(r"^[1-9]\.\d s$"))
        await page.get_by_role("button", name="Cancel").click()
        await expect(runs(page)).to_contain_text("Canceled")


async def test_a_background_task_is_polled(open_page: OpenPage) -> None:
    gate = Gate()
    agent = ScriptedAgent({"go": (gate, chunk("done at last", last=True), COMPLETED)})
    async with serving(agent, card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "go", how="Background")
        await expect(page.locator(".task-row")).to_have_count(1)
        await expect(page.get_by_label("Message text")).to_be_editable()  # the next message can be written meanwhile
        gate.open()
        await expect(runs(page)).to_contain_text("done at last")


async def test_a_failure_shows_its_reference_and_a_rejection_its_fields(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "demo.flaky")
        await press(page)
        alert = runs(page).get_by_role("alert")
        await expect(alert).to_contain_text("Internal error")
        await expect(alert.locator(".reference code")).to_have_text(re.compile("^[0-9a-f]{12}$"))
        await choose(page, "units.convert")
        await page.get_by_role("button", name="JSON", exact=True).last.click()
        await page.get_by_label("Input as JSON").fill('{"value": "much", "source": "km", "target": "m"}')
        await press(page)
        await expect(runs(page).nth(1)).to_contain_text("Refused")
        await expect(runs(page).nth(1).get_by_role("alert")).to_contain_text("value")
        await page.get_by_role("form", name="Message").get_by_role("button", name="Form").click()
        await expect(page.get_by_label("value")).to_have_value("much")


async def drop(page: Page, name: str, content: str) -> None:
    """Drop a file on the conversation with the browser's events."""
    make = """([name, content]) => {
        const data = new DataTransfer();
        data.items.add(new File([content], name, {type: "text/plain"}));
        return data;
    }"""
    data = await page.evaluate_handle(make, [name, content])
    for event in ("dragover", "drop"):
        await page.dispatch_event("main", event, {"dataTransfer": data})


async def test_a_dropped_file_is_sent_and_a_returned_file_is_shown(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "files.checksum")
        await drop(page, "hello.txt", "hello")
        await expect(page.locator(".file-control")).to_contain_text("hello.txt")
        await press(page)
        await expect(runs(page)).to_contain_text("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
        await choose(page, "files.chart")
        await page.get_by_role("button", name="A week").click()
        await press(page)
        picture = page.locator("figure img")
        await expect(picture).to_be_visible()
        assert await picture.evaluate("each => each.decode().then(() => each.naturalWidth)") > 100
        async with page.expect_download() as download:
            await page.locator("figure").last.get_by_role("button", name="Download").click()
        assert (await download.value).suggested_filename == "chart.png"


async def test_progress_is_shown_as_a_bar(open_page: OpenPage, demo: Any) -> None:
    async with serving(demo, card=None, explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "jobs.simulate")
        await page.get_by_label("steps").fill("4")
        await page.get_by_label("seconds").fill("0.05")
        await page.keyboard.press("Control+Enter")
        await expect(page.get_by_role("progressbar")).to_have_attribute("value", "100")
        timeline = await show(page, "Timeline")
        for word in ("submitted", "working", "completed", "5 chunks"):
            await expect(timeline).to_contain_text(word)


async def test_a_message_as_answer_completes_the_run(open_page: OpenPage) -> None:
    agent = ScriptedAgent({"go": (says("Just **this**."),)}, may_reply=True)
    async with serving(agent, card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "go")
        await expect(runs(page)).to_contain_text("Answered")
        await expect(page.locator(".markdown strong")).to_have_text("this")
