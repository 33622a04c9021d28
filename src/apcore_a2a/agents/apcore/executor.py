"""`open_modules`, which accepts a Registry, an Executor or an APCore client, and `ServedExecutor`.

Invariant: an Executor is used as it is, with its limits and its middleware. A Registry gets a `ServedExecutor`.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import apcore
import msgspec
from pydantic import BaseModel

from apcore_a2a.agents.apcore.approvals import HAS_APPROVALS, Approver, AskCaller, find_approver
from apcore_a2a.agents.apcore.modules import CheckedInputs, Modules, is_apcores_adapter, on_thread
from apcore_a2a.agents.schema import Schema
from apcore_a2a.agents.threads import Threads

logger = logging.getLogger(__name__)


WARNINGS: Final = {
    Approver.NONE: "executor has no approval handler: callers are asked for approval,"
    " but not about calls that modules make",
    Approver.UNKNOWN: "executor does not expose its approval handler:"
    " if it has none, modules that require approval run without one",
}


def open_modules(source: Any) -> Modules:
    """Return the modules of an apcore Registry, Executor or APCore client.

    Raises:
        TypeError: `source` is none of these.
        ValueError: This executor cannot run one of the modules.
    """
    if isinstance(source, type):  # a class has the same attributes, but no state
        raise _unusable(source)
    executor = getattr(source, "executor", source)  # an APCore client holds one
    if hasattr(executor, "call_async") and hasattr(executor, "registry"):
        # Public on a client and on a ServedExecutor. A plain Executor does not expose its configuration.
        config = getattr(source, "config", None)
        modules = Modules(_without_view(executor.registry), executor, config=config)
        _check_output_schemas(modules)
        _warn_of_missing_approver(modules)
        return modules
    if hasattr(source, "get_definition") and hasattr(source, "list"):
        registry = _without_view(source)
        config = getattr(registry, "config", None)  # apcore's Registry has none, compatible classes may
        modules = Modules(registry, ServedExecutor(registry, config=config), config=config)
        _warn_of_missing_approver(modules)
        return modules
    raise _unusable(source)


def _check_output_schemas(modules: Modules) -> None:
    """Raise ValueError for a module whose output this executor cannot handle."""
    for module in modules:
        kinds = module.output_schema.get("type", "object")
        if kinds == "object" or "object" in kinds or not takes_objects_only(modules.executor):
            continue
        raise ValueError(
            f"Module {module.id} returns {kinds} by its output_schema, but apcore {apcore.__version__} runs only"
            " modules that return an object: have it return one, or serve the registry or a ServedExecutor instead"
        )


def _warn_of_missing_approver(modules: Modules) -> None:
    """Log a warning if modules that require approval may run without one."""
    guarded = [module.id for module in modules if module.requires_approval]
    if not guarded:
        return
    approver = find_approver(modules.executor)
    if approver is not Approver.HANDLER:
        logger.warning(WARNINGS[approver], extra={"modules": ", ".join(guarded)})


def _without_view(registry: Any) -> Any:
    """Return the registry itself. A view returns new objects from each `get`, but `Modules` compares by identity."""
    if isinstance(registry, RegistryView):
        return registry.registry
    return registry


def _unusable(source: object) -> TypeError:
    return TypeError(f"An apcore Registry, Executor or APCore client is needed, not {type(source).__name__}")


# ---- the executor ---------------------------------------------------------------------------------------------------
# The executor of a served registry: apcore's own, configured for a server.
#
# It differs from a plain `apcore.Executor(registry)` in seven ways, all through public interfaces:
#
# - Schemas are cached, which makes a call several times as fast (see `RegistryView`).
# - Inputs that are slow to validate are validated once, in a process (see `CheckedSchema`).
# - Default time limits are removed: the engine limits the duration of a task.
# - A module may return any JSON value, not only objects (see `NonDictOutput`).
# - Blocking modules have threads of their own, and those that never return are counted (see `BlockingModule`).
# - Callers are asked for approvals. Without a handler apcore would run the module, and log a warning.
# - It exposes its ACL and its approval handler, as apcore's executor does only from 0.32 on.

DEFAULT_TIMEOUT: Final = "executor.default_timeout"
GLOBAL_TIMEOUT: Final = "executor.global_timeout"
APCORES_LIMITS: Final = {DEFAULT_TIMEOUT: 30_000, GLOBAL_TIMEOUT: 60_000}  # the defaults of apcore, in ms

# 0 means no limit. With it a canceled run also cancels its module, which apcore otherwise leaves running. Where 0 is
# not possible, the limit is eleven days: before apcore had a pipeline, it logged a warning with each call without a
# limit.
NO_LIMIT: Final = 0
FOREVER: Final = 10**9
HAS_PIPELINE: Final = hasattr(apcore.Executor, "current_strategy")
HAS_EXECUTE_STEP: Final = hasattr(apcore, "BuiltinExecute")  # from 0.19 on


class ServedExecutor(apcore.Executor):  # type: ignore[misc]  # apcore is untyped
    """An `apcore.Executor` for serving; `serve(registry)` makes one of these.

    Args:
        registry: An apcore Registry.
        config: apcore's configuration. A registry does not expose its own, so pass it here.
        acl: The access control list. The default is the ACL that the configuration names, if any.
        approval_handler: Decides before a module that requires approval runs. The default asks the caller.
        threads: The threads of blocking modules. The default runs up to 64 at once.
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
        threads: Threads | None = None,
        **options: Any,
    ) -> None:
        if acl is None and config is not None and hasattr(apcore.ACL, "discover"):
            acl = apcore.ACL.discover(config)
        if HAS_APPROVALS:
            approval_handler = approval_handler or AskCaller()
            options["approval_handler"] = approval_handler
        limits = ConfigWithoutLimits(config)
        view = RegistryView(registry)
        super().__init__(view, config=limits, acl=acl, **options)
        self.checked_inputs = view.checked
        self.config = config
        self.acl = acl
        self.threads = threads or Threads()
        self.approval_handler = approval_handler
        # A custom pipeline is left as it is: its steps belong to the application.
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
        """Replace the step that runs modules, to allow any output, and to remove the default time limit.

        The limit cannot be 0 in the configuration of the executor itself (see NO_LIMIT): there it is also the timeout
        of the synchronous `call` inside an event loop, for which 0 means one second.
        """
        config: Any = limits
        if limits.get(DEFAULT_TIMEOUT) == FOREVER:
            config = apcore.Config({"executor": {"default_timeout": 0}})
        self.current_strategy.replace("execute", ExecuteAny(config=config, threads=self.threads))


