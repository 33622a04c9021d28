"""What a user says next to a task, and how its work begins anew: one write each, or it could stop half-way."""

from msgspec.structs import replace

from apcore_a2a.engine.agent_output import address_message, bare_status, check_event, status_with_text
from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.ids_and_time import utc_now
from apcore_a2a.protocol.model import Message, TaskState, TaskStatus


async def add_message(live: LiveTask, said: Message) -> None:
    """Take the user's next message, with which the task works again."""
    live.begin_save([bare_status(TaskState.WORKING, live.task)], said=address_message(said, live.task))
    await live.flush()


async def refuse_message(live: LiveTask, said: Message, text: str) -> None:
    """Keep a message that is not answered, and say why; the task waits on."""
    working = bare_status(TaskState.WORKING, live.task)
    waiting = check_event(status_with_text(live.state, text), live.task)
    live.begin_save([working, waiting], said=address_message(said, live.task))
    await live.flush()


async def begin_work(live: LiveTask) -> None:
    """The task has waited, and is worked on now."""
    live.begin_save([bare_status(TaskState.WORKING, live.task)])
    await live.flush()


async def start_over(live: LiveTask) -> None:
    """Forget what an earlier attempt has made."""
    working = TaskStatus(state=TaskState.WORKING, timestamp=utc_now())
    await live.write(replace(live.task, artifacts=[], status=working))
