"""A command at a terminal: what a person types goes in, what they see comes out, and Ctrl-C is a key."""

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
# In the process itself, before the command: its terminal becomes the one whose keys are signals.
TAKE_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {RESTORE_SIGNALS}"


class PseudoTerminal:
    """One process, with both of its outputs on one screen."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self._process = process
        self._master = master
        self.screen = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        """To the process alone, as `kill` does; a key is for all that it has started, too."""
        self._process.send_signal(number)

    def interrupts(self, pattern: str) -> None:
        """Press Ctrl-C until the screen matches. Once will do, but for one that comes between prompt and first key."""
        for _ in range(5):
            self.type(CTRL_C)
            with suppress(AssertionError):
                self.sees(pattern, patience=2)
                return
        self.sees(pattern)

    def sees(self, pattern: str, *, patience: float = PATIENCE) -> re.Match[str]:
        """Wait until what is on the screen matches; what stands before its end is not looked at again."""
        deadline = time.monotonic() + patience
        while (found := re.search(pattern, self.screen)) is None:
            if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"{pattern!r} did not appear:\n{self.screen}")
            try:
                read = os.read(self._master, 65536)
            except OSError:  # so Linux says that the process is gone
                read = b""
            if not read:
                raise AssertionError(f"it ended without {pattern!r}:\n{self.screen}")
            self.screen += read.decode(errors="replace").replace("\r\n", "\n")
        self.screen = self.screen[found.end() :]
        return found

    def ends(self) -> int:
        """Wait until the process has ended; its exit code."""
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
    """`apcore-a2a …` at a terminal of its own; killed at the end if it has not ended by itself."""
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
