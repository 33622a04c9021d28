"""A PgBouncer before a PostgreSQL server of a test, on loopback: Debian's package."""

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.postgres_server import STARTING, UNPRIVILEGED, PostgresServer, shared_server

PROGRAM: Final = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
HOW_TO_GET_IT: Final = "PgBouncer is missing: install it with apt-get install pgbouncer (Debian)"
IS_MISSING: Final = not Path(PROGRAM).exists() and "CI" not in os.environ

needs_pgbouncer = pytest.mark.skipif(IS_MISSING, reason=HOW_TO_GET_IT)


def free_port() -> int:
    """Return a port of loopback that is free, below the range of outgoing connections."""
    for port in range(21000 + os.getpid() % 5000, 32000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no port is free")


def pgbouncer_version() -> tuple[int, int]:
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor, *_ = said.split()[1].split(".")  # of "PgBouncer 1.18.0"
    return int(major), int(minor)


@cache
def shared_pooler(mode: str) -> "PgBouncer":
    """Return a pooler in this mode before the server of this session of tests. The first call starts it."""
    if IS_MISSING:
        pytest.skip(HOW_TO_GET_IT)
    pooler = PgBouncer(shared_server(), mode)
    atexit.register(pooler.kill)
    pooler.start()
    return pooler


class PgBouncer:
    """A pooler in one mode, which can be killed and started again at the same port."""

    def __init__(self, server: PostgresServer, mode: str, **settings: object) -> None:
        self._server = server
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="pgbouncer-", dir=server.folder))
        self.folder.chmod(0o755)
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            self._account = {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}
            os.chown(self.folder, UNPRIVILEGED, UNPRIVILEGED)
        users = self.folder / "users"
        users.write_text('"postgres" ""\n')
        lines = [
            "[databases]",
            f"* = host={server.folder} port=5432",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = trust",
            f"auth_file = {users}",
            f"pool_mode = {mode}",
            "max_client_conn = 200",
            "default_pool_size = 40",
            f"logfile = {self.folder / 'log'}",
        ]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        self._settings = self.folder / "pgbouncer.ini"
        self._settings.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, url: str, **options: object) -> str:
        """Return a store's URL with the address of this pooler."""
        given = parse_qs(urlsplit(url).query)
        kept = "".join(f"&{name}={value[0]}" for name, value in given.items() if name != "host")
        kept += "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?sslmode=disable{kept}"

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        command = [PROGRAM, "-q", str(self._settings)]
        self._process = subprocess.Popen(command, cwd="/", start_new_session=True, **self._account)
        end = time.monotonic() + STARTING
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < end and self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it with all of its connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STARTING)
            self._process = None
