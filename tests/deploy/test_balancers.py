"""Three replicas behind our nginx.conf and our Caddyfile: what clients see while replicas come, go and die."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from tests.deploy.balancers import DEADLINE, Balancer, Replica, find_balancer, replicas, until_ready
from tests.deploy.test_files import ENVIRONMENTS
from tests.postgres_server import shared_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDED: Final = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED")
CLIENTS: Final = 4


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def balancer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Balancer:
    return find_balancer(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """That of compose.yaml, with other addresses and shorter times."""
    environment = dict(ENVIRONMENTS["deploy/compose.yaml agent1"])
    del environment["APCORE_A2A_URL"]  # so that the card says what the balancer says
    changed = {
        "APCORE_A2A_STORE": shared_server().url(lease=2),
        "PGPASSWORD": "none",
        "APCORE_A2A_TRUSTED_PROXIES": "127.0.0.1",
        "APCORE_A2A_DRAIN_DELAY": "3",
        "APCORE_A2A_KEEP_ALIVE_INTERVAL": "0.5",
        "SHUTDOWN_TIMEOUT": "3",
    }
    return environment | changed


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(environment: dict[str, str]) -> AsyncIterator[list[Replica]]:
    async with replicas(3, environment) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(balancer: Balancer, three: list[Replica]) -> AsyncIterator[str]:
    async with balancer.before([each.address for each in three]) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(headers={"A2A-Version": "1.0"}, timeout=DEADLINE) as client:
        yield client


def message(text: str, context: str = "") -> dict[str, Any]:
    said = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    if context:
        said["contextId"] = context
    return {"message": said}


async def events(answer: httpx.Response) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """Each event of a stream with its number."""
    number = 0
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            yield number, json.loads(value)


def state_of(event: dict[str, Any]) -> str:
    """The state that an event tells, if it tells one."""
    told = event.get("task") or event.get("statusUpdate") or {}
    return str(told.get("status", {}).get("state", ""))


async def running_at(http: httpx.AsyncClient, found: list[Replica]) -> Replica:
    """The replica that runs the only task there is."""
    async with asyncio.timeout(DEADLINE):
        while True:
            for each in found:
                if (await http.get(f"{each.url}/metrics")).json()["active_tasks"] == 1:
                    return each
            await asyncio.sleep(0.05)


async def test_a_message_is_answered_and_the_card_says_where(
    url: str, three: list[Replica], http: httpx.AsyncClient
) -> None:
    card = (await http.get(f"{url}/.well-known/agent-card.json")).json()
    assert card["supportedInterfaces"][0]["url"] == f"{url}/"
    answer = await http.post(f"{url}/message:send", json=message("count 3 0 safe"))
    assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message("count 3 0 safe")}
    answer = await http.post(f"{url}/", json=call)
    assert answer.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (await http.get(f"{url}/metrics")).status_code == 404
    assert (await http.get(f"{three[0].url}/metrics")).status_code == 200


async def test_events_come_when_they_happen(url: str, http: httpx.AsyncClient) -> None:
    states: list[str] = []
    async with http.stream("POST", f"{url}/message:stream", json=message("count 2 1000 safe")) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async with aclosing(events(answer)) as told:  # type: ignore[type-var]  # a generator, though typed as less
            task_id = (await anext(told))[1]["task"]["id"]
            async for _, event in told:
                states.append(state_of(event))
                if "artifactUpdate" in event and "canceling" not in states:
                    # It is silent for a quarter of an hour now: what is here was not held back until there is more.
                    states.append("canceling")
                    await http.post(f"{url}/tasks/{task_id}:cancel", json={})
    assert states[-1] == "TASK_STATE_CANCELED"


class Reader:
    """Reads streams of one task, and sees that nothing is missing and nothing told twice."""

    def __init__(self) -> None:
        self.task_id = ""
        self.last = 0  # the number of the event that was told last
        self.state = ""

    async def read(self, answer: httpx.Response) -> AsyncIterator[int]:
        assert answer.status_code == 200
        async for number, event in events(answer):
            if "task" in event:  # the task as it is: everything up to that number
                self.task_id = event["task"]["id"]
                assert number >= self.last
            else:
                assert number == self.last + 1
            self.last = number
            self.state = state_of(event) or self.state
            yield number


async def test_a_stream_goes_on_at_another_replica_when_its_own_is_killed(
    url: str, three: list[Replica], http: httpx.AsyncClient
) -> None:
    reader = Reader()
    with suppress(httpx.TransportError):  # the replica is killed, so the stream breaks
        async with http.stream("POST", f"{url}/message:stream", json=message("count 60 0.05 safe")) as answer:
            async for number in reader.read(answer):
                if number == 10:
                    victim = await running_at(http, three)
                    victim.send(signal.SIGKILL)
    assert 10 <= reader.last < 60
    while reader.state not in ENDED:
        last = {"Last-Event-ID": str(reader.last)}
        async with http.stream("GET", f"{url}/tasks/{reader.task_id}:subscribe", headers=last) as answer:
            async for _ in reader.read(answer):
                pass
    assert reader.state == "TASK_STATE_COMPLETED"
    await victim.ended()
    await victim.start()


async def test_a_message_whose_replica_is_killed_makes_one_task(
    url: str, three: list[Replica], http: httpx.AsyncClient, balancer: Balancer
) -> None:
    context = str(uuid4())
    sending = asyncio.create_task(http.post(f"{url}/message:send", json=message("count 100000 0.05 unsafe", context)))
    victim = await running_at(http, three)
    victim.send(signal.SIGKILL)
    answer = await sending
    if balancer.name == "nginx":  # it asks another replica, which waits for what becomes of the task
        assert answer.json()["task"]["status"]["state"] == "TASK_STATE_FAILED"
    else:
        assert answer.status_code == 502
    assert (await http.get(f"{url}/tasks", params={"contextId": context})).json()["totalSize"] == 1
    await victim.ended()
    await victim.start()


RETRY_AFTER = 2.0  # seconds: what Caddy says where no replica is there
NOTICED = 5.0  # seconds in which a balancer, which looks every two, has seen that a replica is back


class Clients:
    """Send message after message, each at most twice, and count what became of them."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url
        self._http = http
        self._is_over = False
        self.answered = 0
        self.failed: list[str] = []

    async def go_on(self) -> None:
        while not self._is_over:
            body = message("count 3 0 safe")
            said = await self._send(body)
            if said:
                await asyncio.sleep(RETRY_AFTER)
                said = await self._send(body)
            if said:
                self.failed.append(said)
            self.answered += 1

    async def _send(self, body: dict[str, Any]) -> str:
        """What went wrong, or nothing."""
        try:
            answer = await self._http.post(f"{self._url}/message:send", json=body)
        except httpx.TransportError as error:
            return repr(error)
        if answer.status_code == 200 and state_of(answer.json()) == "TASK_STATE_COMPLETED":
            return ""
        return f"{answer.status_code} {answer.text[:200]}"

    def end(self) -> None:
        self._is_over = True


