"""Connections to a PostgreSQL server, the errors they raise, and whether the server answers.

Invariant: every wait has a limit. Every error tells the reader the next step, and none shows the password.

A connection may lead to a pooler, such as PgBouncer. In its *session* mode a client has a session of the server to
itself. In its *transaction* mode the server's sessions are shared: each transaction may be executed in another one. So
a pooler accepts few settings with the connection, and settings of a shared session must not outlive a transaction.
Therefore a connection of its own session sets its settings by statements, once. In a shared session each function is
executed in a transaction of its own, which begins with its settings, and without named prepared statements.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from apcore_a2a.errors import A2AError, StoreUnavailableError
from apcore_a2a.storage.postgres.failures import DatabaseFailure, classify, is_starting_or_stopping, sqlstate

logger = logging.getLogger(__name__)

CONNECT_TIME: Final = 4.0  # seconds to open a connection
ANSWER_TIME: Final = 4.0  # seconds for an answer
CLOSE_TIME: Final = 1.0  # seconds to close a connection, or the connections of a pool
# A request may need several answers, and is rejected within five seconds. So it waits only once for a server that gives
# no answer: after MAX_OUTAGE, reads wait for OUTAGE_ANSWER_TIME, and new tasks are rejected at once.
MAX_OUTAGE: Final = 1.0  # seconds without an answer
OUTAGE_ANSWER_TIME: Final = 0.2
LOG_INTERVAL: Final = 60.0  # seconds between two log lines about the same failure
# Seconds for which a busy server is asked again. With a further lock timeout, they are less than ANSWER_TIME.
BUSY_TIME: Final = 2.5
BUSY_PAUSES: Final = (0.05, 0.2, 0.5)  # seconds between attempts at a server that is busy; the last one repeats
READERS: Final = 3  # connections for clients' reads; with those of writer, notifications and upkeep, a replica has six
APPLICATION_NAME: Final = "apcore-a2a"
# The server's timeouts are shorter than the client's, so a statement that timed out is not executed later.
LIMITS: Final = {
    "statement_timeout": "3500",
    "lock_timeout": "1000",  # a statement that waits for a lock occupies one of few connections
    "idle_in_transaction_session_timeout": "10000",
    "jit": "off",  # our statements are short
}

if TYPE_CHECKING:  # only for type checkers, the class has a type parameter, the class of rows
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection


T = TypeVar("T")


class Address(NamedTuple):
    """The address of a database: as asyncpg reads it, and as it may be shown."""

    dsn: str
    schema: str
    shares_sessions: bool = False
    """Whether a pooler executes each transaction in another session of the server."""
    prepares: bool = True
    """Whether statements are prepared under a name, for the next execution on the same connection."""
    listen_dsn: str | None = None
    """The address for the connection that receives notifications, if it is another one. "": none does."""

    @property
    def for_listening(self) -> "Address | None":
        """The address for the connection that receives notifications. None: there is none, and the replica polls."""
        if self.listen_dsn is None and not self.shares_sessions:
            return self
        if not self.listen_dsn:
            return None
        return Address(self.listen_dsn, self.schema)

    @property
    def shown(self) -> str:
        """Return the address without user and password."""
        parts = urlsplit(self.dsn)
        host = dict(parse_qsl(parts.query)).get("host") or parts.hostname or "localhost"
        port = f":{parts.port}" if parts.port else ""
        return f"{host}{port}{parts.path}"


def parse_address(url: str, own_options: Mapping[str, object]) -> Address:
    """Return the address in a store's URL, without the options of the store itself.

    Raises:
        ValueError: it is not the URL of a PostgreSQL store.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres") or parts.fragment:
        raise ValueError("a store URL has the form postgresql://user@host/database")
    try:
        parts.port  # noqa: B018  # raises ValueError if it is invalid
    except ValueError:
        raise ValueError("the port in the store URL is not a number") from None  # the cause shows the password
    others: list[tuple[str, str]] = []
    schema = "apcore_a2a"
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "schema":
            schema = value
        elif name not in own_options:
            others.append((name, value))
    dsn = parts._replace(scheme="postgresql", query=urlencode(others, safe="/")).geturl()
    return Address(dsn, schema)


