"""The executor that serves: made from whatever holds modules, over a view of the registry that costs less."""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import apcore
import msgspec
from pydantic import BaseModel

from apcore_a2a.agents.apcore.approvals import HAS_APPROVALS, AskCaller, Asking, find_asking
from apcore_a2a.agents.apcore.modules import Modules, on_thread
from apcore_a2a.agents.functions.agent import make_threads
from apcore_a2a.agents.schema import Schema
from apcore_a2a.agents.threads import Threads

logger = logging.getLogger(__name__)

# From what users hold (a Registry, an Executor, an APCore client) to `Modules`.
#
# Rule: an Executor is taken as it is, with its limits, its middleware and its speed; a Registry gets one of ours.

WARNINGS: Final = {
    Asking.NOBODY: "executor has no approval handler: callers are asked for approval,"
    " but not about calls that modules make",
    Asking.UNKNOWN: "executor does not tell whether it has an approval handler:"
    " without one it runs what requires approval unasked",
}


def open_modules(source: Any) -> Modules:
    """The modules of an apcore Registry, Executor or APCore client.

    Raises:
        TypeError: `source` is none of these.
        ValueError: it has a module that this executor cannot run.
    """
    if isinstance(source, type):  # a class has the same names, and nothing behind them
        raise _unusable(source)
    executor = getattr(source, "executor", source)  # an APCore client holds one
    if hasattr(executor, "call_async") and hasattr(executor, "registry"):
        # Public on a client and on a ServedExecutor. A plain Executor keeps its configuration to itself.
        config = getattr(source, "config", None)
        modules = Modules(_without_view(executor.registry), executor, config=config)
        _refuse_outputs_that_fail(modules)
        _warn_of_calls_unasked(modules)
        return modules
    if hasattr(source, "get_definition") and hasattr(source, "list"):
        registry = _without_view(source)
        config = getattr(registry, "config", None)  # apcore's Registry has none; a look-alike may
        modules = Modules(registry, ServedExecutor(registry, config=config), config=config)
        _warn_of_calls_unasked(modules)
        return modules
    raise _unusable(source)


def _refuse_outputs_that_fail(modules: Modules) -> None:
    """Refuse a module that cannot end well on this executor, whatever it does."""
    for module in modules:
        kinds = module.output_schema.get("type", "object")
        if kinds == "object" or "object" in kinds or not takes_objects_only(modules.executor):
            continue
        raise ValueError(
            f"Module {module.id} returns {kinds} by its output_schema, but apcore {apcore.__version__} runs no module"
            " that does not return an object: have it return one, or serve the registry or a ServedExecutor instead"
        )


def _warn_of_calls_unasked(modules: Modules) -> None:
    """Say it where a module that requires approval may be run without anybody's."""
    guarded = [module.id for module in modules if module.requires_approval]
    if not guarded:
        return
    asking = find_asking(modules.executor)
    if asking is not Asking.HANDLER:
        logger.warning(WARNINGS[asking], extra={"modules": ", ".join(guarded)})


def _without_view(registry: Any) -> Any:
    """The registry itself. A view makes new objects with each `get`, and `Modules` knows a module by being the same."""
    if isinstance(registry, RegistryView):
        return registry.registry
    return registry


def _unusable(source: object) -> TypeError:
    return TypeError(f"An apcore Registry, Executor or APCore client is needed, not {type(source).__name__}")


# ---- the executor ---------------------------------------------------------------------------------------------------
# The executor of a registry that is served: apcore's own, made the way a server needs it.
#
# Six things are different from a plain `apcore.Executor(registry)`, and all are said with public means:
#
# - schemas are remembered, which makes a call several times as fast (see `registry_view`);
# - there are no time limits that nobody chose: how long a task may take is the engine's to say;
# - a module may return anything that JSON can say, not objects only (see `NonDictOutput`);
# - modules that block have threads of their own, and those that never return are counted (see `blocking`);
# - what requires approval is asked of the caller. Without a handler apcore would run it, and write a warning;
# - it tells its ACL and its approval handler, which apcore's does only from 0.32 on.

DEFAULT_TIMEOUT: Final = "executor.default_timeout"
GLOBAL_TIMEOUT: Final = "executor.global_timeout"
APCORES_LIMITS: Final = {DEFAULT_TIMEOUT: 30_000, GLOBAL_TIMEOUT: 60_000}  # its defaults, in ms

# 0 is no limit, and also lets a canceled run cancel its module, which apcore otherwise leaves running. Where that does
# not work, the limit is eleven days: before apcore had a pipeline, it logged a warning with every call without a limit.
NO_LIMIT: Final = 0
FOREVER: Final = 10**9
HAS_PIPELINE: Final = hasattr(apcore.Executor, "current_strategy")
HAS_EXECUTE_STEP: Final = hasattr(apcore, "BuiltinExecute")  # from 0.19 on


