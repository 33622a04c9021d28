"""Thousands of sockets without a TLS handshake, and the renewal of a certificate while the server runs."""

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from apcore_a2a import async_serve
from apcore_a2a.http.server.connection import GuardedProtocol
from apcore_a2a.http.server.server import Server
from apcore_a2a.http.server.tls import HANDSHAKE_LIMITS, HandshakeLimits, RenewedContext, TLSFiles, TLSListener
from apcore_a2a.http.traffic import Traffic
from tests.fakes import PATIENCE
from tests.http.server import test_tls
from tests.processes import Process, running

ATTEMPTS = int(os.environ.get("HOSTILE_CONNECTIONS", "2000"))
SERVE = """
from apcore_a2a import TLS, serve
from apcore_a2a.http.server import tls

tls.POLL_INTERVAL = 0.05

async def echo(text: str) -> str:
    return text

serve(echo, host="127.0.0.1", port=0, metrics=True, tls=TLS(certfile={certificate!r}, keyfile={key!r}))
"""


class Authority(test_tls.Authority):
    """An authority whose files can be changed."""

    def read(self) -> bytes:
        return Path(self.server[0]).read_bytes()

    def write(self, certificate: bytes) -> None:
        Path(self.server[0]).write_bytes(certificate)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def server(authority: Authority) -> AsyncIterator[tuple[Process, str]]:
    certificate, key = authority.server
    async with running("-c", SERVE.format(certificate=certificate, key=key)) as process:
        yield process, (await process.says(r"running on (https://[\d.:]+)"))[1]
    assert "Traceback" not in process.said


async def silent_socket(url: str) -> socket.socket:
    """Return a connected socket that has sent nothing."""
    where = urlsplit(url)
    opened = socket.socket()
    opened.setblocking(False)
    async with asyncio.timeout(PATIENCE):
        await asyncio.get_running_loop().sock_connect(opened, (where.hostname, where.port))
    return opened


ASKING = """
from apcore_a2a import TLS, serve

async def echo(text: str) -> str:
    return text

serve(echo, host="127.0.0.1", port=0, tls=TLS(certfile={certificate!r}, keyfile={key!r}, ca_certs={ca!r}))
"""


async def test_each_reason_of_a_failed_tls_handshake_is_logged_once(authority: Authority) -> None:
    late = datetime.now(UTC) - timedelta(days=1)
    expired = authority.files("expired", "planner.example", not_after=late)
    certificate, key = authority.server
    async with running("-c", ASKING.format(certificate=certificate, key=key, ca=authority.pem)) as process:
        url = (await process.says(r"running on (https://[\d.:]+)"))[1]
        for shown in (None, None, expired, expired):
            async with httpx.AsyncClient(verify=authority.trusting(shown)) as client:
                with pytest.raises(httpx.TransportError):
                    await client.get(f"{url}/health")
        await process.says("connection refused peer=127.0.0.1 reason=TLS: certificate has expired")
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.TransportError):
                await client.get(url.replace("https", "http"))
        await process.says("connection refused peer=127.0.0.1 reason=TLS: HTTP_REQUEST")
    assert process.said.count("reason=TLS: PEER_DID_NOT_RETURN_A_CERTIFICATE") == 1
    assert process.said.count("reason=TLS: certificate has expired") == 1


