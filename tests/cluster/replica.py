"""One replica: an agent that counts, and names its run in every chunk.

    count 20 0.05 safe     counts to 20, with so many seconds between two numbers; repeatable
    count 20 0.05 unsafe   the same, not repeatable
    talk 20 0.05 safe      the same, in an artifact of this turn of the task; then asks its user
    ask                    asks its user; the next message is the answer

`python -m tests.cluster.replica URL [port] [drain delay]`, with the store's options in the URL. It prints to
standard error when a run begins to count and when it ends, for whatever reason. With LATER_BY in its environment it is
a later version of the package, whose tables have so many more migrations.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncGenerator

from apcore_a2a import serve
from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Message,
    Part,
    Role,
    StatusUpdate,
    TaskState,
    TaskStatus,
)
from apcore_a2a.storage.postgres import schema


class Counter:
    """Counts to a number, with one chunk for each number."""

    may_reply = False

    async def admit(self, call: Call) -> Admission:
        return Admission(retry_safe=str(call.message.parts[0].text).endswith(" safe"))

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        word, *rest = str(call.message.parts[0].text).split()
        if word == "ask":
            yield ask()
            return
        run = secrets.token_hex(4)  # the unique name of this run
        count, pause = (int(rest[0]), float(rest[1])) if len(rest) > 1 else (3, 0.0)
        turn = sum(said.role is Role.USER for said in call.task.history)
        name = f"turn-{turn}" if word == "talk" else "out"
        report(f"run {run} begins")
        try:
            for number in range(count):
                chunk = Artifact(artifact_id=name, parts=[Part(text=f"{run} {number}")])
                yield ArtifactUpdate(artifact=chunk, append=number > 0)
                await asyncio.sleep(pause)
        finally:
            report(f"run {run} ends")
        if word == "talk":
            yield ask()
        else:
            yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


def ask() -> StatusUpdate:
    question = Message(message_id=secrets.token_hex(4), role=Role.AGENT, parts=(Part(text="What next?"),))
    return StatusUpdate(status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=question))


def report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


LATER_MIGRATIONS = (
    "ALTER TABLE task ADD COLUMN note text NOT NULL DEFAULT ''; CREATE TABLE note (task bigint PRIMARY KEY)",
    "ALTER TABLE task ADD COLUMN later text NOT NULL DEFAULT ''",
)
"""Migrations of later versions. Each only adds. The previous version works beside it, and no older one."""


def be_later(by: int) -> None:
    """Act as the version that has so many more migrations."""
    now = len(schema.MIGRATIONS)
    schema.__dict__["MIGRATIONS"] = (*schema.MIGRATIONS, *LATER_MIGRATIONS[:by])
    schema.__dict__["OLDEST"] = now + by - 1


if __name__ == "__main__":
    if "LATER_BY" in os.environ:
        be_later(int(os.environ["LATER_BY"]))
    url, port, delay, *_ = [*sys.argv[1:], "0", "0"]
    serve(Counter(), host="127.0.0.1", port=int(port), store=url, shutdown_timeout=3, drain_delay=float(delay))
