"""What a PostgreSQL store does when writes meet: each other, another replica's, a connection that breaks."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from apcore_a2a.errors import StaleWriteError, StoreUnavailableError
from apcore_a2a.protocol.model import PushConfig, TaskState
from apcore_a2a.storage.contract import FollowedTask, Query, Webhook
from apcore_a2a.storage.postgres import connection as connection_module
from apcore_a2a.storage.postgres import replicas, writer
from apcore_a2a.storage.postgres import store as store_module
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.postgres_proxy import Network, Proxy
from tests.postgres_server import PostgresServer, shared_server
from tests.storage.contract import ALICE, BOB, Author, append, assert_holds, write_task


@pytest.fixture
def url() -> str:
    return shared_server().url()


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(url: str) -> AsyncIterator[PostgresStore]:
    """Another replica."""
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def admin(store: PostgresStore) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection that can hold rows of the store's, and end its other connections."""
    settings = {"search_path": store.address.schema, "application_name": "admin"}
    connection = await asyncpg.connect(shared_server().dsn, server_settings=settings)
    yield connection
    await connection.close()


async def until_blocked(admin: "asyncpg.Connection[asyncpg.Record]", count: int = 1) -> int:
    """Wait until so many statements wait for a row; the process id of the server of one of them."""
    blocked = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE 'apcore-a2a%'"
    async with asyncio.timeout(5):
        while True:
            await admin.execute("SELECT pg_stat_clear_snapshot()")  # in a transaction, else the first look is repeated
            found = await admin.fetch(blocked)
            if len(found) >= count:
                return int(found[0]["pid"])
            await asyncio.sleep(0.005)


async def test_a_replica_writes_nothing_to_a_task_that_another_one_runs(
    store: PostgresStore, other: PostgresStore
) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    rival = author.rival()
    with pytest.raises(StaleWriteError):
        await append(other, rival.chunk("stale"))
    await assert_holds(store, author)
    await append(store, author.status(TaskState.INPUT_REQUIRED))  # it waits for its user, and any replica may run it
    rival = author.rival()
    await append(other, rival.work())
    await assert_holds(store, rival)
    with pytest.raises(StaleWriteError):
        await append(store, author.work())


async def test_of_two_replicas_that_go_on_with_a_task_one_does(store: PostgresStore, other: PostgresStore) -> None:
    for number in range(10):
        author = await write_task(store, Author(f"t{number}"), TaskState.WORKING, TaskState.INPUT_REQUIRED)
        rival = author.rival()
        rival.memo = author.memo = b""
        attempts = [append(store, author.work()), append(other, rival.work())]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert sorted(map(type, results), key=str) == [type(None), StaleWriteError] or results.count(None) == 1


