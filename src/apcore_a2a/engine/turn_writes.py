"""Writes to a live task around its runs: the message queue, the stored run, and the first event of a turn.

Invariant: each is one write, so it is stored completely or not at all.
"""

import asyncio

from msgspec.structs import replace

from apcore_a2a.engine.agent_output import address_message, bare_status, check_event, status_with_text
from apcore_a2a.engine.stored_run import ANY_RUNNER, QueuedMessage
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.errors import A2AError, StoreUnavailableError
from apcore_a2a.ids_and_time import utc_now
from apcore_a2a.protocol.model import Message, Task, TaskState, TaskStatus

# ---- the stored run and the message queue ---------------------------------------------------------------------------
#
# Invariant: what `enqueue`, `clear_run` and `hand_on` change is stored when they return. If they raise, nothing has
# changed.


async def enqueue(live: LiveTask, queued: QueuedMessage) -> None:
    """Store a message in the queue of the task until its turn comes.

    Raises:
        StoreUnavailableError: the message is not stored, and not in the queue.
    """
    saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    live.queue.saves[queued.message_id] = saved
    live.queue.add(queued)
    live.queue_changed()
    try:
        await live.save_run()
    except A2AError:
        live.queue.remove(queued)
        live.queue_changed()
        raise
    finally:
        live.queue.saves.pop(queued.message_id, None)
        saved.set_result(None)


async def until_queued(live: LiveTask, message_id: str) -> None:
    """Wait until a message that is in the queue is also stored, so that its copy can be acknowledged.

    Raises:
        StoreUnavailableError: it could not be stored.
    """
    saved = live.queue.saves.get(message_id)
    if saved is None:
        return
    await asyncio.shield(saved)  # the first copy waits for the same future
    if message_id not in live.queue and all(said.message_id != message_id for said in live.task.history):
        raise StoreUnavailableError


def is_settled(live: LiveTask, queued: QueuedMessage | None) -> bool:
    """Return whether a queued message needs no run: it was rejected, or a write that seemed to fail has stored it."""
    if queued is None:
        return False
    message_id = queued.message_id
    return message_id not in live.queue or any(said.message_id == message_id for said in live.task.history)


async def remove_settled(live: LiveTask, queued: QueuedMessage | None) -> None:
    """Remove a settled message that is still in the queue, as the copy of a message that its client sent twice.

    Otherwise its task would keep its runner, and other replicas would wait for a run that does not come.
    """
    if queued is None or queued.message_id not in live.queue:
        return
    removed = live.queue.remove_all(queued.message_id)
    live.queue_changed()
    try:
        await live.save_run()
    except A2AError:
        live.queue.put_back(removed)
        live.queue_changed()
        raise


async def clear_run(live: LiveTask) -> None:
    """Remove the stored run of a task that has not ended, so that a restart does not run it again."""
    run = live.stored_run
    live.set_run(None)
    try:
        await live.save_run()
    except A2AError:
        live.set_run(run)
        raise


def may_hand_on(live: LiveTask) -> bool:
    """Return whether another replica may run the task again from the start."""
    run = live.stored_run
    return live.is_shared and run is not None and run.may_run_again()


async def hand_on(live: LiveTask) -> None:
    """Store the run and the queue for any replica to continue. This replica writes nothing more."""
    await live.save_run(hand_on=True)
    live.runner = ANY_RUNNER


# ---- the next message -----------------------------------------------------------------------------------------------


async def add_message(live: LiveTask, said: Message) -> None:
    """Add the user's next message to the task, and set the task to WORKING."""
    live.begin_save([bare_status(TaskState.WORKING, live.task)], said=address_message(said, live.task))
    await live.flush()


async def reject_message(live: LiveTask, said: Message, text: str) -> None:
    """Add a rejected message to the history, with a status message that says why. The task keeps its state."""
    working = bare_status(TaskState.WORKING, live.task)
    waiting = check_event(status_with_text(live.state, text), live.task)
    live.begin_save([working, waiting], said=address_message(said, live.task))
    await live.flush()


async def begin_work(live: LiveTask) -> None:
    """Set a task that waited for a replica to WORKING."""
    live.begin_save([bare_status(TaskState.WORKING, live.task)])
    await live.flush()


async def start_over(live: LiveTask, begun: Task) -> None:
    """Set the task to WORKING again, as it was when the turn began that an earlier attempt did not finish."""
    working = TaskStatus(state=TaskState.WORKING, timestamp=utc_now())
    await live.write(replace(begun, status=working))
