"""The balancers of deploy/ as processes: their files as they are, but for addresses; and the replicas behind them."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from socket import socket
from typing import Final, NamedTuple

import httpx
import pytest

from tests.processes import Process, running
from tests.sources import ROOT

DEADLINE: Final = 30.0  # seconds for what takes a moment where nothing else runs
COUNTER: Final = f"{ROOT / 'tests' / 'cluster' / 'replica.py'}:Counter"


async def _read_to_end(process: Process) -> int:
    """Read all that it says, for as long as it lives; its exit code."""
    async for _ in process.lines():
        continue
    return await process.ends()


class Replica:
    """`apcore-a2a serve` with an environment; it can be ended and started again at the same address."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._stack = AsyncExitStack()
        self._process: Process | None = None
        self._reading: asyncio.Task[int] | None = None
        self.address = "127.0.0.1:0"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def start(self) -> None:
        port = self.address.rpartition(":")[2]
        command = ("-m", "apcore_a2a", "serve", COUNTER, "--factory", "--host", "127.0.0.1", "--port", port)
        self._process = await self._stack.enter_async_context(running(*command, **self._environment))
        self.address = (await self._process.says(r"running on http://([\d.]+:\d+)"))[1]
        self._reading = asyncio.create_task(_read_to_end(self._process))  # a full pipe would stop it

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.signal(number)

    async def ended(self) -> int:
        """Wait until it has ended; its exit code."""
        assert self._reading is not None
        async with asyncio.timeout(DEADLINE):
            return await self._reading

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def replicas(count: int, environment: dict[str, str]) -> AsyncIterator[list[Replica]]:
    found = [Replica(environment) for _ in range(count)]
    try:
        async with asyncio.TaskGroup() as group:
            for replica in found:
                group.create_task(replica.start())
        yield found
    finally:
        for replica in found:
            await replica.close()


class Certificate(NamedTuple):
    """What a balancer does TLS with."""

    chain: str
    key: str
    callers: str = ""  # the authority of the certificates that callers must show


class Balancer(NamedTuple):
    """Which of them it is, where its program is, and where it may write."""

    name: str
    program: str
    folder: Path

    @asynccontextmanager
    async def before(
        self, addresses: list[str], certificate: Certificate | None = None, **changes: str
    ) -> AsyncIterator[str]:
        """Run it before the servers at these addresses, with its file changed in nothing but addresses; the URL.

        `changes` are settings of its file, by name, for what would take too long.
        """
        port = free_port()
        folder = self.folder / str(port)
        folder.mkdir()
        if self.name == "nginx":
            command = _nginx(self.program, folder, port, addresses, certificate, changes)
        else:
            command = _caddy(self.program, folder, port, addresses, certificate)
        async with self._running(command, port, folder):
            yield f"{'https' if certificate else 'http'}://localhost:{port}"

    @asynccontextmanager
    async def forwarding(self, address: str, routes: str, *, http2: bool = False) -> AsyncIterator[str]:
        """Run it with routes of a test instead of its file, in which AGENT is the address of a server; the URL.

        With `http2` it speaks HTTP/2 without TLS, nginx nothing else.
        """
        port = free_port()
        folder = self.folder / str(port)
        folder.mkdir(exist_ok=True)  # a second proxy of one test
        routes = routes.replace("AGENT", address)
        if self.name == "nginx":
            speaks = " http2" if http2 else ""
            command = _nginx_of(self.program, folder, f"server {{ listen 127.0.0.1:{port}{speaks}; {routes} }}")
        else:
            command = _caddy_of(self.program, folder, f"http://localhost:{port} {{\n{routes}\n}}", http2=http2)
        async with self._running(command, port, folder):
            yield f"http://localhost:{port}"

    @asynccontextmanager
    async def _running(self, command: list[str], port: int, folder: Path) -> AsyncIterator[None]:
        own = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **own}
            )
        try:
            await _until_it_listens(port, process, folder / "log")
            yield
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(DEADLINE):
                await process.wait()


def find_balancer(name: str, folder: Path) -> Balancer:
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip(f"no {name} on PATH: apt-get install {name} (Debian), and these tests run")
    return Balancer(name, program, folder)


def free_port() -> int:
    """Return an unused port below the range of ephemeral ports."""
    dice = Random(os.getpid())
    while True:
        port = dice.randrange(20_000, 32_000)
        with socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                return port


async def _until_it_listens(port: int, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(DEADLINE):
        while True:
            assert process.returncode is None, await asyncio.to_thread(log.read_text)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            await writer.wait_closed()
            return


def _with_addresses(text: str, addresses: list[str]) -> str:
    for number in (1, 2, 3):
        assert f"agent{number}:8000" in text
        text = text.replace(f"agent{number}:8000", addresses[number % len(addresses)])
    return text


def _nginx(
    program: str,
    folder: Path,
    port: int,
    addresses: list[str],
    certificate: Certificate | None,
    changes: dict[str, str],
) -> list[str]:
    text = _with_addresses((ROOT / "deploy" / "nginx.conf").read_text(), addresses)
    listen = f"listen 127.0.0.1:{port};"
    if certificate is not None:
        files = f"ssl_certificate {certificate.chain}; ssl_certificate_key {certificate.key};"
        listen = f"listen 127.0.0.1:{port} ssl; {files}"
        if certificate.callers:
            listen += f" ssl_verify_client on; ssl_client_certificate {certificate.callers};"
    assert "listen 80;" in text
    text = text.replace("listen 80;", listen)
    for name, value in changes.items():
        before, _, after = text.partition(f"{name} ")
        assert after, name
        text = f"{before}{name} {value};{after.partition(';')[2]}"
    return _start_nginx(program, folder, text)


def _nginx_of(program: str, folder: Path, server: str) -> list[str]:
    """Return the command for a server of a test."""
    return _start_nginx(program, folder, f"events {{}} http {{ {server} }}")


def _start_nginx(program: str, folder: Path, text: str) -> list[str]:
    # Where it writes, else it would write where the package of the system has it.
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = text.replace("http {", f"http {{ access_log off; {places}", 1)
    (folder / "nginx.conf").write_text(text)
    main = f"daemon off; pid {folder}/pid; error_log {folder}/log;"
    if os.geteuid() == 0:
        main += " user root;"  # its workers must be able to write there
    return [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", main]


def _caddy(program: str, folder: Path, port: int, addresses: list[str], certificate: Certificate | None) -> list[str]:
    text = _with_addresses((ROOT / "deploy" / "Caddyfile").read_text(), addresses)
    site = f"http://localhost:{port} {{"
    if certificate is not None:
        site = f"https://localhost:{port} {{\n\ttls {certificate.chain} {certificate.key}"
    assert "agent.example.com {" in text
    return _caddy_of(program, folder, text.replace("agent.example.com {", site))


def _caddy_of(program: str, folder: Path, text: str, *, http2: bool = False) -> list[str]:
    """Return the command for the sites of a Caddyfile."""
    options = "\tadmin off\n\tauto_https disable_redirects\n"
    if http2:
        options += "\tservers {\n\t\tprotocols h1 h2c\n\t}\n"
    (folder / "Caddyfile").write_text(f"{{\n{options}}}\n{text}")
    return [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


async def until_ready(http: httpx.AsyncClient, found: Replica) -> None:
    async with asyncio.timeout(DEADLINE):
        while True:
            if (await http.get(f"{found.url}/health/ready")).status_code == 200:
                return
            await asyncio.sleep(0.05)
