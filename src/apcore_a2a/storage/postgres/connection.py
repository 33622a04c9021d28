"""Connections to a PostgreSQL server: how they are made, kept and lost, and whether it answers."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from apcore_a2a.errors import StoreUnavailableError

logger = logging.getLogger(__name__)

# Connections to the server, and what it means when there is none.
#
# Rule: no wait without a limit, and no error that leaves the reader without the next step; none shows the password.

CONNECT_TIME: Final = 5.0  # seconds for a connection
ANSWER_TIME: Final = 5.0  # seconds for an answer
LOG_INTERVAL: Final = 60.0  # seconds between two lines about the same trouble
# The server gives up shortly before we do: what we take for lost it does not do afterwards.
LIMITS: Final = {
    "statement_timeout": "4500",
    "lock_timeout": "4000",
    "idle_in_transaction_session_timeout": "10000",
    "jit": "off",  # our statements are short
    "application_name": "apcore-a2a",
}

if TYPE_CHECKING:  # it takes a type parameter, the class of rows, for type checkers only
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

# Everything by which a connection, or the server behind it, can fail while it is asked something.
FAILURES: Final = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
# Those after which it is not known whether the server did what it was asked; and SQLSTATE classes that mean the same.
_LOST: Final = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError)
# Connection exceptions; the server shuts down, or has just crashed; it is a standby that has not taken over yet.
_LOST_STATES: Final = ("08", "57P", "25006")


class Address(NamedTuple):
    """Where the database is: as asyncpg reads it, and as it may be shown."""

    dsn: str
    schema: str

    @property
    def shown(self) -> str:
        """The address without user and password."""
        parts = urlsplit(self.dsn)
        host = dict(parse_qsl(parts.query)).get("host") or parts.hostname or "localhost"
        port = f":{parts.port}" if parts.port else ""
        return f"{host}{port}{parts.path}"


def parse_address(url: str, own_options: Mapping[str, object]) -> Address:
    """The address in a store's URL, without the options that are the store's own.

    Raises:
        ValueError: it is no such URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres") or parts.fragment:
        raise ValueError("a store URL has the form postgresql://user@host/database")
    try:
        parts.port  # noqa: B018  # reading it checks it
    except ValueError:
        raise ValueError("the port in the store URL is not a number") from None  # it would show the password
    theirs: list[tuple[str, str]] = []
    schema = "apcore_a2a"
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "schema":
            schema = value
        elif name not in own_options:
            theirs.append((name, value))
    dsn = parts._replace(scheme="postgresql", query=urlencode(theirs, safe="/")).geturl()
    return Address(dsn, schema)


class PlainConnection(Connection):
    """A connection of a pool that needs nothing undone: it saves a round trip after each use."""

    def get_reset_query(self) -> str:
        return ""


async def connect(address: Address, **settings: str) -> Connection:
    """One connection, for one use."""
    limits = {**LIMITS, "search_path": address.schema, **settings}
    return await asyncpg.connect(address.dsn, timeout=CONNECT_TIME, command_timeout=ANSWER_TIME, server_settings=limits)


async def connect_for_migrations(address: Address) -> Connection:
    """One connection without a limit for an answer: a step of the tables may take long, and the wait for one, too."""
    limits = {**LIMITS, "search_path": address.schema, "statement_timeout": "0", "lock_timeout": "0"}
    return await asyncpg.connect(address.dsn, timeout=CONNECT_TIME, server_settings=limits)


async def connect_pool(address: Address, size: int) -> "asyncpg.Pool[asyncpg.Record]":
    limits = {**LIMITS, "search_path": address.schema}
    pool = asyncpg.create_pool(
        address.dsn,
        min_size=0,  # or asyncpg would itself try to keep one, with a traceback in the log for each attempt
        max_size=size,
        timeout=CONNECT_TIME,
        command_timeout=ANSWER_TIME,
        server_settings=limits,
        connection_class=PlainConnection,
    )
    return await pool


def is_lost(error: BaseException) -> bool:
    """Whether the connection failed, not what was asked of it: the server may or may not have done it."""
    if isinstance(error, _LOST):
        return True
    state = getattr(error, "sqlstate", None) or ""
    return isinstance(error, asyncpg.PostgresError) and state.startswith(_LOST_STATES)


