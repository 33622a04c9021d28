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
from apcore_a2a.protocol.model import Part, encode

TASK_ID: Final = "ext.a2a.task_id"
CONTEXT_ID: Final = "ext.a2a.context_id"
MESSAGE: Final = "ext.a2a.message"
PARTS: Final = "ext.a2a.parts"
HISTORY: Final = "ext.a2a.history"
DEADLINE: Final = "ext.a2a.deadline"
APPROVAL: Final = "ext.a2a.approval"

_CREATE: Final = inspect.signature(apcore.Context.create).parameters  # until 0.21 the executor, from 0.22 on the token


def make_context(call: Call, executor: Any, rest: Sequence[Part] = (), approval: object = None) -> Any:
    """A new Context for one call of a module."""
    token = apcore.CancelToken()
    call.cancel.on_cancel(token.cancel)
    data = {
        TASK_ID: call.task.id,
        CONTEXT_ID: call.task.context_id,
        MESSAGE: call.message,
        PARTS: rest,
        HISTORY: call.history,
        DEADLINE: None if call.deadline is None else time.time() + call.deadline - time.monotonic(),
        APPROVAL: approval,
    }
    given = {
        "identity": _identity(call.caller),
        "trace_parent": apcore.TraceContext.extract(dict(call.headers)),
        "cancel_token": token,
        "executor": executor,
        "data": msgspec.json.decode(encode(data)),  # shared with nobody: modules may change what they find
    }
    context = apcore.Context.create(**{name: value for name, value in given.items() if name in _CREATE})
    context.cancel_token = token
    return context


def _identity(caller: Caller) -> Any:
    if not caller.is_authenticated:
        return None
    # An ACL's "@system" matches the type, and the type may come out of a token: nobody outside is the system.
    kind = "user" if caller.type == "system" else caller.type
    return apcore.Identity(id=caller.id, type=kind, roles=tuple(caller.roles), attrs=dict(caller.attributes))
