"""A task whose agent returned at AUTH_REQUIRED is not run again by a restart, whichever way its store writes."""

from apcore_a2a.engine.stored_run import StoredRun
from apcore_a2a.protocol.model import Message, Part, Role, SendMessage, TaskState
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import User, serving, until
from tests.fakes import ScriptedAgent, status


class WritesAtOnce(InMemoryTaskStore):
    """A store that outlives its process and is done with a write when it returns."""

    durable = True


async def test_a_store_that_writes_at_once_forgets_the_run_of_a_parked_task() -> None:
    store = WritesAtOnce()
    async with serving(ScriptedAgent(default=(status(TaskState.AUTH_REQUIRED),)), store) as engine:
        alice = User(engine)
        task = await alice.send("go")
        await until(lambda: engine.active_tasks == 0)
        record = await store.load(task.id, alice.caller.owner)
    assert record is not None
    assert (record.state, record.run) == (TaskState.AUTH_REQUIRED, b"")


def test_what_waits_for_a_replica_is_begun_and_what_may_not_be_repeated_is_not() -> None:
    request = SendMessage(message=Message(message_id="m", role=Role.USER, parts=(Part(text="go"),)))
    assert StoredRun(request=request, attempt=0).may_run_again()
    assert StoredRun(request=request, retry_safe=True).may_run_again()
    assert not StoredRun(request=request).may_run_again()
    assert not StoredRun(retry_safe=True).may_run_again()
