"""Large tasks and the memory of a running server: stored tasks and each page of a listing are limited in bytes."""

import json
from typing import Any
from uuid import uuid4

import httpx

from apcore_a2a.storage.cursor import MAX_PAGE_BYTES
from apcore_a2a.storage.memory import MAX_BYTES
from tests.processes import running

SERVER = """
from apcore_a2a import serve

async def count(text: str) -> str:
    return str(len(text))

serve(count, host="127.0.0.1", port=0)
"""
LARGE = 5_000_000
SENDS = 40  # 200 MB: more than one owner's limit
AROUND = 2_000  # bytes of JSON in addition to one text


async def test_large_messages_are_stored_within_limits_and_listed_in_pages() -> None:
    async with running("-c", SERVER) as process:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        async with httpx.AsyncClient(base_url=url, headers={"A2A-Version": "1.0"}, timeout=60) as http:
            newest: list[str] = []
            for _ in range(SENDS):
                newest.insert(0, await send(http))
            shown = await list_all(http)
    kept = len(shown)
    assert LARGE * kept <= MAX_BYTES // 2
    assert kept >= (MAX_BYTES // 2) // (LARGE + AROUND) - 1
    assert shown == newest[:kept]


async def send(http: httpx.AsyncClient) -> str:
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": "x" * LARGE}]}
    answer = await http.post("/message:send", json={"message": message})
    assert answer.status_code == 200
    task_id: str = answer.json()["task"]["id"]
    return task_id


async def list_all(http: httpx.AsyncClient) -> list[str]:
    """Return the ids of all tasks in the order of the listing. Asserts that no page is too large."""
    shown: list[str] = []
    token = ""
    while True:
        query: dict[str, Any] = {"pageSize": 100, "pageToken": token, "historyLength": 10}
        answer = await http.get("/tasks", params=query)
        assert answer.status_code == 200
        assert len(answer.content) <= MAX_PAGE_BYTES + AROUND
        page = json.loads(answer.content)
        shown += [task["id"] for task in page["tasks"]]
        token = page["nextPageToken"]
        if not token:
            assert page["totalSize"] == len(shown)
            return shown
