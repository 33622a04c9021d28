"""Opening a PostgreSQL store: what its URL may say, whose tables it makes, and what is said when that fails."""

import asyncio
import subprocess
import sys

import asyncpg
import pytest

from apcore_a2a.app.stores import Retention, choose_store
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Query
from apcore_a2a.storage.postgres import connection, schema
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.postgres_server import PostgresServer, shared_server
from tests.storage.contract import ALICE, Author, append, assert_holds, write_task

PATIENCE = 10  # seconds that only a hang reaches


@pytest.fixture
def server() -> PostgresServer:
    return shared_server()


async def why_not_open(url: str) -> str:
    with pytest.raises(StoreUnavailableError) as refused:
        await PostgresStore(url).open()
    assert "s3cret" not in refused.value.message
    return refused.value.message


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://x/y", "postgresql://"),
        ("postgresql://host:port/db", "port"),
        ("postgresql://host/db?schema=Robert'); DROP", "schema"),
        ("postgresql://host/db?schema=pg_agents", "schema"),
        ("postgresql://host/db?ttl=-1", "positive"),
        ("postgresql://host/db?max_tasks=0", "positive"),
        ("postgresql://host/db?lease=0.1", "lease"),
        ("postgresql://host/db?lease=soon", "lease in a store URL must be a number, not 'soon'"),
    ],
)
def test_an_invalid_url_is_rejected_before_connecting(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PostgresStore.from_url(url)


def test_without_asyncpg_the_error_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['asyncpg'] = None\n"
        "from apcore_a2a.app.stores import Retention, choose_store\n"
        "choose_store('postgresql://agent@host/agents', None, Retention())\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)
    assert "pip install 'apcore-a2a[postgres]'" in run.stderr


def test_an_error_about_a_url_does_not_show_its_password() -> None:
    with pytest.raises(ValueError, match="mysql") as refused:
        choose_store("mysql://agent:s3cret@host/agents", None, Retention())
    assert "s3cret" not in str(refused.value)


async def test_no_server_answers(unused_tcp_port: int) -> None:
    text = await why_not_open(f"postgresql://agent:s3cret@127.0.0.1:{unused_tcp_port}/agents")
    assert text == (
        f"PostgreSQL at 127.0.0.1:{unused_tcp_port}/agents does not answer; "
        "check that it runs, and host and port in the store's URL"
    )


async def test_the_database_is_not_there(server: PostgresServer) -> None:
    assert "createdb" in await why_not_open(server.url("nowhere"))


async def test_the_user_is_not_there(server: PostgresServer) -> None:
    text = await why_not_open(f"postgresql://stranger:s3cret@/postgres?host={server.folder}")
    assert "refused the user or the password" in text


async def test_an_unknown_option(server: PostgresServer) -> None:
    assert "option" in await why_not_open(server.url(sslmode="perhaps"))
    assert "option" in await why_not_open(server.url(leese=5))


async def test_a_user_who_may_not_make_tables_can_use_those_that_are_there(server: PostgresServer) -> None:
    admin = await asyncpg.connect(server.dsn)
    try:
        await admin.execute("CREATE ROLE clerk LOGIN")
        url = f"postgresql://clerk@/postgres?host={server.folder}&schema=office"
        assert "have the owner of the schema run: apcore-a2a migrate" in await why_not_open(url)
        maker = PostgresStore(server.url(schema="office"))
        await maker.open()
        author = await write_task(maker, Author("t"), TaskState.WORKING)
        await admin.execute("GRANT USAGE ON SCHEMA office TO clerk")
        await admin.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA office TO clerk")
        await maker.close()
        clerk = PostgresStore(url)
        await clerk.open()
        await assert_holds(clerk, author)
        await write_task(clerk, Author("u"), TaskState.WORKING, TaskState.COMPLETED)
        assert (await clerk.page(Query(owner=ALICE, limit=10))).total == 2
        await clerk.close()
    finally:
        await admin.close()


async def test_a_keyword_of_sql_can_be_the_name_of_the_schema(server: PostgresServer) -> None:
    for _ in range(2):  # it makes the tables, and finds them
        store = PostgresStore(server.url(schema="user"))
        await store.open()
        await store.close()


async def test_replicas_that_start_together_make_the_tables_once(server: PostgresServer) -> None:
    url = server.url()
    stores = [PostgresStore(url) for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        for store in stores:
            group.create_task(store.open())
    author = await write_task(stores[0], Author("t"), TaskState.WORKING)
    for store in stores:
        await assert_holds(store, author)
    for store in stores:
        await store.close()


async def test_page_tokens_of_one_replica_serve_at_another(server: PostgresServer) -> None:
    url = server.url()
    first, second = PostgresStore(url), PostgresStore(url)
    await first.open()
    await second.open()
    for name in ("a", "b", "c"):
        await write_task(first, Author(name))
    page = await first.page(Query(owner=ALICE, limit=2))
    rest = await second.page(Query(owner=ALICE, limit=2, cursor=page.next_cursor))
    assert [record.document.task().id for record in (*page.records, *rest.records)] == ["c", "b", "a"]
    await first.close()
    await second.close()


async def test_a_replica_of_the_version_before_goes_on_beside_the_next_one(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.url()
    old = PostgresStore(url)
    await old.open()
    author = await write_task(old, Author("t"), TaskState.WORKING)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "ALTER TABLE task ADD note text"))
    new = PostgresStore(url)
    await new.open()
    await assert_holds(new, author)
    await write_task(old, Author("of the old one"), TaskState.WORKING, TaskState.COMPLETED)
    await write_task(new, Author("of the new one"), TaskState.WORKING, TaskState.COMPLETED)
    monkeypatch.undo()
    again = PostgresStore(url)  # the old version, started again beside the newer schema
    await again.open()
    assert (await again.page(Query(owner=ALICE, limit=10))).total == 3
    for store in (old, new, again):
        await store.close()


async def test_a_step_may_take_longer_than_an_answer(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIME", 0.5)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "SELECT pg_sleep(1)"))
    store = PostgresStore(server.url())
    await store.open()
    await store.close()


async def test_a_version_that_is_too_old_is_refused(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.url()
    newest = (*schema.MIGRATIONS, "ALTER TABLE task ADD note text")
    monkeypatch.setattr(schema, "MIGRATIONS", newest)
    monkeypatch.setattr(schema, "OLDEST", len(newest))
    new = PostgresStore(url)
    await new.open()
    await new.close()
    monkeypatch.undo()
    assert "upgrade it" in await why_not_open(url)


async def test_a_migration_that_waits_for_a_lock_delays_others_for_a_bounded_time(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.url()
    old = PostgresStore(url)
    await old.open()
    author = await write_task(old, Author("t"), TaskState.WORKING)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "ALTER TABLE task ADD note text"))
    monkeypatch.setattr(schema, "LOCK_TIME", 0.2)
    monkeypatch.setattr(schema, "LOCK_PATIENCE", 0.5)
    admin = await asyncpg.connect(server.dsn, server_settings={"search_path": old.address.schema})
    async with admin.transaction():
        await admin.fetchval("SELECT count(*) FROM task")  # a forgotten transaction
        refusing = asyncio.create_task(why_not_open(url))
        while not refusing.done():
            await append(old, author.chunk("x"))  # waits behind the migration, and goes on
            await asyncio.sleep(0.01)
        assert "another transaction locks them" in refusing.result()
    await admin.close()
    new = PostgresStore(url)
    await new.open()
    await assert_holds(new, author)
    await new.close()
    await old.close()


async def test_a_missing_index_is_built_at_the_start_if_the_user_may(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.url()
    store = PostgresStore(url)
    await store.open()
    await store.close()
    admin = await asyncpg.connect(server.dsn, server_settings={"search_path": store.address.schema})
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('task_changed')"
    assert await admin.fetchval(valid)  # with the tables
    await admin.execute("DROP INDEX task_changed")
    await admin.execute("CREATE ROLE reader LOGIN")
    await admin.execute(f"GRANT USAGE ON SCHEMA {store.address.schema} TO reader")
    tables = f"ALL TABLES IN SCHEMA {store.address.schema}"
    await admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO reader")
    reader = PostgresStore(f"postgresql://reader@/postgres?host={server.folder}&schema={store.address.schema}")
    await reader.open()
    await reader.close()
    assert "an index is missing" in caplog.text
    assert await admin.fetchval(valid) is None
    await store.open()
    await store.close()
    assert await admin.fetchval(valid)
    await admin.close()


@pytest.mark.parametrize("pool_mode", ["session", "transaction"])
async def test_a_forgotten_transaction_delays_a_start_that_builds_an_index_for_a_bounded_time(
    server: PostgresServer, pool_mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.url()
    store = PostgresStore.from_url(f"{url}&pool_mode={pool_mode}")
    await store.open()
    await store.close()
    admin = await asyncpg.connect(server.dsn, server_settings={"search_path": store.address.schema})
    await admin.execute("DROP INDEX task_changed")
    monkeypatch.setattr(schema, "INDEX_LOCK_TIME", 0.1)
    monkeypatch.setattr(schema, "STATEMENT_TIME", 0.5)
    other = await asyncpg.connect(server.dsn, server_settings={"search_path": store.address.schema})
    async with other.transaction(isolation="repeatable_read"), asyncio.timeout(PATIENCE):
        await other.fetchval("SELECT count(*) FROM task")  # a forgotten transaction
        await store.open()
    assert "an index is missing: end old transactions" in caplog.text
    await other.close()
    await store.close()
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('task_changed')"
    assert not await admin.fetchval(valid)
    monkeypatch.undo()
    await store.open()  # which builds it again
    await store.close()
    assert await admin.fetchval(valid)
    await admin.close()
