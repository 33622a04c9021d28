"""`Checker`, which checks inputs in a process of its own if the check may take long.

A regular expression can take minutes for 30 letters, and Python cannot interrupt it on a thread. A process has a limit
of its processor time, and can be killed.

Invariant: checks of one caller never delay those of another by more than one check, and every wait has a limit.
"""

import asyncio
import logging
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from apcore_a2a.agent import Call
from apcore_a2a.agents.inputs import refuse_inputs
from apcore_a2a.errors import InvalidParamsError, OverloadedError, Violation

logger = logging.getLogger(__name__)

PROGRAM: Final = Path(__file__).with_name("check_process.py")
SECONDS: Final = 2.0  # processor time of a check
REPEATED_SECONDS: Final = 0.1  # of a check that is done again on the event loop
LONGEST: Final = 20.0  # seconds for a check on a busy machine, the start of the process included
MAX_WAITING: Final = 8  # checks of one caller that run or wait
RETRY_AFTER: Final = 5  # seconds
TOO_SLOW: Final = Violation("", "The value takes too long to be checked against its schema", "too_slow")


class CheckError(Struct):
    """One error of a value, as jsonschema finds it."""

    path: str
    message: str
    code: str


class CheckResult(Struct, kw_only=True):
    """The answer of the process to one request."""

    errors: list[CheckError] = []
    failed: str = ""
    """The exception of the validator. Empty if there was none."""
    too_slow: bool = False
    seconds: float = 0.0


class Checker:
    """Checks inputs in a process that starts with the first check.

    Args:
        seconds: The limit of the processor time of one check.
        longest: The limit of the time of one check, on a busy machine too.

    Example:
        >>> Checker(seconds=0.5).is_running
        False
    """

    def __init__(self, *, seconds: float = SECONDS, longest: float = LONGEST) -> None:
        self._seconds = seconds
        self._longest = longest
        self._process: _CheckProcess | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        self._turns: dict[str, asyncio.Lock] = {}  # by caller, while one of its checks runs or waits
        self._waiting: Counter[str] = Counter()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    async def find_errors(self, schema: Any, value: Any, caller: str, *, repeated: bool = False) -> CheckResult:
        """Return the errors of a value by a JSON Schema.

        Args:
            caller: What checks are counted by (`quota_key_of`).
            repeated: Whether the event loop checks the value again, which limits the time.

        Raises:
            InvalidParamsError: The check takes too long.
            OverloadedError: Too many checks of this caller wait.
        """
        seconds = REPEATED_SECONDS if repeated else self._seconds
        request = {"schema": schema, "value": value, "hashed": not repeated, "seconds": seconds}
        return await self._ask(request, caller)

    async def try_patterns(self, patterns: list[str], texts: list[str], caller: str) -> None:
        """Match each text with each pattern, to see whether the event loop can do it.

        Raises:
            InvalidParamsError: It takes too long.
            OverloadedError: Too many checks of this caller wait.
        """
        request = {"patterns": patterns, "texts": texts, "seconds": REPEATED_SECONDS}
        await self._ask(request, caller)

    async def _ask(self, request: Any, caller: str) -> CheckResult:
        async with self._turn_of(caller):
            line = await self._exchange(msgspec.json.encode(request) + b"\n")
        if not line:
            raise OverloadedError("The process that checks inputs does not answer; try again", retry_after=RETRY_AFTER)
        answer = msgspec.json.decode(line, type=CheckResult)
        if answer.too_slow:
            raise too_slow()
        return answer

    @asynccontextmanager
    async def _turn_of(self, caller: str) -> AsyncIterator[None]:
        """Wait for the turn of a caller. The callers with checks take turns."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # an agent may be served twice, one time after the other
            self._loop = loop
            self._turn = asyncio.Lock()
            self._turns = {}
            self._waiting = Counter()
        if self._waiting[caller] >= MAX_WAITING:
            raise OverloadedError("Too many inputs of this caller are being checked", retry_after=RETRY_AFTER)
        own_turn = self._turns.setdefault(caller, asyncio.Lock())
        self._waiting[caller] += 1
        try:
            async with own_turn, self._turn:
                yield
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]
                self._turns.pop(caller, None)

    async def _exchange(self, line: bytes) -> bytes:
        """Send a request and return the answer. Empty if the process ended, or was killed because it took too long."""
        if self._process is None or self._process.has_ended:
            self._process = None
            self._process = await asyncio.to_thread(_start)
        process = self._process
        answer = b""
        try:
            async with asyncio.timeout(self._longest):
                answer = await asyncio.to_thread(process.exchange, line)
        except TimeoutError:
            logger.warning("check of an input was ended, because the process did not answer")
        finally:
            if not answer:  # also if the request was cancelled
                process.end()  # the thread returns, because the pipe is closed
                self._process = None
        return answer


class _CheckProcess:
    """A process with the program `check_process`. It ends when this process ends, or closes its pipe."""

    def __init__(self) -> None:
        # -P: no module of the working directory replaces one of the standard library.
        self._process = subprocess.Popen(  # it lives as long as this object
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl+C at a terminal is for the server
        )
        self._finalizer = weakref.finalize(self, _end, self._process)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def exchange(self, line: bytes) -> bytes:
        """Send a request and return the answer. Blocks. Empty if the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except (OSError, ValueError):  # ended, or closed by `end`
            return b""

    def end(self) -> None:
        self._process.kill()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()  # closes the pipes, and reaps the process


def _start() -> _CheckProcess:
    try:
        return _CheckProcess()
    except OSError as error:  # no processes or no memory are left
        logger.warning("cannot start the process that checks inputs", extra={"reason": str(error)})
        text = "The process that checks inputs cannot be started; try again later"
        raise OverloadedError(text, retry_after=RETRY_AFTER) from error


def quota_key_of(call: Call) -> str:
    """Return what the checks of a call are counted by: the address of an anonymous caller, else the account."""
    return call.quota_key or call.caller.owner.partition("\n")[0]  # without the tenant, which the client chooses


def too_slow() -> InvalidParamsError:
    return refuse_inputs([TOO_SLOW])
