"""More processes on one port: a parent that serves nothing, and workers that it starts, restarts and ends.

Rule: the socket is the parent's, so a worker that dies takes no connection with it that nobody had taken. A signal to
the parent ends all of them in peace; should the parent be killed, they notice and end as well. A worker that dies is
replaced; one that cannot even start ends them all, unless another one has ever served.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

logger = logging.getLogger(__name__)

SETTLED: Final = 5.0  # seconds after which a worker is taken to have started
PAUSE: Final = 1.0  # seconds before a worker that died is replaced


class Workers:
    """Runs `serve` in so many processes; `serve` gets the worker's number and answers its exit code."""

    def __init__(self, count: int, serve: Callable[[int], int]) -> None:
        self._count = count
        self._serve = serve
        self._running: dict[int, int] = {}  # the worker's number by its process id
        self._started: dict[int, float] = {}
        self._is_stopping = False
        self._code = 0
        # Nobody writes to it: that it ends tells the workers that their parent has.
        self._life, self._lifeline = os.pipe()

    def run(self) -> int:
        """Until a signal has ended all of them; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for worker in range(self._count):
            self._start(worker)
        while self._running:
            pid, status = os.waitpid(-1, 0)
            worker = self._running.pop(pid, -1)
            if worker >= 0:
                self._ended(worker, pid, os.waitstatus_to_exitcode(status))
        return self._code

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True
        self._tell_all(signal.Signals(number))

    def _tell_all(self, number: signal.Signals) -> None:
        for pid in self._running:
            os.kill(pid, number)

    def _start(self, worker: int) -> None:
        pid = os.fork()
        if pid:
            self._running[pid] = worker
            self._started[pid] = time.monotonic()
            return
        code = 1
        try:
            os.setpgid(0, 0)  # Ctrl-C at the terminal is for the parent, which passes it on once
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.close(self._lifeline)
            threading.Thread(target=self._end_with_parent, name="watch parent", daemon=True).start()
            code = self._serve(worker)
        except Exception:  # the child must not go on as a second parent, whatever happens
            logger.exception("worker failed")
        finally:
            os._exit(code)

    def _end_with_parent(self) -> None:
        os.read(self._life, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _ended(self, worker: int, pid: int, code: int) -> None:
        lived = time.monotonic() - self._started.pop(pid)
        if self._is_stopping:
            return
        never_served = lived < SETTLED and all(time.monotonic() - at < SETTLED for at in self._started.values())
        if code > 0 and never_served:
            self._is_stopping = True
            self._code = code
            self._tell_all(signal.SIGTERM)
            return
        logger.warning("worker ended and is replaced", extra={"worker": worker, "pid": pid, "code": code})
        time.sleep(PAUSE)
        if not self._is_stopping:
            self._start(worker)
