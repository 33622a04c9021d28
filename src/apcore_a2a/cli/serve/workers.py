"""Several worker processes on one port. Their parent process serves no requests: it starts, restarts and ends them.

The parent owns the listening sockets, so a worker that dies loses only the connections that it had accepted. The parent
starts the first worker alone. If this worker ends before it serves, the others would too, so the parent starts none and
exits with the worker's exit code (with `NOT_STARTED` if the worker was killed or exited with 0). A worker that ends
later is replaced after a backoff. The parent forwards signals to all workers. If the parent is killed, each worker
sends SIGTERM to itself.

Invariant: signal handlers do nothing. Every event is a byte in a pipe (`signal.set_wakeup_fd`), and `run` handles one
byte after the other. So no event interrupts the start or the end of a worker.
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

PAUSE: Final = 1.0  # seconds before a dead worker is replaced; doubled each time it dies again
LONGEST_PAUSE: Final = 30.0
STEADY: Final = 60.0  # seconds of life after which the backoff is reset
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
SERVES: Final = b"\0"  # written into the pipe by a worker that serves; a signal is written as its number

ReportCrash = Callable[[int], None]
"""Called with the process id of a worker that crashed, in a process of its own. It returns in bounded time."""

# A function that serves as the worker with the given number. It calls the given callback once it accepts requests, and
# returns the exit code of the worker.
Serve = Callable[[int, Callable[[], None]], int]


class Workers:
    """Runs `serve` in `count` processes, which accept connections from these sockets.

    `on_ended` is called with the number of each worker that ends.
    """

    def __init__(
        self,
        count: int,
        serve: Serve,
        sockets: Sequence[socket.socket],
        on_ended: Callable[[int], None],
        report_crash: ReportCrash | None = None,
    ) -> None:
        self._count = count
        self._serve = serve
        self._sockets = sockets
        self._on_ended = on_ended
        self._report_crash = report_crash
        self._running: dict[int, int] = {}  # the worker's number by its process id
        self._started: dict[int, float] = {}  # when, by its number
        self._due: dict[int, float] = {}  # when to restart it, by its number
        self._pauses: dict[int, float] = {}  # backoff of the next restart, by its number
        self._is_stopping = False
        self._code = 0
        self.has_served = False
        """Whether any worker has served so far. A worker has the value from the time of its start."""
        self._handled = [*SIGNALS, signal.SIGCHLD]
        # An existing SIGHUP handler (for example nohup's, which ignores it) is kept.
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            self._handled.append(signal.SIGHUP)
        self._events, self._notify = os.pipe()
        # Nothing is written to this pipe. Its end tells the workers that their parent has ended.
        self._life, self._lifeline = os.pipe()

    def run(self) -> int:
        """Run until a signal has ended all workers, and return the exit code."""
        for descriptor in (self._events, self._notify):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._notify)
        for number in self._handled:
            signal.signal(number, _do_nothing)
        self._start(0)
        while self._running or self._due:
            for byte in self._wait():
                self._handle(byte)
            self._start_due_workers()
        return self._code

    def _wait(self) -> bytes:
        """Wait for events, at most until a worker is due, and return them."""
        patience = None
        if self._due:
            patience = max(min(self._due.values()) - time.monotonic(), 0)
        ready, _, _ = select.select([self._events], [], [], patience)
        return os.read(self._events, 4096) if ready else b""

    def _handle(self, byte: int) -> None:
        if byte == SERVES[0]:
            self._start_others()
        elif byte == signal.SIGCHLD:
            self._reap()
        elif byte in SIGNALS:
            self._stop(signal.Signals(byte))
        elif byte == signal.SIGHUP and not self._is_stopping:  # a second signal would cut a shutdown short
            self._stop(signal.SIGTERM)

    # ---- start ----------------------------------------------------------------------------------------------------

    def _start_others(self) -> None:
        if self.has_served:
            return
        self.has_served = True
        if not self._is_stopping:
            for worker in range(1, self._count):
                self._start(worker)

    def _start_due_workers(self) -> None:
        for worker, due in list(self._due.items()):
            if due <= time.monotonic():
                del self._due[worker]
                self._start(worker)

    def _start(self, worker: int) -> None:
        self._started[worker] = time.monotonic()
        # Signals are blocked during the fork, because the child must not handle them as the parent does.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._handled)
        try:
            pid = os.fork()
            if not pid:
                self._run_child(worker)
            self._running[pid] = worker
        except OSError as error:  # too many processes, or no memory: retry later, the other workers continue
            self._fork_failed(worker, error)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled)

    def _fork_failed(self, worker: int, error: OSError) -> None:
        known: dict[str, object] = {"worker": worker, "reason": error.strerror}
        if self.has_served:
            known["in_seconds"] = self._schedule_restart(worker)
        else:
            self._code = NOT_STARTED
        logger.error("cannot fork a worker process", extra=known)

    def _run_child(self, worker: int) -> NoReturn:
        """Serve as a worker, and exit."""
        code = 1
        try:
            self._become_child()
            end_with_parent(self._life)
            code = self._serve(worker, self._report_serving)
        except Exception:  # the child must not continue as a second parent
            logger.exception("worker failed")
        finally:
            os._exit(code)

    def _become_child(self) -> None:
        """Handle signals as a process without children."""
        os.setpgid(0, 0)  # only the parent receives Ctrl-C from the terminal, and forwards it once
        signal.set_wakeup_fd(-1)
        for number in self._handled:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled)
        os.close(self._lifeline)

    def _report_serving(self) -> None:
        os.write(self._notify, SERVES)

    # ---- end ------------------------------------------------------------------------------------------------------

    def _stop(self, number: signal.Signals) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._due.clear()
            for listening in self._sockets:  # otherwise new connections would wait in its queue without a worker
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
                code = os.waitstatus_to_exitcode(status)
                if code != 0 and self._report_crash is not None:
                    self._report_in_child(self._report_crash, pid)
                self._ended(worker, pid, code)

    def _report_in_child(self, report: ReportCrash, pid: int) -> None:
        """Report a crash in a process of its own, because the parent must not wait for the database."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._handled)
        try:
            if os.fork():
                return
            try:
                self._become_child()
                report(pid)
            except Exception:  # the child must not continue as a second parent
                logger.exception("the crash of a worker was not reported", extra={"pid": pid})
            finally:
                os._exit(0)
        except OSError as error:  # too many processes, or no memory: the lease of the worker expires later
            logger.warning("cannot report the crash of a worker", extra={"pid": pid, "reason": error.strerror})
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled)

    def _ended(self, worker: int, pid: int, code: int) -> None:
        if self._is_stopping:
            if code > 0:  # a second signal cut the shutdown short
                self._code = code
            return
        if not self.has_served:
            if code < 0:
                logger.error("the first worker was killed before it served", extra={"signal": -code})
            self._is_stopping = True
            self._code = code if code > 0 else NOT_STARTED
            return
        known = {"worker": worker, "pid": pid, "code": code, "in_seconds": self._schedule_restart(worker)}
        logger.warning("worker ended and is replaced", extra=known)

    def _schedule_restart(self, worker: int) -> float:
        """Schedule a restart, and return the backoff in seconds."""
        pause = PAUSE
        if time.monotonic() - self._started[worker] < STEADY:
            pause = self._pauses.get(worker, PAUSE)
        self._pauses[worker] = min(2 * pause, LONGEST_PAUSE)
        self._due[worker] = time.monotonic() + pause
        return pause


def end_with_parent(lifeline: int) -> None:
    """Send SIGTERM to this process when the process with the other end of the pipe ends."""

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="watch parent", daemon=True).start()


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing: the number of the signal is in the pipe."""
