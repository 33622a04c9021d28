"""TLS: the context from files and settings, its renewal, and a listener that limits handshakes."""

import asyncio
import errno
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from apcore_a2a.http.traffic import Traffic

logger = logging.getLogger(__name__)

# The server's TLS context from its files, or a one-line error that says what is wrong with them.
#
# Invariant: nothing is prompted for at a terminal. A key's passphrase comes from the settings, or the key is rejected.

POLL_INTERVAL: Final = 5.0  # seconds between two checks of the files

ClientCertificates = Literal["required", "optional"]
"""Whether TLS rejects a connection without a client certificate, or passes it to the application."""

_MODES: Final = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL}


class TLSFiles(Struct, frozen=True, kw_only=True):
    """The files of the certificate, its key, and the authorities whose client certificates are accepted."""

    certfile: str
    keyfile: str | None = None
    keyfile_password: str | None = None
    ca_certs: str | None = None
    client_certs: ClientCertificates = "required"
    http2: bool = False
    """Whether the server offers HTTP/2 in the handshake (ALPN), besides HTTP/1.1."""


class BadTLSFiles(Exception):
    """The files cannot be used. The text says which, why, and what to do."""


def server_context(files: TLSFiles) -> ssl.SSLContext:
    """Return a context for a server with these files, for TLS 1.2 or later.

    Raises:
        BadTLSFiles: a file is missing or invalid, or the key does not belong to the certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    keyfile = files.keyfile or files.certfile
    _check_readable(files.certfile, "certificate", "--ssl-certfile")
    _check_readable(keyfile, "key", "--ssl-keyfile")
    try:
        # Always a function. Without one, OpenSSL prompts for the passphrase at the terminal, and waits.
        context.load_cert_chain(files.certfile, keyfile, password=lambda: files.keyfile_password or "")
    except ssl.SSLError as error:
        raise BadTLSFiles(_why_not(error, files, keyfile)) from error
    if files.ca_certs is not None:
        _trust(context, files.ca_certs)
        context.verify_mode = _MODES[files.client_certs]
    if files.http2:
        context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class RenewedContext:
    """The context of the current files, so that a renewed certificate needs no restart.

    Files that cannot be used, for example in the middle of a renewal, are logged, and the old context stays.
    """

    def __init__(self, files: TLSFiles) -> None:
        self._files = files
        self._seen = _fingerprints(files)
        self.current = server_context(files)

    async def watch(self) -> None:
        """Poll the files forever."""
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            await asyncio.to_thread(self.reload_if_changed)

    def reload_if_changed(self) -> None:
        """Create a new context if the files have changed. Open connections keep theirs."""
        fingerprints = _fingerprints(self._files)
        if fingerprints == self._seen:
            return
        self._seen = fingerprints
        try:
            self.current = server_context(self._files)
        except (BadTLSFiles, OSError) as error:
            logger.warning("the new TLS files cannot be used; the old ones stay", extra={"reason": str(error)})
        else:
            logger.info("TLS certificate renewed", extra={"certificate": self._files.certfile})


def _fingerprints(files: TLSFiles) -> list[tuple[int, ...]]:
    """Return values that change when a file is written or replaced, or a link points to another file."""
    fingerprints: list[tuple[int, ...]] = []
    for path in (files.certfile, files.keyfile, files.ca_certs):
        if path is None:
            continue
        try:
            found = os.stat(path)
        except OSError:  # it is being replaced
            fingerprints.append(())
        else:
            fingerprints.append((found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev))
    return fingerprints


def _check_readable(path: str, what: str, flag: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise BadTLSFiles(f"The TLS {what} {path} cannot be read ({error.strerror}); check {flag}") from error


def _why_not(error: ssl.SSLError, files: TLSFiles, keyfile: str) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"The TLS key in {keyfile} is not the key of the certificate in {files.certfile}; check --ssl-keyfile"
    if _is_encrypted(keyfile):
        if files.keyfile_password:
            return f"The passphrase for the TLS key in {keyfile} is wrong; check APCORE_A2A_SSL_KEYFILE_PASSWORD"
        return f"The TLS key in {keyfile} is encrypted; set its passphrase in APCORE_A2A_SSL_KEYFILE_PASSWORD"
    if b"PRIVATE KEY-----" not in Path(keyfile).read_bytes():
        return f"There is no private key in {keyfile}; name its file with --ssl-keyfile"
    return f"There is no usable TLS certificate in {files.certfile}; it must be PEM, the server's own certificate first"


def _is_encrypted(keyfile: str) -> bool:
    content = Path(keyfile).read_bytes()
    return b"BEGIN ENCRYPTED PRIVATE KEY" in content or b"Proc-Type: 4,ENCRYPTED" in content


def _trust(context: ssl.SSLContext, ca_certs: str) -> None:
    _check_readable(ca_certs, "authorities' file", "--ssl-ca-certs")
    try:
        context.load_verify_locations(ca_certs)
    except ssl.SSLError as error:
        raise BadTLSFiles(f"There are no certificates in {ca_certs}; --ssl-ca-certs must name a PEM file") from error


# ---- tls listener ---------------------------------------------------------------------------------------------------
# The listener accepts TLS connections, and passes them to the protocol when their handshake is complete.
#
# Invariant: a client that never completes its handshake uses few resources, for a short time. A handshake has ten
# seconds, and the number of handshakes is limited. A new one replaces the oldest. An honest client needs a few round
# trips, so it is done long before that, however many clients connect and send nothing.
#
# asyncio's servers wait a minute for each handshake, do not report their number, and keep one context forever.

# The process or the machine has no file descriptor or no memory for another connection.
NO_FILE_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
LOG_INTERVAL: Final = 60.0


class HandshakeLimits(Struct, frozen=True, kw_only=True):
    """Limits of TLS handshakes. Only tests use other values than the defaults."""

    max_handshakes: int = 512
    """Handshakes in progress: half of the file descriptors that many systems allow a process."""
    timeout: float = 10.0
    """Seconds for one handshake."""
    pause: float = 0.1
    """Seconds until the next attempt to accept a connection if no file descriptor is left."""


HANDSHAKE_LIMITS: Final = HandshakeLimits()


class TLSListener:
    """Accepts TLS connections at bound sockets."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        context: RenewedContext,
        traffic: Traffic,
        *,
        limits: HandshakeLimits = HANDSHAKE_LIMITS,
    ) -> None:
        self._limits = limits
        self._make_protocol = make_protocol
        self._context = context
        self._traffic = traffic
        self._sockets: Sequence[socket.socket] = ()
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._logged_at = float("-inf")

    def listen(self, sockets: Sequence[socket.socket], backlog: int) -> None:
        loop = asyncio.get_running_loop()
        self._sockets = sockets
        for listener in sockets:
            listener.setblocking(False)
            listener.listen(backlog)
        for listener in sockets:
            self._accepting.append(loop.create_task(self._accept(listener), name="accept TLS"))
        self._accepting.append(loop.create_task(self._context.watch(), name="watch the certificate"))

    async def close(self) -> None:
        """Stop accepting connections, and cancel the handshakes in progress."""
        ending = [*self._accepting, *self._handshakes]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending, timeout=1)
        for listener in self._sockets:
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                if listener.fileno() < 0:
                    return
                pause = 0.0  # the client has disconnected
                if error.errno in NO_FILE_DESCRIPTOR:
                    self._make_room()
                    self._log("no file descriptors are left for connections", error)
                    pause = self._limits.pause
                await asyncio.sleep(pause)
                continue
            self._begin(connection, address)
            await asyncio.sleep(0)  # `sock_accept` does not yield while more connections wait

    def _begin(self, connection: socket.socket, address: Any) -> None:  # Any: an address of the socket module
        if len(self._handshakes) >= self._limits.max_handshakes:
            self._make_room()
        handshake = asyncio.get_running_loop().create_task(self._shake_hands(connection, address), name="TLS handshake")
        self._handshakes[handshake] = None
        handshake.add_done_callback(partial(self._ended, connection))
        self._traffic.handshakes = len(self._handshakes)

    def _make_room(self) -> None:
        """Cancel the oldest handshake."""
        for oldest in self._handshakes:
            self._handshakes.pop(oldest)
            oldest.cancel()
            return

    async def _shake_hands(self, connection: socket.socket, address: Any) -> None:  # Any: as above
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context.current,
                ssl_handshake_timeout=self._limits.timeout,
            )
        except ssl.SSLError as error:  # most clients do not learn the reason, so it is logged
            connection.close()
            reason = getattr(error, "verify_message", "") or error.reason
            peer = address[0] if address else ""
            self._traffic.refusals.refuse_peer(peer, f"TLS: {reason}")
        except OSError as error:
            connection.close()
            logger.debug("TLS handshake failed", extra={"reason": type(error).__name__})

    def _ended(self, connection: socket.socket, handshake: "asyncio.Task[None]") -> None:
        self._handshakes.pop(handshake, None)
        self._traffic.handshakes = len(self._handshakes)
        if handshake.cancelled():  # perhaps before it began
            connection.close()
        elif handshake.exception() is not None:
            connection.close()
            self._log("a TLS connection could not be accepted", handshake.exception())

    def _log(self, text: str, error: BaseException | None) -> None:
        """Log at most once a minute, because there may be thousands of failures."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            logger.warning(text, extra={"reason": str(error)})
