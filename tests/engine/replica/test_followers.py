"""Tasks that another replica runs, as this one shows them: never ahead of the store, and never behind it for long."""

import asyncio

import pytest

from apcore_a2a.agent import Remember
from apcore_a2a.engine.context import ReplicaTiming
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.replica.followers import Followers
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.errors import TaskNotFoundError
from apcore_a2a.protocol.model import TaskState
from tests.engine.driving import User, chunks_of, serving, settle, soon, until, words
from tests.engine.shared_disk import ANYTHING, OWNER, SharedDisk, lose_the_answer
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk

S = TaskState


@pytest.fixture
def disk() -> SharedDisk:
    return SharedDisk()


def followers_of(engine: Engine) -> Followers:
    assert engine.replica is not None
    return engine.replica.followers


# ---- reads ---------------------------------------------------------------------------------------------------------


async def test_a_read_does_not_give_a_run_the_claim_of_the_replica_that_took_its_task_over(disk: SharedDisk) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, chunk("too late"), COMPLETED)})
    async with serving(agent, disk) as engine:
        alice = User(engine)
        task = await alice.start("slow")
        await gate.reached()
        disk.claim(task.id, "other")
        followers_of(engine).authority.lease_renewed(float("-inf"))  # so the task is read from the store
        watcher = await alice.subscribe(task)
        gate.open()
        await until(lambda: engine.active_tasks == 0)
        assert (disk.rows[task.id].state, disk.runners[task.id]) == (S.WORKING, "other")
        await disk.replicas.wakes(disk.write(task, COMPLETED))
        await disk.replicas.wakes()
        await watcher.rest()
        assert chunks_of(await alice.get(task)) == []


async def test_a_task_of_this_replica_that_does_not_run_is_canceled_here(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk) as engine:
        task = disk.put("mine", disk.replicas.name)
        assert (await User(engine).cancel(task)).status.state is S.CANCELED
        assert disk.rows[task.id].epoch == 1  # it asked no other replica, and claimed nothing


async def test_all_followed_tasks_are_read_however_few_the_store_returns_at_once(disk: SharedDisk) -> None:
    disk.replicas.updates_at_once = 1
    async with serving(ScriptedAgent(), disk, replica=ReplicaTiming(read_batch=2)) as engine:
        tasks = [disk.put(f"t{number}", "other") for number in range(5)]
        watchers = [await User(engine).subscribe(task) for task in tasks]
        for task in tasks:
            disk.write(task, COMPLETED)
        await disk.replicas.wakes()
        for watcher in watchers:
            assert (await watcher.rest()).states[-1] is S.COMPLETED


async def test_updates_that_are_older_than_a_read_change_nothing(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk) as engine:
        task = disk.put("theirs", "other")
        watcher = await User(engine).subscribe(task)

        async def read_meanwhile() -> LiveTask:
            disk.write(task, ASKS)
            return await followers_of(engine).load(task.id, OWNER, follow=True)

        live = await followers_of(engine).load(task.id, OWNER, follow=True)
        disk.replicas.meanwhile["read_updates"] = read_meanwhile
        await disk.replicas.wakes()
        assert live.state is S.INPUT_REQUIRED
        assert live.runner.is_none
        watcher.stream.close()


# ---- waiting -------------------------------------------------------------------------------------------------------


async def test_a_message_is_run_here_when_the_other_replica_is_done_with_its_task(disk: SharedDisk) -> None:
    agent = ScriptedAgent()
    async with serving(agent, disk) as engine:
        task = disk.put("theirs", "other")
        sending = asyncio.create_task(User(engine).send("next", task_id=task.id))
        await settle()
        await disk.replicas.wakes(disk.write(task, chunk("x")))
        await settle()
        assert (agent.calls, disk.writes) == ([], 0)
        await disk.replicas.wakes(disk.write(task, ASKS))
        done = await soon(sending)
        assert (done.status.state, words(done)) == (S.COMPLETED, ["slow", "What next?", "next"])


@pytest.mark.parametrize("runner", ["other", ""])
async def test_a_sender_that_waits_for_a_removed_task_gets_task_not_found(disk: SharedDisk, runner: str) -> None:
    async with serving(ScriptedAgent(), disk) as engine:
        task = disk.put("theirs", runner)
        sending = asyncio.create_task(User(engine).send("next", task_id=task.id))
        await settle()
        del disk.rows[task.id]  # it ended, and was removed for lack of room before it was read here
        del disk.runners[task.id]
        await disk.replicas.wakes()
        with pytest.raises(TaskNotFoundError):
            await soon(sending)


async def test_a_waiter_that_times_out_does_not_keep_a_change_from_others(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk) as engine:
        followers = followers_of(engine)
        patient = asyncio.create_task(followers.wait_for_change(60))
        await settle()
        await soon(followers.wait_for_change(0))
        assert not patient.done()
        followers.notify()
        await soon(patient)


