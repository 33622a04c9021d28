"""What a message and an event cost in function calls and in kept objects: a guard for speed that is not a clock.

Python's calls are counted, resumptions of coroutines among them: they are what most of the time goes into here, and
the same on every machine. Who makes the hot path longer fails this test; who makes it much shorter lowers the table.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator
from typing import Any, Final

import pytest

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.app.application import Application
from apcore_a2a.app.serve import build_app
from apcore_a2a.engine.context import Timing
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, StatusUpdate, TaskState, TaskStatus
from tests.calls import count_calls
from tests.timing import use_timing

# Calls of Python functions, asyncio's among them: for one message/send; for one event of a stream, when the agent lets
# the loop turn after each, and when they are ready together.
CALLS: Final[dict[tuple[int, int], tuple[float, float, float]]] = {
    (3, 11): (197, 77, 16),
    (3, 12): (197, 77, 16),
    (3, 13): (197, 77, 16),
}
HEADROOM: Final = 1.10
SLACK: Final = 0.75  # a table that is higher than this above what is counted guards nothing
SENDS: Final = 50


class Chunks:
    """Answers `yield 10` with ten chunks, one at each turn of the loop; `count 10` with ten at once."""

    may_reply = False

    async def admit(self, call: Call) -> Admission:
        return Admission()

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        word, _, count = str(call.message.parts[0].text).partition(" ")
        for number in range(int(count)):
            yield ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[Part(text="x")]), append=number > 0)
            if word == "yield":
                await asyncio.sleep(0)
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


async def ask(app: Application, method: str, text: str) -> bytes:
    """One request, without a server."""
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"%b","params":{"message":{"messageId":"m","role":"ROLE_USER",'
        b'"parts":[{"text":"%b"}]}}}' % (method.encode(), text.encode())
    )
    headers = [(b"content-type", b"application/json"), (b"a2a-version", b"1.0")]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    request: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    request.put_nowait({"type": "http.request", "body": body})
    answer: list[bytes] = []

    async def send(message: Any) -> None:
        answer.append(message.get("body", b""))

    await app(scope, request.get, send)
    return b"".join(answer)


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch) -> Application:
    use_timing(monkeypatch, Timing(wake_interval=0.0))  # every event is written by itself, however fast this machine is
    app = build_app(Chunks())
    for _ in range(3):  # what is made once is made
        assert b"TASK_STATE_COMPLETED" in await ask(app, "SendMessage", "count 1")
    return app


def expect(counted: float, column: int) -> None:
    table = CALLS.get(sys.version_info[:2], CALLS[3, 13])[column]
    assert SLACK * table <= counted <= HEADROOM * table, f"{counted:.1f} calls, {table} in the table"


async def test_a_message_costs_no_more_calls_than_it_did(app: Application) -> None:
    async def send() -> None:
        for _ in range(SENDS):
            await ask(app, "SendMessage", "count 1")

    calls, _ = await count_calls(send())
    expect(calls / SENDS, 0)


@pytest.mark.parametrize(("word", "column"), [("yield", 1), ("count", 2)])
async def test_an_event_costs_no_more_calls_than_it_did_early_or_late(app: Application, word: str, column: int) -> None:
    async def count(chunks: int) -> int:
        calls, _ = await count_calls(ask(app, "SendStreamingMessage", f"{word} {chunks}"))
        return calls

    short, middle, long = await count(100), await count(300), await count(1_300)
    expect((long - middle) / 1_000, column)
    assert (long - middle) / 1_000 <= HEADROOM * (middle - short) / 200


async def test_a_finished_task_leaves_nothing_for_the_garbage_collector_to_look_at(app: Application) -> None:
    async def send(messages: int) -> int:
        for _ in range(messages):
            await ask(app, "SendMessage", "count 1")
        await asyncio.sleep(0)
        gc.collect()
        return len(gc.get_objects())

    before = await send(10)
    assert await send(500) - before < 50  # not one for each