def says_down(error: BaseException) -> bool:
    """Whether the server itself says that it starts or shuts down: it serves nobody."""
    return isinstance(error, asyncpg.CannotConnectNowError)


def why_not(error: BaseException, address: Address) -> StoreUnavailableError:
    """Why the store cannot be opened, and what to do; no text of the server's, which may name users."""
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
    """Whether the database answers: for health, and for the log. It is said once a minute, and once when it is over."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._trouble = ""
        self._away_since: float | None = None
        # When the server last said that it starts or shuts down, and serves nobody. An answer to somebody here does not
        # change it: whoever waits for it to come back, as the lease does, still has to be given time.
        self.down_at = float("-inf")
        self._logged_at = float("-inf")

    def failed(self, error: BaseException) -> StoreUnavailableError:
        """What to raise instead of an error of the connection's."""
        now = time.monotonic()
        if says_down(error):
            self.down_at = now
        if is_lost(error):
            self._trouble = "the database does not answer"
            if self._away_since is None:
                self._away_since = now
        else:
            self._trouble = "the database refuses"
            self._away_since = None
        if now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            extra = {"store": self._address.shown, "reason": type(error).__name__, "says": str(error)[:200]}
            logger.warning("task store is not available", extra=extra)
        return StoreUnavailableError()

    def succeeded(self) -> None:
        if self._trouble:
            logger.info("task store is available again", extra={"store": self._address.shown})
            self._trouble = ""
            self._away_since = None
            self._logged_at = float("-inf")

    @property
    def away_for(self) -> float:
        """For how many seconds the database has not answered; 0 while it does, if only to refuse."""
        if self._away_since is None:
            return 0.0
        return time.monotonic() - self._away_since

    def tell(self) -> str:
        return self._trouble


async def close_quietly(connection: Connection | None) -> None:
    """Let go of a connection that may be broken."""
    if connection is None or connection.is_closed():
        return
    try:
        await connection.close(timeout=1)
    except FAILURES:
        connection.terminate()


# ---- database -------------------------------------------------------------------------------------------------------
# Connections for all that is not written in groups. Rule: nobody waits for an answer without a limit.

READERS: Final = 3  # connections for what clients ask; with those of writer, listener and lease, a replica has six

T = TypeVar("T")


class Database:
    """A few connections that take turns."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", condition: ServerCondition) -> None:
        self._pool = pool
        self.condition = condition

    @property
    def down_at(self) -> float:
        """When the server last said that it serves nobody, by the monotonic clock."""
        return self.condition.down_at

    async def ask(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call `ask` with a connection; again if that connection turns out to be broken.

        Any: what `ask` takes.

        Raises:
            StoreUnavailableError: the database does not answer in time.
        """
        return await self._in_time(self._persist, ask, *arguments)

    async def ask_once(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """The same, for what does something else the second time: it is not asked again.

        Any: what `ask` takes.

        Raises:
            StoreUnavailableError: the database does not answer in time, or the connection broke: it may have been done.
        """
        return await self._in_time(self._ask_once, ask, *arguments)

    async def _in_time(self, attempt: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        try:
            async with asyncio.timeout(ANSWER_TIME):  # for everything: a connection, the answer, another attempt
                answer = await attempt(*arguments)
        except FAILURES as error:
            raise self.condition.failed(error) from error
        self.condition.succeeded()
        return answer

    async def _persist(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """A server that was restarted has broken all connections; one that is not there is not asked again."""
        for _ in range(self._pool.get_max_size()):
            try:
                return await self._ask_once(ask, *arguments)
            except FAILURES as error:
                if not is_lost(error) or isinstance(error, (TimeoutError, ConnectionRefusedError)) or says_down(error):
                    raise
                self.condition.failed(error)
        return await self._ask_once(ask, *arguments)

    async def _ask_once(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        connection = await self._pool.acquire()
        try:
            return await ask(connection, *arguments)
        except (TimeoutError, asyncio.CancelledError):
            # To give it back, asyncpg would first have the server cancel what it was asked, and wait for that as long.
            connection.terminate()
            raise
        finally:
            await self._pool.release(connection)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIME):
                await self._pool.close()
        except FAILURES:
            self._pool.terminate()