class ServedExecutor(apcore.Executor):  # type: ignore[misc]  # apcore is untyped
    """An `apcore.Executor` for serving; `serve(registry)` makes one of these.

    Args:
        registry: An apcore Registry.
        config: apcore's configuration. A registry does not tell its own, so it is given here.
        acl: Who may call what; else the ACL that the configuration names, if it names one.
        approval_handler: Who is asked before a module that requires approval is run; else whoever sent the message.
        options: All other arguments of `apcore.Executor`.

    Example:
        >>> executor = ServedExecutor(apcore.Registry(), acl=apcore.ACL(rules=[], default_effect="deny"))
        >>> executor.acl.check(None, "any.module")
        False
    """

    def __init__(
        self,
        registry: Any,  # Any: apcore is untyped
        *,
        config: Any = None,
        acl: Any = None,
        approval_handler: Any = None,
        **options: Any,
    ) -> None:
        if acl is None and config is not None and hasattr(apcore.ACL, "discover"):
            acl = apcore.ACL.discover(config)
        if HAS_APPROVALS:
            approval_handler = approval_handler or AskCaller()
            options["approval_handler"] = approval_handler
        limits = ConfigWithoutLimits(config)
        super().__init__(RegistryView(registry), config=limits, acl=acl, **options)
        self.config = config
        self.acl = acl
        self.threads = make_threads()
        self.approval_handler = approval_handler
        # A pipeline that somebody put together is left as it is: its steps are not ours to change.
        if HAS_EXECUTE_STEP and "strategy" not in options and not limits.get("pipeline"):
            self._replace_execute_step(limits)

    async def call_async(self, *args: Any, **options: Any) -> Any:
        return unwrap(await super().call_async(*args, **options))

    def set_acl(self, acl: Any) -> None:
        super().set_acl(acl)
        self.acl = acl

    def set_approval_handler(self, handler: Any) -> None:
        super().set_approval_handler(handler)
        self.approval_handler = handler

    def _replace_execute_step(self, limits: "ConfigWithoutLimits") -> None:
        """Have modules return what they like, and run without a limit, not with one that is far away: see NO_LIMIT.

        The configuration cannot say the latter. From the same number the executor takes how long its synchronous `call`
        waits in an event loop, and with 0 that would be one second.
        """
        config: Any = limits
        if limits.get(DEFAULT_TIMEOUT) == FOREVER:
            config = apcore.Config({"executor": {"default_timeout": 0}})
        self.current_strategy.replace("execute", ExecuteAny(config=config, threads=self.threads))


class ConfigWithoutLimits:
    """A configuration, but for the time limits that nobody chose. One that differs from apcore's default was chosen."""

    def __init__(self, config: Any) -> None:  # Any: apcore is untyped
        self._config = config

    def get(self, key: str, default: Any = None) -> Any:
        value = default
        if self._config is not None:
            value = self._config.get(key, default)
        if key in APCORES_LIMITS and value in (None, APCORES_LIMITS[key]):
            return NO_LIMIT if key == GLOBAL_TIMEOUT and HAS_PIPELINE else FOREVER
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


# ---- outputs that are no dict ---------------------------------------------------------------------------------------
# Outputs that are no objects: text, bytes, lists, numbers, None.
#
# apcore 0.6.0 hands them over as they are. A newer apcore's pipeline knows objects only: it copies each output with
# `dict(…)`, which fails, and makes an empty object of None. So in the pipeline of a `ServedExecutor` such an output
# travels as `{"result": …}`, the object that apcore's own `@module` makes of it, and is taken out again at the end.
#
# Rule: middleware sees the object, and may put another in its place. Schemas and callers see the output itself.

OBJECTS: Final = (dict, Mapping, BaseModel)  # what `dict` can copy; its own first, which is found fastest
# Seen in 0.32.2, and not yet in 0.19.0. The numbers alone, for a version may be "1.0b1".
PIPELINE_TAKES_OBJECTS_ONLY: Final = [int(number) for number in re.findall(r"\d+", apcore.__version__)] >= [0, 32]


class NonDictOutput(dict[str, Any]):
    """An output on its way through the pipeline."""

    def __init__(self, value: Any) -> None:
        super().__init__(result=value)
        self.value = value


def unwrap(output: Any) -> Any:
    if isinstance(output, NonDictOutput):
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
            ctx.output = NonDictOutput(ctx.output)
        return result


def takes_objects_only(executor: Any) -> bool:
    """Whether a module that returns anything else fails on this executor."""
    strategy = getattr(executor, "current_strategy", None)
    if strategy is None or not PIPELINE_TAKES_OBJECTS_ONLY:
        return False
    return not any(isinstance(step, ExecuteAny) for step in strategy.steps)


