"""The client against agents of other implementations on a socket: every operation that each of them supports."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing
from functools import cache

import httpx
import pytest

from apcore_a2a.client import A2AClient
from apcore_a2a.errors import (
    A2ADiscoveryError,
    InvalidParamsError,
    MethodNotFoundError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol.model import ArtifactUpdate, Message, SendConfiguration, StatusUpdate, Task, TaskState
from tests.client.peers.running import WAYS, Started, Way, running
from tests.requirements import requirement


def having(operation: str) -> pytest.MarkDecorator:
    """Parametrize with the peers that support the operation."""
    return pytest.mark.parametrize("way", [way for way in WAYS if operation not in way.lacks], ids=str)


LATER = SendConfiguration(return_immediately=True)


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[[str], Started]]:
    """Start a peer at its first use. All peers end with the module."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(running(name)))


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


@pytest.fixture
async def client(way: Way, start: Callable[[str], Started]) -> AsyncIterator[A2AClient]:
    peer = start(way.peer)
    origins = [peer.grpc_url]
    async with A2AClient(
        peer.url, binding=way.binding, version=way.version, allow_origins=origins, timeout=10.0
    ) as connected:
        yield connected


def text_of(task: Task) -> str:
    return "".join(str(part.text) for artifact in task.artifacts for part in artifact.parts)


async def send(client: A2AClient, words: str, **options: str) -> Task:
    """Send a message, and wait for its task if the agent does not."""
    answer = await client.send_message(words, **options)  # type: ignore[arg-type]  # strings all
    assert isinstance(answer, Task)
    return await client.wait(answer)


@requirement("NFR-CMP-005", "FR-CLI-002")
async def test_the_agent_is_discovered(client: A2AClient, way: Way) -> None:
    card = await client.agent_card

    assert card.name == way.peer
    assert [skill.id for skill in card.skills] == ([] if "skills" in way.lacks else ["obey"])
    interface = await client.interface
    assert (interface.protocol_binding, interface.protocol_version) == (way.binding, way.version)


@requirement("NFR-CMP-005", "FR-CLI-003")
async def test_a_message_is_answered_with_a_task(client: A2AClient) -> None:
    task = await send(client, "echo Grüße 👋")

    assert (task.status.state, text_of(task)) == (TaskState.COMPLETED, "Grüße 👋")


@having("message")
async def test_a_message_is_answered_with_a_message(client: A2AClient) -> None:
    answer = await client.send_message("message")

    assert isinstance(answer, Message)
    assert answer.parts[0].text == "hello"


async def test_a_failure_is_a_failed_task(client: A2AClient) -> None:
    assert (await send(client, "fail")).status.state is TaskState.FAILED


async def test_a_task_may_wait_for_input(client: A2AClient) -> None:
    assert (await send(client, "ask")).status.state is TaskState.INPUT_REQUIRED


@having("continue")
async def test_a_message_continues_a_task_that_waits_for_input(client: A2AClient) -> None:
    asking = await send(client, "ask")

    answered = await send(client, "echo this one", task_id=asking.id, context_id=asking.context_id)

    assert (answered.id, answered.status.state, text_of(answered)) == (asking.id, TaskState.COMPLETED, "this one")


@requirement("NFR-CMP-005", "FR-CLI-004")
async def test_a_stream_yields_every_chunk_once(client: A2AClient) -> None:
    got = [event async for event in client.stream_message("count 100")]

    assert isinstance(got[0], Task)
    chunks = [event for event in got if isinstance(event, ArtifactUpdate)]
    assert [chunk.artifact.parts[0].text for chunk in chunks] == [str(n) for n in range(100)]
    assert [chunk.append for chunk in chunks] == [False] + [True] * 99
    assert isinstance(got[-1], StatusUpdate)
    assert got[-1].status.state is TaskState.COMPLETED


@having("message")
async def test_a_stream_may_be_one_message(client: A2AClient) -> None:
    (got,) = [event async for event in client.stream_message("message")]

    assert isinstance(got, Message)


