"""One replica: an agent that counts, and says in every chunk which run of it is counting.

    count 20 0.05 safe     counts to 20, with so many seconds between two numbers; may be repeated
    count 20 0.05 unsafe   the same, but may not
    ask                    asks its user; whatever is said next is the answer

`python -m tests.cluster.replica URL [port] [drain delay]`, in whose URL the store's options are. It says on standard
error when a run begins to count and when it ends, however it ends. With LATER_BY in its environment it is a later
version of the package, whose tables have so many steps more.
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
    """Counts to a number, one chunk each."""

    may_reply = False

    async def admit(self, call: Call) -> Admission:
        return Admission(retry_safe=str(call.message.parts[0].text).endswith(" safe"))

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        word, *rest = str(call.message.parts[0].text).split()
        if word == "ask":
            question = Message(message_id=secrets.token_hex(4), role=Role.AGENT, parts=(Part(text="What next?"),))
            yield StatusUpdate(status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=question))
            return
        run = secrets.token_hex(4)  # which run this is: no other has it
        count, pause = (int(rest[0]), float(rest[1])) if word == "count" else (3, 0.0)
        say(f"run {run} begins")
        try:
            for number in range(count):
                chunk = Artifact(artifact_id="out", parts=[Part(text=f"{run} {number}")])
                yield ArtifactUpdate(artifact=chunk, append=number > 0)
                await asyncio.sleep(pause)
        finally:
            say(f"run {run} ends")
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


STEPS = (
    "ALTER TABLE task ADD COLUMN note text NOT NULL DEFAULT ''; CREATE TABLE note (task bigint PRIMARY KEY)",
    "ALTER TABLE task ADD COLUMN later text NOT NULL DEFAULT ''",
)
"""Of versions to come. A step only adds; the version before goes on beside it, and no older one."""


def be_later(by: int) -> None:
    """Be the version that has so many steps more."""
    now = len(schema.MIGRATIONS)
    schema.__dict__["MIGRATIONS"] = (*schema.MIGRATIONS, *STEPS[:by])
    schema.__dict__["OLDEST"] = now + by - 1


if __name__ == "__main__":
    if "LATER_BY" in os.environ:
        be_later(int(os.environ["LATER_BY"]))
    url, port, delay, *_ = [*sys.argv[1:], "0", "0"]
    serve(Counter(), host="127.0.0.1", port=int(port), store=url, shutdown_timeout=3, drain_delay=float(delay))
