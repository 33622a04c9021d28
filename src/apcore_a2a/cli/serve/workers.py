"""More processes on one port: a parent that serves nothing, and workers that it starts, restarts and ends.

The socket is the parent's, so a worker that dies takes no connection with it that nobody had taken. The first worker is
started alone: if it ends before it serves, all of them would, and its reason is the command's. One that dies later is
replaced, after a pause that grows while it dies again and again. A signal to the parent is passed on to all of them;
should the parent be killed, they notice and end as well.

Rule: handlers of signals do nothing. Whatever happens is a byte in a pipe, and `run` reads it when it is not busy: no
worker can begin, end or be told anything in between.
"""

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, NoReturn

from apcore_a2a.app.serve import NOT_STARTED

logger = logging.getLogger(__name__)

PAUSE: Final = 1.0  # seconds before a worker that died is replaced; twice as many each time, if it dies again
LONGEST_PAUSE: Final = 30.0
STEADY: Final = 60.0  # seconds after which a death is not taken for one more of the same
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
SERVES: Final = b"\0"  # what a worker writes into the pipe; a signal is written as its number

# Serves as the worker of that number, and says when it does; answers the exit code.
Serve = Callable[[int, Callable[[], None]], int]


class Workers:
    """Runs `serve` in so many processes, which take connections from these sockets; `on_ended` hears whose ended."""

    def __init__(
        self, count: int, serve: Serve, sockets: Sequence[socket.socket], on_ended: Callable[[int], None]
    ) -> None:
        self._count = count
        self._serve = serve
        self._sockets = sockets
        self._on_ended = on_ended
        self._running: dict[int, int] = {}  # the worker's number by its process id
        self._started: dict[int, float] = {}  # when, by its number
        self._due: dict[int, float] = {}  # when to start it again, by its number
        self._pauses: dict[int, float] = {}  # before it is started again the next time, by its number
        self._is_stopping = False
        self._code = 0
        self.has_served = False
        """Whether any of them ever has; a worker knows what was true when it was started."""
        self._handled = [*SIGNALS, signal.SIGCHLD]
        # Whoever has chosen what SIGHUP does, be it `nohup`, which has it ignored, has chosen.
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            self._handled.append(signal.SIGHUP)
        self._news, self._tell = os.pipe()
        # Nobody writes to it: that it ends tells the workers that their parent has.
        self._life, self._lifeline = os.pipe()

    def run(self) -> int:
        """Until a signal has ended all of them; the exit code."""
        for descriptor in (self._news, self._tell):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._tell)
        for number in self._handled:
            signal.signal(number, _noted)
        self._start(0)
        while self._running or self._due:
            for byte in self._wait():
                self._hear(byte)
            self._start_those_due()
        return self._code

    def _wait(self) -> bytes:
        """What has happened, at the latest when a worker is due."""
        patience = None
        if self._due:
            patience = max(min(self._due.values()) - time.monotonic(), 0)
        ready, _, _ = select.select([self._news], [], [], patience)
        return os.read(self._news, 4096) if ready else b""

    def _hear(self, byte: int) -> None:
        if byte == SERVES[0]:
            self._others_may_start()
        elif byte == signal.SIGCHLD:
            self._reap()
        elif byte in SIGNALS:
            self._stop(signal.Signals(byte))
        elif byte == signal.SIGHUP and not self._is_stopping:  # the terminal was closed: never the second signal
            self._stop(signal.SIGTERM)

    # ---- begin ----------------------------------------------------------------------------------------------------

    def _others_may_start(self) -> None:
        if self.has_served:
            return
        self.has_served = True
        if not self._is_stopping:
            for worker in range(1, self._count):
                self._start(worker)

    def _start_those_due(self) -> None:
        for worker, due in list(self._due.items()):
            if due <= time.monotonic():
                del self._due[worker]
                self._start(worker)

    def _start(self, worker: int) -> None:
        self._started[worker] = time.monotonic()
        # Neither side hears a signal before it is ready to: the child must not act as the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._handled)
        try:
            pid = os.fork()
            if not pid:
                self._be(worker)
            self._running[pid] = worker
        except OSError as error:  # too many processes, or no memory: that may pass, and the others go on
            self._refused(worker, error)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled)

    def _refused(self, worker: int, error: OSError) -> None:
        known: dict[str, object] = {"worker": worker, "reason": error.strerror}
        if self.has_served:
            known["in_seconds"] = self._put_off(worker)
        else:
            self._code = NOT_STARTED
        logger.error("no process to be had for a worker", extra=known)

    def _be(self, worker: int) -> NoReturn:
        """The life of a child."""
        code = 1
        try:
            os.setpgid(0, 0)  # Ctrl-C at the terminal is for the parent, which passes it on once
            signal.set_wakeup_fd(-1)
            for number in self._handled:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled)
            os.close(self._lifeline)
            end_with_parent(self._life)
            code = self._serve(worker, self._say_that_it_serves)
        except Exception:  # the child must not go on as a second parent, whatever happens
            logger.exception("worker failed")
        finally:
            os._exit(code)

    def _say_that_it_serves(self) -> None:
        os.write(self._tell, SERVES)

    # ---- end ------------------------------------------------------------------------------------------------------

    def _stop(self, number: signal.Signals) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._due.clear()
            for listening in self._sockets:  # else nobody would refuse connections when the workers no longer listen
                listening.close()
        for pid in self._running:
            os.kill(pid, number)

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            worker = self._running.pop(pid, None)
            if worker is not None:
                self._on_ended(worker)
                self._ended(worker, pid, os.waitstatus_to_exitcode(status))

    def _ended(self, worker: int, pid: int, code: int) -> None:
        if self._is_stopping:
            if code > 0:  # a second signal cut it short
                self._code = code
            return
        if not self.has_served:
            if code < 0:
                logger.error("the first worker was killed before it served", extra={"signal": -code})
            self._is_stopping = True
            self._code = code if code > 0 else NOT_STARTED
            return
        known = {"worker": worker, "pid": pid, "code": code, "in_seconds": self._put_off(worker)}
        logger.warning("worker ended and is replaced", extra=known)

    def _put_off(self, worker: int) -> float:
        """Have it started after a pause; how many seconds that is."""
        pause = PAUSE
        if time.monotonic() - self._started[worker] < STEADY:
            pause = self._pauses.get(worker, PAUSE)
        self._pauses[worker] = min(2 * pause, LONGEST_PAUSE)
        self._due[worker] = time.monotonic() + pause
        return pause


def end_with_parent(lifeline: int) -> None:
    """End this process as SIGTERM does when the one that holds the other end of the pipe is gone."""

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="watch parent", daemon=True).start()


def _noted(number: int, frame: FrameType | None) -> None:
    """Its number is in the pipe."""