class OutputSchema:
    """The schema of the output of one call; what it is not asked about a `NonDictOutput` is the schema's own answer."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._is_bare = False

    def model_validate(self, value: Any, **options: Any) -> Any:
        """Compare an output with the schema; not None, which apcore does not compare either."""
        if not isinstance(value, NonDictOutput):
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


# ---- the registry, seen by the executor -----------------------------------------------------------------------------
# A registry whose modules remember their JSON Schemas, for an `apcore.Executor` that is to be fast.
#
# With every call apcore asks the pydantic models of a module for their JSON Schema: three times for the call, twice
# more for a dry run, each time to know what to redact. pydantic makes the schema anew whenever it is asked, in about
# 190 µs; from memory the answer takes 1.2 µs. That is most of what a call costs:
#
#     `apcore.Executor(RegistryView(registry), acl=acl)`
#
# The view stands between the executor and the registry. It answers `get` with a view of the module, whose schemas are
# views of its models, and the view of a model remembers what the model said. Everything else that is asked goes on to
# the registry, the module or the model.
#
# Rule: nothing of the user's is changed, and nothing is decided for apcore. Every check and every redaction is its own;
# it only gets its answers faster.

# What each model answered, as JSON: whoever asks may change the answer, so each gets one of their own. None stands for
# an answer that JSON cannot hold. The keys are weak, so a module that was reloaded does not leave its old models here.
Answers = WeakKeyDictionary[type[BaseModel], bytes | None]

_ENCODER: Final = msgspec.json.Encoder(enc_hook=repr)
_DECODER: Final = msgspec.json.Decoder()


class RegistryView:
    """A registry, but for `get`, which answers with views of the modules.

    Example:
        >>> import apcore
        >>> registry = apcore.Registry()
        >>> executor = apcore.Executor(RegistryView(registry))
        >>> executor.registry.registry is registry
        True
    """

    def __init__(self, registry: Any) -> None:  # Any: apcore is untyped
        self.registry = registry
        self._answers: Answers = WeakKeyDictionary()

    def get(self, module_id: str, *args: Any, **options: Any) -> Any:
        """The module as the executor is to see it, or None. Asked anew each time: a replaced module is seen at once."""
        module = self.registry.get(module_id, *args, **options)
        if module is None:
            return None
        # apcore asks `isinstance(module, StreamingModule)`, and from Python 3.12 on that looks past `__getattr__`: a
        # module that streams needs a view whose class has the method, any other module one whose class has not.
        if getattr(module, "stream", None) is None:
            return ModuleView(module, self._answers)
        return StreamingModuleView(module, self._answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.registry, name)


class ModuleView:
    """A module, but for its schemas, which remember what they said."""

    def __init__(self, module: Any, answers: Answers) -> None:
        self._module = module
        self.input_schema = _remembering(getattr(module, "input_schema", None), answers)
        self.output_schema = _remembering(getattr(module, "output_schema", None), answers)
        if hasattr(self.output_schema, "model_validate"):
            self.output_schema = OutputSchema(self.output_schema)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class StreamingModuleView(ModuleView):
    """A module that streams."""

    @property
    def stream(self) -> Any:
        return self._module.stream


class SchemaView:
    """A pydantic model that is asked for its JSON Schema once."""

    def __init__(self, model: type[BaseModel], answers: Answers) -> None:
        self._model = model
        self._answers = answers

    def model_json_schema(self, *args: Any, **options: Any) -> Schema:
        """The model's JSON Schema, an object that is the caller's own."""
        if args or options:  # another question, such as `by_alias=False`; apcore does not ask it
            return self._model.model_json_schema(*args, **options)
        answer = self._answers.get(self._model)
        if answer is not None:
            remembered: Schema = _DECODER.decode(answer)
            return remembered
        schema = self._model.model_json_schema()
        if self._model not in self._answers:
            self._answers[self._model] = _to_json(schema)
        return schema

    def __call__(self, *args: Any, **fields: Any) -> Any:
        return self._model(*args, **fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _remembering(schema: Any, answers: Answers) -> Any:
    """A view of the schema, if it is a model whose answer is the same each time."""
    if not isinstance(schema, type) or not issubclass(schema, BaseModel):
        return schema
    # A model that overrides `model_json_schema` may answer differently tomorrow.
    if getattr(schema.model_json_schema, "__func__", None) is not _PYDANTICS_OWN:
        return schema
    return SchemaView(schema, answers)


_PYDANTICS_OWN: Final = BaseModel.model_json_schema.__func__  # type: ignore[attr-defined]  # of a bound method


def _to_json(schema: Schema) -> bytes | None:
    """The schema as JSON; None if it does not come back as it was, for `json_schema_extra` may put anything into it."""
    try:
        encoded = _ENCODER.encode(schema)
    except ValueError:  # half of a surrogate pair, say
        return None
    if _DECODER.decode(encoded) != schema:
        return None
    return encoded
