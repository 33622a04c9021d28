"""`serve(registry, …)` as a process: each keyword of the specification, and what holds when it is left out."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from apcore_a2a import __version__
from tests.app.test_app import CARD, send
from tests.app.test_serving import address
from tests.auth.tokens import SECRET, bearer
from tests.processes import Process, running
from tests.requirements import requirement

SCRIPT = """
import sys
from apcore_a2a import InMemoryTaskStore, JWTAuthenticator, serve
from tests.modules import registry

class Loud(InMemoryTaskStore):
    async def create(self, change, **options):
        print("kept by the store that was given", file=sys.stderr, flush=True)
        return await super().create(change, **options)

serve(registry(), host="127.0.0.1", port=0, {keywords})
"""
PAGE = "https://app.example"
FROM_PAGE = {"Origin": PAGE}


@asynccontextmanager
async def served(keywords: str = "") -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    async with running("-c", SCRIPT.replace("{keywords}", keywords)) as process:
        async with httpx.AsyncClient(base_url=await address(process)) as client:
            yield process, client
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0


async def card_of(client: httpx.AsyncClient) -> dict[str, Any]:
    card: dict[str, Any] = (await client.get("/.well-known/agent.json")).json()
    return card


@requirement("FR-SRV-002")
async def test_without_keywords_the_agent_is_open_here_and_closed_to_other_pages() -> None:
    async with served() as (process, client):
        card = await card_of(client)
        assert (card["name"], card["version"]) == ("apcore-agent", __version__)
        assert card["description"] == "apcore agent with 1 skill"
        assert not card.get("securitySchemes")
        assert card["capabilities"]["pushNotifications"] is False
        answer = await client.post("/", json=send())
        assert answer.json()["result"]["status"]["state"] == "completed"
        foreign = await client.post("/", json=send(), headers=FROM_PAGE)
        assert foreign.status_code == 403
        assert "access-control-allow-origin" not in foreign.headers
        assert (await client.get("/explorer/")).status_code == 404
    assert "kept by the store" not in process.said


@requirement("FR-SRV-002")
async def test_the_card_says_the_name_the_description_and_the_version_that_were_given() -> None:
    async with served('name="calculator", description="Adds", version="1.2.3"') as (_, client):
        card = await card_of(client)
        assert (card["name"], card["description"], card["version"]) == ("calculator", "Adds", "1.2.3")


@requirement("FR-SRV-002")
async def test_authenticator_store_origins_and_explorer_are_the_ones_that_were_given() -> None:
    keywords = f'auth=JWTAuthenticator("{SECRET}"), task_store=Loud(), cors_origins=["{PAGE}"], explorer=True'
    async with served(keywords) as (process, client):
        assert (await client.post("/", json=send())).status_code == 401
        assert (await client.post("/", json=send(), headers=bearer())).json()["result"]["kind"] == "task"
        await process.says("kept by the store that was given")
        assert (await client.get(CARD, headers=FROM_PAGE)).headers["access-control-allow-origin"] == PAGE
        other = await client.get(CARD, headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
        page = await client.get("/explorer/")
        assert (page.status_code, page.headers["content-type"].split(";")[0]) == (200, "text/html")
