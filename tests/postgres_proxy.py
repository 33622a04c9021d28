"""A proxy between a replica and its database server that breaks the network for this replica alone."""

import asyncio
from contextlib import suppress
from enum import Enum
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_FIELDS = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
STARTING_UP = b"E" + (4 + len(_FIELDS)).to_bytes(4, "big") + _FIELDS  # ErrorResponse of PostgreSQL's protocol


class Network(Enum):
    """The state of the network."""

    WELL = "data is passed on"
    SWALLOWS = "no data is passed on, and both ends seem to be connected, as behind a broken link"
    RESETS = "connections are reset, and new ones at once, as if no server listened"
    STARTS = "connections are reset, and new ones get the error that the server is starting up, as after a crash"


class Proxy:
    """Listens on its own port for connections to the server whose socket is in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._network = Network.WELL
        self._port = 0
        self._server: asyncio.Server
        self._links: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reset()
        self._server.close()

    def url(self, url: str) -> str:
        """Return a store's URL with the address of this proxy."""
        options = parse_qs(urlsplit(url).query)
        kept = "".join(f"&{name}={value[0]}" for name, value in options.items() if name != "host")
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres?sslmode=disable{kept}"

    async def set(self, network: Network) -> None:
        """Set the state from now on. Swallowed data stays lost: the connections of that time are reset afterwards."""
        before = self._network
        self._network = network
        if network in (Network.RESETS, Network.STARTS) or before is Network.SWALLOWS:
            await self._reset()

    async def _reset(self) -> None:
        links = set(self._links)
        for link in links:
            link.cancel()
        if links:
            await asyncio.wait(links)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        ends = [writer]
        passing: list[asyncio.Task[None]] = []
        try:
            if self._network is Network.WELL:
                from_server, to_server = await asyncio.open_unix_connection(str(self._folder / ".s.PGSQL.5432"))
                ends.append(to_server)
                passing = [
                    asyncio.create_task(self._pass_on(reader, to_server)),
                    asyncio.create_task(self._pass_on(from_server, writer)),
                ]
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            if self._network is Network.STARTS:
                with suppress(OSError):
                    await reader.read(65536)  # the startup message
                    writer.write(STARTING_UP)
                    await writer.drain()
                    writer.write_eof()
                    await reader.read()  # until the client has read the error
            if self._network is Network.SWALLOWS:
                await asyncio.Event().wait()  # until the connection is reset
        except asyncio.CancelledError:  # by `_reset`; asyncio of Python 3.11 would log it
            return
        finally:
            self._links.discard(link)
            for task in passing:
                task.cancel()
            for end in ends:
                end.transport.abort()
                with suppress(ConnectionError):
                    await end.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if self._network is Network.WELL:
                    writer.write(data)
                    await writer.drain()