async def test_a_webhook_that_is_saved_while_an_event_waits_for_the_row_gets_that_event(
    store: PostgresStore, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    config = PushConfig(url="https://example.com", id="w", task_id="t")
    async with admin.transaction():
        await admin.execute("SELECT 1 FROM task FOR UPDATE")
        saving = asyncio.create_task(store.webhooks.save(Webhook(config=config, a2a_version="1.0"), ALICE))
        await until_blocked(admin)
        future = store.append(author.chunk("x"))  # it begins before there is a webhook
        await until_blocked(admin, 2)
    saved = await saving
    await future
    assert saved is not None and saved.delivered == 2
    claims = await store.webhooks.claim(10, 30)
    assert [claim.webhook.latest for claim in claims] == [3]


async def test_two_replicas_never_claim_the_same_webhook(store: PostgresStore, other: PostgresStore) -> None:
    for number in range(40):
        author = Author(f"t{number}")
        change = author.create()
        config = PushConfig(url="https://example.com", id="w", task_id=author.task.id)
        change.webhook = Webhook(config=config, a2a_version="1.0")
        await store.create(change)
    claimed: list[str] = []

    async def claim(replica: PostgresStore) -> None:
        while claims := await replica.webhooks.claim(3, 30):
            claimed.extend(each.webhook.config.task_id for each in claims)

    async with asyncio.TaskGroup() as group:
        for replica in (store, other, store, other):
            group.create_task(claim(replica))
    assert sorted(claimed) == sorted(f"t{number}" for number in range(40))


async def test_tasks_that_wait_for_a_replica_are_claimed_once_and_the_owners_take_turns(
    store: PostgresStore, other: PostgresStore
) -> None:
    for number in range(5):
        change = Author(f"a{number}", owner=ALICE).create()
        change.hand_on = True
        await store.create(change)
    change = Author("b", owner=BOB).create()
    change.hand_on = True
    await store.create(change)
    assert await store.replicas.claims.count_queued(4) == 4
    first = await store.replicas.claims.claim_queued(2)
    assert {record.owner for record in first} == {ALICE, BOB}
    rest = await other.replicas.claims.claim_queued(10)
    assert {record.runner for record in rest} == {other.replicas.lease.name}
    assert [record.epoch for record in (*first, *rest)] == [2] * 6
    assert await store.replicas.claims.claim_queued(10) == []


# ---- connections that break ----------------------------------------------------------------------------------------


async def test_news_of_many_bytes_come_in_pieces_with_the_memo_once(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "MAX_UPDATE_BYTES", 1_000)
    large = await write_task(store, Author("large"), TaskState.WORKING)
    small = await write_task(store, Author("small"), TaskState.WORKING)
    large.memo = b'"remembered"'
    await append(store, large.chunk("x" * 400, "x" * 400, "x" * 4_000))
    followed = [FollowedTask("large", ALICE, 2), FollowedTask("small", ALICE, small.version)]
    news = {each.task_id: each for each in await other.replicas.watch.read_updates(followed)}
    assert news["large"].events == large.records[2:3]
    assert (news["large"].version, news["large"].memo) == (5, b'"remembered"')
    assert news["small"].events == []
    (alone,) = await other.replicas.watch.read_updates([FollowedTask("large", ALICE, 4)])
    assert alone.events == large.records[4:]  # though it is more than all of them may be


async def test_a_write_that_is_refused_does_not_keep_new_tasks_out(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apcore_a2a.storage.postgres.store.MAX_OUTAGE", 0.0)
    author = Author("t")
    change = author.create()
    change.version = 2**40  # more than the column takes
    with pytest.raises(StoreUnavailableError):
        await store.create(change)
    assert store.trouble() == "the database rejects statements"
    await write_task(store, Author("next"))
    assert store.trouble() == ""


async def test_a_write_whose_connection_breaks_is_made_once(
    store: PostgresStore, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    async with admin.transaction():
        await admin.execute("SELECT 1 FROM task FOR UPDATE")
        future = store.append(author.chunk("x"))
        await admin.execute("SELECT pg_terminate_backend($1)", await until_blocked(admin))
    await asyncio.wait_for(future, 5)
    await assert_holds(store, author)


async def test_a_write_that_was_made_though_its_answer_was_lost_is_not_made_twice(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    answer = writer.PostgresWriter._answer
    lost: list[object] = []

    async def lose(self: writer.PostgresWriter, *arguments: object, **options: object) -> None:
        if not lost:
            lost.append(arguments)
            raise ConnectionResetError
        await answer(self, *arguments, **options)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(writer.PostgresWriter, "_answer", lose)
    new = Author("new")
    await asyncio.gather(store.create(new.create()), store.append(author.chunk("x")))
    assert lost
    await assert_holds(store, author)
    await assert_holds(store, new)
    events = await store.events("t", ALICE, 0)
    assert events is not None and len(events) == author.version


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that may be stopped."""
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


async def test_a_server_that_is_restarted_is_missed_for_a_while_and_nothing_is_lost_or_doubled(
    own_server: PostgresServer,
) -> None:
    store = PostgresStore(own_server.url())
    await store.open()
    author = await write_task(store, Author("t"), TaskState.WORKING)
    await asyncio.to_thread(own_server.stop, signal.SIGQUIT)  # a crash, as far as the data is concerned
    futures = [store.append(author.chunk(str(number))) for number in range(10)]
    with pytest.raises(StoreUnavailableError):
        await store.load("t", ALICE)
    assert store.trouble()
    await asyncio.to_thread(own_server.start)
    for future in futures:
        await asyncio.wait_for(future, 15)
    await assert_holds(store, author)
    assert store.trouble() == ""
    await store.close()


async def test_a_server_that_is_away_is_told_in_a_line_and_not_in_tracebacks(
    own_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresStore(own_server.url())
    await store.open()
    await store.check()
    await asyncio.to_thread(own_server.stop)
    with pytest.raises(StoreUnavailableError):
        await store.check()
    await store.close()
    assert [record.message for record in caplog.records if record.exc_info] == []
    assert "task store is not available" in caplog.text


async def test_while_the_server_is_away_new_tasks_are_refused_at_once(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_TIMEOUT", 0.5)
    store = PostgresStore(own_server.url())
    await store.open()
    author = await write_task(store, Author("t"), TaskState.WORKING)
    await asyncio.to_thread(own_server.stop)
    with pytest.raises(StoreUnavailableError):
        await asyncio.wait_for(store.append(author.chunk("x")), 5)
    monkeypatch.setattr("apcore_a2a.storage.postgres.store.MAX_OUTAGE", 0)
    with pytest.raises(StoreUnavailableError) as refused:
        await store.create(Author("new").create())
    assert refused.value.retry_after > 0
    with pytest.raises(StoreUnavailableError):
        await store.check()
    await store.close()


async def test_a_connection_that_swallows_everything_is_given_up_and_replaced(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connection_module, connection_module):
        monkeypatch.setattr(module, "ANSWER_TIME", 0.3)
    monkeypatch.setattr(connection_module, "CONNECT_TIME", 0.3)
    async with Proxy(shared_server().folder) as proxy:
        store = PostgresStore(proxy.url(url))
        await store.open()
        author = await write_task(store, Author("t"), TaskState.WORKING)
        await proxy.set(Network.SWALLOWS)
        future = store.append(author.chunk("x"))
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(store.load("t", ALICE), 5)
        await proxy.set(Network.WELL)
        await asyncio.wait_for(future, 5)
        await assert_holds(store, author)
        await store.close()


async def test_a_request_waits_only_once_for_a_server_that_does_not_answer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Proxy(shared_server().folder) as proxy:
        store = PostgresStore(proxy.url(url))
        await store.open()
        await write_task(store, Author("t"), TaskState.WORKING)
        await proxy.set(Network.SWALLOWS)
        monkeypatch.setattr(connection_module, "ANSWER_TIME", 1.2)
        with pytest.raises(StoreUnavailableError):
            await store.load("t", ALICE)
        monkeypatch.setattr(connection_module, "ANSWER_TIME", 600)
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailableError):
                await store.load("t", ALICE)
            with pytest.raises(StoreUnavailableError):
                await store.create(Author("new").create())
        monkeypatch.undo()
        await proxy.set(Network.WELL)
        assert await store.replicas.lease.renew() is not None
        assert await store.load("t", ALICE) is not None
        await store.close()


async def test_a_new_task_does_not_wait_again_for_a_server_that_does_not_answer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ANSWER_TIME", 0.3)
    monkeypatch.setattr(writer, "RETRY_TIMEOUT_FOR_NEW", 600)
    async with Proxy(shared_server().folder) as proxy:
        store = PostgresStore(proxy.url(url))
        await store.open()
        author = await write_task(store, Author("t"), TaskState.WORKING)
        await proxy.set(Network.SWALLOWS)
        running = store.append(author.chunk("x"))
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(store.create(Author("new").create()), 10)
        assert not running.done()
        await proxy.set(Network.WELL)
        await asyncio.wait_for(running, 10)
        await store.close()


async def test_a_store_is_closed_in_bounded_time_while_the_server_does_not_answer(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Proxy(shared_server().folder) as proxy:
        store = PostgresStore(proxy.url(url))
        await store.open()
        author = await write_task(store, Author("t"), TaskState.WORKING)
        await proxy.set(Network.SWALLOWS)
        monkeypatch.setattr(store_module, "CLOSE_TIME", 0.2)
        monkeypatch.setattr(connection_module, "ANSWER_TIME", 600)
        future = store.append(author.chunk("x"))
        await asyncio.wait_for(store.close(), 10)
        with pytest.raises(StoreUnavailableError):
            await future
    assert "lease not released" in caplog.text


async def test_a_table_that_stays_locked_is_waited_for_in_bounded_time(
    store: PostgresStore, admin: "asyncpg.Connection[asyncpg.Record]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_TIMEOUT", 0.5)
    monkeypatch.setattr(
        connection_module, "LIMITS", {**connection_module.LIMITS, "statement_timeout": "200", "lock_timeout": "200"}
    )
    quick = PostgresStore(
        f"postgresql://postgres@/postgres?host={shared_server().folder}&schema={store.address.schema}"
    )
    await quick.open()
    author = await write_task(quick, Author("t"), TaskState.WORKING)
    async with admin.transaction():
        await admin.execute("LOCK TABLE task IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailableError):
            await quick.page(Query(owner=ALICE, limit=1))
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(quick.append(author.chunk("x")), 5)
    assert (await quick.page(Query(owner=ALICE, limit=1))).total == 1
    await quick.close()


async def test_a_server_that_says_that_it_starts_is_waited_for_longer(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "RETRY_TIMEOUT", 0)
    async with Proxy(shared_server().folder) as proxy:
        store = PostgresStore(proxy.url(url))
        await store.open()
        author = await write_task(store, Author("t"), TaskState.WORKING)
        await proxy.set(Network.STARTS)
        future = store.append(author.chunk("x"))
        with pytest.raises(StoreUnavailableError):
            await store.load("t", ALICE)
        assert store.replicas.lease.down_at > 0
        await asyncio.sleep(0.5)  # several attempts
        assert not future.done()
        await proxy.set(Network.WELL)
        await asyncio.wait_for(future, 5)
        await assert_holds(store, author)
        assert store.replicas.lease.down_at > 0  # others were answered; the lease may still have to be renewed
        await store.close()
    assert [record.message for record in caplog.records if record.name.startswith("asyncpg")] == []


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (asyncpg.CannotConnectNowError("the database system is starting up"), 1),
        (ConnectionRefusedError(), 1),
        (asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"), 3),
    ],
    ids=["says that it starts", "is not there", "was restarted"],
)
async def test_a_server_that_is_not_there_is_asked_once_for_each_request(error: Exception, attempts: int) -> None:
    tried = 0

    class Pool:
        def get_max_size(self) -> int:
            return 2

        async def acquire(self) -> None:
            nonlocal tried
            tried += 1
            raise error

    address = connection_module.parse_address("postgresql://host/database", {})
    settings = connection_module.SessionSettings(address)
    condition = connection_module.ServerCondition(address)
    asked: Any = Pool()  # Any: it has what is used of a pool
    with pytest.raises(StoreUnavailableError):
        await connection_module.Database(asked, settings, condition).call(asyncio.sleep)
    assert tried == attempts


async def test_all_statements_are_answered_in_time_also_while_they_wait_for_a_connection(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ANSWER_TIME", 600)  # for one statement
    monkeypatch.setattr(connection_module, "ANSWER_TIME", 0.3)
    async with Proxy(shared_server().folder) as proxy:
        store = PostgresStore(proxy.url(url))
        await store.open()
        await proxy.set(Network.SWALLOWS)
        asking = [store.load("t", ALICE) for _ in range(3 * connection_module.READERS)]
        answers = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 5)
        assert {type(answer) for answer in answers} == {StoreUnavailableError}
        await proxy.set(Network.WELL)
        assert await store.load("t", ALICE) is None
        await store.close()


async def test_a_new_task_does_not_wait_behind_writes_that_have_more_patience(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_TIMEOUT_FOR_NEW", 0.2)
    monkeypatch.setattr("apcore_a2a.storage.postgres.store.MAX_OUTAGE", 600)  # else rejected before it is queued
    store = PostgresStore(own_server.url())
    await store.open()
    author = await write_task(store, Author("t"), TaskState.WORKING)
    await asyncio.to_thread(own_server.stop)
    patient = store.append(author.chunk("x"))
    await asyncio.sleep(0)
    creating = asyncio.create_task(store.create(Author("new").create()))
    await asyncio.wait({creating}, timeout=5)
    assert isinstance(creating.exception(), StoreUnavailableError)
    assert not patient.done()
    await asyncio.to_thread(own_server.start)
    await asyncio.wait_for(patient, 15)
    assert await store.load("new", ALICE) is None
    await store.close()


# ---- locked rows ----------------------------------------------------------------------------------------------------

INSERT_KEY = """
    INSERT INTO task (id, owner, context_id, key, state, status_time, version, epoch, memo, run)
    VALUES ('other', $1, '', 'key', 1, '', 1, 1, '', '')
"""


async def keep_writing(store: PostgresStore, authors: list[Author], count: int) -> None:
    """Write so many events to each task, one after the other."""
    async with asyncio.timeout(10):  # less than writes are repeated
        for _ in range(count):
            for future in [store.append(author.chunk("x")) for author in authors]:
                await future


@pytest.mark.parametrize("locked", ["task", "webhook"])
async def test_a_forgotten_lock_on_a_row_delays_only_the_task_of_that_row(
    store: PostgresStore, admin: "asyncpg.Connection[asyncpg.Record]", locked: str
) -> None:
    stuck = await write_task(store, Author("stuck"), TaskState.WORKING)
    others = [await write_task(store, Author(f"t{number}"), TaskState.WORKING) for number in range(3)]
    config = PushConfig(url="https://example.com", id="w", task_id="stuck")
    await store.webhooks.save(Webhook(config=config, a2a_version="1.0"), ALICE)
    row = {"task": "id = 'stuck'", "webhook": "id = 'w'"}[locked]
    async with admin.transaction():
        await admin.execute(f"SELECT 1 FROM {locked} WHERE {row} FOR UPDATE")
        waiting = [store.append(stuck.chunk("first"))]
        await keep_writing(store, others, 5)
        waiting.append(store.append(stuck.chunk("second")))
        await keep_writing(store, others, 5)
        assert not any(future.done() for future in waiting)
    async with asyncio.timeout(10):
        for future in waiting:
            await future
    for author in (stuck, *others):
        await assert_holds(store, author)


async def test_a_new_task_whose_key_is_locked_delays_only_itself(
    store: PostgresStore, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    others = [await write_task(store, Author(f"t{number}"), TaskState.WORKING) for number in range(3)]
    async with admin.transaction():
        await admin.execute(INSERT_KEY, ALICE.encode())
        creating = asyncio.create_task(store.create(Author("new").create(), key="key"))
        await asyncio.sleep(0)
        await keep_writing(store, others, 10)
        assert not creating.done()
    async with asyncio.timeout(10):
        assert await creating == "other"
    for author in others:
        await assert_holds(store, author)


async def test_writes_of_a_locked_row_are_given_up_in_the_end(
    store: PostgresStore, admin: "asyncpg.Connection[asyncpg.Record]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_TIMEOUT", 0.5)
    stuck = await write_task(store, Author("stuck"), TaskState.WORKING)
    other = await write_task(store, Author("other"), TaskState.WORKING)
    async with admin.transaction():
        await admin.execute("SELECT 1 FROM task WHERE id = 'stuck' FOR UPDATE")
        waiting = [store.append(stuck.chunk("first")), store.append(stuck.chunk("second"))]
        await keep_writing(store, [other], 3)
        for future in waiting:
            with pytest.raises(StoreUnavailableError):
                await asyncio.wait_for(future, 10)
        await keep_writing(store, [other], 3)
    await assert_holds(store, other)
