"""Lists: one page, all pages, and invalid pages."""

import asyncio

import pytest

from apcore_a2a.client import client as client_module
from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.protocol.model import Task
from tests.client.conftest import Connect
from tests.client.scripted import CARD, Request, ScriptedServer, card_03, respond, result, task
from tests.fakes import COMPLETED, ScriptedAgent
from tests.interaction.serving import serving

PUSH = {"taskId": "t-1", "id": "p-1", "url": "https://example.com/hook"}
PAGE = {"tasks": [task()], "nextPageToken": "", "pageSize": 50, "totalSize": 1}


async def test_all_pages_are_fetched(server: ScriptedServer, connect: Connect) -> None:
    pages = [PAGE | {"tasks": [task(id=f"t-{n}")], "nextPageToken": f"p-{n}"} for n in range(3)]
    server.on("/", *(result(page) for page in pages), result(PAGE | {"tasks": []}))

    ids = [found.id async for found in connect().iter_tasks("c-1", page_size=1)]

    assert ids == ["t-0", "t-1", "t-2"]
    asked = [request.json["params"] for request in server.asked("/")]
    assert [params.get("pageToken") for params in asked] == [None, "p-0", "p-1", "p-2"]
    assert {(params["contextId"], params["pageSize"]) for params in asked} == {("c-1", 1)}


async def test_a_page_that_names_itself_as_the_next_is_an_error(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result(PAGE | {"nextPageToken": "again"}))

    with pytest.raises(InvalidAgentResponseError, match="a page names itself"):
        _ = [found async for found in connect().iter_tasks()]
    assert len(server.asked("/")) == 2


async def test_an_endless_list_of_webhooks_is_an_error(
    server: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_PAGES", 3)

    async def one_more(request: Request, writer: asyncio.StreamWriter) -> None:
        await result({"configs": [PUSH], "nextPageToken": f"{len(server.requests)}"})(request, writer)

    server.on("/", one_more)

    with pytest.raises(InvalidAgentResponseError, match="longer than 3 pages"):
        await connect().list_push_configs("t-1")
    server.on("/", result({"configs": [PUSH], "nextPageToken": "again"}))
    with pytest.raises(InvalidAgentResponseError, match="a page names itself"):
        await connect().list_push_configs("t-1")


async def test_webhooks_are_listed_over_all_pages(server: ScriptedServer, connect: Connect) -> None:
    first = {"configs": [PUSH | {"id": "p-0"}], "nextPageToken": "more"}
    last = {"configs": [PUSH | {"id": "p-1"}], "nextPageToken": ""}
    server.on("/", result(first), result(last))

    assert [config.id for config in await connect().list_push_configs("t-1")] == ["p-0", "p-1"]
    assert [request.json["params"].get("pageToken") for request in server.asked("/")] == [None, "more"]


async def test_an_invalid_page_is_an_invalid_agent_response_error(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, respond(card_03(server.url, preferredTransport="HTTP+JSON")))
    server.on("/v1/tasks?includeArtifacts=false", respond(None))

    with pytest.raises(InvalidAgentResponseError, match="cannot be read"):
        await connect().list_tasks()


async def test_the_pages_of_an_agent_of_0_3_are_followed_over_rest(connect: Connect) -> None:
    agent = ScriptedAgent(default=(COMPLETED,))
    async with serving(agent) as url:
        client = connect(url, binding="HTTP+JSON", version="0.3")
        sent = [await client.send_message("hi") for _ in range(5)]

        page = await client.list_tasks(page_size=2)
        listed = [task.id async for task in client.iter_tasks(page_size=2)]

    assert len(page.tasks) == 2
    assert page.next_page_token
    assert listed == [task.id for task in reversed(sent) if isinstance(task, Task)]


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, ""),
        ({"Link": '</v1/tasks?cursor=a%20b&limit=2>; rel="next"'}, "a b"),
        ({"Link": '<?pageToken=x>; rel="prev", <?pageToken=y>; rel=next'}, "y"),
        ({"Link": "<<<>>>; rel"}, ""),
        ({"Link": "<http://[?cursor=z#x>; rel=next"}, "z"),
        ({"Link": '<?other=1>; rel="next"'}, ""),
    ],
)
async def test_an_array_of_tasks_is_a_page(
    server: ScriptedServer, connect: Connect, headers: dict[str, str], token: str
) -> None:
    server.on(CARD, respond(card_03(server.url, preferredTransport="HTTP+JSON")))
    server.on("/v1/tasks?includeArtifacts=false", respond([task("COMPLETED")], headers=headers))

    page = await connect().list_tasks()

    assert ([one.id for one in page.tasks], page.next_page_token) == (["t-1"], token)


@pytest.mark.parametrize(("limit", "page_size"), [(2, 2), (100, 100), (200, 100)])
async def test_limit_bounds_the_number_of_tasks(
    server: ScriptedServer, connect: Connect, limit: int, page_size: int
) -> None:
    server.on("/", result(PAGE))

    await connect().list_tasks("c-1", limit)

    assert server.asked("/")[0].json["params"] == {"contextId": "c-1", "pageSize": page_size}
    with pytest.raises(TypeError, match="limit and page_size"):
        await connect().list_tasks(limit=1, page_size=1)
