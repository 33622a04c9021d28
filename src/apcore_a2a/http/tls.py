"""TLS for the server: the context from its files, or one line that says what is wrong with them.

Rule: nothing is asked at a terminal. A key that needs a passphrase gets it from the settings, or is refused.
"""

import asyncio
import logging
import os
import ssl
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

logger = logging.getLogger(__name__)

LOOK_INTERVAL: Final = 5.0  # seconds between two looks at the files

ClientCertificates = Literal["required", "optional"]
"""Whether a caller without a certificate gets through to the application at all."""

_MODES: Final = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL}


class TLSFiles(Struct, frozen=True, kw_only=True):
    """Where the certificate is, its key, and the authorities whose certificates callers may show."""

    certfile: str
    keyfile: str | None = None
    keyfile_password: str | None = None
    ca_certs: str | None = None
    client_certs: ClientCertificates = "required"


class BadTLSFiles(Exception):
    """They cannot be used; the text says which, why, and what to do."""


def server_context(files: TLSFiles) -> ssl.SSLContext:
    """A context for a server with these files: TLS 1.2 at least.

    Raises:
        BadTLSFiles: one of them is missing, is none, or does not belong to the other.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    keyfile = files.keyfile or files.certfile
    _check_readable(files.certfile, "certificate", "--ssl-certfile")
    _check_readable(keyfile, "key", "--ssl-keyfile")
    try:
        # A function, always: without one OpenSSL asks for the passphrase at the terminal, and waits.
        context.load_cert_chain(files.certfile, keyfile, password=lambda: files.keyfile_password or "")
    except ssl.SSLError as error:
        raise BadTLSFiles(_why_not(error, files, keyfile)) from error
    if files.ca_certs is not None:
        _trust(context, files.ca_certs)
        context.verify_mode = _MODES[files.client_certs]
    return context


class RenewedContext:
    """The context of a server's files as they are now: who renews a certificate need not restart the server.

    Files that cannot be used, as one half of a renewal cannot, change nothing but the log.
    """

    def __init__(self, files: TLSFiles) -> None:
        self._files = files
        self._seen = _stamps(files)
        self.current = server_context(files)

    async def watch(self) -> None:
        """Look at the files from time to time, for ever."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Make the context anew, if the files have changed; connections that are open keep theirs."""
        stamps = _stamps(self._files)
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self.current = server_context(self._files)
        except (BadTLSFiles, OSError) as error:
            logger.warning("the new TLS files cannot be used; the old ones stay", extra={"reason": str(error)})
        else:
            logger.info("TLS certificate renewed", extra={"certificate": self._files.certfile})


def _stamps(files: TLSFiles) -> list[tuple[int, ...]]:
    """What changes when a file is written, replaced, or a link leads elsewhere."""
    stamps: list[tuple[int, ...]] = []
    for path in (files.certfile, files.keyfile, files.ca_certs):
        if path is None:
            continue
        try:
            found = os.stat(path)
        except OSError:  # it is being replaced
            stamps.append(())
        else:
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev))
    return stamps


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
            return f"The passphrase for the TLS key in {keyfile} is wrong; check A2A_SSL_KEYFILE_PASSWORD"
        return f"The TLS key in {keyfile} is encrypted; set its passphrase in A2A_SSL_KEYFILE_PASSWORD"
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
