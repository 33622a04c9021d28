"""A message to a task that another replica runs: taken there, run here after all, or refused in bounded time.

The replicas are real and share a real database. A deaf one neither beats nor listens; what happens between two
questions to the database is put there by wrapping one of them.
"""

from collections.abc import Awaitable, Callable

import pytest

from apcore_a2a.agent import Admission, Call
from apcore_a2a.engine import intake
from apcore_a2a.engine import task as task_module
from apcore_a2a.engine.replica import requests
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.errors import OverloadedError, StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Record
from apcore_a2a.storage.postgres.replicas import PostgresReplicas
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.engine.driving import User, until, words
from tests.engine.replica.test_cluster import replica, replicas, until_shown
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent
from tests.postgres_server import shared_server

S = TaskState
TAKEN = ["slow", "What next?", "next"]  # the words of a task that asked, and got its answer


def replicas_of(user: User) -> PostgresReplicas:
    """How this user's replica speaks with the others."""
    store = user.engine.store
    assert isinstance(store, PostgresStore)
    return store.replicas


async def deafen(user: User) -> None:
    """From now on this user's replica neither beats nor listens."""
    cluster = user.engine._cluster
    assert cluster is not None
    await cluster.close()
    assert not len(cluster._background)


def listen_again(user: User) -> None:
    assert user.engine._cluster is not None
    user.engine._cluster.start()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks another replica looks twice for an answer."""
    monkeypatch.setattr(requests, "LOOK_AGAIN", 0.01)
    monkeypatch.setattr(requests, "ANSWER_TIME", 0.02)


class Wrapped:
    """Puts something before or after each errand that a replica posts, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, user: User) -> None:
        self.before: Callable[[], Awaitable[object]] | None = None
        self.after: Callable[[], Awaitable[object]] | None = None
        self.numbers: list[int | None] = []
        self._post = replicas_of(user).mailbox.post
        monkeypatch.setattr(replicas_of(user).mailbox, "post", self)

    async def __call__(self, task_id: str, owner: str, runner: str, body: bytes) -> int | None:
        if self.before is not None:
            await self.before()
        number = await self._post(task_id, owner, runner, body)
        self.numbers.append(number)
        if self.after is not None:
            await self.after()
        return number


def asking(gate: Gate) -> ScriptedAgent:
    return ScriptedAgent({"slow": (gate, ASKS)})


# ---- it is run where it was sent -----------------------------------------------------------------------------------


async def test_a_message_whose_task_comes_to_rest_elsewhere_while_the_agent_looks_at_it_is_run_here() -> None:
    gate = Gate()

    class Slow(ScriptedAgent):
        """Takes its time to admit a message; meanwhile the task comes to rest where it runs."""

        async def admit(self, call: Call) -> Admission:
            if call.message.parts[0].text == "next" and not gate.is_open:
                gate.open()
                await until_shown(here, task, S.INPUT_REQUIRED)
            return await super().admit(call)

    async with replicas(Slow({"slow": (gate, ASKS)}), shared_server().url()) as (here, there):
        await deafen(there)  # so that it learns of the rest when it looks again, and not before
        task = await here.start("slow")
        await gate.reached()
        await there.start("next", task_id=task.id)
        assert words(await until_shown(here, task, S.COMPLETED)) == TAKEN


async def test_a_message_whose_task_comes_to_rest_before_it_is_posted_is_run_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    async with replicas(asking(gate), shared_server().url()) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        posted = Wrapped(monkeypatch, there)

        async def rest() -> None:
            gate.open()
            await until_shown(here, task, S.INPUT_REQUIRED)

        posted.before = rest
        await there.start("next", task_id=task.id)
        assert words(await until_shown(there, task, S.COMPLETED)) == TAKEN
    assert posted.numbers == [None]


async def test_a_sender_who_waits_is_answered_when_another_replica_lets_go_of_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    async with replicas(asking(gate), shared_server().url()) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        follow = replicas_of(there).watch.follow

        async def follow_and_open(task_id: str, owner: str) -> Record | None:
            record = await follow(task_id, owner)
            gate.open()
            return record

        monkeypatch.setattr(replicas_of(there).watch, "follow", follow_and_open)
        done = await there.send("next", task_id=task.id)
        assert (done.status.state, words(done)) == (S.COMPLETED, TAKEN)


# ---- it is refused -------------------------------------------------------------------------------------------------


async def test_a_message_to_a_task_that_waits_for_a_replica_with_room_is_refused_after_a_while(hasty: None) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    url = shared_server().url()
    async with replica(agent, url, max_active_tasks=1) as full, replica(agent, url) as idle:
        await deafen(User(idle))  # it has room, and does not know that somebody wants it
        alice = User(full)
        await alice.start("slow")
        await gate.reached()
        waiting = await alice.start("quick")
        with pytest.raises(OverloadedError, match="waits for a replica with room"):
            await User(idle).start("more", task_id=waiting.id)
        gate.open()
        assert words(await until_shown(alice, waiting, S.COMPLETED)) == ["quick"]


