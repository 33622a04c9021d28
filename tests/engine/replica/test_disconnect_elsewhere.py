"""A client of 0.3 leaves its stream at one of several replicas. Its task ends, unless it has readers at another."""

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import PushConfig, TaskState
from apcore_a2a.storage.contract import Webhook, webhooks_of
from tests.engine.driving import ALICE, NO_GRACE, V03, User, Watcher, settle, soon, text_of
from tests.engine.replica.scenario import replica, until_shown, watch_of
from tests.fakes import COMPLETED, Gate, ScriptedAgent, chunk
from tests.postgres_server import shared_server

S = TaskState


async def stream_until(gate: Gate, alice: User) -> Watcher:
    """Alice's stream of a task that runs until the gate opens."""
    stream = await alice.stream("slow")
    await gate.reached()
    await stream.until_seq(1)
    return stream


def slow(gate: Gate) -> ScriptedAgent:
    return ScriptedAgent({"slow": (chunk("a"), gate, COMPLETED)})


async def test_a_task_without_readers_at_any_replica_ends_with_its_stream() -> None:
    gate = Gate()
    async with replica(slow(gate), shared_server().url(), timing=NO_GRACE) as engine:
        alice = User(engine, ALICE, V03)
        stream = await stream_until(gate, alice)
        stream.stream.close()
        ended = await until_shown(alice, stream.task, S.CANCELED)
        assert text_of(ended) == "Canceled: the client disconnected"


async def test_a_task_goes_on_for_a_webhook_that_was_set_at_another_replica() -> None:
    gate = Gate()
    agent = slow(gate)
    url = shared_server().url()
    async with replica(agent, url, timing=NO_GRACE) as engine, replica(agent, url, timing=NO_GRACE) as other:
        alice = User(engine, ALICE, V03)
        stream = await stream_until(gate, alice)
        config = PushConfig(id="w", task_id=stream.task.id, url="https://here.example")
        assert await webhooks_of(other.store).save(Webhook(config=config, a2a_version="0.3"), ALICE.owner)
        stream.stream.close()
        await soon(watch_of(alice).answered.wait())
        await settle()
        gate.open()
        await until_shown(alice, stream.task, S.COMPLETED)


async def test_a_task_goes_on_if_the_store_does_not_say_whether_it_is_followed_elsewhere() -> None:
    gate = Gate()

    async def fail() -> None:
        raise StoreUnavailableError

    async with replica(slow(gate), shared_server().url(), timing=NO_GRACE) as engine:
        alice = User(engine, ALICE, V03)
        watch_of(alice).before_answer = fail
        stream = await stream_until(gate, alice)
        stream.stream.close()
        await soon(watch_of(alice).answered.wait())
        gate.open()
        await until_shown(alice, stream.task, S.COMPLETED)


async def test_a_run_that_ends_while_the_store_is_asked_for_followers_is_not_stopped() -> None:
    gate = Gate()
    agent = slow(gate)

    async def end_first() -> None:
        gate.open()
        await until_shown(alice, stream.task, S.COMPLETED)

    async with replica(agent, shared_server().url(), timing=NO_GRACE) as engine:
        alice = User(engine, ALICE, V03)
        watch_of(alice).before_answer = end_first
        stream = await stream_until(gate, alice)
        stream.stream.close()
        await soon(watch_of(alice).answered.wait())
        await settle()
        assert not agent.calls[0].cancel.is_cancelled
