"""Outputs that are no objects: text, bytes, lists, numbers, None.

apcore 0.6.0 hands them over as they are. A newer apcore's pipeline knows objects only: it copies each output with
`dict(…)`, which fails, and makes an empty object of None. So in the pipeline of a `ServedExecutor` such an output
travels as `{"result": …}`, the object that apcore's own `@module` makes of it, and is taken out again at the end.

Rule: middleware sees the object, and may put another in its place. Schemas and callers see the output itself.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import apcore
from pydantic import BaseModel

from apcore_a2a.agents.apcore.blocking import on_thread
from apcore_a2a.agents.threads import Threads

OBJECTS: Final = (dict, Mapping, BaseModel)  # what `dict` can copy; its own first, which is found fastest
# Seen in 0.32.2, and not yet in 0.19.0. The numbers alone, for a version may be "1.0b1".
PIPELINE_TAKES_OBJECTS_ONLY: Final = [int(number) for number in re.findall(r"\d+", apcore.__version__)] >= [0, 32]


class BareOutput(dict[str, Any]):
    """An output on its way through the pipeline."""

    def __init__(self, value: Any) -> None:
        super().__init__(result=value)
        self.value = value


def unwrap(output: Any) -> Any:
    if isinstance(output, BareOutput):
        return output.value
    return output


class ExecuteAny(getattr(apcore, "BuiltinExecute", object)):  # type: ignore[misc]  # apcore is untyped; from 0.19 on
    """apcore's step that runs a module, for any output, and for modules that block."""

    def __init__(self, *, config: Any, threads: Threads) -> None:
        super().__init__(config=config)
        self._threads = threads

    async def execute(self, ctx: Any) -> Any:
        module = ctx.module
        if module is not None and not ctx.stream:
            ctx.module = on_thread(module, ctx.context, self._threads)
        try:
            result = await super().execute(ctx)
        finally:
            ctx.module = module  # what follows asks it for its schemas
        # Only what a module has returned: a stream, which has no output yet, skips the steps up to the last one.
        if result.action == "continue" and not isinstance(ctx.output, OBJECTS):
            ctx.output = BareOutput(ctx.output)
        return result


def takes_objects_only(executor: Any) -> bool:
    """Whether a module that returns anything else fails on this executor."""
    strategy = getattr(executor, "current_strategy", None)
    if strategy is None or not PIPELINE_TAKES_OBJECTS_ONLY:
        return False
    return not any(isinstance(step, ExecuteAny) for step in strategy.steps)


class OutputSchema:
    """The schema of the output of one call; what it is not asked about a `BareOutput` is the schema's own answer."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._is_bare = False

    def model_validate(self, value: Any, **options: Any) -> Any:
        """Compare an output with the schema; not None, which apcore does not compare either."""
        if not isinstance(value, BareOutput):
            return self._compare(value, options)
        self._is_bare = True
        if value.value is None:
            return None
        return self._compare(value.value, options)

    def _compare(self, value: Any, options: dict[str, Any]) -> Any:
        try:
            return self._schema.model_validate(value, **options)
        except apcore.SchemaValidationError as error:
            # Of a schema that is a dict. apcore has one class for those, which calls whatever it refuses an input.
            found = error.details["errors"]
            raise apcore.SchemaValidationError(f"Output validation failed: {found}", errors=found) from error

    def model_json_schema(self, *args: Any, **options: Any) -> Any:
        """What apcore's redaction goes by, after it has compared."""
        if self._is_bare:
            # The schema is of the value, not of the object that the value travels in: it would hide nothing there.
            return {"properties": {"result": {"x-sensitive": True}}}
        return self._schema.model_json_schema(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schema, name)
