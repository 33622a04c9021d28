"""How much is kept in the database, of whom. Rule: nothing is counted when it is written, so no writer waits for that.

A row that says how much an owner has would be changed by every write of that owner, one after the other, whichever
replica it comes from. So tasks are counted when somebody wants to know: their rows, and of a task that is larger than
its document (`statements.MAX_DOCUMENT`) or still runs, the events since. The length of what is long is known without
reading it.
"""

from typing import Final

from apcore_a2a.storage.postgres.connecting import Connection
from apcore_a2a.storage.postgres.statements import to_bytes
from apcore_a2a.storage.task_store import Usage

SAMPLE: Final = 4_000  # pages that are looked at when all tasks are counted: 32 MB

_COUNT: Final = """
    SELECT count(*) AS tasks, coalesce(sum(
        coalesce(octet_length(document), 0) + octet_length(memo)
        + CASE WHEN document_version IS NOT DISTINCT FROM version THEN 0 ELSE (
            SELECT coalesce(sum(octet_length(body)), 0) FROM event
            WHERE event.task = number AND sequence > coalesce(document_version, 0)
        ) END
    ), 0)::bigint AS bytes FROM task
"""
# The tenants of an account lie after it in the index, and nothing else does.
_OF_ACCOUNT: Final = f"{_COUNT} WHERE owner = $1 OR (owner >= $1 || '\\x0a'::bytea AND owner < $1 || '\\x0b'::bytea)"
_PAGES: Final = "SELECT pg_relation_size('task') / current_setting('block_size')::bigint"


async def of_account(connection: Connection, account: str) -> Usage:
    row = await connection.fetchrow(_OF_ACCOUNT, to_bytes(account))
    assert row is not None  # a count is always one row
    return Usage(row["tasks"], row["bytes"])


async def of_everybody(connection: Connection) -> Usage:
    """All tasks; of many, an estimate from a sample of the pages."""
    pages = int(await connection.fetchval(_PAGES))
    if pages <= SAMPLE:
        row = await connection.fetchrow(_COUNT)
        share = 1.0
    else:
        share = SAMPLE / pages
        row = await connection.fetchrow(f"{_COUNT} TABLESAMPLE SYSTEM ($1)", 100 * share)
    assert row is not None  # a count is always one row
    return Usage(round(row["tasks"] / share), round(row["bytes"] / share))
