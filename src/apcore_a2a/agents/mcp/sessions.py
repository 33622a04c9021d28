"""Sessions with one MCP server. A session serves one call at a time, so each question and each progress belongs to it.

An idle session is kept for the next call of the same owner: servers that are programs take seconds to start, and some
keep a state that belongs to one user. A session whose call was cancelled is closed, which ends what its server does.

Invariant: one asyncio task enters and leaves a session, because anyio requires it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from mcp import Client, ClientSession
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from apcore_a2a.clean_text import clean_line
from apcore_a2a.errors import AgentError, LimitExceededError, OverloadedError

logger = logging.getLogger(__name__)

UNUSED: Final = ""  # in place of an owner: a session that no caller has used
MAX_IDLE: Final = 16  # idle sessions of all owners
START_TIME: Final = 60.0  # seconds for a server to start: a package may have to be downloaded
CLOSE_TIME: Final = 5.0
PING_TIME: Final = 5.0
MAX_BUSY: Final = 64  # sessions in use, of which one owner has half at most
MAX_REASON: Final = 300
UNREACHABLE: Final = "The MCP server does not answer"

Elicit = Callable[[Any], Awaitable[Any]]
"""Answers one elicitation, given its parameters. Any: classes of the MCP SDK."""


def reason_of(error: BaseException) -> str:
    """Return one line about the first exception in a group: what has failed.

    Example:
        >>> reason_of(ExceptionGroup("errors in a TaskGroup", [OSError("no such file")]))
        'no such file'
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return clean_line(str(error), MAX_REASON) or type(error).__name__


class MCPSession:
    """One session, in a task of its own."""

    def __init__(self, server: Any, *, is_modern: bool) -> None:
        self._server = server
        self._is_modern = is_modern
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self.elicit: Elicit | None = None
        """Answers the elicitations of the present call."""

    async def open(self) -> ClientSession:
        """Connect to the server. Raises AgentError if it does not answer."""
        self._task = asyncio.create_task(self._run(), name="mcp session")
        try:
            async with asyncio.timeout(START_TIME):
                return await asyncio.shield(self._opened)
        except (Exception, asyncio.CancelledError) as error:  # the server's program, or its SDK, may raise anything
            await self.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            logger.warning("MCP server does not answer", extra={"reason": reason_of(error)})
            raise AgentError(UNREACHABLE) from error

    @property
    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _run(self) -> None:
        try:
            async with self._connect() as session:
                self._opened.set_result(session)
                await self._stop.wait()
        except Exception as error:  # as in `open`
            if self._opened.done():
                logger.warning("MCP session ended", extra={"reason": reason_of(error)})
            else:
                self._opened.set_exception(error)

    def _connect(self) -> AbstractAsyncContextManager[ClientSession]:
        if any(base.__module__.partition(".")[0] == "fastmcp" for base in type(self._server).__mro__):
            return _connect_fastmcp(self._server, self._on_elicitation, self._is_modern)
        if self._is_modern:
            return _connect_modern(self._server, self._on_elicitation)
        return _connect(self._server, self._on_elicitation)

    async def _on_elicitation(self, context: Any, params: Any) -> Any:
        if self.elicit is None:
            raise RuntimeError("there is no call that could ask")
        return await self.elicit(params)

    async def close(self) -> None:
        """Leave the session. One that does not end in time is cancelled."""
        task = self._task
        if task is None:
            return
        self._stop.set()
        if not self._opened.done():
            task.cancel()
        await asyncio.wait({task}, timeout=CLOSE_TIME)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_TIME)
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()  # seen


@asynccontextmanager
async def _connect(server: Any, on_elicitation: Any) -> AsyncIterator[ClientSession]:
    # "legacy" is the protocol up to 2025-11-25, in which a tool can ask while it runs.
    client = Client(server, mode="legacy", elicitation_callback=on_elicitation)
    try:
        await client.__aenter__()
    except Exception as error:  # the SDK, or its transport, may raise anything
        logger.info("MCP server rejects the handshake, 2026-07-28 is tried", extra={"reason": reason_of(error)})
        async with _connect_modern(server, on_elicitation) as session:
            yield session
        return
    try:
        yield client.session
    finally:
        await client.__aexit__(None, None, None)


@asynccontextmanager
async def _connect_modern(server: Any, on_elicitation: Any) -> AsyncIterator[ClientSession]:
    async with Client(server, mode="auto", elicitation_callback=on_elicitation) as client:
        yield client.session


@asynccontextmanager
async def _connect_fastmcp(server: Any, on_elicitation: Any, is_modern: bool) -> AsyncIterator[ClientSession]:
    from fastmcp.client.transports import FastMCPTransport

    async with FastMCPTransport(server).connect_session(elicitation_callback=on_elicitation) as session:
        if is_modern:
            await session.discover()
        else:
            await session.initialize()
        yield session


async def is_answering(session: ClientSession) -> bool:
    """Return whether the server of an idle session is still there. The newer protocol has no ping."""
    if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return True
    try:
        async with asyncio.timeout(PING_TIME):
            await session.send_ping()
    except Exception:  # the SDK, or its transport, may raise anything
        return False
    return True


class MCPSessions:
    """The sessions with one server, by the owners of the tasks that they serve."""

    def __init__(self, server: Any, *, is_modern: bool = False) -> None:
        self._server = server
        self._is_modern = is_modern
        self._idle: list[tuple[str, MCPSession, ClientSession]] = []  # the least recently used first
        self._busy: Counter[str] = Counter()  # the sessions in use, by owner

    def check_room(self, owner: str) -> None:
        """Reject a call if too many sessions are in use.

        Raises:
            OverloadedError: all owners together use too many.
            LimitExceededError: this owner does.
        """
        if sum(self._busy.values()) >= MAX_BUSY:
            raise OverloadedError("All sessions with the MCP server are in use; try again later")
        if self._busy[owner] >= MAX_BUSY // 2:
            raise LimitExceededError("You use too many sessions with the MCP server; try again later")

    async def take(self, owner: str) -> tuple[MCPSession, ClientSession]:
        """Return an idle session of this owner, or a new one. `put_back` or `drop` ends its use."""
        self._busy[owner] += 1
        try:
            position = self._find(owner)
            while position is not None:
                _, session, connected = self._idle.pop(position)
                if session.is_alive and await is_answering(connected):
                    return session, connected
                await session.close()
                position = self._find(owner)
            session = MCPSession(self._server, is_modern=self._is_modern)
            return session, await session.open()
        except BaseException:  # also a cancellation
            self._release(owner)
            raise

    def _find(self, owner: str) -> int | None:
        """Return the position of the most recently used session of an owner, or of one that no caller has used."""
        for wanted in (owner, UNUSED):
            for position in reversed(range(len(self._idle))):
                if self._idle[position][0] == wanted:
                    return position
        return None

    def _release(self, owner: str) -> None:
        self._busy[owner] -= 1
        if not self._busy[owner]:
            del self._busy[owner]

    async def drop(self, owner: str, session: MCPSession) -> None:
        """Close a session whose call was cancelled, or whose server has failed."""
        self._release(owner)
        await session.close()

    async def put_back(self, owner: str, session: MCPSession, connected: ClientSession) -> None:
        """Keep a session whose call has ended."""
        self._release(owner)
        session.elicit = None
        self._idle.append((owner, session, connected))
        if len(self._idle) > MAX_IDLE:
            _, oldest, _ = self._idle.pop(0)
            await oldest.close()

    async def close(self) -> None:
        """Close the idle sessions. The others are closed by their calls."""
        while self._idle:
            _, session, _ = self._idle.pop()
            await session.close()