# ---- following -----------------------------------------------------------------------------------------------------


async def test_more_events_than_one_read_returns_are_followed_without_another_wake_up(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk) as engine:
        task = disk.put("theirs", "other")
        watcher = await User(engine).subscribe(task)
        disk.replicas.read_at_once = 2
        pieces = [chunk(text, append=text != "a") for text in "abcde"]
        await disk.replicas.wakes(disk.write(task, *pieces, COMPLETED))
        await watcher.rest()
        assert watcher.seqs == [1, 2, 3, 4, 5, 6, 7]
        assert watcher.states[-1] is S.COMPLETED


async def test_a_task_is_not_read_again_for_a_wake_up_that_names_another(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk) as engine:
        task, other = disk.put("theirs", "other"), disk.put("more", "other")
        watcher = await User(engine).subscribe(task)
        await disk.replicas.wakes(disk.write(other, chunk("x")))  # its number is not known yet, so it is read
        disk.replicas.meanwhile["read_updates"] = lose_the_answer
        await disk.replicas.wakes(disk.write(other, chunk("y")))
        assert disk.replicas.meanwhile  # not read
        disk.replicas.meanwhile.clear()
        await disk.replicas.wakes(disk.write(task, COMPLETED))
        assert (await watcher.rest()).states[-1] is S.COMPLETED


async def test_the_stream_of_a_task_that_another_replica_removes_ends(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk) as engine:
        task = disk.put("theirs", "other")
        watcher = await User(engine).subscribe(task)
        await watcher.read()
        assert len(followers_of(engine)) == 1
        del disk.rows[task.id]
        await disk.replicas.wakes()
        assert len(followers_of(engine)) == 0
        assert (await watcher.rest()).seqs == [1]


async def test_updates_that_arrive_when_a_run_has_begun_here_change_nothing(disk: SharedDisk) -> None:
    standing, gate = Gate(), Gate()
    agent = ScriptedAgent({"more": (Remember("mine"), chunk("a"), gate, ASKS)})
    async with serving(agent, disk) as engine:
        alice = User(engine)
        task = disk.put("theirs", "other")
        watcher = await alice.subscribe(task)
        disk.replicas.meanwhile["read_updates"] = standing.wait
        waking = asyncio.create_task(disk.replicas.wakes(disk.write(task, ASKS)))
        await standing.reached()
        await alice.start("more", task_id=task.id)
        await gate.reached()
        await until(lambda: disk.rows[task.id].memo == b'"mine"')
        standing.open()
        await soon(waking)
        disk.replicas.meanwhile["read_updates"] = lose_the_answer
        await disk.replicas.wakes()
        assert disk.replicas.meanwhile  # not read again
        gate.open()
        await until(lambda: disk.rows[task.id].state is S.INPUT_REQUIRED)
        await alice.send("last", task_id=task.id)
        assert agent.calls[-1].memo == "mine"
        await watcher.rest()
        assert watcher.seqs == sorted(set(watcher.seqs))


async def lose_a_run(alice: User, disk: SharedDisk, gate: Gate, task_id: str) -> None:
    """Another replica claims a task that runs here. The next write here is rejected."""
    disk.claim(task_id, "other")
    gate.open()
    await until(lambda: alice.engine.active_tasks == 0)


async def test_events_of_a_run_after_its_task_was_claimed_elsewhere_are_not_shown(
    disk: SharedDisk,
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"more": (gate, chunk("lost"), COMPLETED)})
    async with serving(agent, disk) as engine:
        alice = User(engine)
        task = disk.put("asked", None, S.INPUT_REQUIRED)
        watcher = await alice.subscribe(task)  # from now on it is followed
        await disk.replicas.wakes()
        await alice.start("more", task_id=task.id)
        await gate.reached()
        await lose_a_run(alice, disk, gate, task.id)
        await disk.replicas.wakes(disk.write(task, chunk("kept"), COMPLETED))
        await watcher.rest()
        assert watcher.states[-1] is S.COMPLETED
        last = watcher.entries[-1].event
        assert last == await alice.get(task)
        assert chunks_of(await alice.get(task)) == ["kept"]


async def test_the_stream_of_a_task_that_was_lost_and_removed_ends(disk: SharedDisk) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, chunk("lost"), COMPLETED)})
    async with serving(agent, disk) as engine:
        alice = User(engine)
        watcher = await alice.stream("slow")
        await gate.reached()
        await watcher.read()
        task = watcher.task
        await lose_a_run(alice, disk, gate, task.id)
        del disk.rows[task.id]
        await disk.replicas.wakes(ANYTHING)
        await watcher.rest()
        assert watcher.states[-1] is S.WORKING