async def test_a_message_to_a_task_that_still_waits_for_a_replica_with_room_is_asked_of_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    url = shared_server().url()
    async with replica(agent, url, max_active_tasks=1) as full, replica(agent, url) as idle:
        await deafen(User(idle))
        await User(full).start("slow")
        await gate.reached()
        waiting = await User(full).start("quick")
        posted = Wrapped(monkeypatch, User(idle))

        async def until_no_longer(live: LiveTask, holds: Callable[[LiveTask], bool], seconds: float) -> bool:
            return holds(live)  # all its time is over, without a timeout, after which Python 3.11 traces no lines

        monkeypatch.setattr(idle._followers, "until", until_no_longer)
        with pytest.raises(OverloadedError, match="waits for a replica with room"):
            await User(idle).start("more", task_id=waiting.id)
        assert posted.numbers == []
        gate.open()
        await until_shown(User(full), waiting, S.COMPLETED)


async def test_whoever_is_refused_where_the_task_runs_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "MAX_QUEUED", 0)
    gate = Gate()
    agent = asking(gate)
    async with replicas(agent, shared_server().url()) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        with pytest.raises(OverloadedError, match="Too many messages wait for this task"):
            await there.start("next", task_id=task.id)
        gate.open()
        await until_shown(there, task, S.INPUT_REQUIRED)
    assert len(agent.calls) == 1


def test_a_refusal_of_another_version_is_a_reason_to_try_again() -> None:
    for answer, text in (("?", requests.NOT_UNDERSTOOD), ('{"kind":"NewError","text":"Not now"}', "Not now")):
        refusal = requests.decode_refusal(answer)
        assert (type(refusal), refusal.message) == (OverloadedError, text)


async def test_a_message_that_nobody_takes_is_taken_back(hasty: None) -> None:
    gate = Gate()
    agent = asking(gate)
    async with replicas(agent, shared_server().url()) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        await deafen(here)
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            await there.start("next", task_id=task.id)
        assert await replicas_of(here).mailbox.take() == []
        gate.open()
        await until_shown(there, task, S.INPUT_REQUIRED)
    assert len(agent.calls) == 1


async def test_a_message_that_was_taken_and_not_answered_may_have_been_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "ANSWER_TIME", 0)
    gate = Gate()
    async with replicas(asking(gate), shared_server().url()) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        await deafen(here)
        posted = Wrapped(monkeypatch, there)
        posted.after = replicas_of(here).mailbox.take  # and then nothing more is heard of it
        with pytest.raises(StoreUnavailableError) as refused:
            await there.start("next", task_id=task.id)
        assert refused.value.message == StoreUnavailableError.text  # not that it was not taken
        assert await replicas_of(there).mailbox.withdraw(posted.numbers[0] or 0) is False


async def test_a_message_is_given_up_when_its_task_goes_from_replica_to_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    agent = asking(gate)
    async with replicas(agent, shared_server().url()) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        tries: list[str] = []

        async def come_too_late(task_id: str, owner: str, runner: str, body: bytes) -> None:
            tries.append(runner)  # the answer is None: it runs there no longer

        monkeypatch.setattr(replicas_of(there).mailbox, "post", come_too_late)
        monkeypatch.setattr(intake, "RACE_PAUSE", 0)
        with pytest.raises(OverloadedError, match="Too many messages to this task at once"):
            await there.start("next", task_id=task.id)
        assert tries == [replicas_of(here).lease.name] * intake.MAX_RACES
        gate.open()
        await until_shown(there, task, S.INPUT_REQUIRED)
    assert len(agent.calls) == 1


# ---- it comes when the run that it was to wait for is over ---------------------------------------------------------


async def test_an_errand_that_comes_when_the_task_rests_is_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    agent = asking(gate)
    async with replicas(agent, shared_server().url()) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        watcher = await here.subscribe(task)
        await deafen(here)
        posted = Wrapped(monkeypatch, there)

        async def rest_and_listen() -> None:
            gate.open()
            await until_shown(here, task, S.INPUT_REQUIRED)
            listen_again(here)

        posted.after = rest_and_listen
        await there.start("next", task_id=task.id)
        assert (await watcher.rest()).states[-1] is S.COMPLETED
        assert words(await there.get(task)) == TAKEN
    assert len(posted.numbers) == 1


async def test_an_errand_that_comes_when_its_replica_has_let_go_of_the_task_is_run_where_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    agent = asking(gate)
    async with replicas(agent, shared_server().url()) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        await deafen(here)
        posted = Wrapped(monkeypatch, there)

        async def let_go_and_listen() -> None:
            gate.open()
            await until(lambda: here.engine.live_tasks == 0)
            listen_again(here)

        posted.after = let_go_and_listen
        await there.start("next", task_id=task.id)
        assert words(await until_shown(there, task, S.COMPLETED)) == TAKEN
    assert len(posted.numbers) == 1


async def test_an_errand_for_a_task_that_was_claimed_from_its_replica_is_run_where_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    agent = asking(gate)
    async with replicas(agent, shared_server().url()) as (here, there):
        task = await here.start("slow")
        await gate.reached()
        watcher = await here.subscribe(task)
        await deafen(here)
        posted = Wrapped(monkeypatch, there)

        async def claim_and_obey() -> None:
            gate.open()
            await until_shown(here, task, S.INPUT_REQUIRED)
            await replicas_of(there).claims.claim(task.id, there.context().owner)
            assert here.engine._cluster is not None
            await here.engine._cluster._take_commands()

        posted.after = claim_and_obey
        await there.start("next", task_id=task.id)
        assert words(await until_shown(there, task, S.COMPLETED)) == TAKEN
        watcher.stream.close()
    assert len(agent.calls) == 2
