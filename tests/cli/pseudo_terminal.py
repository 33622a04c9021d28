"""A command at a pseudo-terminal: typed keys, screen output, and Ctrl-C as a key."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.cli.conftest import RESTORE_SIGNALS

PATIENCE = 20.0
CTRL_C = "\x03"
CTRL_D = "\x04"
UP = "\x1b[A"
# Runs in the child process before the command, so that Ctrl-C on its terminal sends SIGINT.
TAKE_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {RESTORE_SIGNALS}"


class PseudoTerminal:
    """A process with both of its outputs on one screen."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self._process = process
        self._master = master
        self.screen = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, as `kill` does. A key also signals its child processes."""
        self._process.send_signal(number)

    def interrupts(self, pattern: str) -> None:
        """Press Ctrl-C until the screen matches: a press between the prompt and the first key can be lost."""
        for _ in range(5):
            self.type(CTRL_C)
            with suppress(AssertionError):
                self.sees(pattern, patience=2)
                return
        self.sees(pattern)

    def sees(self, pattern: str, *, patience: float = PATIENCE) -> re.Match[str]:
        """Wait until the screen matches. Text before the end of the match is not searched again."""
        deadline = time.monotonic() + patience
        while (found := re.search(pattern, self.screen)) is None:
            if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"{pattern!r} did not appear:\n{self.screen}")
            try:
                read = os.read(self._master, 65536)
            except OSError:  # on Linux, the process has ended
                read = b""
            if not read:
                raise AssertionError(f"it ended without {pattern!r}:\n{self.screen}")
            self.screen += read.decode(errors="replace").replace("\r\n", "\n")
        self.screen = self.screen[found.end() :]
        return found

    def ends(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        deadline = time.monotonic() + PATIENCE
        with suppress(OSError):
            while select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
                read = os.read(self._master, 65536)
                if not read:
                    break
                self.screen += read.decode(errors="replace").replace("\r\n", "\n")
        return self._process.wait(PATIENCE)


@contextmanager
def at_terminal(*args: str, **environment: str) -> Iterator[PseudoTerminal]:
    """Run `apcore-a2a …` at a pseudo-terminal. The process is killed at the end if it still runs."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, sys.executable, "-m", "apcore_a2a", *args],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", **environment},
    )
    os.close(slave)
    try:
        yield PseudoTerminal(process, master)
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(master)
