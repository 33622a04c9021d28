"""The log of tasks: one line, at info, for each that has come to rest. Rule: ids, names, states and times; no contents.

What a client chose stands in a line only cleaned: whatever formatter writes it, it begins no line of its own.
"""

import logging
from typing import Final

from apcore_a2a.agent import ANONYMOUS, Call, Caller
from apcore_a2a.clean_text import clean_line
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Task, TaskState

logger = logging.getLogger(__name__)

MAX_NAME: Final = 64  # characters of a skill or a caller
_NAMES: Final = {state: state.removeprefix("TASK_STATE_").lower() for state in TaskState}


def is_wanted() -> bool:
    """Whether anybody reads it; asked first, because most of the cost of a line is to put it together."""
    return logger.isEnabledFor(logging.INFO)


def log_rest(call: Call, task: Task, seconds: float) -> None:
    """A run has ended, and its task with it, unless that waits for somebody."""
    fields = _fields(task, call.caller)
    fields["skill"] = _clean(_skill_of(call))
    fields["seconds"] = round(seconds, 4)
    if task.status.state in TERMINAL:
        logger.info("task ended", extra=fields)
    else:
        logger.info("task waits", extra=fields)


def log_reply(call: Call, seconds: float) -> None:
    """An agent has answered with a message, and there is no task."""
    fields = {"skill": _clean(_skill_of(call)), "caller": name_of(call.caller), "seconds": round(seconds, 4)}
    logger.info("message answered", extra=fields)


def log_end(task: Task, caller: Caller) -> None:
    """A task that nobody ran has ended: one that waited, and was canceled."""
    logger.info("task ended", extra=_fields(task, caller))


def log_recovered(task: Task, outcome: str) -> None:
    """What became of a task that a dead process had left."""
    logger.info("task recovered", extra={"task_id": task.id, "outcome": outcome})


def _fields(task: Task, caller: Caller) -> dict[str, object]:
    fields: dict[str, object] = {
        "task_id": task.id,
        "state": _NAMES[task.status.state],
        "caller": name_of(caller),
    }
    if task.status.state is TaskState.FAILED and task.status.message is not None:
        # What a client was told instead of the exception, under which the log has it.
        metadata = task.status.message.metadata or {}
        for name in ("type", "reference"):
            if name in metadata:
                fields[name] = _clean(str(metadata[name]))
    return fields


def _skill_of(call: Call) -> str:
    """The skill that the agent chose, or else that the client asked for."""
    if call.skill:
        return call.skill
    for metadata in (call.message.metadata, call.request.metadata):
        skill = (metadata or {}).get("skillId")
        if isinstance(skill, str):
            return skill
    return ""


def name_of(caller: Caller) -> str:
    """Who called, fit for a log."""
    if not caller.is_authenticated:
        return ANONYMOUS
    return _clean(caller.id)


def _clean(name: str) -> str:
    # Nearly all names are plain: to see that costs a tenth of cleaning them.
    if name.isascii() and name.isprintable() and len(name) <= MAX_NAME:
        return name
    return clean_line(name, MAX_NAME)
