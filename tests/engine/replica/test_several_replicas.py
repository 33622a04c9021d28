"""Several engines on one PostgreSQL database: each answers every request, and the others replace one that dies."""

import asyncio

import asyncpg
import pytest

from apcore_a2a.engine.context import ReplicaTiming, Timing
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.event_log import READ_AT_ONCE
from apcore_a2a.errors import TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.engine.driving import ALICE, BOB, NO_GRACE, V03, User, chunks_of, metadata_of, soon, text_of, words
from tests.engine.replica.scenario import disconnect, replica, replicas, until_shown
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk, pause
from tests.postgres_server import shared_server

S = TaskState
QUICK = 1.0  # seconds of a lease, where a test waits until it expires


@pytest.fixture
def url() -> str:
    return shared_server().url()


# ---- any replica, any request --------------------------------------------------------------------------------------


async def test_a_task_is_read_listed_and_followed_where_it_does_not_run(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), pause(), gate, chunk("b", append=True), COMPLETED)})
    async with replicas(agent, url) as (here, there):
        task = await here.start("slow", context_id="talk")
        await gate.reached()
        assert (await there.get(task)).status.state is S.WORKING
        page = await there.list(context_id="talk")
        assert [shown.id for shown in page.tasks] == [task.id]
        watcher = await there.subscribe(task)
        local = await here.subscribe(task)
        await watcher.read()
        await local.read()
        gate.open()
        await watcher.rest()
        await local.rest()
        assert watcher.states[-1] is S.COMPLETED
        assert watcher.seqs[1:] == list(range(watcher.seqs[0] + 1, watcher.seqs[-1] + 1))
        assert [entry.body for entry in watcher.entries[-2:]] == [entry.body for entry in local.entries[-2:]]
        done = await there.get(task)
        assert (done, chunks_of(done)) == (await here.get(task), ["ab"])


async def test_events_that_a_0_3_client_missed_are_replayed_where_its_task_does_not_run(url: str) -> None:
    gate = Gate()
    chunks = [chunk(str(number), append=number > 0) for number in range(READ_AT_ONCE)]
    agent = ScriptedAgent({"slow": (*chunks, pause(), gate, COMPLETED)})
    async with replicas(agent, url) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        local = await User(here.engine, ALICE, V03).subscribe(task, last=1)
        back = await User(there.engine, ALICE, V03).subscribe(task, last=1)
        gate.open()
        await local.rest()
        await back.rest()
        assert back.seqs == list(range(2, READ_AT_ONCE + 4))  # more than one read
        assert [entry.body for entry in back.entries] == [entry.body for entry in local.entries]


async def test_a_task_is_visible_to_its_owner_alone_at_every_replica(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with replicas(agent, url) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        bob = User(there.engine, BOB)
        for ask in (bob.get, bob.subscribe, bob.cancel):
            with pytest.raises(TaskNotFoundError):
                await ask(task)
        with pytest.raises(TaskNotFoundError):
            await bob.start("more", task_id=task.id)
        assert (await bob.list()).total_size == 0
        gate.open()
        assert (await until_shown(there, task, S.COMPLETED)).id == task.id


async def test_a_conversation_goes_on_at_another_replica(url: str) -> None:
    agent = ScriptedAgent({"ask": (ASKS,)}, default=(chunk("b"), COMPLETED))
    async with replicas(agent, url, 3) as (first, second, third):
        asked = await first.send("ask", context_id="talk")
        watcher = await third.subscribe(asked)
        done = await second.send("answer", task_id=asked.id)
        assert (done.status.state, words(done)) == (S.COMPLETED, ["ask", "What next?", "answer"])
        assert (await watcher.rest()).states[-1] is S.COMPLETED
        assert (await first.get(asked)) == done
        with pytest.raises(UnsupportedOperationError):
            await first.send("too late", task_id=asked.id)


async def test_a_task_is_canceled_from_where_it_does_not_run(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED), "ask": (ASKS,)})
    async with replicas(agent, url) as (here, there):
        running = await here.start("slow")
        await gate.reached()
        watcher = await here.subscribe(running)
        assert text_of(await there.cancel(running)) == "Canceled by client"
        assert (await watcher.rest()).states[-1] is S.CANCELED
        assert here.engine.active_tasks == 0
        parked = await here.send("ask")
        assert (await there.cancel(parked)).status.state is S.CANCELED
        for alice in (here, there):
            with pytest.raises(TaskNotCancelableError):
                await alice.cancel(parked)


