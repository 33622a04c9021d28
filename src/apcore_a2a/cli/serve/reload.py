"""`--reload` for a file or a module: runs the agent in a child process, and restarts it when Python files change.

A directory of apcore modules needs no restart: `targets.py` reloads the changed modules. Other code of the user can
only be reloaded by a restart.

The supervisor owns the sockets. A client that connects during a restart waits instead of being refused, and the port
stays the same.
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
from apcore_a2a.settings import PREFIX

GRACE: Final = 5.0  # seconds for the shutdown of a child that is restarted
LAST_GRACE: Final = 60.0  # seconds for the last child, whose tasks may finish; its own timeouts are shorter
BACKLOG: Final = 128  # connections that wait for the next child
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# Options whose values are secrets, with the variables that replace them.
SECRET_FLAGS: Final = {
    f"--{name}": f"{PREFIX}{name.upper().replace('-', '_')}" for name in ("auth-key", "webhook-secret", "store")
}


# Exit codes of a child that one of our signals ended. -1 is SIGHUP, which not all systems have.
_ENDED_BY_SIGNAL: Final = (-signal.SIGINT, -signal.SIGTERM, -1)


class SupervisorEvent(Enum):
    """The events that a supervisor waits for."""

    CHANGED = "a Python file has changed"
    ENDED = "the process has ended by itself"
    STOP = "a signal stops the supervisor"


class Supervisor:
    """Runs a command in a child process, and restarts it whenever a Python file below a directory changes."""

    def __init__(self, arguments: Sequence[str], directory: Path, sockets: Sequence[socket.socket]) -> None:
        # Nothing is written to this pipe. The kernel closes it when this process ends, which the child notices.
        lifeline, self._own_end = os.pipe()
        self._sockets = sockets
        self._inherited = [lifeline, *(listener.fileno() for listener in sockets)]
        descriptors = ",".join(map(str, self._inherited))
        shown, self._environment = hide_secrets(arguments)
        self._command = [sys.executable, "-m", "apcore_a2a", *shown, "--supervised", descriptors]
        self._directory = directory
        self._events: asyncio.Queue[SupervisorEvent] = asyncio.Queue()
        self._stopped_by = signal.SIGTERM  # the last signal that caused SupervisorEvent.STOP
        self._stop_watching = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal, and return the exit code of the last child."""
        loop = asyncio.get_running_loop()

        def on_signal(number: int, frame: FrameType | None) -> None:
            self._stopped_by = signal.Signals(number)
            loop.call_soon_threadsafe(self._events.put_nowait, SupervisorEvent.STOP)

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
            self._events.put_nowait(SupervisorEvent.CHANGED)

    async def _keep_running(self, group: asyncio.TaskGroup) -> int:
        while True:
            child = await self._start()
            ending = group.create_task(self._report_end(child))
            event = await self._events.get()
            if event is SupervisorEvent.ENDED and child.returncode in (0, NOT_STARTED):
                return child.returncode
            if event is SupervisorEvent.ENDED:
                click.echo(f"Waiting for a change in {self._directory} (Ctrl-C ends)", err=True)
                event = await self._events.get()
            if event is SupervisorEvent.STOP:
                self._close_sockets()  # there is no next child
                return await self._end(child, ending, LAST_GRACE, self._stopped_by)
            click.echo("Python files have changed: restarting", err=True)
            code = await self._end(child, ending, GRACE, signal.SIGTERM)
            if self._discard_events():
                return code

    def _discard_events(self) -> bool:
        """Discard the events of the ended child, and return whether a stop signal was among them."""
        was_stopped = False
        while not self._events.empty():
            if self._events.get_nowait() is SupervisorEvent.STOP:
                was_stopped = True
        return was_stopped

    async def _start(self) -> asyncio.subprocess.Process:
        if os.name == "posix":
            return await asyncio.create_subprocess_exec(*self._command, pass_fds=self._inherited, env=self._environment)
        return await asyncio.create_subprocess_exec(*self._command, env=self._environment)

    async def _report_end(self, child: asyncio.subprocess.Process) -> None:
        await child.wait()
        self._events.put_nowait(SupervisorEvent.ENDED)

    async def _end(
        self, child: asyncio.subprocess.Process, ending: "asyncio.Task[None]", grace: float, number: signal.Signals
    ) -> int:
        """Send the signal to the child, and kill it after `grace` seconds. Return its exit code.

        A terminal sends Ctrl-C to all processes in the foreground: a second signal would cut the shutdown short. The
        terminal also sends SIGHUP to all of them, but a second SIGHUP never cuts the shutdown short.
        """
        by_terminal = number is signal.SIGINT and sys.stdin.isatty()
        if child.returncode is None and not by_terminal:
            # During an import, SIGINT would raise an exception in the user's code.
            child.send_signal(signal.SIGTERM if number is signal.SIGINT else number)
        _, late = await asyncio.wait({ending}, timeout=grace)
        if late:
            child.kill()
            await ending
        if child.returncode in _ENDED_BY_SIGNAL:  # it had not installed its signal handlers yet
            return 0
        return child.returncode or 0

    def _close_sockets(self) -> None:
        for listener in self._sockets:
            listener.close()


def _signals() -> list[signal.Signals]:
    """Return the signals that stop the supervisor. An existing SIGHUP handler (for example nohup's) is kept."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        return [*SIGNALS, signal.SIGHUP]
    return list(SIGNALS)


def hide_secrets(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without secrets, and the environment with them: other users can see arguments.

    Example:
        >>> shown, environment = hide_secrets(["serve", "agent.py", "--auth-key", "s3cret"])
        >>> shown, environment["APCORE_A2A_AUTH_KEY"]
        (['serve', 'agent.py'], 's3cret')
    """
    shown: list[str] = []
    environment = dict(os.environ)
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        flag, has_value, value = argument.partition("=")
        if flag not in SECRET_FLAGS or (not has_value and not waiting):
            shown.append(argument)
            continue
        if not has_value:
            value = waiting.pop(0)
        environment[SECRET_FLAGS[flag]] = value
    return shown, environment


def run_with_reload(arguments: Sequence[str], directory: Path, sockets: Sequence[socket.socket]) -> int:
    """Run `apcore-a2a` with these arguments, and restart it whenever a Python file below the directory changes.

    The sockets are bound already. Without sockets, each child binds its own.
    """

    async def supervise() -> int:
        return await Supervisor(arguments, directory, sockets).run()

    for listener in sockets:
        listener.listen(BACKLOG)
    return asyncio.run(supervise())


def join_supervisor(descriptors: str) -> list[socket.socket] | None:
    """Inherit the sockets of the supervisor, if it has any, and end this process when the supervisor ends."""
    if os.name != "posix":
        return None
    lifeline, *listeners = map(int, descriptors.split(","))
    end_with_parent(lifeline)
    return [socket.socket(fileno=descriptor) for descriptor in listeners] or None
