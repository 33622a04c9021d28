"""Functions to serve: typed inputs, text in pieces, progress, a failure and files."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

from apcore_a2a import Call


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def tell(about: str) -> AsyncIterator[str]:
    """Tell a story, word by word."""
    for word in ("Once ", "there ", "was ", about):
        yield word


async def work(call: Call, steps: int = 2) -> str:
    """Work, and say how far it is."""
    for step in range(steps):
        call.progress(step / steps, f"step {step}")
        await asyncio.sleep(0)
    call.progress(1.0, "")
    return "done"


def fail(x: int = 3) -> int:
    return x // 0


def draw() -> bytes:
    return b"\x89PNG\x00\xff"


def chart(values: list[int]) -> bytes:
    return f"a chart of {values}".encode()


def pick(
    kind: Literal["a", "b"], on: bool, tags: list[str], size: float | None = None, more: dict[str, int] | None = None
) -> dict[str, Any]:
    return {"kind": kind, "on": on, "tags": tags, "size": size, "more": more}


def say(text: str, loud: bool = False) -> dict[str, Any]:
    return {"said": text, "loud": loud}


FUNCTIONS = [add, tell, work, fail, draw, chart, pick, say]
