"""Forms built from JSON Schemas: inputs, validation, and the data that is sent."""

from typing import Any

import pytest
from playwright.async_api import Page, expect

from apcore_a2a.protocol.card import AgentCapabilities, AgentExtension, AgentSkill
from apcore_a2a.protocol.model import TaskState
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import card, choose, named, press, runs
from tests.fakes import ScriptedAgent, status
from tests.interaction.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="package")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["title", "size", "place", "shape", "when"],
    "$defs": {
        "Place": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string", "minLength": 2}}}
    },
    "properties": {
        "title": {"type": "string", "maxLength": 5},
        "size": {"type": "integer", "minimum": 1, "maximum": 9},
        "big": {"type": "integer"},
        "level": {"enum": ["low", "high"], "default": "low"},
        "open": {"type": "boolean", "default": True},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "place": {"$ref": "#/$defs/Place"},
        "names": {"type": "array", "items": {"type": "string"}},
        "people": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
        "when": {"type": "string", "format": "date"},
        "shape": {
            "oneOf": [
                {
                    "title": "Circle",
                    "type": "object",
                    "required": ["radius"],
                    "properties": {"radius": {"type": "number"}},
                },
                {"title": "Word", "type": "string"},
            ]
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "anything": {},
    },
}


def described(schema: dict[str, Any]) -> Any:
    about = AgentExtension(
        uri="urn:apcore:a2a:modules:1", description="", params={"skills": {"make": {"inputSchema": schema}}}
    )
    return card(
        AgentSkill(id="make", name="Make", description="Makes a thing.", tags=("test",)),
        capabilities=AgentCapabilities(streaming=True, extensions=(about,)),
    )


async def test_errors_are_shown_at_their_fields_and_nothing_is_sent(open_page: OpenPage) -> None:
    agent = ScriptedAgent()
    async with serving(agent, card=described(SCHEMA), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "make")
        await page.get_by_label("title").fill("too long")
        await page.get_by_label("size").fill("12")
        await press(page)
        form = page.get_by_role("form", name="Message")
        await expect(form).to_contain_text("at most 5 characters")
        await expect(form).to_contain_text("at most 9")
        await expect(form).to_contain_text("is needed")
        await expect(page.get_by_label("title")).to_be_focused()  # at the first error
        assert agent.calls == []


async def fill_simple_fields(page: Page) -> None:
    await page.get_by_label("title").fill("thing")
    await page.get_by_label("size").fill("3")
    await page.get_by_label("big").fill("12345678901234567890")
    await page.get_by_label("level").select_option("high")
    await page.get_by_label("open").uncheck()
    await page.locator(".field", has_text="note").get_by_label("null").uncheck()
    await page.locator("#field-note").fill("a note")
    await page.get_by_label("when").fill("2026-02-03")
    await page.get_by_label("anything").fill('{"a": [1]}')


async def fill_nested_fields(page: Page) -> None:
    await page.get_by_role("group", name="place").get_by_label("city").fill("Oslo")
    names = page.get_by_role("group", name="names")
    for place, name in enumerate(("Ada", "Bob", "Cid")):
        await names.get_by_role("button", name="Add").click()
        await names.get_by_role("textbox").nth(place).fill(name)
    await names.get_by_role("button", name="Remove item 2").click()
    people = page.get_by_role("group", name="people")
    await people.get_by_role("button", name="Add").click()
    await people.get_by_label("city").fill("Rome")
    await page.get_by_label("Variant of shape").select_option("Circle")
    await page.get_by_label("radius").fill("1.5")
    labels = page.get_by_role("group", name="labels")
    await labels.get_by_label("additional field").fill("colour")
    await labels.get_by_role("button", name="Add").click()
    await page.get_by_role("textbox", name="colour").fill("red")


async def test_fields_of_every_kind_are_filled_in_and_sent(open_page: OpenPage) -> None:
    agent = ScriptedAgent(default=(status(TaskState.COMPLETED),))
    async with serving(agent, card=described(SCHEMA), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "make")
        await fill_simple_fields(page)
        await fill_nested_fields(page)
        await press(page)
        await expect(runs(page)).to_contain_text("Completed")
        assert agent.calls[0].message.parts[0].data == {
            "title": "thing",
            "size": 3,
            "big": 12345678901234567890,
            "level": "high",
            "open": False,
            "note": "a note",
            "place": {"city": "Oslo"},
            "names": ["Ada", "Cid"],
            "people": [{"city": "Rome"}],
            "when": "2026-02-03",
            "shape": {"radius": 1.5},
            "labels": {"colour": "red"},
            "anything": {"a": [1]},
        }


async def test_a_form_and_its_json_are_the_same_document(open_page: OpenPage) -> None:
    async with serving(ScriptedAgent(), card=described(SCHEMA), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "make")
        await page.get_by_label("title").fill("one")
        form = page.get_by_role("form", name="Message")
        await form.get_by_role("button", name="JSON").click()
        box = page.get_by_label("Input as JSON")
        assert '"title": "one"' in await box.input_value()
        await box.fill('{"title": ')
        await form.get_by_role("button", name="Form").click()
        await expect(form).to_contain_text("not JSON")
        await box.fill('{"title": "two", "unknown": 1}')
        await form.get_by_role("button", name="Form").click()
        await expect(page.get_by_label("title")).to_have_value("two")
        await expect(page.get_by_role("textbox", name="unknown")).to_be_visible()  # no input is lost


async def test_a_recursive_schema_is_rendered_as_far_as_it_is_filled(open_page: OpenPage) -> None:
    node = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
    }
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": node}}
    async with serving(ScriptedAgent(), card=described(schema), explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, "make")
        for _ in range(3):
            await page.get_by_role("button", name="Add one").first.click()
        await expect(page.get_by_label("name")).to_have_count(4)
