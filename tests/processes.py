"""Servers in processes of their own, for what only a process can show: signals, exit codes, kill -9."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

PATIENCE = 45.0
SOURCES = Path(os.environ.get("TESTED_SOURCES") or Path(__file__).parent.parent / "src")  # a mutant's are elsewhere


class Process:
    """A Python process whose standard error is read as it comes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def says(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something that matches."""
        stderr = self._process.stderr
        assert stderr is not None
        async with asyncio.timeout(PATIENCE):
            while (match := re.search(pattern, self.said)) is None:
                line = await stderr.readline()
                if not line:
                    raise AssertionError(f"it ended without saying {pattern!r}:\n{self.said}")
                self.said += line.decode()
            return match

    async def ends(self) -> int:
        """Wait until it has ended; its exit code."""
        stderr = self._process.stderr
        assert stderr is not None
        async with asyncio.timeout(PATIENCE):
            self.said += (await stderr.read()).decode()
            return await self._process.wait()

    async def lines(self) -> AsyncIterator[str]:
        """What it says, line by line, for as long as it lives."""
        stderr = self._process.stderr
        assert stderr is not None
        async for line in stderr:
            yield line.decode(errors="replace").rstrip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)


@asynccontextmanager
async def running(*arguments: str, python: str = sys.executable, **environment: str) -> AsyncIterator[Process]:
    """`python …` with our sources; killed at the end if it has not ended by itself."""
    process = await asyncio.create_subprocess_exec(
        python,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCES), **environment},
    )
    try:
        yield Process(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
