"""The checker finds violations: each guard of the store is removed in turn, and the checker reports it."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, PushConfig, TaskState
from apcore_a2a.storage.contract import Change, Query, Webhook
from apcore_a2a.storage.postgres import reads, writer
from apcore_a2a.storage.postgres.statements import WRITE
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.cluster.checker import check_database, check_reads, check_versions
from tests.cluster.replicas import Client, Place, ReceivedStream, new_place
from tests.postgres_server import shared_server
from tests.storage.contract import ALICE, BOB, Author, append, write_task

FENCE = ("AND task.epoch <= given.epoch", "AND (task.runner IS NULL OR task.runner = $20)")
VERSION = ("AND task.version = given.expected",)


@pytest.fixture
def place() -> Place:
    return new_place(shared_server())


@pytest.fixture
async def stores(place: Place) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two replicas."""
    first, second = PostgresStore(place.url), PostgresStore(place.url)
    await first.open()
    await second.open()
    yield first, second
    await first.close()
    await second.close()


def without(guards: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    statement = WRITE
    for guard in guards:
        assert guard in statement
        statement = statement.replace(guard, "AND $20::text <> ''")  # always true: it is the name of this replica
    monkeypatch.setattr(writer, "WRITE", statement)


def counts(author: Author, run: str, number: int) -> Change:
    """Return a chunk as the counting agent writes it."""
    artifact = Artifact(artifact_id="out", parts=[Part(text=f"{run} {number}")])
    return author.change([ArtifactUpdate(artifact=artifact, task_id=author.task.id, append=number > 0)])


async def try_to(store: PostgresStore, change: Change) -> None:
    """Try a write that a correct store rejects."""
    try:
        await append(store, change)
    except A2AError:
        return


async def zombie(first: PostgresStore, second: PostgresStore) -> None:
    """A replica that was declared dead goes on writing, with the right version."""
    author = await write_task(first, Author("t"), TaskState.WORKING)
    await append(first, counts(author, "old", 0))
    record = await second.replicas.claims.claim("t", ALICE)
    assert record is not None
    heir = author.rival()
    heir.epoch = record.epoch
    await append(second, counts(heir, "new", 0))
    ghost = heir.rival()
    ghost.epoch = 1
    await try_to(first, counts(ghost, "old", 1))


async def late_writer(first: PostgresStore, second: PostgresStore) -> None:
    """A writer whose version is ahead of the stored one, because an earlier write was lost."""
    author = await write_task(first, Author("t"), TaskState.WORKING)
    author.chunk("never sent")
    await try_to(first, author.chunk("x"))


async def pushed(first: PostgresStore, second: PostgresStore) -> None:
    author = await write_task(first, Author("t"), TaskState.WORKING)
    config = PushConfig(url="https://example.com", id="w", task_id="t")
    await first.webhooks.save(Webhook(config=config, a2a_version="1.0"), ALICE)
    await append(first, author.chunk("x"))


@pytest.mark.parametrize("story", [zombie, late_writer, pushed])
async def test_it_finds_no_violation_in_a_correct_store(
    story: object, place: Place, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    assert callable(story)
    await story(*stores)
    assert await check_database(place.dsn, place.schema) == []


async def test_without_the_fence_a_zombie_is_found(
    place: Place, stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(FENCE, monkeypatch)
    await zombie(*stores)
    assert await check_database(place.dsn, place.schema) == ["t: a run wrote after a later one had begun"]


async def test_without_the_version_a_gap_is_found(
    place: Place, stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(VERSION, monkeypatch)
    await late_writer(*stores)
    assert await check_database(place.dsn, place.schema) == ["t: its events are not 1 to its version"]


async def test_without_the_trigger_an_event_that_is_due_to_no_webhook_is_found(
    place: Place, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    connection = await asyncpg.connect(place.dsn)
    await connection.execute(f"DROP TRIGGER task_moved ON {place.schema}.task")
    await connection.close()
    await pushed(*stores)
    assert await check_database(place.dsn, place.schema) == ["t: an event is not due to its webhook"]


async def test_without_the_owner_in_a_query_a_foreign_task_is_shown(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = stores
    await write_task(first, Author("t"), TaskState.WORKING)
    assert await first.load("t", BOB) is None
    assert (await first.page(Query(owner=BOB, limit=1))).total == 0
    monkeypatch.setattr(reads, "LOAD", reads.LOAD.replace("AND owner = $2", "AND $2::bytea IS NOT NULL"))
    assert await first.load("t", BOB) is not None


def received(task_id: str, begun: float, *events: tuple[float, int, str]) -> ReceivedStream:
    """Return a stream as a client records it. Each event has its time, its number and the state in it."""
    stream = ReceivedStream(task_id)
    stream.begun = begun
    for at, seq, state in events:
        stream.times.append(at)
        stream.events.append((seq, {"statusUpdate": {"status": {"state": f"TASK_STATE_{state}"}}}))
    return stream


def test_a_stream_that_begins_before_a_received_event_is_found() -> None:
    client = Client([], seed=1)
    client.received = [
        received("t", 0, (1, 3, "WORKING")),
        received("t", 0.5, (2, 2, "WORKING")),
        received("t", 1.5, (2, 3, "WORKING")),
    ]
    assert check_versions(client) == []  # the second began before the third event was received
    client.received.append(received("t", 1.5, (2, 2, "WORKING")))
    assert check_versions(client) == ["t: a stream began with 2 after 3 was received"]


def test_a_read_that_shows_an_older_state_than_was_received_before_is_found() -> None:
    client = Client([], seed=1)
    client.received = [received("t", 0, (1, 3, "CANCELED"))]
    client.reads = [(0.5, 2, "t", "WORKING"), (1.5, 2, "t", "CANCELED"), (3, 4, "u", "COMPLETED")]
    assert check_reads(client) == []
    client.reads += [(1.5, 2, "t", "WORKING"), (5, 6, "u", "WORKING")]
    assert check_reads(client) == ["t: shown as WORKING after CANCELED", "u: shown as WORKING after COMPLETED"]
