"""Shared by the Python servers. Only the standard library and uvicorn, because it runs in every peer's environment.

Every agent follows the same commands: `echo`, `count 100` (chunks ready together), `yield 100` (yields to the loop
after each chunk), `gate 100` and `gate-yield 100` (the same, after another message says `open`), `sleep 0.1`, `hang`.
"""

import argparse
import asyncio
from datetime import UTC, datetime
from typing import Any, NamedTuple

CHUNK = "x" * 50
FILLED = "00000000-0000-4000-8000-%012d"  # the id of a task that was stored before the server started
_gates: list[asyncio.Event] = []


class Work(NamedTuple):
    chunks: int
    yields: bool


async def prepare(text: str) -> Work:
    """Wait as the text says, and return the remaining work."""
    word, _, rest = text.partition(" ")
    match word:
        case "hang":
            await asyncio.Event().wait()
        case "sleep":
            await asyncio.sleep(float(rest))
        case "open":
            while _gates:
                _gates.pop().set()
        case "gate" | "gate-yield":
            _gates.append(gate := asyncio.Event())
            await gate.wait()
    counts = word in ("count", "yield", "gate", "gate-yield")
    return Work(int(rest) if counts else 1, word.endswith("yield"))


def finished(number: int) -> dict[str, Any]:
    """Return a small finished A2A 1.0 task that ended now."""
    id, context = FILLED % number, f"11111111-0000-4000-8000-{number:012d}"
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    said = {"messageId": f"m{number}", "role": "ROLE_USER", "parts": [{"text": "echo"}], "taskId": id}
    return {
        "id": id,
        "contextId": context,
        "status": {"state": "TASK_STATE_COMPLETED", "timestamp": now.replace("+00:00", "Z")},
        "artifacts": [{"artifactId": "answer", "parts": [{"text": CHUNK}]}],
        "history": [{**said, "contextId": context}],
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fill", type=int, default=0, help="finished tasks to store before the start")
    parser.add_argument("--sqlite", default="", help="keep tasks in this file")
    parser.add_argument("--postgres", default="", help="keep tasks in this database")
    parser.add_argument("--kind", default="")
    parser.add_argument("--answer", type=int, default=500, help="size of a constant answer")
    return parser.parse_args()


def serve(app: Any, port: int) -> None:
    import uvicorn

    uvicorn.run(
        app, host="127.0.0.1", port=port, log_level="warning", access_log=False, loop="uvloop", http="httptools"
    )
