"""What is stored of a task's run and of the messages that wait for it, while it goes on: queued, taken, cleared, left.

Rule: it is done when a restart would find it, or it has not happened.
"""

from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.engine.stored_run import QueuedMessage
from apcore_a2a.errors import A2AError


async def enqueue(live: LiveTask, queued: QueuedMessage) -> None:
    """Keep a message until its turn comes.

    Raises:
        StoreUnavailableError: it could not be stored, and is not kept.
    """
    live.kept.set_queue((*live.kept.queue, queued))
    try:
        await live.save_run()
    except A2AError:
        dequeue(live, queued)
        raise


def dequeue(live: LiveTask, queued: QueuedMessage) -> None:
    """Its turn has come: the run that it begins is stored in its place."""
    live.kept.set_queue(tuple(other for other in live.kept.queue if other is not queued))


def is_settled(live: LiveTask, queued: QueuedMessage | None) -> bool:
    """Whether a message that waited was refused with its task, or is in it already (the store only seemed to fail)."""
    if queued is None:
        return False
    message_id = queued.request.message.message_id
    return queued not in live.kept.queue or any(said.message_id == message_id for said in live.task.history)


async def clear_run(live: LiveTask) -> None:
    """Nothing is run any more, though the task has not ended."""
    run = live.kept.run
    live.kept.set_run(None)
    try:
        await live.save_run()
    except A2AError:
        live.kept.set_run(run)
        raise


def may_hand_on(live: LiveTask) -> bool:
    """Whether another replica may run the task again from the start."""
    run = live.kept.run
    return live.is_shared and run is not None and run.may_run_again()


async def hand_on(live: LiveTask) -> None:
    """Leave the run, and what waits for it, to any replica; nothing more is written here."""
    await live.save_run(hand_on=True)
    live.runner = ""
