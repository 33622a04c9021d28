"""The Webhooks tab: deliveries, dead letters, and the inbox for development."""

import re
from typing import Any

import pytest
from playwright.async_api import expect

from apcore_a2a import JWTAuthenticator, async_serve
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.testing import WebhookReceiver
from tests.app.test_app import browsing
from tests.auth.tokens import SECRET, bearer
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import card, choose, runs, say, show
from tests.fakes import Gate, ScriptedAgent, chunk, status
from tests.interaction.serving import serving
from tests.modules import registry

pytestmark = pytest.mark.asyncio(loop_scope="package")

COMPLETED = status(TaskState.COMPLETED)
DEVELOPMENT: dict[str, Any] = {"explorer": True, "push_notifications": True, "allow_insecure_webhooks": True}


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_inbox_shows_what_the_agent_posts(open_page: OpenPage, version: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"go": (gate, chunk("hello", last=True), COMPLETED)})
    auth = JWTAuthenticator(SECRET)
    async with serving(agent, card=card(), auth=auth, **DEVELOPMENT) as url:
        page = await open_page(f"{url}/explorer/")
        await page.get_by_label("A2A").select_option(version)
        await page.get_by_label("Bearer token").fill(bearer()["authorization"])
        await page.get_by_role("button", name="Done").click()
        await choose(page, "play")
        await say(page, "go")
        await gate.reached()
        tab = await show(page, "Webhooks")
        await tab.get_by_role("button", name="Use the inbox").click()
        await expect(tab.locator(".hooks").first).to_contain_text("/explorer/inbox")
        wire = await show(page, "Wire")
        await wire.locator(".wire-row", has_text=re.compile("PushNotificationConfig", re.IGNORECASE)).click()
        detail = wire.locator(".wire-detail")
        await expect(detail).to_contain_text('"credentials": "•••"')
        # Close. A replay would send the mask ••• instead of the secret.
        await expect(detail.get_by_role("button")).to_have_count(1)
        tab = await show(page, "Webhooks")
        gate.open()
        await expect(runs(page)).to_contain_text("Completed")
        inbox = tab.get_by_role("region", name="Inbox")
        await expect(inbox).to_contain_text("notification")
        await expect(inbox.locator("li").first).to_be_visible()
        await expect(tab.locator(".hooks").first).to_contain_text("0 events to go")
        await inbox.get_by_role("button", name="Empty").click()
        await expect(inbox.locator("li")).to_have_count(0)
        await tab.get_by_role("button", name="Delete").click()
        await expect(tab).to_contain_text("None yet.")


async def test_a_rejected_webhook_shows_the_reason(open_page: OpenPage) -> None:
    agent = ScriptedAgent({"go": (chunk("hello", last=True), COMPLETED)})
    async with serving(agent, card=card(), explorer=True, push_notifications=True) as url:
        page = await open_page(f"{url}/explorer/")
        await choose(page, "play")
        await say(page, "go")
        await expect(runs(page)).to_contain_text("Completed")
        tab = await show(page, "Webhooks")
        await expect(tab.get_by_role("button", name="Use the inbox")).to_have_count(0)
        await tab.get_by_label("Address of a webhook").fill("http://127.0.0.1/hook")
        await tab.get_by_role("button", name="Add").click()
        await expect(tab.locator(".complaint")).to_have_text(re.compile("HTTPS"))


async def test_dead_letters_are_listed_and_delivered_again(open_page: OpenPage) -> None:
    agent = ScriptedAgent({"go": (chunk("hello", last=True), COMPLETED)})
    async with serving(agent, card=card(), **DEVELOPMENT) as url:
        page = await open_page(f"{url}/explorer/")
        await choose(page, "play")
        await say(page, "go")
        await expect(runs(page)).to_contain_text("Completed")
        tab = await show(page, "Webhooks")
        async with WebhookReceiver((500, 500, 500, 500, 204)) as hook:
            await tab.get_by_label("Address of a webhook").fill(hook.url)
            await tab.get_by_role("button", name="Add").click()
            # Retried after 1, 2 and 4 seconds, then given up. Listed in the task and among the dead letters.
            await expect(tab.get_by_role("button", name="Redeliver")).to_have_count(2, timeout=20_000)
            await expect(tab.locator(".hooks").nth(1)).to_contain_text("HTTP 500")
            await tab.get_by_role("button", name="Redeliver").last.click()
            await expect(tab).to_contain_text("None: all deliveries have arrived.")
            await expect(tab.locator(".hooks").first).to_contain_text("0 events to go")


async def test_the_inbox_exists_only_for_development_and_requires_authentication() -> None:
    for left_out in DEVELOPMENT:
        options = {**DEVELOPMENT, left_out: False}
        async with browsing(await async_serve(registry(), **options)) as client:
            assert (await client.get("/explorer/inbox")).status_code == 404
    app = await async_serve(registry(), auth=JWTAuthenticator(SECRET), **DEVELOPMENT)
    async with browsing(app) as client:
        assert (await client.post("/explorer/inbox", json={})).status_code == 401
        mine = bearer(sub="ada")
        assert (await client.post("/explorer/inbox", json={"a": 1}, headers=mine)).status_code == 200
        assert (await client.post("/explorer/inbox", content=b"x" * 70_000, headers=mine)).status_code == 413
        theirs = await client.get("/explorer/inbox", headers=bearer(sub="bob"))
        assert theirs.json() == {"deliveries": []}
        (delivery,) = (await client.get("/explorer/inbox", headers=mine)).json()["deliveries"]
        assert delivery["body"] == '{"a":1}'
        assert delivery["proofs"] == ["authorization"]
        assert "authorization" not in delivery["headers"]
