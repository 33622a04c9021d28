"""New tasks that this replica has no room for: stored for whichever replica has, and followed for their senders."""

from typing import Final, NamedTuple

from apcore_a2a.agent import Call
from apcore_a2a.engine.followers import Followers
from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.engine.stored_run import StoredRun
from apcore_a2a.errors import OverloadedError

MAX_QUEUED_TASKS: Final = 10_000  # that wait for a replica with room


class Elsewhere(NamedTuple):
    """A task that another replica runs, or is to run; it is held for whoever gets this, and who has to release it."""

    live: LiveTask
    earlier: str | None
    """The id of a task that was made with the same key, if there is one: then there is no new one."""


async def queue_task(followers: Followers, live: LiveTask, call: Call, *, key: str, retry_safe: bool) -> Elsewhere:
    """Store a new task, which nobody holds yet, for whichever replica has room first.

    Raises:
        OverloadedError: too many wait already.
    """
    live.hold()
    try:
        if await followers.replicas.count_queued(MAX_QUEUED_TASKS) >= MAX_QUEUED_TASKS:
            raise OverloadedError("The agents are at their limit of waiting tasks; try again later", retry_after=5)
        live.kept.set_run(StoredRun(request=call.request, caller=call.caller, retry_safe=retry_safe, attempt=0))
        earlier = await live.create(key=key, hand_on=True)
        live.runner = ""
        if earlier is None:
            followers.watch(live)  # the store has noted the interest with the task
    except BaseException:
        live.release()
        raise
    return Elsewhere(live, earlier)