@requirement("NFR-CMP-005", "FR-CLI-005")
async def test_a_task_is_returned_by_its_id(client: A2AClient) -> None:
    task = await send(client, "echo hi")

    again = await client.get_task(task.id)

    assert (again.id, again.context_id, text_of(again)) == (task.id, task.context_id, "hi")


@requirement("FR-CLI-005")
async def test_an_unknown_task_is_not_found(client: A2AClient) -> None:
    with pytest.raises(TaskNotFoundError):
        await client.get_task("00000000-0000-4000-8000-000000000000")


@requirement("FR-CLI-005")
@having("cancel")
async def test_a_task_is_subscribed_to_and_canceled(client: A2AClient, way: Way) -> None:
    task = await client.send_message("hang", configuration=LATER)
    assert isinstance(task, Task)
    if task.status.state is TaskState.SUBMITTED:  # some agents answer before the task has started
        task = await client.get_task(task.id)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(client.wait(task.id))
        if way.version == "1.0":
            async with aclosing(client.resubscribe(task.id)) as events:
                first = await anext(events)
                assert isinstance(first, Task)
                canceled = await client.cancel_task(task.id)
                assert [event.status.state async for event in events if isinstance(event, StatusUpdate)][-1:] == [
                    TaskState.CANCELED
                ]
        else:
            canceled = await client.cancel_task(task.id)

    assert canceled.status.state is TaskState.CANCELED
    assert waiting.result().status.state is TaskState.CANCELED
    if "twice" not in way.lacks:
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(task.id)
    if way.version == "1.0":
        with pytest.raises((UnsupportedOperationError, InvalidParamsError)):  # InvalidParamsError: a2a-sdk before 1.3
            _ = [event async for event in client.resubscribe(task.id)]


@pytest.mark.parametrize("way", [way for way in WAYS if "list" in way.lacks and way.binding != "HTTP+JSON"], ids=str)
async def test_listing_tasks_raises_an_error_if_the_agent_cannot(client: A2AClient) -> None:
    with pytest.raises((MethodNotFoundError, UnsupportedOperationError)):
        await client.list_tasks()


@requirement("FR-CLI-005")
@having("list")
async def test_tasks_are_listed_page_by_page(client: A2AClient) -> None:
    context = (await send(client, "echo one")).context_id
    ids = {(await send(client, f"echo {n}", context_id=context)).id for n in range(4)}

    page = await client.list_tasks(context, page_size=2)
    found = [task.id async for task in client.iter_tasks(context, page_size=2)]

    assert (len(page.tasks), page.total_size) == (2, 5)
    assert len(found) == len(set(found)) == 5
    assert ids < set(found)


@having("push")
async def test_webhooks_are_stored_listed_and_deleted(client: A2AClient) -> None:
    task = await send(client, "ask")

    stored = await client.set_push_config(task.id, "https://example.com/hook")

    assert (stored.url, stored.task_id) == ("https://example.com/hook", task.id)
    (listed,) = await client.list_push_configs(task.id)
    assert (await client.get_push_config(task.id, listed.id)).url == "https://example.com/hook"
    await client.delete_push_config(task.id, listed.id)
    assert await client.list_push_configs(task.id) == []


@having("extended")
async def test_the_extended_card_is_returned(client: A2AClient, way: Way) -> None:
    card = await client.extended_card(auth="Bearer any")

    assert card.name.startswith(way.peer)


async def test_a_card_signed_by_the_javascript_sdk_is_accepted(start: Callable[[str], Started]) -> None:
    url = start("js").url
    async with httpx.AsyncClient() as http:
        keys = (await http.get(f"{url}/jwks.json")).json()

    async with A2AClient(url, keys=keys) as client:
        assert (await client.agent_card).name == "js"
    keys["keys"][0]["kid"] = "another"
    async with A2AClient(url, keys=keys) as client:
        with pytest.raises(A2ADiscoveryError, match="is valid with the pinned keys"):
            _ = await client.agent_card
