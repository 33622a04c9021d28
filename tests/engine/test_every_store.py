"""The engine on each of the stores: the same conversation, the same answers."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from apcore_a2a.agent import AgentEvent, Call
from apcore_a2a.errors import TaskNotCancelableError
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Store
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.engine.driving import BOB, V03, Acts, User, chunks_of, serving, soon, text_of, words
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk
from tests.storage.contract import STORES, Clock

S = TaskState


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return STORES[request.param].make(tmp_path, Clock(), 10_000)


async def test_a_conversation_of_two_turns_and_a_cancel(store: Store) -> None:
    gate = Gate()
    agent = ScriptedAgent({"ask": (chunk("a"), ASKS), "slow": (gate, COMPLETED)}, default=(chunk("b"), COMPLETED))
    async with serving(agent, store) as engine:
        alice = User(engine)
        asked = await alice.send("ask", context_id="talk")
        watcher = await alice.subscribe(asked)
        done = await alice.send("answer", task_id=asked.id)
        assert (done.status.state, chunks_of(done)) == (S.COMPLETED, ["b"])
        assert words(done) == ["ask", "What next?", "answer"]
        assert (await watcher.rest()).states == [S.INPUT_REQUIRED, S.WORKING, S.WORKING, S.COMPLETED]
        slow = await alice.start("slow", context_id="talk")
        await gate.reached()
        assert text_of(await alice.cancel(slow)) == "Canceled by client"
        page = await alice.list(context_id="talk")
        assert ({task.id for task in page.tasks}, page.total_size) == ({asked.id, slow.id}, 2)
        assert (await User(engine, BOB).list()).total_size == 0
    assert [message.text for message in agent.calls[2].history] == ["ask", "What next?", "answer", "b"]


async def test_fifty_tasks_at_once_with_readers_and_cancels(store: Store) -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        for number in range(20):
            yield chunk(str(number), append=True)
            await asyncio.sleep(0)
        yield COMPLETED

    async with serving(Acts(play), store) as engine:
        alice = User(engine)

        async def follow(number: int) -> bool:
            watcher = await alice.stream("go")
            await watcher.until_seq(2 + number % 5)
            canceled = False
            if number % 3 == 0:
                try:
                    canceled = (await alice.cancel(watcher.task)).status.state is S.CANCELED
                except TaskNotCancelableError:
                    canceled = False
            await watcher.rest()
            ended = await alice.get(watcher.task)
            assert ended.status.state is watcher.states[-1] is (S.CANCELED if canceled else S.COMPLETED)
            assert watcher.seqs == list(range(1, len(watcher.seqs) + 1))
            assert [state in TERMINAL for state in watcher.states].count(True) == 1
            return chunks_of(ended) == ["".join(str(count) for count in range(20))]

        followers = [asyncio.create_task(follow(number)) for number in range(50)]
        complete = [await soon(follower) for follower in followers]
    assert sum(complete) >= 33


async def test_what_one_process_closes_with_the_next_one_finds(tmp_path: Path) -> None:
    path, gate = tmp_path / "tasks.db", Gate()
    agent = ScriptedAgent({"ask": (ASKS,)}, default=(chunk("a", append=True), gate, COMPLETED))
    async with serving(agent, SQLiteStore(path)) as engine:
        alice = User(engine)
        parked = await alice.send("ask")
        running = await alice.start("slow")
        await gate.reached()
    async with serving(agent, SQLiteStore(path)) as engine:
        alice = User(engine)
        assert await alice.get(parked) == parked
        assert text_of(await alice.get(running)) == "Server shutdown"
        back = await User(engine, rules=V03).subscribe(running, last=1)
        assert (await back.rest()).seqs == [2, 3, 4]
