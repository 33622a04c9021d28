"""One call of a module: its inputs from a message, its Context, and the parts of its output.

Invariant: integers stay exact, and those that arrive as floats become integers (`IntegerSchema`). No object is shared
with the stored message, and a value without a JSON form is rejected.
"""

import inspect
import time
from collections.abc import Sequence
from typing import Any, Final

import apcore
import msgspec
from pydantic import BaseModel, TypeAdapter

from apcore_a2a import errors
from apcore_a2a.agent import Call, Caller
from apcore_a2a.agents.apcore.approvals import TOKEN
from apcore_a2a.agents.apcore.modules import ModuleInfo, RunToken
from apcore_a2a.agents.content import media_type_of
from apcore_a2a.agents.input_cost import refuse_collisions
from apcore_a2a.agents.inputs import read_inputs
from apcore_a2a.protocol.model import Part, check_finite, encode

_dump_any: Final = TypeAdapter(Any).dump_python


# ---- inputs ----------------------------------------------------------------------------------------------------------


def to_inputs(parts: tuple[Part, ...], module: ModuleInfo) -> tuple[Any, tuple[Part, ...]]:
    """Return the inputs of a module and the other parts, as `read_inputs` does, without an approval token."""
    inputs, rest = read_inputs(parts, module)
    refuse_collisions(inputs)
    if isinstance(inputs, dict):
        inputs.pop(TOKEN, None)  # a token from a client would approve the call
    return inputs, rest


# ---- outputs ---------------------------------------------------------------------------------------------------------


def copy_output(output: Any) -> Any:
    """Return a deep copy that consists of JSON values and bytes.

    Raises:
        InvalidAgentResponseError: The output has no JSON form.
    """
    try:
        return msgspec.to_builtins(output, str_keys=True, builtin_types=(bytes,), enc_hook=_dump)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.InvalidAgentResponseError("The module's output has no JSON form") from error


def _dump(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    return _dump_any(value, mode="json")


def output_parts(output: Any) -> list[Part]:
    """Return the parts of a copied output: text becomes a text part, bytes become files, the rest is data.

    Raises:
        InvalidAgentResponseError: The output contains NaN or infinity.
    """
    if isinstance(output, str):
        return [Part(text=output)]
    if isinstance(output, bytes):
        return [_file("", output)]
    if not isinstance(output, dict):
        return [_data(output)]
    files: list[Part] = []
    rest: dict[str, Any] = {}
    for name, value in output.items():
        if isinstance(value, bytes):
            files.append(_file(name, value))
        else:
            rest[name] = value
    if files and not rest:
        return files
    return [_data(rest), *files]


def _file(name: str, content: bytes) -> Part:
    return Part(raw=content, filename=name, media_type=media_type_of(content))


def _data(output: Any) -> Part:
    data = msgspec.to_builtins(output)  # nested bytes become base64
    try:
        check_finite(data)
    except ValueError as error:
        text = "The module's output holds NaN or infinity, which JSON cannot represent"
        raise errors.InvalidAgentResponseError(text) from error
    return Part(data=data, media_type="application/json")


# ---- context --------------------------------------------------------------------------------------------------------
# apcore's Context of a call, with the A2A values in `context.data`.
#
# The names below are public interface. docs/modules.md describes their values. apcore reserves "ext." for extensions,
# and passes the data on to the modules that a module calls.
TASK_ID: Final = "ext.a2a.task_id"
CONTEXT_ID: Final = "ext.a2a.context_id"
MESSAGE: Final = "ext.a2a.message"
PARTS: Final = "ext.a2a.parts"
HISTORY: Final = "ext.a2a.history"
DEADLINE: Final = "ext.a2a.deadline"
APPROVAL: Final = "ext.a2a.approval"
SESSION: Final = "ext.a2a.session"

# Until 0.21 the executor is an argument, from 0.22 on the token. Passing the other one is an error.
_PARAMETERS: Final = inspect.signature(apcore.Context.create).parameters


def make_context(call: Call, executor: Any, rest: Sequence[Part] = (), approval: object = None) -> Any:
    """Return a new Context for one call of a module."""
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
        SESSION: call.session or None,
    }
    arguments: dict[str, Any] = {  # Any: apcore is untyped
        "identity": to_identity(call.caller),
        "trace_parent": apcore.TraceContext.extract(dict(call.headers)),
        "executor": executor,
        "cancel_token": token,
        "data": msgspec.json.decode(encode(data)),  # a copy, because modules may change the data
    }
    for name in ("executor", "cancel_token"):
        if name not in _PARAMETERS:
            del arguments[name]
    context = apcore.Context.create(**arguments)
    context.cancel_token = token
    return context


def _to_wall_clock(deadline: float | None) -> float | None:
    """Return a deadline in seconds since 1970, which is valid on other machines."""
    if deadline is None:
        return None
    return time.time() + deadline - time.monotonic()


def to_identity(caller: Caller) -> Any:
    """Return the caller as an Identity of apcore, or None for an anonymous caller."""
    if not caller.is_authenticated:
        return None
    kind = caller.type
    if kind == "system":
        # "@system" in an ACL matches the type, and the type may come from a token. No client is the system.
        kind = "user"
    return apcore.Identity(id=caller.id, type=kind, roles=tuple(caller.roles), attrs=dict(caller.attributes))