class ConfigWithoutLimits:
    """A configuration without default time limits. A limit that differs from apcore's default is kept."""

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


# ---- outputs that are not objects -----------------------------------------------------------------------------------
# Outputs that are not JSON objects: text, bytes, lists, numbers, None.
#
# apcore 0.6.0 returns them unchanged. The pipeline of a newer apcore supports objects only: it copies each output with
# `dict(…)`, which fails, and turns None into an empty object. So the pipeline of a `ServedExecutor` wraps such an
# output as `{"result": …}`, as apcore's own `@module` does, and unwraps it at the end.
#
# Invariant: middleware sees the object, and may replace it. Schemas and callers see the output itself.

OBJECTS: Final = (dict, Mapping, BaseModel)  # types that `dict` can copy. dict is first, for a fast isinstance.
# True for 0.32.2, false for 0.19.0. Only the numbers are compared, because a version may be "1.0b1".
PIPELINE_TAKES_OBJECTS_ONLY: Final = [int(number) for number in re.findall(r"\d+", apcore.__version__)] >= [0, 32]


class NonDictOutput(dict[str, Any]):
    """An output inside the pipeline, wrapped as an object."""

    def __init__(self, value: Any) -> None:
        super().__init__(result=value)
        self.value = value


def unwrap(output: Any) -> Any:
    if isinstance(output, NonDictOutput):
        return output.value
    return output


class ExecuteAny(getattr(apcore, "BuiltinExecute", object)):  # type: ignore[misc]  # apcore is untyped; from 0.19 on
    """apcore's step that runs a module, extended to any output and to blocking modules."""

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
            ctx.module = module  # later steps read its schemas
        # Only returned outputs: a stream has no output yet, and skips the steps up to the last one.
        if result.action == "continue" and not isinstance(ctx.output, OBJECTS):
            ctx.output = NonDictOutput(ctx.output)
        return result


def takes_objects_only(executor: Any) -> bool:
    """Whether outputs that are not objects fail on this executor."""
    strategy = getattr(executor, "current_strategy", None)
    if strategy is None or not PIPELINE_TAKES_OBJECTS_ONLY:
        return False
    return not any(isinstance(step, ExecuteAny) for step in strategy.steps)


