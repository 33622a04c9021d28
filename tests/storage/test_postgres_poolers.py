"""A PostgreSQL store behind PgBouncer: what works in which mode, and what is refused at the start.

The suites test_contract_*.py also run behind PgBouncer, in its session mode and in its transaction mode.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from urllib.parse import quote

import asyncpg
import pytest

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.postgres import connection as connection_module
from apcore_a2a.storage.postgres import store as store_module
from apcore_a2a.storage.postgres import writer
from apcore_a2a.storage.postgres.connection import fetch, parse_address
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.pgbouncer import PgBouncer, needs_pgbouncer, pgbouncer_version, shared_pooler
from tests.postgres_proxy import Network, Proxy
from tests.postgres_server import shared_server
from tests.storage.contract import ALICE, Author, append, assert_holds, write_task

PATIENCE = 10  # seconds that only a hang reaches


@pytest.fixture
def url() -> str:
    return shared_server().url()


@pytest.fixture
async def admin(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection of the test itself."""
    settings = {"search_path": parse_address(url, {}).schema, "application_name": "admin"}
    connection = await asyncpg.connect(shared_server().dsn, server_settings=settings)
    yield connection
    await connection.close()


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while text not in caplog.text:  # noqa: ASYNC110  # the log has no event for it
            await asyncio.sleep(0.01)


