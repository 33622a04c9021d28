"""Connections to a PostgreSQL server, the errors they raise, and whether the server answers.

Invariant: every wait has a limit. Every error tells the reader the next step, and none shows the password.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from apcore_a2a.errors import A2AError, StoreUnavailableError
from apcore_a2a.storage.postgres.failures import DatabaseFailure, classify, is_starting_or_stopping, sqlstate

logger = logging.getLogger(__name__)

CONNECT_TIME: Final = 5.0  # seconds to open a connection
ANSWER_TIME: Final = 5.0  # seconds for an answer
LOG_INTERVAL: Final = 60.0  # seconds between two log lines about the same failure
# Seconds for which a busy server is asked again. With a further lock timeout, they are less than ANSWER_TIME.
BUSY_TIME: Final = 3.0
BUSY_PAUSES: Final = (0.05, 0.2, 0.5)  # seconds between attempts at a server that is busy; the last one repeats
READERS: Final = 3  # connections for clients' reads; with those of writer, notifications and upkeep, a replica has six
# The server's timeouts are shorter than the client's, so a statement that timed out is not executed later.
LIMITS: Final = {
    "statement_timeout": "4500",
    "lock_timeout": "1000",  # a statement that waits for a lock occupies one of few connections
    "idle_in_transaction_session_timeout": "10000",
    "jit": "off",  # our statements are short
    "application_name": "apcore-a2a",
}

if TYPE_CHECKING:  # only for type checkers, the class has a type parameter, the class of rows
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection


class Address(NamedTuple):
    """The address of a database: as asyncpg reads it, and as it may be shown."""

    dsn: str
    schema: str

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


async def connect(address: Address, **settings: str) -> Connection:
    """Open one connection outside of the pools."""
    limits = {**LIMITS, "search_path": address.schema, **settings}
    return await asyncpg.connect(address.dsn, timeout=CONNECT_TIME, command_timeout=ANSWER_TIME, server_settings=limits)


async def connect_for_migrations(address: Address) -> Connection:
    """Open one connection without time limits for statements: a migration may take long, and the wait for one, too."""
    limits = {**LIMITS, "search_path": address.schema, "statement_timeout": "0", "lock_timeout": "0"}
    return await asyncpg.connect(address.dsn, timeout=CONNECT_TIME, server_settings=limits)


async def connect_pool(address: Address, size: int) -> "asyncpg.Pool[asyncpg.Record]":
    """Open a pool that connects when a connection is first needed."""
    limits = {**LIMITS, "search_path": address.schema}
    pool = asyncpg.create_pool(
        address.dsn,
        min_size=0,  # otherwise asyncpg itself reconnects, and logs a traceback for each failed attempt
        max_size=size,
        timeout=CONNECT_TIME,
        command_timeout=ANSWER_TIME,
        server_settings=limits,
        connection_class=PlainConnection,
    )
    return await pool


def opening_error(error: BaseException, address: Address) -> StoreUnavailableError:
    """Return the error that says why the store cannot be opened, and what to do.

    It does not contain the texts of the server, which may name users.
    """
    where = address.shown
    match error:
        case StoreUnavailableError():
            return error
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            text = f"PostgreSQL at {where} refused the user or the password; check both in the store's URL"
        case asyncpg.InvalidCatalogNameError():
            text = f"PostgreSQL at {where} has no such database; make it with createdb, or correct the store's URL"
        case asyncpg.InsufficientPrivilegeError():
            text = (
                f"This user may not make, change or use the tables in schema {address.schema} of {where}; "
                "have the owner of the schema run: apcore-a2a migrate, and grant the rest (docs/deploy.md)"
            )
        case asyncpg.TooManyConnectionsError():
            text = f"PostgreSQL at {where} has no connection left; raise max_connections, or run fewer replicas"
        case asyncpg.CannotConnectNowError():
            text = f"PostgreSQL at {where} is starting up or shutting down; try again when it is up"
        case OSError() | TimeoutError():
            text = f"PostgreSQL at {where} does not answer; check that it runs, and host and port in the store's URL"
        case asyncpg.ClientConfigurationError() | asyncpg.UndefinedObjectError() | ValueError():
            text = "The store's URL has an option that neither asyncpg nor PostgreSQL takes; correct it"
        case _:
            text = f"The task store at {where} cannot be opened ({type(error).__name__}); see the server's log"
    return StoreUnavailableError(text)


class ServerCondition:
    """Whether the database answers: for health checks and the log. A failure is logged once a minute, its end once."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._trouble = ""
        self._outage_since: float | None = None
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
        await connection.close(timeout=1)
    except Exception:  # of a driver, about a connection that is discarded
        connection.terminate()


# ---- pools ----------------------------------------------------------------------------------------------------------

T = TypeVar("T")


class Database:
    """A pool of connections for all statements that are not written in groups."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", condition: ServerCondition) -> None:
        self._pool = pool
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
        try:
            async with asyncio.timeout(ANSWER_TIME):  # for the connection, the answer and further attempts together
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
        connection = await self._pool.acquire()
        try:
            return await function(connection, *arguments)
        except (TimeoutError, asyncio.CancelledError):
            # Otherwise asyncpg would ask the server to cancel the statement, and wait for that as long again.
            connection.terminate()
            raise
        finally:
            await self._pool.release(connection)

    async def close(self) -> None:
        """Close all connections, in bounded time."""
        try:
            async with asyncio.timeout(ANSWER_TIME):
                await self._pool.close()
        except Exception:  # of a driver, about connections that are discarded
            self._pool.terminate()


def _is_unreachable(error: BaseException) -> bool:
    """Return whether a new connection would fail in the same way, after a time that the caller need not wait."""
    return isinstance(error, (TimeoutError, ConnectionRefusedError)) or is_starting_or_stopping(error)
