"""A client of 0.3 leaves its stream at one of several replicas: its task ends, unless somebody may still watch it."""

import asyncio

import pytest

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import PushConfig, TaskState
from apcore_a2a.storage.contract import Webhook, webhooks_of
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.engine.driving import ALICE, NO_GRACE, V03, User, settle, soon, text_of
from tests.engine.replica.test_cluster import replica, until_shown
from tests.fakes import COMPLETED, Gate, ScriptedAgent, chunk
from tests.postgres_server import shared_server

S = TaskState


async def test_a_task_that_no_replica_watches_ends_with_its_stream() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), gate, COMPLETED)})
    async with replica(agent, shared_server().url(), timing=NO_GRACE) as engine:
        alice = User(engine, ALICE, V03)
        stream = await alice.stream("slow")
        await gate.reached()
        await stream.until_seq(1)
        stream.stream.close()
        ended = await until_shown(alice, stream.task, S.CANCELED)
        assert text_of(ended) == "Canceled: the client disconnected"


async def test_a_task_goes_on_for_the_webhook_that_it_was_given_at_another_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), gate, COMPLETED)})
    url = shared_server().url()
    async with replica(agent, url, timing=NO_GRACE) as engine, replica(agent, url) as other:
        assert isinstance(engine.store, PostgresStore)
        alice = User(engine, ALICE, V03)
        stream = await alice.stream("slow")
        await gate.reached()
        await stream.until_seq(1)
        config = PushConfig(id="w", task_id=stream.task.id, url="https://here.example")
        assert await webhooks_of(other.store).save(Webhook(config=config, a2a_version="0.3"), ALICE.owner)
        look = engine.store.replicas.watch.is_followed_elsewhere
        looked = asyncio.Event()

        async def look_and_tell(task_id: str, owner: str) -> bool:
            found = await look(task_id, owner)
            looked.set()
            return found

        monkeypatch.setattr(engine.store.replicas.watch, "is_followed_elsewhere", look_and_tell)
        stream.stream.close()
        await soon(looked.wait())
        await settle()
        gate.open()
        await until_shown(alice, stream.task, S.COMPLETED)


async def test_a_task_goes_on_when_the_store_cannot_tell_who_watches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), gate, COMPLETED)})
    async with replica(agent, shared_server().url(), timing=NO_GRACE) as engine:
        assert isinstance(engine.store, PostgresStore)
        asked = asyncio.Event()

        async def be_away(task_id: str, owner: str) -> bool:
            asked.set()
            raise StoreUnavailableError

        monkeypatch.setattr(engine.store.replicas.watch, "is_followed_elsewhere", be_away)
        alice = User(engine, ALICE, V03)
        stream = await alice.stream("slow")
        await gate.reached()
        await stream.until_seq(1)
        stream.stream.close()
        await soon(asked.wait())
        gate.open()
        await until_shown(alice, stream.task, S.COMPLETED)


async def test_a_run_that_ends_while_the_store_is_asked_who_watches_it_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), gate, COMPLETED)})
    async with replica(agent, shared_server().url(), timing=NO_GRACE) as engine:
        assert isinstance(engine.store, PostgresStore)
        alice = User(engine, ALICE, V03)
        answered = asyncio.Event()

        async def answer_late(task_id: str, owner: str) -> bool:
            gate.open()
            await until_shown(alice, stream.task, S.COMPLETED)
            answered.set()
            return False

        monkeypatch.setattr(engine.store.replicas.watch, "is_followed_elsewhere", answer_late)
        stream = await alice.stream("slow")
        await gate.reached()
        await stream.until_seq(1)
        stream.stream.close()
        await soon(answered.wait())
        await settle()
        assert not agent.calls[0].cancel.is_cancelled