async def why_not_open(url: str) -> str:
    with pytest.raises(StoreUnavailableError) as refused:
        await PostgresStore.from_url(url).open()
    assert len(refused.value.message.splitlines()) == 1
    return refused.value.message


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("pool_mode=statement", "pool_mode must be session or transaction"),
        ("prepared_statements=maybe", "prepared_statements in a store URL must be on or off, not 'maybe'"),
        ("listen_url=mysql://host", "store_listen_url: a store URL has the form postgresql://"),
    ],
)
def test_options_for_poolers_are_checked(options: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PostgresStore.from_url(f"postgresql://host/database?{options}")


@needs_pgbouncer
async def test_a_pooler_that_shares_sessions_is_refused_unless_the_store_knows(url: str) -> None:
    text = await why_not_open(shared_pooler("transaction").url(url))
    assert "add pool_mode=transaction to the store's URL, or connect without the pooler" in text


@needs_pgbouncer
async def test_a_pooler_without_transactions_is_refused(url: str) -> None:
    pooler = PgBouncer(shared_server(), "statement")
    pooler.start()
    try:
        assert "a pooler must be in session or transaction mode" in await why_not_open(pooler.url(url))
        assert "a pooler must be in session or transaction mode" in await why_not_open(
            pooler.url(url, pool_mode="transaction")
        )
    finally:
        pooler.kill()


@needs_pgbouncer
async def test_an_address_for_notifications_that_does_not_receive_them_is_refused(url: str) -> None:
    pooled = shared_pooler("transaction").url(url)
    text = await why_not_open(f"{pooled}&pool_mode=transaction&listen_url={pooled.partition('&')[0]}")
    assert "set --store-listen-url to the URL of the server itself, or to off" in text


async def test_an_error_about_the_address_for_notifications_names_it(url: str, unused_tcp_port: int) -> None:
    text = await why_not_open(f"{url}&listen_url=postgresql://agent@127.0.0.1:{unused_tcp_port}/agents")
    assert text == (
        f"PostgreSQL at 127.0.0.1:{unused_tcp_port}/agents does not answer; "
        "check that it runs, and host and port in --store-listen-url"
    )


@needs_pgbouncer
async def test_prepared_statements_are_refused_if_the_pooler_does_not_support_them(url: str) -> None:
    # Version 1.21 and later can support them.
    settings = {"max_prepared_statements": 0} if pgbouncer_version() >= (1, 21) else {}
    pooler = PgBouncer(shared_server(), "transaction", **settings)
    pooler.start()
    try:
        text = await why_not_open(pooler.url(url, pool_mode="transaction", prepared_statements="on"))
        assert "remove prepared_statements=on from the store's URL" in text
    finally:
        pooler.kill()


# ---- what works -----------------------------------------------------------------------------------------------------


@needs_pgbouncer
@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_the_tables_are_in_the_schema_of_the_store(
    url: str, mode: str, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    for _ in range(2):  # the second start finds them
        store = PostgresStore.from_url(shared_pooler(mode).url(url, pool_mode=mode))
        await store.open()
        await store.close()
    found = "SELECT count(*) FROM pg_tables WHERE schemaname = $1"
    assert await admin.fetchval(found, "public") == 0
    assert await admin.fetchval(found, parse_address(url, {}).schema) > 5


@needs_pgbouncer
async def test_settings_do_not_leak_to_other_clients_of_a_shared_session(url: str) -> None:
    pooler = PgBouncer(shared_server(), "transaction", default_pool_size=1)
    pooler.start()
    try:
        pooled = pooler.url(url)
        store = PostgresStore.from_url(f"{pooled}&pool_mode=transaction")
        await store.open()
        await write_task(store, Author("t"), TaskState.WORKING, TaskState.COMPLETED)
        other = await asyncpg.connect(parse_address(pooled, {}).dsn, statement_cache_size=0)
        async with other.transaction():
            assert await other.fetchval("SELECT current_setting('statement_timeout')") == "0"
            assert await other.fetchval("SELECT current_setting('enable_nestloop')") == "on"
            assert await other.fetchval("SELECT current_setting('search_path')") == '"$user", public'
        await other.close()
        await store.close()
    finally:
        pooler.kill()


@needs_pgbouncer
async def test_replicas_that_share_sessions_wake_each_other_over_an_address_for_notifications(url: str) -> None:
    options = f"&pool_mode=transaction&listen_url={shared_server().dsn}"
    stores = [PostgresStore.from_url(shared_pooler("transaction").url(url) + options) for _ in range(2)]
    for store in stores:
        await store.open()
    author = await write_task(stores[0], Author("t"), TaskState.WORKING)
    watch = stores[1].replicas.watch
    assert await watch.follow("t", ALICE) is not None
    async with asyncio.timeout(PATIENCE):
        woken_for: frozenset[int] = frozenset()
        while not woken_for:  # it may not listen yet
            await append(stores[0], author.chunk("x"))
            woken_for = (await watch.until_woken(1)).tasks
    for store in stores:
        await store.close()


@needs_pgbouncer
async def test_without_an_address_for_notifications_replicas_poll(url: str) -> None:
    store = PostgresStore.from_url(shared_pooler("transaction").url(url, pool_mode="transaction"))
    await store.open()
    assert store.address.for_listening is None
    woken = await store.replicas.watch.until_woken(0)
    assert woken.everything
    assert woken.queue
    await store.close()


async def test_tasks_are_stored_while_the_address_for_notifications_does_not_answer(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Proxy(shared_server().folder) as proxy:
        listen_url = quote(proxy.url(shared_server().dsn), safe="")
        store = PostgresStore.from_url(f"{url}&listen_url={listen_url}")
        await store.open()
        await proxy.set(Network.RESETS)
        await until_logged(caplog, "task store is not available")
        monkeypatch.setattr(store_module, "MAX_OUTAGE", 0)
        await write_task(store, Author("t"), TaskState.WORKING)
        assert store.trouble() == ""
        await proxy.set(Network.WELL)
        await until_logged(caplog, "task store is available again")
        await store.close()


@needs_pgbouncer
@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_write_survives_a_restart_of_the_pooler(url: str, mode: str) -> None:
    pooler = PgBouncer(shared_server(), mode)
    pooler.start()
    store = PostgresStore.from_url(pooler.url(url, pool_mode=mode))
    await store.open()
    author = await write_task(store, Author("t"), TaskState.WORKING)
    await asyncio.to_thread(pooler.kill)
    futures = [store.append(author.chunk(str(number))) for number in range(10)]
    await asyncio.sleep(0)
    await asyncio.to_thread(pooler.start)
    async with asyncio.timeout(20):
        for future in futures:
            await future
    await assert_holds(store, author)
    await store.close()
    pooler.kill()


@pytest.mark.parametrize(("switch", "count"), [("on", 1), ("off", 0)])
async def test_prepared_statements_can_be_switched_off(url: str, switch: str, count: int) -> None:
    store = PostgresStore.from_url(f"{url}&prepared_statements={switch}")
    await store.open()
    prepared = "SELECT name FROM pg_prepared_statements"
    for _ in range(2):  # the second execution finds the first
        names = await store.parts.upkeep.call(fetch, prepared)
    assert (len(names) >= 1) == bool(count)
    await store.close()


# ---- sessions that are terminated -----------------------------------------------------------------------------------


async def test_a_broken_connection_terminates_no_session_of_others(
    url: str, admin: "asyncpg.Connection[asyncpg.Record]", monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(url)
    await store.open()
    author = await write_task(store, Author("t"), TaskState.WORKING)
    innocent = await asyncpg.connect(shared_server().dsn)
    number = innocent.get_server_pid()
    # As after a restart of the server in a container, where the numbers of processes repeat.
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _: number)
    writers = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%writer%'"
    assert await admin.fetch(writers)
    async with asyncio.timeout(PATIENCE):
        await append(store, author.chunk("x"))
    assert await innocent.fetchval("SELECT 1") == 1
    await innocent.close()
    await store.close()


async def test_a_statement_of_a_broken_connection_is_not_executed_later(
    url: str, admin: "asyncpg.Connection[asyncpg.Record]", monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {**connection_module.LIMITS, "statement_timeout": "60000"}
    monkeypatch.setattr(connection_module, "LIMITS", limits)
    monkeypatch.setattr(writer, "LOCK_TIME", 60)
    async with Proxy(shared_server().folder) as proxy:
        store = PostgresStore(proxy.url(url))
        await store.open()
        author = await write_task(store, Author("t"), TaskState.WORKING)
        async with admin.transaction(), asyncio.timeout(PATIENCE):
            await admin.execute("SELECT 1 FROM task FOR UPDATE")
            future = store.append(author.chunk("x"))
            blocked = (
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE '%writer%'"
            )
            first: int | None = None
            while first is None:
                await admin.execute("SELECT pg_stat_clear_snapshot()")
                first = await admin.fetchval(blocked)
            await proxy.set(Network.SWALLOWS)
            await proxy.set(Network.WELL)  # its connections are reset, which the server does not notice
            while await admin.fetchval("SELECT 1 FROM pg_stat_activity WHERE pid = $1", first):
                await admin.execute("SELECT pg_stat_clear_snapshot()")
                await asyncio.sleep(0.01)
        await asyncio.wait_for(future, PATIENCE)
        await assert_holds(store, author)
        await store.close()
