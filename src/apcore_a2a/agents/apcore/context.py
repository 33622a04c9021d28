"""What a module learns about the message it serves: apcore's Context, with A2A's share of it in `context.data`.

Rule: the names below are part of our interface; docs/modules.md says what each one holds.
"""

import inspect
import time
from collections.abc import Sequence
from typing import Any, Final

import apcore
import msgspec

from apcore_a2a.agent import Call, Caller
from apcore_a2a.agents.apcore.blocking import RunToken
from apcore_a2a.protocol.model import Part, encode

# apcore keeps "ext." free for those who extend it, and hands the data on to the modules that a module calls.
TASK_ID: Final = "ext.a2a.task_id"
CONTEXT_ID: Final = "ext.a2a.context_id"
MESSAGE: Final = "ext.a2a.message"
PARTS: Final = "ext.a2a.parts"
HISTORY: Final = "ext.a2a.history"
DEADLINE: Final = "ext.a2a.deadline"
APPROVAL: Final = "ext.a2a.approval"

# Until 0.21 the executor is an argument, from 0.22 on the token is; giving the other one is an error.
_PARAMETERS: Final = inspect.signature(apcore.Context.create).parameters


def make_context(call: Call, executor: Any, rest: Sequence[Part] = (), approval: object = None) -> Any:
    """A new Context for one call of a module."""
    token = RunToken.of_run(call.cancel)
    call.cancel.on_cancel(token.cancel)
    data = {
        TASK_ID: call.task.id,
        CONTEXT_ID: call.task.context_id,
        MESSAGE: call.message,
        PARTS: rest,
        HISTORY: call.history,
        DEADLINE: _to_wall_clock(call.deadline),
        APPROVAL: approval,
    }
    arguments: dict[str, Any] = {  # Any: apcore is untyped
        "identity": to_identity(call.caller),
        "trace_parent": apcore.TraceContext.extract(dict(call.headers)),
        "executor": executor,
        "cancel_token": token,
        "data": msgspec.json.decode(encode(data)),  # shared with nobody: modules may change what they find
    }
    for name in ("executor", "cancel_token"):
        if name not in _PARAMETERS:
            del arguments[name]
    context = apcore.Context.create(**arguments)
    context.cancel_token = token
    return context


def _to_wall_clock(deadline: float | None) -> float | None:
    """A deadline in seconds since 1970, which a module can pass on to another machine."""
    if deadline is None:
        return None
    return time.time() + deadline - time.monotonic()


def to_identity(caller: Caller) -> Any:
    """The caller as apcore knows them; None for one who has no name."""
    if not caller.is_authenticated:
        return None
    kind = caller.type
    if kind == "system":
        # An ACL's "@system" matches the type, and the type may come out of a token: nobody outside is the system.
        kind = "user"
    return apcore.Identity(id=caller.id, type=kind, roles=tuple(caller.roles), attrs=dict(caller.attributes))