class PlainConnection(Connection):
    """A pooled connection that is not reset after each use, because no use changes its settings. Saves a round trip."""

    def get_reset_query(self) -> str:
        return ""


class SessionSettings:
    """Settings under which statements are executed: those of all connections, and the given ones."""

    def __init__(self, address: Address, **settings: str) -> None:
        self._is_shared = address.shares_sessions
        command = "SET LOCAL" if self._is_shared else "SET"
        values = {**LIMITS, "search_path": address.schema, **settings}
        self._set = "; ".join(f"{command} {name} = '{value}'" for name, value in values.items())

    async def begin(self, connection: Connection) -> None:
        """Set the settings of a new connection, unless others share its session."""
        if not self._is_shared:
            await connection.execute(self._set)

    async def run(self, connection: Connection, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call a function with a connection and these arguments, and return its result."""
        if not self._is_shared:
            return await function(connection, *arguments)
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(self._set)
            result = await function(connection, *arguments)
        except (TimeoutError, asyncio.CancelledError):  # the connection does not answer, or nothing waits for it
            connection.terminate()
            raise
        except Exception:
            if not connection.is_closed():
                await transaction.rollback()
            raise
        await transaction.commit()
        return result


@asynccontextmanager
async def one_snapshot(connection: Connection) -> AsyncIterator[None]:
    """Let all reads in the block see the same state of the database."""
    if connection.is_in_transaction():  # of a shared session, which has executed no query yet
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield
        return
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        yield


def _options(address: Address, name: str = APPLICATION_NAME) -> dict[str, Any]:  # Any: parameters of asyncpg
    options: dict[str, Any] = {"timeout": CONNECT_TIME, "server_settings": {"application_name": name}}
    if not address.prepares:
        options["statement_cache_size"] = 0
    return options


async def connect(address: Address, settings: SessionSettings, name: str = APPLICATION_NAME) -> Connection:
    """Open one connection outside of the pools."""
    async with asyncio.timeout(CONNECT_TIME):
        options = _options(address, name)
        connection: Connection = await asyncpg.connect(address.dsn, command_timeout=ANSWER_TIME, **options)
        try:
            await settings.begin(connection)
        except BaseException:
            connection.terminate()
            raise
    return connection


async def connect_unprepared(address: Address) -> Connection:
    """Open one connection without settings, time limits and prepared statements."""
    connection: Connection = await asyncpg.connect(address.dsn, **_options(address._replace(prepares=False)))
    return connection


async def connect_pool(address: Address, settings: SessionSettings, size: int) -> "asyncpg.Pool[asyncpg.Record]":
    """Open a pool that connects when a connection is first needed."""
    pool = asyncpg.create_pool(
        address.dsn,
        min_size=0,  # otherwise asyncpg itself reconnects, and logs a traceback for each failed attempt
        max_size=size,
        command_timeout=ANSWER_TIME,
        connection_class=PlainConnection,
        init=settings.begin,
        **_options(address),
    )
    return await pool


# ---- sessions of the server -----------------------------------------------------------------------------------------


async def check_session(address: Address, connection: Connection) -> None:
    """Check that this connection, which has executed nothing yet, has a session of the server to itself.

    Raises:
        StoreUnavailableError: it leads to a pooler that shares sessions.
    """
    pid = await _backend_pid(connection)
    if pid == connection.get_server_pid():  # a pooler reports a number of its own
        return
    # If sessions are shared, another client is served in the session in which this one has just been served, or this
    # one is served in a different session while the other client occupies one.
    other = await connect_unprepared(address)
    try:
        async with asyncio.timeout(ANSWER_TIME), other.transaction():
            is_shared = await other.fetchval("SELECT pg_backend_pid()") == pid or await _backend_pid(connection) != pid
    finally:
        await close_quietly(other)
    if is_shared:
        raise StoreUnavailableError(
            f"PostgreSQL at {address.shown} is behind a pooler that shares sessions between its clients (transaction "
            "mode); add pool_mode=transaction to the store's URL, or connect without the pooler"
        )


async def _backend_pid(connection: Connection) -> int:
    # In a transaction, because a client without named prepared statements needs one session for its two messages.
    async with asyncio.timeout(ANSWER_TIME), connection.transaction():
        return int(await connection.fetchval("SELECT pg_backend_pid()"))


async def check_prepared(address: Address) -> None:
    """Check that a pooler that shares sessions executes a prepared statement in any of them.

    Raises:
        StoreUnavailableError: it does not.
    """
    first: Connection = await asyncpg.connect(address.dsn, **_options(address))
    other: Connection | None = None
    try:
        other = await connect_unprepared(address)
        async with asyncio.timeout(ANSWER_TIME):
            async with first.transaction():
                await first.fetchval("SELECT 1")
            async with other.transaction():  # it occupies the session in which the statement was prepared
                await other.fetchval("SELECT 1")
                async with first.transaction():
                    await first.fetchval("SELECT 1")
    except asyncpg.InvalidSQLStatementNameError as error:
        raise StoreUnavailableError(
            f"PostgreSQL at {address.shown} is behind a pooler that does not support prepared statements; remove "
            "prepared_statements=on from the store's URL"
        ) from error
    finally:
        await close_quietly(first)
        await close_quietly(other)


async def check_listening(address: Address) -> None:
    """Check that a connection to this address receives notifications.

    Raises:
        StoreUnavailableError: the address is wrong, or leads to a pooler that does not pass them on.
    """
    try:
        await _check_listening(address)
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise opening_error(error, address, "--store-listen-url") from error


async def _check_listening(address: Address) -> None:
    connection = await connect_unprepared(address)
    try:
        await check_session(address, connection)
        async with asyncio.timeout(ANSWER_TIME):
            await connection.execute("LISTEN a2a_check; UNLISTEN a2a_check")
    except (StoreUnavailableError, asyncpg.FeatureNotSupportedError) as error:
        raise StoreUnavailableError(
            f"PostgreSQL at {address.shown} does not send notifications to this connection, because of a pooler; set "
            "--store-listen-url to the URL of the server itself, or to off"
        ) from error
    finally:
        await close_quietly(connection)


async def terminate(connection: Connection, application_name: str) -> None:
    """Terminate the other sessions with this name.

    A process number would not do: after a restart of the server, or behind a pooler, it is that of another client.
    """
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND pid <> $2"
    await connection.fetch(others, application_name, await connection.fetchval("SELECT pg_backend_pid()"))


# What an error means at the start of an agent, and what to do: the first row that matches.
OPENING_ERRORS: Final[tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...]] = (
    (
        (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError),
        "PostgreSQL at {where} refused the user or the password; check both in {option}",
    ),
    (
        asyncpg.InvalidCatalogNameError,
        "PostgreSQL at {where} has no such database; make it with createdb, or correct {option}",
    ),
    (
        asyncpg.InsufficientPrivilegeError,
        "This user may not make, change or use the tables in schema {schema} of {where}; "
        "have the owner of the schema run: apcore-a2a migrate, and grant the rest (docs/deploy.md)",
    ),
    (
        asyncpg.PostgresConnectionError,
        "PostgreSQL at {where}, or a connection pooler before it, closed the connection; a pooler must be in session "
        "or transaction mode, and takes no options of PostgreSQL in {option}",
    ),
    (
        (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError),
        "The tables of {where} must be changed, and another transaction locks them, or the change takes too long; "
        "end the transaction (pg_stat_activity), or try again later",
    ),
    (
        asyncpg.TooManyConnectionsError,
        "PostgreSQL at {where} has no connection left; raise max_connections, or run fewer replicas",
    ),
    (
        asyncpg.CannotConnectNowError,
        "PostgreSQL at {where} is starting up or shutting down; try again when it is up",
    ),
    (
        (OSError, TimeoutError),
        "PostgreSQL at {where} does not answer; check that it runs, and host and port in {option}",
    ),
    (
        (asyncpg.ClientConfigurationError, asyncpg.UndefinedObjectError, ValueError),
        "The store's URL has an option that neither asyncpg nor PostgreSQL takes; correct it",
    ),
)
CANNOT_OPEN: Final = "The task store at {where} cannot be opened ({kind}); see the server's log"


def opening_error(error: BaseException, address: Address, option: str = "the store's URL") -> StoreUnavailableError:
    """Return the error that says why the store cannot be opened, and what to do. `option` has the address.

    It does not contain the texts of the server, which may name users.
    """
    if isinstance(error, StoreUnavailableError):
        return error
    known = {"where": address.shown, "schema": address.schema, "kind": type(error).__name__, "option": option}
    for kinds, text in OPENING_ERRORS:
        if isinstance(error, kinds):
            return StoreUnavailableError(text.format_map(known))
    return StoreUnavailableError(CANNOT_OPEN.format_map(known))


class ServerCondition:
    """Whether the database answers: for health checks and the log. A failure is logged once a minute, its end once."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._trouble = ""
        self._outage_since: float | None = None
        self._answered_at = time.monotonic()
        # When the server last reported that it is starting up or shutting down. A later answer does not reset it,
        # because the renewal of the lease may still wait for the server.
        self.down_at = float("-inf")
        self._logged_at = float("-inf")

    def failed(self, error: BaseException) -> StoreUnavailableError:
        """Record a failure, and return the error to raise instead."""
        now = time.monotonic()
        if is_starting_or_stopping(error):
            self.down_at = now
        if classify(error) is DatabaseFailure.LOST:
            self._trouble = "the database does not answer"
            if self._outage_since is None:
                self._outage_since = now
                if isinstance(error, TimeoutError):  # the server has not answered since, in no other connection either
                    self._outage_since = max(self._answered_at, now - ANSWER_TIME)
        else:
            self._trouble = "the database rejects statements"
            self._outage_since = None
        if now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            reason = f"{type(error).__name__} {sqlstate(error)}".rstrip()
            extra = {"store": self._address.shown, "reason": reason, "says": str(error)[:200]}
            logger.warning("task store is not available", extra=extra)
        return StoreUnavailableError()

    def succeeded(self) -> None:
        """Record an answer of the server."""
        self._answered_at = time.monotonic()
        if self._trouble:
            logger.info("task store is available again", extra={"store": self._address.shown})
            self._trouble = ""
            self._outage_since = None
            self._logged_at = float("-inf")

    @property
    def outage_seconds(self) -> float:
        """Seconds for which the database has not answered. 0 while it answers, even with errors."""
        if self._outage_since is None:
            return 0.0
        return time.monotonic() - self._outage_since

    @property
    def trouble(self) -> str:
        """The public reason for which the database is unavailable, without paths and addresses, or ""."""
        return self._trouble


async def close_quietly(connection: Connection | None) -> None:
    """Close a connection that may be broken. Never raises."""
    if connection is None or connection.is_closed():
        return
    try:
        await connection.close(timeout=CLOSE_TIME)
    except Exception:  # of a driver, about a connection that is discarded
        connection.terminate()


# ---- statements -----------------------------------------------------------------------------------------------------


async def execute(connection: Connection, statement: str, *values: object) -> int:
    """Execute a statement, and return the number of changed rows."""
    status = await connection.execute(statement, *values)
    count = status.rpartition(" ")[2]  # of a status such as "DELETE 2"
    return int(count) if count.isdecimal() else 0


async def fetch(connection: Connection, statement: str, *values: object) -> list[asyncpg.Record]:
    """Return the rows of a statement."""
    return await connection.fetch(statement, *values)


async def fetch_value(connection: Connection, statement: str, *values: object) -> Any:
    """Return the only value of a statement, or None if it returns no row. Any: a value of its column."""
    return await connection.fetchval(statement, *values)


# ---- pools ----------------------------------------------------------------------------------------------------------


class Database:
    """A pool of connections for all statements that are not written in groups."""

    def __init__(
        self,
        pool: "asyncpg.Pool[asyncpg.Record]",
        settings: SessionSettings,
        condition: ServerCondition,
        *,
        is_patient: bool = False,
    ) -> None:
        # Patient: also during an outage, so that a server that needs its time to answer again is noticed.
        self._is_patient = is_patient
        self._pool = pool
        self._settings = settings
        self.condition = condition

    @property
    def down_at(self) -> float:
        """The monotonic time at which the server last reported that it was starting up or shutting down."""
        return self.condition.down_at

    async def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call a function with a connection and these arguments, and return its result.

        The function is called again if the connection was broken, or the server busy.

        Raises:
            StoreUnavailableError: the database does not answer in time, or rejects the statement.
        """
        return await self._call(function, arguments, reconnects=self._pool.get_max_size())

    async def call_once(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call a function that must not be executed twice, and return its result.

        Raises:
            StoreUnavailableError: the database does not answer in time, or the connection broke. The statement may have
                been executed.
        """
        return await self._call(function, arguments, reconnects=0)

    async def _call(self, function: Callable[..., Awaitable[T]], arguments: tuple[Any, ...], *, reconnects: int) -> T:
        seconds = ANSWER_TIME
        if self.condition.outage_seconds > MAX_OUTAGE and not self._is_patient:
            seconds = OUTAGE_ANSWER_TIME
        try:
            async with asyncio.timeout(seconds):  # for the connection, the answer and further attempts together
                answer = await self._repeat(function, arguments, reconnects=reconnects)
        except A2AError:  # of the function itself
            raise
        except Exception as error:  # no list of the exceptions of a driver is complete
            raise self.condition.failed(error) from error
        self.condition.succeeded()
        return answer

    async def _repeat(self, function: Callable[..., Awaitable[T]], arguments: tuple[Any, ...], *, reconnects: int) -> T:
        begun = time.monotonic()
        pauses = chain(BUSY_PAUSES, repeat(BUSY_PAUSES[-1]))
        while True:
            try:
                return await self._call_now(function, *arguments)
            except A2AError:
                raise
            except Exception as error:
                failure = classify(error)
                if failure is DatabaseFailure.BUSY and time.monotonic() - begun < BUSY_TIME:
                    await asyncio.sleep(next(pauses))
                elif failure is DatabaseFailure.LOST and reconnects and not _is_unreachable(error):
                    # A restart of the server breaks all connections of the pool.
                    reconnects -= 1
                    self.condition.failed(error)
                else:
                    raise

    async def _call_now(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        pooled = await self._pool.acquire()
        connection = cast("Connection", pooled)  # a proxy with all methods of a connection
        try:
            return await self._settings.run(connection, function, *arguments)
        except (TimeoutError, asyncio.CancelledError):
            # Otherwise asyncpg would ask the server to cancel the statement, and wait for that as long again.
            connection.terminate()
            raise
        except Exception as error:
            # Otherwise the pool would keep it, for example one that was opened while the server was read-only.
            if classify(error) is DatabaseFailure.LOST and not isinstance(error, A2AError):
                connection.terminate()
            raise
        finally:
            await self._pool.release(pooled)

    async def close(self) -> None:
        """Close all connections, in bounded time."""
        try:
            async with asyncio.timeout(CLOSE_TIME):
                await self._pool.close()
        except Exception:  # of a driver, about connections that are discarded
            self._pool.terminate()


def _is_unreachable(error: BaseException) -> bool:
    """Return whether a new connection would fail in the same way, after a time that the caller need not wait."""
    return isinstance(error, (TimeoutError, ConnectionRefusedError)) or is_starting_or_stopping(error)
