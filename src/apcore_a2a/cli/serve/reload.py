"""`--reload` for a file or a module: the agent in a process of its own, started anew when Python files change.

A directory of apcore modules needs no new process: `targets.py` takes in what changed. Code of the user's own can
only be taken in whole.

The sockets are the supervisor's: whoever connects while one process ends and the next one starts waits, instead of
being refused, and the port stays what it was.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Final

import click
from watchfiles import PythonFilter, awatch

from apcore_a2a.app.serve import NOT_STARTED
from apcore_a2a.cli.serve.workers import end_with_parent

GRACE: Final = 5.0  # seconds for a process that is to make room for the next one
LAST_GRACE: Final = 60.0  # for the last one, whose tasks may finish; its own limits are shorter
BACKLOG: Final = 128  # connections that wait for the next process
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


# As exit codes; 1 is SIGHUP, which not all systems have.
_ENDED_BY_SIGNAL: Final = (-signal.SIGINT, -signal.SIGTERM, -1)


class SupervisorEvent(Enum):
    """What a supervisor waits for."""

    CHANGED = "a Python file has changed"
    ENDED = "the process has ended by itself"
    STOP = "a signal says that it is over"


class Supervisor:
    """Runs a command, and runs it anew whenever a Python file below a directory changes."""

    def __init__(self, arguments: Sequence[str], directory: Path, sockets: Sequence[socket.socket]) -> None:
        # Nothing is written to it. It is closed when this process is gone, however that ended, and so the child knows.
        lifeline, self._kept = os.pipe()
        self._sockets = sockets
        self._inherited = [lifeline, *(listener.fileno() for listener in sockets)]
        descriptors = ",".join(map(str, self._inherited))
        self._command = [sys.executable, "-m", "apcore_a2a", *arguments, "--supervised", descriptors]
        self._directory = directory
        self._news: asyncio.Queue[SupervisorEvent] = asyncio.Queue()
        self._stopped_by = signal.SIGTERM  # of those that News.STOP is about, the last
        self._stop_watching = asyncio.Event()

    async def run(self) -> int:
        """The exit code of the last process."""
        loop = asyncio.get_running_loop()

        def on_signal(number: int, frame: FrameType | None) -> None:
            self._stopped_by = signal.Signals(number)
            loop.call_soon_threadsafe(self._news.put_nowait, SupervisorEvent.STOP)

        before = {number: signal.signal(number, on_signal) for number in _signals()}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch())
                try:
                    return await self._keep_running(group)
                finally:
                    self._stop_watching.set()
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    async def _watch(self) -> None:
        async for _ in awatch(self._directory, watch_filter=PythonFilter(), stop_event=self._stop_watching):
            self._news.put_nowait(SupervisorEvent.CHANGED)

    async def _keep_running(self, group: asyncio.TaskGroup) -> int:
        while True:
            child = await self._start()
            ending = group.create_task(self._tell_end(child))
            news = await self._news.get()
            if news is SupervisorEvent.ENDED and child.returncode in (0, NOT_STARTED):
                return child.returncode
            if news is SupervisorEvent.ENDED:
                click.echo(f"Waiting for a change in {self._directory} (Ctrl-C ends)", err=True)
                news = await self._news.get()
            if news is SupervisorEvent.STOP:
                self._close_sockets()  # nobody comes after this one
                return await self._end(child, ending, LAST_GRACE, self._stopped_by)
            click.echo("Python files have changed: starting anew", err=True)
            code = await self._end(child, ending, GRACE, signal.SIGTERM)
            if self._forget_news():
                return code

    def _forget_news(self) -> bool:
        """What has come meanwhile is about the process that is gone. Whether there was a signal among it."""
        was_stopped = False
        while not self._news.empty():
            if self._news.get_nowait() is SupervisorEvent.STOP:
                was_stopped = True
        return was_stopped

    async def _start(self) -> asyncio.subprocess.Process:
        if os.name == "posix":
            return await asyncio.create_subprocess_exec(*self._command, pass_fds=self._inherited)
        return await asyncio.create_subprocess_exec(*self._command)

    async def _tell_end(self, child: asyncio.subprocess.Process) -> None:
        await child.wait()
        self._news.put_nowait(SupervisorEvent.ENDED)

    async def _end(
        self, child: asyncio.subprocess.Process, ending: "asyncio.Task[None]", grace: float, number: signal.Signals
    ) -> int:
        """End the process by this signal, at the latest by force.

        A terminal sends its Ctrl-C to all processes of the foreground: a second signal would cut the shutdown short.
        SIGHUP, which it sends to all of them as well, never does.
        """
        by_terminal = number is signal.SIGINT and sys.stdin.isatty()
        if child.returncode is None and not by_terminal:
            # While it is importing, SIGINT would be an exception like others.
            child.send_signal(signal.SIGTERM if number is signal.SIGINT else number)
        _, late = await asyncio.wait({ending}, timeout=grace)
        if late:
            child.kill()
            await ending
        if child.returncode in _ENDED_BY_SIGNAL:  # it had not come so far as to take it
            return 0
        return child.returncode or 0

    def _close_sockets(self) -> None:
        for listener in self._sockets:
            listener.close()


def _signals() -> list[signal.Signals]:
    """Those that end it. Whoever has chosen what SIGHUP does, be it `nohup`, which has it ignored, has chosen."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        return [*SIGNALS, signal.SIGHUP]
    return list(SIGNALS)


def run_with_reload(arguments: Sequence[str], directory: Path, sockets: Sequence[socket.socket]) -> int:
    """Run `apcore-a2a` with these arguments, anew whenever a Python file below the directory changes.

    The sockets are bound; without any, each process binds its own.
    """

    async def supervise() -> int:
        return await Supervisor(arguments, directory, sockets).run()

    for listener in sockets:
        listener.listen(BACKLOG)
    return asyncio.run(supervise())


def join_supervisor(descriptors: str) -> list[socket.socket] | None:
    """Take over the sockets of the process that supervises this one, if it has any, and end when that is gone."""
    if os.name != "posix":
        return None
    lifeline, *listeners = map(int, descriptors.split(","))
    end_with_parent(lifeline)
    return [socket.socket(fileno=descriptor) for descriptor in listeners] or None
