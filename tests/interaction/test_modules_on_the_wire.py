"""A registry on the wire: the skills of its card, the pages of its tasks."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from tests.interaction.serving import serving
from tests.modules import Add, registry
from tests.requirements import requirement


class Text(BaseModel):
    text: str


class Says:
    """Echoes its input."""

    description = "Says it"
    input_schema = Text
    output_schema = Text

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        return inputs


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    # Any: `serving` is typed for agents, but the application takes everything that `serve` takes.
    served: Any = registry(math__add=Add(), text__say=Says())
    no_card: Any = None
    async with serving(served, card=no_card) as url, httpx.AsyncClient(base_url=url) as client:
        yield client


async def ask(client: httpx.AsyncClient, method: str, params: dict[str, Any]) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    result: dict[str, Any] = (await client.post("/", json=body)).json()["result"]
    return result


@requirement("FR-SKL-003")
async def test_the_card_declares_the_modes_of_each_skill(client: httpx.AsyncClient) -> None:
    card = (await client.get("/.well-known/agent.json")).json()
    modes = {skill["id"]: (skill["inputModes"], skill["outputModes"]) for skill in card["skills"]}
    both = ["application/json", "text/plain"]
    assert modes == {"math.add": (["application/json"], ["application/json"]), "text.say": (both, both)}


@requirement("FR-TSK-006")
async def test_a_page_has_fifty_tasks_two_hundred_at_most_and_a_token_for_the_next(
    client: httpx.AsyncClient,
) -> None:
    message = {"role": "user", "parts": [{"kind": "data", "data": {"a": 1, "b": 2}}]}
    asked = {"message": message, "metadata": {"skillId": "math.add"}}
    made = [(await ask(client, "message/send", asked))["id"] for _ in range(201)]
    newest_first = made[::-1]

    async def page(**params: Any) -> tuple[list[str], Any]:
        found = await ask(client, "tasks/list", params)
        return [task["id"] for task in found["tasks"]], found.get("nextCursor")

    first, cursor = await page()
    assert first == newest_first[:50]
    second, _ = await page(cursor=cursor)
    assert second == newest_first[50:100]
    most, cursor = await page(limit=1000)
    assert most == newest_first[:200]
    assert await page(limit=1000, cursor=cursor) == (newest_first[200:], None)
    assert await page(contextId="another") == ([], None)
