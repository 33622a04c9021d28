"""Servers in separate processes, for tests of signals, exit codes and kill -9."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

PATIENCE = 45.0
COVERAGE = "COVERAGE_PROCESS_CONFIG"  # if empty, coverage does not measure a process, which slows calls in libraries
SOURCES = Path(os.environ.get("TESTED_SOURCES") or Path(__file__).parent.parent / "src")  # mutants have other sources


class Process:
    """A Python process whose standard error is read continuously."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def says(self, pattern: str) -> re.Match[str]:
        """Wait until its output matches the pattern."""
        stderr = self._process.stderr
        assert stderr is not None
        async with asyncio.timeout(PATIENCE):
            while (match := re.search(pattern, self.said)) is None:
                line = await stderr.readline()
                if not line:
                    raise AssertionError(f"the process ended without the output {pattern!r}:\n{self.said}")
                self.said += line.decode()
            return match

    async def ends(self) -> int:
        """Wait until it has ended, and return its exit code."""
        stderr = self._process.stderr
        assert stderr is not None
        async with asyncio.timeout(PATIENCE):
            self.said += (await stderr.read()).decode()
            return await self._process.wait()

    async def lines(self) -> AsyncIterator[str]:
        """Yield its output, line by line, until it ends."""
        stderr = self._process.stderr
        assert stderr is not None
        async for line in stderr:
            yield line.decode(errors="replace").rstrip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)


@asynccontextmanager
async def running(*arguments: str, python: str = sys.executable, **environment: str) -> AsyncIterator[Process]:
    """Run `python …` with our sources, and kill the process at the end if it is still running."""
    variables = {**os.environ, "PYTHONPATH": str(SOURCES), **environment}
    if not variables.get(COVERAGE):  # coverage accepts no empty value
        variables.pop(COVERAGE, None)
    process = await asyncio.create_subprocess_exec(
        python,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=variables,
    )
    try:
        yield Process(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
