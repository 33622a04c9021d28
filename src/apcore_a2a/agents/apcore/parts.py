"""Parts of a message into the inputs of a module, and its output into parts of an artifact.

Rule: values cross as they are: integers exact, those that came as floats included (`integers`); nothing is shared with
what is stored, and what JSON cannot say is refused.
"""

from typing import Any, Final

import msgspec
from pydantic import BaseModel, TypeAdapter

from apcore_a2a import errors
from apcore_a2a.agents.apcore.approvals import TOKEN
from apcore_a2a.agents.apcore.modules import ModuleInfo
from apcore_a2a.agents.content import media_type_of
from apcore_a2a.agents.inputs import read_inputs
from apcore_a2a.protocol.model import Part, check_finite

_dump_any: Final = TypeAdapter(Any).dump_python


# ---- inputs ----------------------------------------------------------------------------------------------------------


def to_inputs(parts: tuple[Part, ...], module: ModuleInfo) -> tuple[Any, tuple[Part, ...]]:
    """The inputs of a module, as `read_inputs` reads those of any skill; and the parts that are left."""
    inputs, rest = read_inputs(parts, module)
    if isinstance(inputs, dict):
        inputs.pop(TOKEN, None)  # a client that sends one has not been approved
    return inputs, rest


# ---- outputs ---------------------------------------------------------------------------------------------------------


def copy_output(output: Any) -> Any:
    """A copy made of JSON values and bytes, shared with nobody.

    Raises:
        InvalidAgentResponseError: JSON has no form for it.
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
    """The parts of an artifact, from what `copy_output` made: text stays text, bytes become files, the rest is data.

    Raises:
        InvalidAgentResponseError: it holds NaN or infinity.
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
    data = msgspec.to_builtins(output)  # bytes further inside become base64
    try:
        check_finite(data)
    except ValueError as error:
        text = "The module's output holds NaN or infinity, which JSON has not"
        raise errors.InvalidAgentResponseError(text) from error
    return Part(data=data, media_type="application/json")
