"""Questions with structure on the page: a form for each, decisions about calls, and the answers that the agent gets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from apcore_a2a import Call, Question
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import choose, named, runs, say
from tests.interaction.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="package")

SEATS = Question(id="seats", text="How many seats?", schema={"type": "integer", "minimum": 1})
FARE = Question(id="fare", text="Which class?", schema={"enum": ["economy", "business"]}, optional=True)
PLACE = Question(id="place", text="Where to?", schema={"type": "object", "properties": {"city": {"type": "string"}}})
PAY = Question(id="pay", text="Pay 50 EUR?", kind="approval", tool="pay", arguments={"amount": 50})
CHANGE = Question(id="pay", text="Pay 50 EUR?", kind="approval", tool="pay", arguments={"amount": 50}, editable=True)


async def book(city: str, call: Call) -> dict[str, Any]:
    return call.ask_all(SEATS, FARE, PLACE, PAY)


async def count(city: str, call: Call) -> dict[str, Any]:
    return call.ask_all(SEATS)


async def pay(city: str, call: Call) -> dict[str, Any]:
    return call.ask_all(PAY)


async def change(city: str, call: Call) -> str:
    return str(call.ask(CHANGE).parts[0].data)


@asynccontextmanager
async def asked(open_page: OpenPage, skill: str) -> AsyncIterator[tuple[Page, Locator]]:
    """Start a task that asks, and yield the page and the group with the questions."""
    async with serving([book, count, pay, change], card=None, explorer=True) as url:
        page = await open_page(named(url))
        await choose(page, skill)
        await say(page, "Rome")
        group = page.locator(".ask")
        await expect(group).to_be_visible()
        yield page, group


def question(group: Locator, text: str) -> Locator:
    return group.get_by_role("region", name=text)


async def test_every_question_has_a_form_and_the_agent_gets_typed_answers(open_page: OpenPage) -> None:
    async with asked(open_page, "book") as (page, group):
        await expect(group).to_contain_text("The agent asks 4 questions")
        await question(group, "How many seats?").get_by_label("Answer").fill("2")
        await question(group, "Which class?").get_by_label("Answer").select_option("business")
        await question(group, "Where to?").get_by_label("city").fill("Oslo")
        decision = question(group, "Pay 50 EUR?")
        await expect(decision).to_contain_text("amount")  # the call is shown before the decision
        await decision.get_by_role("button", name="Approve").click()
        await group.get_by_role("button", name="Send the answers").click()

        answer = runs(page).locator(".artifact")
        await expect(answer).to_contain_text("business")
        await answer.get_by_role("button", name="JSON").click()
        await expect(answer.locator("pre")).to_contain_text('"seats": 2')
        await expect(answer.locator("pre")).to_contain_text('"city": "Oslo"')
        await expect(answer.locator("pre")).to_contain_text('"pay": true')
        await expect(page.locator(".said.agent.earlier")).not_to_contain_text(
            "Reply"
        )  # the question, not how to answer


async def test_missing_answers_are_reported_at_their_questions(open_page: OpenPage) -> None:
    async with asked(open_page, "book") as (page, group):
        await question(group, "How many seats?").get_by_label("Answer").fill("0")
        await group.get_by_role("button", name="Send the answers").click()

        await expect(question(group, "How many seats?")).to_contain_text("at least 1")
        await expect(question(group, "Pay 50 EUR?")).to_contain_text("approve or reject")
        await expect(question(group, "Which class?").locator(".complaint")).to_have_count(0)  # optional
        await expect(question(group, "How many seats?").get_by_label("Answer")).to_be_focused()
        await expect(runs(page)).to_contain_text("Input needed")


async def test_a_single_question_is_answered_with_enter(open_page: OpenPage) -> None:
    async with asked(open_page, "count") as (page, group):
        await group.get_by_label("Answer").fill("3")
        await page.keyboard.press("Enter")
        await expect(runs(page)).to_contain_text("Completed")
        await expect(runs(page).locator(".artifact")).to_contain_text("3")


async def test_questions_can_be_answered_in_words(open_page: OpenPage) -> None:
    async with asked(open_page, "count") as (page, group):
        await page.get_by_label("Or reply in words").fill("many")
        await page.keyboard.press("Enter")
        await expect(group.locator(".complaint")).to_be_visible()  # the agent says what does not fit
        await page.get_by_label("Or reply in words").fill("4")
        await page.keyboard.press("Enter")
        await expect(runs(page).locator(".artifact")).to_contain_text("4")


async def test_one_approval_has_two_buttons_and_the_composer_stays_free(open_page: OpenPage) -> None:
    async with asked(open_page, "pay") as (page, group):
        await expect(group).to_contain_text("amount")
        await expect(page.get_by_role("form", name="Message")).to_be_visible()
        await page.locator(".talk").focus()
        await page.keyboard.press("r")
        await expect(runs(page)).to_contain_text("Completed")
        await expect(runs(page).locator(".artifact")).to_contain_text("false")


async def test_a_rejection_can_have_a_reason_and_an_approval_other_arguments(open_page: OpenPage) -> None:
    async with asked(open_page, "change") as (page, group):
        await group.get_by_role("button", name="Reject").click()
        await group.get_by_label("Reason of the rejection").fill("too dear")
        await group.get_by_role("button", name="Answer").click()
        await expect(runs(page).locator(".artifact")).to_contain_text("'reason': 'too dear'")
    async with asked(open_page, "change") as (page, group):
        await group.get_by_role("button", name="Change the arguments").click()
        await group.get_by_label("Arguments as JSON").fill('{"amount": 40')
        await expect(group).to_contain_text("not JSON yet")
        await group.get_by_label("Arguments as JSON").fill('{"amount": 40}')
        await group.get_by_role("button", name="Approve").click()
        await group.get_by_role("button", name="Answer").click()
        await expect(runs(page).locator(".artifact")).to_contain_text("'arguments': {'amount': 40}")
