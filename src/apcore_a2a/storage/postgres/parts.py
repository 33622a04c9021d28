"""The parts of a PostgreSQL store while it is open: its connections, its writer and its notifications."""

from typing import Protocol

from apcore_a2a.storage.cursor import PageTokens
from apcore_a2a.storage.postgres.connection import (
    READERS,
    Address,
    Database,
    ServerCondition,
    SessionSettings,
    check_listening,
    check_prepared,
    check_session,
    close_quietly,
    connect_pool,
    connect_unprepared,
)
from apcore_a2a.storage.postgres.notifications import Notifications
from apcore_a2a.storage.postgres.schema import prepare
from apcore_a2a.storage.postgres.writer import PostgresWriter, RetentionRule


class PostgresParts:
    """The parts of one open store. A store that is opened again has new ones."""

    def __init__(
        self, address: Address, tokens: PageTokens, *, database: Database, upkeep: Database, retention: RetentionRule
    ) -> None:
        self.tokens = tokens
        self.retention = retention
        self.database = database
        # For the lease and other background work: its own connection, so that it never waits for the reads of clients.
        self.upkeep = upkeep
        self.condition = database.condition
        self.notifications = Notifications(address, self.condition)
        self.writer = PostgresWriter(address, self.condition, retention, wake=self.notifications.wake_followers)

    async def close(self) -> None:
        """Close the connections, except those of the writer and of the notifications, which close their own."""
        await self.upkeep.close()
        await self.database.close()


class OpenStore(Protocol):
    """The part of a store that its webhooks and its replica roles use."""

    @property
    def parts(self) -> PostgresParts: ...


async def open_parts(address: Address, retention: RetentionRule) -> PostgresParts:
    """Create or migrate the tables, then open the connection pools."""
    condition = ServerCondition(address)
    connection = await connect_unprepared(address)
    try:
        if not address.shares_sessions:
            await check_session(address, connection)
        elif address.prepares:
            await check_prepared(address)
        tokens = PageTokens(await prepare(connection, address))
    finally:
        await close_quietly(connection)
    listening = address.for_listening
    if listening is not None:
        await check_listening(listening)
    settings = SessionSettings(address)
    database = Database(await connect_pool(address, settings, READERS), settings, condition)
    upkeep = Database(await connect_pool(address, settings, 1), settings, condition, is_patient=True)
    return PostgresParts(address, tokens, database=database, upkeep=upkeep, retention=retention)