async def test_a_message_waits_for_a_run_at_another_replica(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, ASKS)}, default=(chunk("done"), COMPLETED))
    async with replicas(agent, url) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        sending = asyncio.create_task(there.send("next", task_id=task.id))
        gate.open()
        done = await soon(sending)
        assert (done.status.state, words(done)) == (S.COMPLETED, ["slow", "What next?", "next"])


async def test_a_message_with_return_immediately_is_queued_where_its_task_runs(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, ASKS)}, default=(chunk("done"), COMPLETED))
    async with replicas(agent, url) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        sent = await there.start("next", task_id=task.id)
        assert sent.status.state is S.WORKING
        gate.open()
        done = await until_shown(there, task, S.COMPLETED)
        assert words(done) == ["slow", "What next?", "next"]


async def test_messages_to_one_task_at_several_replicas_run_one_after_the_other(url: str) -> None:
    agent = ScriptedAgent({"ask": (ASKS,)}, default=(chunk("x"), ASKS))
    async with replicas(agent, url, 3) as users:
        asked = await users[0].send("ask")
        async with asyncio.TaskGroup() as group:
            for number in range(9):
                group.create_task(users[number % 3].send(f"m{number}", task_id=asked.id))
        final = await users[1].get(asked)
        said = [text for text in words(final) if text.startswith("m")]
        assert sorted(said) == [f"m{number}" for number in range(9)]


async def test_a_send_with_the_same_key_returns_the_same_task_at_every_replica(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with replicas(agent, url) as (here, there):
        task = await here.start("slow", key="k")
        await gate.reached()
        again = asyncio.create_task(there.send("slow", key="k"))
        gate.open()
        done = await soon(again)
        assert (done.id, done.status.state) == (task.id, S.COMPLETED)
    assert len(agent.calls) == 1


async def test_a_stream_with_the_same_key_follows_the_task_at_every_replica(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), pause(), gate, COMPLETED)})
    async with replicas(agent, url) as (here, there):
        task = await here.start("slow", key="k")
        await gate.reached()
        again = await there.stream("slow", key="k")
        await again.read()
        assert again.states[-1] is S.WORKING
        gate.open()
        assert (await again.rest()).states[-1] is S.COMPLETED
        ended = await (await there.stream("slow", key="k")).rest()
        assert (ended.task.id, ended.states) == (task.id, [S.COMPLETED])
    assert len(agent.calls) == 1


async def test_a_client_of_0_3_that_comes_back_to_another_replica_keeps_its_task(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), gate, COMPLETED)})
    async with replicas(agent, url, timing=NO_GRACE) as (here, there):
        stream = await User(here.engine, ALICE, V03).stream("slow")
        await gate.reached()
        await stream.until_seq(1)
        back = await User(there.engine, ALICE, V03).subscribe(stream.task)
        stream.stream.close()
        await back.read()
        gate.open()
        assert (await back.rest()).states[-1] is S.COMPLETED


# ---- load ----------------------------------------------------------------------------------------------------------


async def test_a_replica_with_room_runs_a_task_of_a_full_replica(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)}, default=(chunk("x"), COMPLETED))
    async with replica(agent, url, max_active_tasks=1) as full, replica(agent, url, max_active_tasks=1) as free:
        alice = User(full)
        slow = await alice.start("slow")
        await gate.reached()
        done = await alice.send("quick")
        assert (done.status.state, chunks_of(done)) == (S.COMPLETED, ["x"])
        stream = await (await alice.stream("quick")).rest()
        assert stream.states == [S.SUBMITTED, S.WORKING, S.WORKING, S.COMPLETED]
        assert free.active_tasks == 0
        gate.open()
        await until_shown(User(free), slow, S.COMPLETED)


