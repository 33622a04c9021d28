"""How events leave: small ones together, large ones in pieces that wait for their reader."""

import asyncio
import json
from typing import Any

import pytest

from apcore_a2a.engine.event_log import READ_AT_ONCE, LogEntry
from apcore_a2a.engine.streams import Stream
from apcore_a2a.http.asgi import LARGE, PIECE, encode_large_entry, send_stream
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, TaskState
from apcore_a2a.protocol.sse import SSEDecoder
from apcore_a2a.protocol.v03 import jsonrpc as v03


def entry(seq: int, text: str) -> LogEntry:
    update = ArtifactUpdate(task_id="t", context_id="c", artifact=Artifact(artifact_id="a", parts=[Part(text=text)]))
    return LogEntry(seq, TaskState.WORKING, v1.encode_event(update))


class Client:
    """Reads what is written; the first `patience` pieces, if it has little of it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    async def send(self, message: Any) -> None:
        self.pieces.append(message.get("body", b""))

    def texts(self) -> list[str]:
        decoder = SSEDecoder()
        events = decoder.feed(b"".join(self.pieces))
        found = [json.loads(event.data) for event in events]
        return [update.get("artifactUpdate", update)["artifact"]["parts"][0]["text"] for update in found]


@pytest.mark.parametrize("dialect", [v1, v03], ids=["1.0", "0.3"])
@pytest.mark.parametrize("size", [10, PIECE - 200, PIECE + 1, LARGE + 1, 3 * LARGE])
@pytest.mark.parametrize("letter", ["x", "\u2028", "é"])
async def test_an_event_of_any_size_arrives_as_it_was_and_never_as_one_large_write(
    dialect: Dialect, size: int, letter: str
) -> None:
    texts = ["first", letter * size, "last"]
    client = Client()
    entries = [entry(seq, text) for seq, text in enumerate(texts, 1)]
    await send_stream(Stream(entries), client.receive, client.send, dialect, head=b"", tail=b"")
    assert client.texts() == texts
    assert max(map(len, client.pieces)) <= 3 * PIECE  # what was collected, and one more event


async def test_a_hundred_readers_of_a_large_event_share_its_encoding() -> None:
    large = entry(1, "x" * (2 * LARGE))
    lines = await asyncio.gather(*(encode_large_entry(large, v03) for _ in range(100)))
    assert len({id(line) for line in lines}) == 1


async def test_who_reads_many_events_lets_others_have_their_turn() -> None:
    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(len(client.pieces))
            await asyncio.sleep(0)

    class Pages:
        """A stream of full pages that are all there."""

        is_cut = False

        def __init__(self) -> None:
            self.left = 5

        def take(self) -> list[LogEntry] | None:
            self.left -= 1
            return [entry(1, "x")] * READ_AT_ONCE if self.left >= 0 else None

        async def wait(self) -> None: ...

        def close(self) -> None: ...

    client = Client()
    beside = asyncio.create_task(others())
    await send_stream(Pages(), client.receive, client.send, v1)
    beside.cancel()
    assert len(set(turns)) >= 4
