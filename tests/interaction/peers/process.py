"""An official client in its own process: one process for all tests.

It reads lines. Each is a JSON object, {"do": ..., "url": ..., "binding": ..., "headers": ...},
with what the deed needs. The answer is a line, too: {"ok": ...}, {"error": ...} for an error of the protocol, or
{"failed": ...} with a traceback.
"""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fakes import PATIENCE
from tests.interaction.peers import PeerError, Words


class Process:
    """A process that answers one question at a time. If it dies, the call fails and the next one restarts it."""

    def __init__(self, command: Sequence[str | Path], cwd: Path | None = None) -> None:
        self._command = command
        self._cwd = cwd
        self._process: subprocess.Popen[str] | None = None

    def _exchange(self, line: str) -> str:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, cwd=self._cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        assert self._process.stdin is not None and self._process.stdout is not None  # they are pipes
        answer = ""
        with suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            answer = self._process.stdout.readline()
        if not answer:
            self.end()
            raise AssertionError(f"{self._command[-1]} has died, asked {line}; its last words are above")
        return answer

    async def ask(self, **question: Any) -> Any:
        """In a thread: the server runs in this one."""
        line = await asyncio.to_thread(self._exchange, json.dumps(question))
        answer = json.loads(line)
        if "failed" in answer:
            raise AssertionError(answer["failed"])
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["ok"]

    def end(self) -> None:
        if self._process is None:
            return
        process = self._process
        self._process = None
        try:
            process.communicate(timeout=PATIENCE)  # closes its pipes, even if the process has ended
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


class ProcessStream:
    def __init__(self, process: Process, stream: str) -> None:
        self._process = process
        self._stream = stream

    async def next(self) -> Words:
        return dict(await self._process.ask(do="next", stream=self._stream))

    async def close(self) -> None:
        await self._process.ask(do="close", stream=self._stream)


class ProcessPeer:
    def __init__(self, process: Process, url: str, binding: str, headers: dict[str, str] | None = None) -> None:
        self._process = process
        self._where = {"url": url, "binding": binding, "headers": headers or {}}

    async def _ask(self, do: str, **more: Any) -> Any:
        return await self._process.ask(do=do, **self._where, **more)

    async def send(self, text: str, *, task_id: str = "", context_id: str = "", wait: bool = True) -> Words:
        return dict(await self._ask("send", text=text, task_id=task_id, context_id=context_id, wait=wait))

    async def send_file(self, content: str) -> str:
        """Send a file, and return the first file of the answer, both in base64."""
        return str(await self._ask("send_file", content=content))

    async def stream(self, text: str) -> ProcessStream:
        return ProcessStream(self._process, await self._ask("stream", text=text))

    async def subscribe(self, task_id: str) -> ProcessStream:
        return ProcessStream(self._process, await self._ask("subscribe", task_id=task_id))

    async def get(self, task_id: str, history_length: int | None = None) -> Words:
        return dict(await self._ask("get", task_id=task_id, history_length=history_length))

    async def cancel(self, task_id: str) -> Words:
        return dict(await self._ask("cancel", task_id=task_id))

    async def card(self) -> Words:
        return dict(await self._ask("card"))

    async def extended_card(self) -> Words:
        return await self.card()  # the client fetches it by itself if the card announces one

    async def set_webhook(self, task_id: str, url: str) -> Words:
        return dict(await self._ask("set_webhook", task_id=task_id, webhook=url))

    async def get_webhook(self, task_id: str, config_id: str) -> Words:
        return dict(await self._ask("get_webhook", task_id=task_id, config_id=config_id))

    async def close(self) -> None:
        pass
