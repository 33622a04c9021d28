"""One replica: an agent that counts, and says in every chunk which run of it is counting.

    count 20 0.05 safe     counts to 20, with so many seconds between two numbers; may be repeated
    count 20 0.05 unsafe   the same, but may not
    ask                    asks its user; whatever is said next is the answer

`python -m tests.cluster.replica URL [port] [drain delay]`, in whose URL the store's options are.
"""

import asyncio
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
        for number in range(count):
            chunk = Artifact(artifact_id="out", parts=[Part(text=f"{run} {number}")])
            yield ArtifactUpdate(artifact=chunk, append=number > 0)
            await asyncio.sleep(pause)
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


if __name__ == "__main__":
    url, port, delay, *_ = [*sys.argv[1:], "0", "0"]
    serve(Counter(), host="127.0.0.1", port=int(port), store=url, shutdown_timeout=3, drain_delay=float(delay))
