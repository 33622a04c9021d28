"""What the page shows of an answer: broken streams, texts in statuses, progress, tools, names, and exports."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from apcore_a2a import Call, ModelUsage, ToolCalled, ToolDone
from apcore_a2a.protocol.model import Message, Part, Role, StatusUpdate, TaskState, TaskStatus
from tests.client import scripted as peer
from tests.client.scripted import ScriptedServer
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import card, choose, named, press, runs, say, show
from tests.explorer.test_explore import exploring
from tests.fakes import Gate, ScriptedAgent, chunk, status
from tests.interaction.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="package")

COMPLETED = status(TaskState.COMPLETED)
SIZES = {"wide": (1360, 850), "tablet": (800, 900), "phone": (390, 800)}


class Peer:
    """An agent whose stream is scripted. It answers requests for the task from a list, the last one again and again."""

    def __init__(self, stream: list[Any], *tasks: dict[str, Any]) -> None:
        self._stream = stream
        self._tasks = list(tasks)
        self.methods: list[str] = []

    async def __call__(self, request: peer.Request, writer: asyncio.StreamWriter) -> None:
        method = request.json["method"]
        if method != "ListTasks":
            self.methods.append(method)
        answer = peer.error(-32601)
        if method == "SendStreamingMessage":
            answer = self._write_stream
        elif method == "GetTask" and self._tasks:
            answer = peer.result(self._tasks[0])
            if len(self._tasks) > 1:
                del self._tasks[0]
        await answer(request, writer)

    async def _write_stream(self, request: peer.Request, writer: asyncio.StreamWriter) -> None:
        writer.write(peer.STREAM_HEAD)
        for value in self._stream:
            if isinstance(value, Exception):
                failed = {"jsonrpc": "2.0", "id": request.json["id"], "error": {"code": -32603, "message": str(value)}}
                writer.write(peer.chunk(f"data: {json.dumps(failed)}\n\n".encode()))
            else:
                writer.write(peer.event(request, value))
        writer.write(peer.STREAM_END)


BEGUN = [{"task": peer.task("WORKING")}, peer.artifact("half", append=False), RuntimeError("out of memory")]


async def test_a_stream_that_ends_with_an_error_asks_for_the_task_once(open_page: OpenPage) -> None:
    whole = {"artifactId": "a-1", "parts": [{"text": "the whole answer"}]}
    agent = Peer(BEGUN, peer.task("COMPLETED", artifacts=[whole]))
    async with ScriptedServer() as server:
        server.on(peer.CARD, peer.respond(peer.card(server.url))).on("/", agent)
        async with exploring(server.url) as url:
            page = await open_page(url)
            await choose(page, "obey")
            await say(page, "go")
            await expect(runs(page)).to_contain_text("Completed")
            await expect(page.locator(".artifact")).to_contain_text("the whole answer")
            await expect(runs(page)).to_contain_text("The stream ended with an error (out of memory)")
    assert agent.methods == ["SendStreamingMessage", "GetTask"]


async def test_a_task_that_still_runs_after_its_stream_has_failed_is_polled(open_page: OpenPage) -> None:
    agent = Peer(BEGUN, peer.task("WORKING"), peer.task("WORKING"), peer.task("COMPLETED"))
    async with ScriptedServer() as server:
        server.on(peer.CARD, peer.respond(peer.card(server.url))).on("/", agent)
        async with exploring(server.url) as url:
            page = await open_page(url)
            await choose(page, "obey")
            await say(page, "go")
            await expect(runs(page)).to_contain_text("Completed")
    assert agent.methods == ["SendStreamingMessage", "GetTask", "GetTask", "GetTask"]


async def test_a_task_that_cannot_be_read_after_its_stream_has_failed_is_lost(open_page: OpenPage) -> None:
    async with ScriptedServer() as server:
        server.on(peer.CARD, peer.respond(peer.card(server.url))).on("/", Peer(BEGUN))
        async with exploring(server.url) as url:
            page = await open_page(url)
            await choose(page, "obey")
            await say(page, "go")
            await expect(runs(page)).to_contain_text("Lost")
            await expect(page.get_by_role("alert")).to_contain_text("(out of memory), and the task cannot be read")


async def test_texts_of_statuses_are_the_answer_where_there_is_no_artifact(open_page: OpenPage) -> None:
    def working(text: str) -> dict[str, Any]:
        said = {"messageId": text, "role": "ROLE_AGENT", "parts": [{"text": text}]}
        change = peer.status("WORKING")
        change["statusUpdate"]["status"]["message"] = said
        return change

    grows = [working("It is"), working("It is sunny."), working("And warm."), peer.status("COMPLETED")]
    async with ScriptedServer() as server:
        agent = Peer([{"task": peer.task("SUBMITTED")}, *grows])
        server.on(peer.CARD, peer.respond(peer.card(server.url))).on("/", agent)
        async with exploring(server.url) as url:
            page = await open_page(url)
            await choose(page, "obey")
            await say(page, "weather?")
            await expect(runs(page).locator(".said.agent > .markdown")).to_have_text("It is sunny.And warm.")
            await expect(runs(page)).not_to_contain_text("returned nothing")
            await expect(runs(page)).not_to_contain_text("while it worked")


# ---- progress and tools ---------------------------------------------------------------------------------------------


async def test_progress_is_a_bar_while_the_task_runs(open_page: OpenPage) -> None:
    gate = Gate()

    async def work(text: str, call: Call) -> str:
        call.progress(0.4, "Reading page 2")
        await gate.wait()
        return "done"

    async with serving([work], card=None, explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "work")
        await say(page, "go")
        bar = page.get_by_role("progressbar")
        await expect(bar).to_have_attribute("value", "40")
        await expect(runs(page)).to_contain_text("Reading page 2")
        gate.open()
        await expect(runs(page)).to_contain_text("Completed")
        await expect(bar).to_have_count(0)
        await page.get_by_text("1 note while it worked").click()
        await expect(runs(page)).to_contain_text("40 % Reading page 2")


async def test_the_tools_of_an_agent_are_on_the_timeline_with_the_use_of_its_model(open_page: OpenPage) -> None:
    async def search(text: str) -> AsyncIterator[str | ToolCalled | ToolDone | ModelUsage]:
        yield ToolCalled(id="1", name="look_up", arguments={"query": text})
        yield ToolDone(id="1", name="look_up", result=["rome.example"])
        yield ModelUsage(requests=1, input_tokens=1200, output_tokens=5)
        yield "One page"

    async with serving([search], card=None, explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "search")
        await say(page, "Rome")
        await expect(page.locator(".artifact")).to_contain_text("One page")
        timeline = await show(page, "Timeline")
        await expect(timeline).to_contain_text('look_up {"query":"Rome"}')
        await expect(timeline).to_contain_text("1 requests, 1,200 tokens in, 5 tokens out")
        await page.get_by_text("2 notes while it worked").click()
        await expect(runs(page)).to_contain_text('["rome.example"]')


async def test_an_adk_agent_shows_its_tools_too(open_page: OpenPage) -> None:
    call = Part(data={"id": "1", "name": "roll", "args": {"sides": 6}}, metadata={"adk_type": "function_call"})
    message = Message(message_id="m-1", role=Role.AGENT, parts=(call,))
    calls = StatusUpdate(status=TaskStatus(state=TaskState.WORKING, message=message))
    agent = ScriptedAgent({"go": (calls, chunk("4", last=True), COMPLETED)})
    async with serving(agent, card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "go")
        await expect(await show(page, "Timeline")).to_contain_text('roll {"sides":6}')
        await page.get_by_text("1 note while it worked").click()
        await expect(runs(page)).to_contain_text("Calls roll")


async def test_an_exception_is_shown_during_development(open_page: OpenPage) -> None:
    def crash(number: int = 1) -> float:
        return number / 0

    options: dict[str, Any] = {"explorer": True, "host": "127.0.0.1", "show_exceptions": True}
    async with serving([crash], card=None, **options) as url:
        page = await open_page(f"{url}/explorer/")
        await choose(page, "crash")
        await press(page)
        await expect(page.get_by_role("alert")).to_contain_text("ZeroDivisionError: division by zero")
        await expect(page.get_by_role("alert")).to_contain_text("in crash: return number / 0")


# ---- names, search and exports --------------------------------------------------------------------------------------


async def test_conversations_and_tasks_are_named_by_what_was_said_and_found_by_it(open_page: OpenPage) -> None:
    async with serving(ScriptedAgent(default=(chunk("ok", last=True), COMPLETED)), card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        for text in ("the red door", "the blue door", "a window", "the roof", "the cellar"):
            await say(page, text)
            await expect(runs(page).last).to_contain_text("Completed")
        await expect(page.locator(".talk-title")).to_have_text("the red door")
        await expect(await show(page, "Timeline")).to_contain_text("the cellar")
        rows = page.locator(".task-row")
        await expect(rows).to_have_count(5)
        await expect(rows.first.locator(".task-name")).to_have_text("the cellar")
        await expect(rows.first.locator(".task-state")).to_have_text("completed · play")
        await page.get_by_label("Search tasks").fill("door the")
        await expect(rows.locator(".task-name")).to_have_text(["the blue door", "the red door"])
        await page.get_by_label("Search tasks").fill("nothing")
        await expect(page.get_by_text("No loaded task matches")).to_be_visible()


async def test_a_conversation_is_exported_as_markdown_and_json(open_page: OpenPage, tmp_path: Path) -> None:
    script = (chunk("Hello **there**", last=True), COMPLETED)
    async with serving(ScriptedAgent(default=script), card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await say(page, "hi")
        await expect(runs(page)).to_contain_text("Completed")
        saved: dict[str, str] = {}
        for kind in ("Markdown", "JSON"):
            await page.get_by_role("button", name="Conversation menu").click()
            async with page.expect_download() as download:
                await page.get_by_role("menuitem", name=f"Export as {kind}").click()
            file = tmp_path / kind
            await (await download.value).save_as(file)
            saved[kind] = file.read_text(encoding="utf-8")

    assert "## You → play\n\nhi\n\n## Agent: completed\n" in saved["Markdown"]
    assert "Hello **there**" in saved["Markdown"]
    (task,) = json.loads(saved["JSON"])["tasks"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["history"][0]["parts"] == [{"text": "hi"}]
    assert task["artifacts"][0]["parts"][0]["text"] == "Hello **there**"


# ---- keys and layout ------------------------------------------------------------------------------------------------


async def test_enter_sends_a_text_and_shift_enter_begins_a_line(open_page: OpenPage) -> None:
    agent = ScriptedAgent({"ask": (status(TaskState.INPUT_REQUIRED, "Which?"),)}, default=(COMPLETED,))
    async with serving(agent, card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        field = page.get_by_label("Message text")
        await field.press_sequentially("one")
        await field.press("Shift+Enter")
        await field.press_sequentially("two")
        await expect(runs(page)).to_have_count(0)
        await field.press("Enter")
        await expect(runs(page)).to_contain_text("Completed")
        assert agent.calls[-1].message.parts[0].text == "one\ntwo"

        await field.press_sequentially("ask")
        await field.press("Enter")
        await page.get_by_label("Your reply").press_sequentially("this")
        await page.get_by_label("Your reply").press("Enter")
        await expect(runs(page).last).to_contain_text("Completed")
        assert agent.calls[-1].message.parts[0].text == "this"


async def test_enter_in_json_begins_a_line(open_page: OpenPage) -> None:
    async with serving(ScriptedAgent(), card=card(), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "play")
        await page.get_by_role("button", name="JSON", exact=True).click()
        field = page.get_by_label("Input as JSON")
        await field.fill("{")
        await field.press("Enter")
        await expect(field).to_have_value("{\n")
        await expect(runs(page)).to_have_count(0)


async def test_long_event_ids_stay_on_one_line_of_the_wire_and_its_search_finds_them(open_page: OpenPage) -> None:
    async def many(request: peer.Request, writer: asyncio.StreamWriter) -> None:
        if request.json["method"] != "SendStreamingMessage":
            await peer.error(-32601)(request, writer)
            return
        values = [{"task": peer.task("WORKING")}, peer.artifact("needle", append=False), peer.status("COMPLETED")]
        await peer.stream(*values, first_id=99_998)(request, writer)

    async with ScriptedServer() as server:
        server.on(peer.CARD, peer.respond(peer.card(server.url))).on("/", many)
        async with exploring(server.url) as url:
            page = await open_page(url)
            await choose(page, "obey")
            await say(page, "go")
            await expect(runs(page)).to_contain_text("Completed")
            wire = await show(page, "Wire")
            frames = wire.locator(".wire-row.frame")
            await expect(frames.last).to_contain_text("event 100000")
            heights = await frames.locator(".wire-id").evaluate_all("all => all.map(one => one.offsetHeight)")
            assert len(heights) == 3 and max(heights) < 24
            assert await frames.last.locator(".wire-id").evaluate("one => one.scrollWidth <= one.offsetWidth")
            await wire.get_by_label("Search the wire").fill("needle")
            await expect(frames).to_have_count(1)
            await expect(frames).to_contain_text("artifact")


@pytest.mark.parametrize("size", SIZES)
async def test_no_control_is_outside_of_the_screen(open_page: OpenPage, demo: Any, size: str) -> None:
    width, height = SIZES[size]
    outside = """() => [...document.querySelectorAll("button, input, select, textarea, summary, a")]
        .filter(one => one.checkVisibility() && !one.closest(".tabs, .scroll-x, .skip") && one.className !== "skip")
        .map(one => [one.getBoundingClientRect(), one.textContent || one.ariaLabel])
        .filter(([box]) => box.width && (box.left < 0 || box.right > innerWidth))
        .map(([, name]) => name)"""
    async with serving(demo, card=None, explorer=True, name="demo") as url:
        page = await open_page(f"{url}/explorer/", viewport={"width": width, "height": height})
        for skill in ("payments.transfer", "units.convert"):
            if size == "phone":
                await page.get_by_role("button", name="Skills", exact=True).click()
                assert await page.evaluate(outside) == []
            await choose(page, skill)
            await page.locator(".chip").first.click()
            await press(page)
            await expect(runs(page).last).to_be_visible()
            assert await page.evaluate(outside) == []
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.get_by_role("button", name="Conversation menu").click()
        assert await page.evaluate(outside) == []
        if size != "wide":
            await page.get_by_role("button", name="Inspect").click()
        await show(page, "Wire")
        assert await page.evaluate(outside) == []