async def test_a_task_waits_while_no_replica_has_room(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)}, default=(chunk("x"), COMPLETED))
    async with replica(agent, url, max_active_tasks=1) as only:
        alice, bob = User(only), User(only, BOB)
        await alice.start("slow")
        await gate.reached()
        waiting = [await alice.start(f"a{number}") for number in range(3)]
        theirs = await bob.start("b0")
        assert {(await alice.get(task)).status.state for task in waiting} == {S.SUBMITTED}
        canceled = await alice.cancel(waiting.pop())
        assert canceled.status.state is S.CANCELED
        gate.open()
        for user, task in ((bob, theirs), *((alice, task) for task in waiting)):
            await until_shown(user, task, S.COMPLETED)
    assert len(agent.calls) == 4  # not the one that was canceled before its turn


# ---- death ---------------------------------------------------------------------------------------------------------


async def kill(engine: Engine) -> None:
    """From now on the store rejects all writes of the replica, as if its process had been killed."""
    store = engine.store
    assert isinstance(store, PostgresStore)
    connection = await asyncpg.connect(shared_server().dsn)
    await connection.execute(
        f"UPDATE {store.address.schema}.replica SET until = now() - interval '1 hour', is_dead = TRUE WHERE name = $1",
        store.replicas.lease.name,
    )
    await connection.close()


async def test_a_repeatable_task_of_a_dead_replica_runs_again_elsewhere_and_its_late_events_are_rejected(
    url: str,
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("half"), gate, chunk("whole"), COMPLETED)}, retry_safe=True)
    async with replica(agent, url, QUICK) as dying:
        task = await User(dying).start("slow")
        await gate.reached()
        async with replica(agent, url, QUICK) as living:
            alice = User(living)
            watcher = await alice.subscribe(task)
            await watcher.read()
            at_the_dead_one = await User(dying).subscribe(task)
            await kill(dying)
            gate.open()  # the dead replica goes on
            await watcher.rest()
            assert watcher.states[-1] is S.COMPLETED
            assert watcher.seqs == sorted(set(watcher.seqs))
            done = await alice.get(task)
            assert chunks_of(done) == ["whole"]
            assert await User(dying).get(task) == done  # it has joined under a new name
            assert (await at_the_dead_one.rest()).states[-1] is S.COMPLETED


async def test_a_task_of_a_dead_replica_that_may_not_be_repeated_fails_as_worker_lost(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with replica(agent, url, QUICK) as dying:
        task = await User(dying).start("slow")
        await gate.reached()
        async with replica(agent, url, QUICK) as living:
            await kill(dying)
            lost = await until_shown(User(living), task, S.FAILED)
            assert text_of(lost).startswith("Worker lost")
            assert metadata_of(lost) == {"type": "WorkerLostError", "code": -32603}
    assert len(agent.calls) == 1


async def test_a_task_of_a_replica_that_does_not_answer_is_canceled_without_it(
    url: str,
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with replica(agent, url, replica=ReplicaTiming(requests_valid=0.5)) as silent:
        task = await User(silent).start("slow")
        await gate.reached()
        await disconnect(User(silent))
        async with replica(agent, url, timing=Timing(peer_cancel=1.0)) as living:
            canceled = await User(living).cancel(task)
            assert canceled.status.state is S.CANCELED
            assert await User(silent).get(task) == canceled  # though the replica was not notified
            gate.open()
            assert (await User(living).get(task)) == canceled


async def test_a_closing_replica_hands_on_repeatable_tasks(url: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, chunk("whole"), COMPLETED)}, retry_safe=True)
    async with replica(agent, url, QUICK) as living:
        async with replica(agent, url, QUICK) as leaving:
            task = await User(leaving).start("slow")
            await gate.reached()
            watcher = await User(living).subscribe(task)
        gate.open()
        assert (await watcher.rest()).states[-1] is S.COMPLETED
    assert len(agent.calls) == 2
