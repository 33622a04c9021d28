# mypy: ignore-errors
"""The loop of a peer's process. A line of its input is a call as JSON. Each answer is a line of its output."""

import asyncio
import json
import os
import sys
import traceback


def serve(**actions) -> None:
    """Answer calls until the input ends. Each action is an async function that returns what a user would see."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks print and log: only the answers are written to the standard output

    async def loop() -> None:
        while line := await asyncio.to_thread(sys.stdin.readline):
            call = json.loads(line)
            try:
                answer = {"ok": await actions[call.pop("do")](**call)}
            except Exception:  # whatever a framework raises is what its user sees
                answer = {"ok": {"raised": traceback.format_exc()}}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

    asyncio.run(loop())