class OutputSchema:
    """The schema of the output of one call. It unwraps a `NonDictOutput`, and delegates everything else."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._is_wrapped = False

    def model_validate(self, value: Any, **options: Any) -> Any:
        """Validate an output. None is accepted, because apcore does not validate it either, except 0.6.0."""
        if isinstance(value, NonDictOutput):
            self._is_wrapped = True
            value = value.value
        if value is None:
            return None
        return self._validate(value, options)

    def _validate(self, value: Any, options: dict[str, Any]) -> Any:
        try:
            return self._schema.model_validate(value, **options)
        except apcore.SchemaValidationError as error:
            # Raised by apcore's class for schemas that are dicts. Its text calls every value an input.
            found = error.details["errors"]
            raise apcore.SchemaValidationError(f"Output validation failed: {found}", errors=found) from error

    def model_json_schema(self, *args: Any, **options: Any) -> Any:
        """Return the JSON Schema that apcore uses for redaction, after validation."""
        if self._is_wrapped:
            # The schema describes the value, not the wrapping object, so it would redact nothing there.
            return {"properties": {"result": {"x-sensitive": True}}}
        return self._schema.model_json_schema(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schema, name)


# ---- the view of the registry ---------------------------------------------------------------------------------------
# A registry whose modules cache their JSON Schemas, for a faster `apcore.Executor`.
#
# apcore asks the pydantic models of a module for their JSON Schema with every call: three times for the call, twice
# more for a dry run, each time to find fields to redact. pydantic rebuilds the schema each time, in about 190 µs, which
# is most of the cost of a call. From the cache it takes 1.2 µs. An executor uses the cache with
# `apcore.Executor(RegistryView(registry), acl=acl)`.
#
# The view stands between the executor and the registry. Its `get` returns a view of the module, whose schemas are
# views of its models, and the view of a model caches the JSON Schema. Everything else is delegated to the registry, the
# module or the model.
#
# Invariant: objects of the application do not change, and apcore does all checks and redactions itself.

# The JSON Schemas of models, encoded as JSON: callers may change a schema, so each receives a copy. None stands for a
# schema that JSON cannot hold. The keys are weak, so the models of a reloaded module are released.
SchemaCache = WeakKeyDictionary[type[BaseModel], bytes | None]

_ENCODER: Final = msgspec.json.Encoder(enc_hook=repr)
_DECODER: Final = msgspec.json.Decoder()


class RegistryView:
    """A registry whose `get` returns views of the modules. Everything else is delegated.

    Example:
        >>> import apcore
        >>> registry = apcore.Registry()
        >>> executor = apcore.Executor(RegistryView(registry))
        >>> executor.registry.registry is registry
        True
    """

    def __init__(self, registry: Any) -> None:  # Any: apcore is untyped
        self.registry = registry
        self.checked = CheckedInputs()
        self._cache: SchemaCache = WeakKeyDictionary()

    def get(self, module_id: str, *args: Any, **options: Any) -> Any:
        """Return a view of the module, or None. Never cached, so that a replaced module is seen at once."""
        module = self.registry.get(module_id, *args, **options)
        if module is None:
            return None
        # apcore checks `isinstance(module, StreamingModule)`, which bypasses `__getattr__` from Python 3.12 on. So the
        # view of a streaming module needs a class with the method, and any other view a class without it.
        if getattr(module, "stream", None) is None:
            return ModuleView(module, self._cache, self.checked)
        return StreamingModuleView(module, self._cache, self.checked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.registry, name)


class ModuleView:
    """A module whose schemas are cached. Everything else is delegated."""

    def __init__(self, module: Any, cache: SchemaCache, checked: CheckedInputs) -> None:
        self._module = module
        self.input_schema = _cached(getattr(module, "input_schema", None), cache)
        if is_apcores_adapter(self.input_schema):
            self.input_schema = CheckedSchema(self.input_schema, checked)
        self.output_schema = _cached(getattr(module, "output_schema", None), cache)
        if hasattr(self.output_schema, "model_validate"):
            self.output_schema = OutputSchema(self.output_schema)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class StreamingModuleView(ModuleView):
    """The view of a module that streams."""

    @property
    def stream(self) -> Any:
        return self._module.stream


class CheckedSchema:
    """An input schema that is a dict. Inputs that were found valid in a process are not validated again."""

    def __init__(self, schema: Any, checked: CheckedInputs) -> None:
        self._schema = schema
        self._checked = checked

    def model_validate(self, value: Any, **options: Any) -> Any:
        if self._checked.has(self._schema.model_json_schema(), value):
            return value
        return self._schema.model_validate(value, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schema, name)


class SchemaView:
    """A pydantic model whose JSON Schema is cached."""

    def __init__(self, model: type[BaseModel], cache: SchemaCache) -> None:
        self._model = model
        self._cache = cache

    def model_json_schema(self, *args: Any, **options: Any) -> Schema:
        """Return a copy of the model's JSON Schema."""
        if args or options:  # not cached: with options such as `by_alias=False`, which apcore does not use
            return self._model.model_json_schema(*args, **options)
        encoded = self._cache.get(self._model)
        if encoded is not None:
            cached: Schema = _DECODER.decode(encoded)
            return cached
        schema = self._model.model_json_schema()
        if self._model not in self._cache:
            self._cache[self._model] = _to_json(schema)
        return schema

    def __call__(self, *args: Any, **fields: Any) -> Any:
        return self._model(*args, **fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _cached(schema: Any, cache: SchemaCache) -> Any:
    """Return a view of a model with pydantic's own `model_json_schema`. Other schemas are returned as they are."""
    if not isinstance(schema, type) or not issubclass(schema, BaseModel):
        return schema
    # A model that overrides `model_json_schema` may return another schema each time.
    if getattr(schema.model_json_schema, "__func__", None) is not _PYDANTICS_OWN:
        return schema
    return SchemaView(schema, cache)


_PYDANTICS_OWN: Final = BaseModel.model_json_schema.__func__  # type: ignore[attr-defined]  # of a bound method


def _to_json(schema: Schema) -> bytes | None:
    """Return the schema as JSON. None if a round trip changes it: `json_schema_extra` may contain any object."""
    try:
        encoded = _ENCODER.encode(schema)
    except ValueError:  # such as a lone surrogate
        return None
    if _DECODER.decode(encoded) != schema:
        return None
    return encoded
