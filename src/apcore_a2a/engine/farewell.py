"""An agent that wants to know is told when a task of its is canceled while it waits for its user.

Rule: what the agent says then is taken; whoever calls this bounds its time, and cancels the task with or without it.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from msgspec import json

from apcore_a2a.agent import Agent, AgentEvent, Call, Caller, CancelToken
from apcore_a2a.engine.agent_output import keep
from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.protocol.lifecycle import TERMINAL, copy
from apcore_a2a.protocol.model import Role, SendMessage

logger = logging.getLogger(__name__)


async def farewell(agent: Agent, live: LiveTask, caller: Caller) -> None:
    """Call the agent's `cancel`, if it has one, and write the events it yields. Never raises."""
    cancel: Callable[[Call], AsyncGenerator[AgentEvent, None]] | None = getattr(agent, "cancel", None)
    said = next((message for message in reversed(live.task.history) if message.role is Role.USER), None)
    if cancel is None or said is None:
        return
    token = CancelToken()
    token.cancel()
    memo = json.decode(live.memo) if live.memo else None
    call = Call(request=SendMessage(message=said), task=copy(live.task), caller=caller, cancel=token, memo=memo)
    call.resumed = True
    try:
        async with aclosing(cancel(call)) as events:
            async for event in events:
                await live.save([keep(event, live.task)])
                if live.state in TERMINAL:
                    return
    except BaseException:  # an agent's code, also when it calls sys.exit: whatever it does, its task is canceled
        logger.exception("agent's cancel failed", extra={"task_id": live.task.id})
