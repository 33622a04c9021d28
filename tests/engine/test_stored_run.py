"""A task whose agent returned at AUTH_REQUIRED is not run again by a restart, whichever way its store writes."""

from apcore_a2a.protocol.model import TaskState
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
