"""Stands between a replica and its database server, and cuts it off: a broken network for one, not for the others."""

import asyncio
from contextlib import suppress
from enum import Enum
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_FIELDS = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
STARTING_UP = b"E" + (4 + len(_FIELDS)).to_bytes(4, "big") + _FIELDS  # ErrorResponse of PostgreSQL's protocol


class Network(Enum):
    """What becomes of what is sent."""

    WELL = "it arrives"
    SWALLOWS = "nothing arrives, and both ends think they are connected, as behind a link that is down"
    RESETS = "connections are reset, and new ones at once, as when nobody listens there"
    STARTS = "connections are reset, and new ones are told that the server is starting up, as after a crash"


class Proxy:
    """Listens on a port of its own for connections to the server whose socket is in a folder."""

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
        """A store's URL, by way of this proxy."""
        options = parse_qs(urlsplit(url).query)
        kept = "".join(f"&{name}={value[0]}" for name, value in options.items() if name != "host")
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres?sslmode=disable{kept}"

    async def set(self, network: Network) -> None:
        """From now on. What was swallowed stays so: connections of that time are reset when it is over."""
        was = self._network
        self._network = network
        if network in (Network.RESETS, Network.STARTS) or was is Network.SWALLOWS:
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
                theirs, ours = await asyncio.open_unix_connection(str(self._folder / ".s.PGSQL.5432"))
                ends.append(ours)
                passing = [
                    asyncio.create_task(self._pass_on(reader, ours)),
                    asyncio.create_task(self._pass_on(theirs, writer)),
                ]
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            if self._network is Network.STARTS:
                with suppress(OSError):
                    await reader.read(65536)  # who it is, and what it wants
                    writer.write(STARTING_UP)
                    await writer.drain()
                    writer.write_eof()
                    await reader.read()  # until it has heard
            if self._network is Network.SWALLOWS:
                await asyncio.Event().wait()  # nobody hears of anything, until all is reset
        except asyncio.CancelledError:  # by `_reset`; asyncio of Python 3.11 would say so in the log
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
