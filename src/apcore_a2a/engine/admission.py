"""Asking an agent whether it takes a message."""

import asyncio
from typing import Final

from apcore_a2a.agent import Admission, Agent, Call

EXITED: Final = "the agent's admit tried to exit"


async def ask_agent(agent: Agent, call: Call) -> Admission:
    """What the agent says of a message; whatever it raises is raised, but an exit, which is an error of its own."""
    try:
        return await agent.admit(call)
    except BaseException as error:
        if _is_exit(error):  # an agent does not end the server, nor the connection
            raise RuntimeError(EXITED) from error
        raise


def _is_exit(error: BaseException) -> bool:
    """Whether an agent raised what would end more than its answer: SystemExit, or a cancellation of its own."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return not isinstance(error, Exception)