async def test_thousands_of_silent_sockets_do_not_block_a_tls_client(authority: Authority) -> None:
    async with server(authority) as (_, url), httpx.AsyncClient(base_url=url, verify=authority.trusting()) as inside:
        assert (await inside.get("/health")).status_code == 200
        silent: list[socket.socket] = []
        try:
            for number in range(ATTEMPTS):
                silent.append(await silent_socket(url))
                if len(silent) > 900:  # limits the files of this process; the server has closed the older ones
                    silent.pop(0).close()
                if number % 500 == 0:
                    async with httpx.AsyncClient(base_url=url, verify=authority.trusting()) as honest:
                        assert (await honest.get("/health")).status_code == 200
            figures = (await inside.get("/metrics")).json()
            assert 0 < figures["tls_handshakes"] <= HANDSHAKE_LIMITS.max_handshakes
            assert figures["open_connections"] == 1
            async with asyncio.timeout(PATIENCE):  # the server has closed the oldest
                assert await asyncio.get_running_loop().sock_recv(silent[0], 1) == b""
        finally:
            for one in silent:
                one.close()


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01", b"\x16\x03\x01\x40\x00\x01", bytes(5_000)],
    ids=["nothing", "plain HTTP", "half a record", "a record without end", "zeros"],
)
async def test_a_connection_without_a_tls_handshake_is_closed_in_time(said: bytes, authority: Authority) -> None:
    async with listening(authority, HandshakeLimits(timeout=0.2)) as (url, traffic):
        one = await silent_socket(url)
        loop = asyncio.get_running_loop()
        with one:
            await loop.sock_sendall(one, said)
            async with asyncio.timeout(PATIENCE):
                try:
                    while await loop.sock_recv(one, 100):
                        pass
                except ConnectionError:
                    pass  # the connection is closed, too
        await until(lambda: traffic.handshakes == 0)
        assert traffic.connections == 0


@asynccontextmanager
async def listening(
    authority: Authority, limits: HandshakeLimits = HANDSHAKE_LIMITS
) -> AsyncIterator[tuple[str, Traffic]]:
    """Serve in this process, on asyncio's event loop. A server in its own process uses uvloop."""

    async def echo(text: str) -> str:
        return text

    app = await async_serve(echo)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, http=GuardedProtocol, log_level="error", lifespan="on")
    config.load()
    addresses: list[str] = []
    context = RenewedContext(TLSFiles(certfile=authority.server[0], keyfile=authority.server[1]))
    serving = Server(config, tls=context, handshakes=limits, on_started=addresses.append)
    serving.lifespan = config.lifespan_class(config)
    await serving.startup()
    try:
        yield addresses[0], app.traffic
    finally:
        await serving.shutdown()


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition never became true")


async def test_a_handshake_above_the_limit_closes_the_oldest_one(authority: Authority) -> None:
    loop = asyncio.get_running_loop()
    async with listening(authority, HandshakeLimits(max_handshakes=3)) as (url, traffic):
        silent = [await silent_socket(url) for _ in range(3)]
        await until(lambda: traffic.handshakes == 3)
        silent.append(await silent_socket(url))
        async with asyncio.timeout(PATIENCE):
            assert await loop.sock_recv(silent[0], 1) == b""
        await until(lambda: traffic.handshakes == 3)
        async with httpx.AsyncClient(base_url=url, verify=authority.trusting()) as honest:
            assert (await honest.get("/health")).status_code == 200
            assert (traffic.handshakes, traffic.connections) == (2, 1)
        for one in silent[2:]:
            with pytest.raises(BlockingIOError):
                one.recv(1)  # the server still waits for them
        for one in silent:
            one.close()
        await until(lambda: traffic.handshakes == 0)


async def test_unfinished_handshakes_do_not_delay_the_shutdown(authority: Authority) -> None:
    async with listening(authority) as (url, traffic):
        silent = [await silent_socket(url) for _ in range(20)]
        await until(lambda: traffic.handshakes == 20)
    assert traffic.handshakes == 0
    for one in silent:
        one.close()