async def seen_at_the_end(found: Replica) -> list[int]:
    """The statuses of a replica's readiness, each on a connection of its own, until it takes no more connections."""
    seen: list[int] = []
    async with httpx.AsyncClient(headers={"Connection": "close"}) as http, asyncio.timeout(DEADLINE):
        while True:
            try:
                seen.append((await http.get(f"{found.url}/health/ready")).status_code)
            except httpx.TransportError:
                return seen
            await asyncio.sleep(0.02)


async def test_clients_notice_no_restart_of_replicas(
    url: str, three: list[Replica], http: httpx.AsyncClient, request: pytest.FixtureRequest
) -> None:
    if "caddy" in request.node.name and os.environ.get("CI") == "true":
        pytest.skip("on a busy machine Caddy may take all three for gone at once: run it alone")
    clients = Clients(url, http)
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(clients.go_on())
        for each in three:
            each.send(signal.SIGTERM)
            assert (await seen_at_the_end(each))[-1] == 503  # said before the port was closed
            assert await each.ended() == 0
            await each.start()
            await until_ready(http, each)
            await asyncio.sleep(NOTICED)
        clients.end()
    assert clients.failed == []
    assert clients.answered > 3 * CLIENTS


async def test_when_all_replicas_end_clients_are_told_to_come_again(
    url: str, three: list[Replica], http: httpx.AsyncClient
) -> None:
    for each in three:
        each.send(signal.SIGTERM)
    async with asyncio.timeout(DEADLINE):
        while (await http.post(f"{url}/message:send", json=message("count 3 0 safe"))).status_code == 200:
            pass
    for _ in range(5):  # also when it knows that none of them is well
        answer = await http.post(f"{url}/message:send", json=message("count 3 0 safe"))
        assert (answer.status_code, answer.headers.get("retry-after", "").isdigit()) == (503, True)
    async with asyncio.TaskGroup() as group:
        for each in three:
            assert await each.ended() == 0
            group.create_task(each.start())


async def test_a_silent_stream_outlives_the_patience_of_nginx(
    three: list[Replica], http: httpx.AsyncClient, tmp_path: Path
) -> None:
    nginx = find_balancer("nginx", tmp_path)
    async with nginx.before([each.address for each in three], proxy_read_timeout="2s") as url:
        async with http.stream("POST", f"{url}/message:stream", json=message("count 2 3 safe")) as answer:
            told = [state_of(event) async for _, event in events(answer)]
    assert told[-1] == "TASK_STATE_COMPLETED"