async def test_without_file_descriptors_a_handshake_is_closed_and_new_clients_are_served(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [OSError(24, "Too many open files"), ConnectionAbortedError(103, "gone")]
    loop = asyncio.get_running_loop()
    accept = loop.sock_accept

    async def fail_at_times(listener: socket.socket) -> "tuple[socket.socket, object]":
        accepted = await accept(listener)
        if not failures:
            return accepted
        accepted[0].close()
        raise failures.pop()

    async with listening(authority, HandshakeLimits(pause=0.01)) as (url, traffic):
        silent = await silent_socket(url)
        await until(lambda: traffic.handshakes == 1)
        monkeypatch.setattr(loop, "sock_accept", fail_at_times)
        for _ in range(4):  # the listener is still in one call of the original function
            (await silent_socket(url)).close()
        await until(lambda: not failures)
        async with asyncio.timeout(PATIENCE):
            assert await loop.sock_recv(silent, 1) == b""
        silent.close()
        async with httpx.AsyncClient(base_url=url, verify=authority.trusting()) as honest:
            assert (await honest.get("/health")).status_code == 200
        monkeypatch.undo()
    assert [record.getMessage() for record in caplog.records].count("no file descriptors are left for connections") == 1


@pytest.mark.parametrize("stays", [True, False])
async def test_the_loop_runs_other_work_during_endless_accepts(
    stays: bool, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sock_accept` returns immediately, without yielding to the loop, while there is a connection to accept."""
    accepted: list[socket.socket] = []

    async def accept_at_once(listener: socket.socket) -> tuple[socket.socket, str]:
        if len(accepted) == 200:
            await asyncio.Event().wait()
        here, there = socket.socketpair()
        accepted.append(there)
        if not stays:
            here.close()
            raise ConnectionAbortedError(103, "gone")
        return here, ""

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", accept_at_once)
    certificate, key = authority.server
    context = RenewedContext(TLSFiles(certfile=certificate, keyfile=key))
    listener = TLSListener(asyncio.Protocol, context, Traffic())
    turns = 0
    with socket.create_server(("127.0.0.1", 0)) as bound:
        listener.listen([bound], 10)
        while len(accepted) < 200:
            await asyncio.sleep(0)
            turns += 1
        await listener.close()
    assert turns > 100
    for one in accepted:
        one.close()


# ---- renewal of certificates ----------------------------------------------------------------------------------------


async def serial_of(url: str, authority: Authority) -> int:
    """Return the serial number of the server's present certificate."""
    where = urlsplit(url)
    async with asyncio.timeout(PATIENCE):
        _, writer = await asyncio.open_connection(where.hostname, where.port, ssl=authority.trusting())
    shown = writer.get_extra_info("peercert")
    writer.transport.abort()
    return int(shown["serialNumber"], 16)


def renew(authority: Authority) -> None:
    """Replace the files of the certificate, as certbot and others do."""
    for old, new in zip(authority.server, authority.files("renewed", "127.0.0.1", "localhost"), strict=True):
        os.replace(new, old)


async def test_a_renewed_certificate_is_served_without_a_restart(authority: Authority) -> None:
    async with server(authority) as (process, url):
        async with httpx.AsyncClient(base_url=url, verify=authority.trusting()) as inside:
            assert (await inside.get("/health")).status_code == 200
            before = await serial_of(url, authority)
            renew(authority)
            await process.says("TLS certificate renewed")
            assert await serial_of(url, authority) != before
            assert (await inside.get("/health")).status_code == 200  # open connections stay open


async def test_unusable_tls_files_keep_the_old_certificate(authority: Authority) -> None:
    async with server(authority) as (process, url):
        before = await serial_of(url, authority)
        good = authority.read()
        authority.write(b"half a renewal")
        await process.says("the new TLS files cannot be used; the old ones stay")
        assert await serial_of(url, authority) == before
        os.unlink(authority.server[0])
        await process.says("cannot be read")
        assert await serial_of(url, authority) == before
        authority.write(good)
        await process.says("TLS certificate renewed")
        assert await serial_of(url, authority) == before


def test_tls_files_are_reloaded_only_after_a_change(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.server
    link = tmp_path / "live.pem"
    link.symlink_to(certificate)
    context = RenewedContext(TLSFiles(certfile=str(link), keyfile=key))
    first = context.current
    context.reload_if_changed()
    assert context.current is first
    other = tmp_path / "other.pem"
    shutil.copy(certificate, other)
    link.unlink()
    link.symlink_to(other)  # as Kubernetes updates a mounted secret
    context.reload_if_changed()
    assert context.current is not first


def test_the_authorities_of_client_certificates_are_reloaded(authority: Authority, tmp_path: Path) -> None:
    """An authority that is removed from the file is no longer trusted, because the context is created again."""
    certificate, key = authority.server
    trusted = tmp_path / "callers.pem"
    shutil.copy(authority.pem, trusted)
    context = RenewedContext(TLSFiles(certfile=certificate, keyfile=key, ca_certs=str(trusted)))
    assert len(context.current.get_ca_certs()) == 1
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    shutil.copy(other.pem, trusted)
    context.reload_if_changed()
    (left,) = context.current.get_ca_certs(binary_form=True)
    assert left == ssl.PEM_cert_to_DER_cert(other.ca.cert_pem.bytes().decode())
