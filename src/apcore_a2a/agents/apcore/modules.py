"""`Modules`, the registry and the executor of apcore, with access checks and threads for blocking modules.

Invariant: no private attribute of an executor is read. If an executor does not expose its ACL or its approval handler,
these apply only when the call is made.
"""

import asyncio
import hashlib
import importlib.util
import inspect
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import apcore
import msgspec
from msgspec import Struct
from pydantic import ValidationError

from apcore_a2a.agent import CancelToken
from apcore_a2a.agents.checker import Checker
from apcore_a2a.agents.input_cost import MAX_ERRORS, TOO_MANY_ERRORS, InputCost, texts_of
from apcore_a2a.agents.inputs import IntegerSchema, refuse_inputs
from apcore_a2a.agents.schema import Schema, inline
from apcore_a2a.agents.skills import Annotations, Example
from apcore_a2a.agents.threads import Threads
from apcore_a2a.errors import Violation
from apcore_a2a.protocol.model import encode

logger = logging.getLogger(__name__)

# ---- checks before a call -------------------------------------------------------------------------------------------
# The result of apcore's checks before a call: whether the ACL allows it, and whether the inputs are valid.
#
# The checks are apcore's own. From 0.18 on its pipeline supports dry runs, through the classes that it exports for
# that. Earlier versions have `Executor.validate`, which until 0.8 checks the schema only.

MakeContext = Callable[[], Any]
"""Makes apcore's Context of the call. Called only when needed, because that takes time."""
FailedChecks = dict[str, Mapping[str, Any]]
"""The failed checks by name, with the error of apcore. Empty if the call is allowed."""

ACCESS: Final = "acl"
SCHEMA: Final = "schema"
_BY_STEP: Final = {"acl_check": ACCESS, "input_validation": SCHEMA}
_BY_CODE: Final = {"ACL_DENIED": ACCESS, "SCHEMA_VALIDATION_ERROR": SCHEMA, "GENERAL_INVALID_INPUT": SCHEMA}


# ---- access ----------------------------------------------------------------------------------------------------------


def is_denied(executor: Any, module_id: str, make_context: MakeContext) -> bool:
    """Whether the executor's ACL denies a call. The module need not exist."""
    acl = find_acl(executor)
    return acl is not None and is_denied_by(acl, module_id, make_context)


def is_denied_by(acl: Any, module_id: str, make_context: MakeContext) -> bool:
    context = make_context().child(module_id)
    if hasattr(acl, "check_access"):  # newer versions. Unlike `check` it distinguishes "ask a human" from "deny".
        return bool(acl.check_access(context.caller_id, module_id, context).access != "allow")
    return not acl.check(context.caller_id, module_id, context)


class UnauditedACL:
    """Evaluates an ACL without an entry in its audit log: reading a card is not an attempt to call a module.

    apcore's ACL exposes its rules from 0.32 on, and a copy without a log is evaluated instead. An older ACL and one of
    a custom class are evaluated directly, with an entry in their logs.
    """

    def __init__(self) -> None:
        self._rules: tuple[Any, ...] = ()
        self._copy: Any = None  # of the rules above; Any: apcore is untyped

    def of(self, acl: Any) -> Any:
        if type(acl) is not apcore.ACL or not hasattr(acl, "rules"):
            return acl
        rules = (acl.default_effect, *acl.rules)
        if rules != self._rules:  # made once per set of rules, because apcore warns of unusual rules each time
            self._copy = apcore.ACL(rules=list(acl.rules), default_effect=acl.default_effect)
            self._rules = rules
        return self._copy


def find_acl(executor: Any) -> Any:
    """Return the current ACL of an executor. None if it has none or does not expose it."""
    acl = held_by_gate(executor, "BuiltinACLCheck", "acl")
    if acl is not None:
        return acl
    return getattr(executor, "acl", None)  # a ServedExecutor exposes it on every version of apcore


def held_by_gate(executor: Any, gate: str, name: str) -> Any:
    """Return an attribute of a gate, a pipeline step that may reject calls. None before apcore 0.32, which hides it."""
    strategy = getattr(executor, "current_strategy", None)
    kind = getattr(apcore, gate, None)
    if strategy is None or kind is None:
        return None
    for step in strategy.steps:
        held = getattr(step, name, None)
        # By class, as apcore does: a step with the same name or attribute need not be the gate.
        if isinstance(step, kind) and held is not None:
            return held
    return None


# ---- the dry run -----------------------------------------------------------------------------------------------------


async def find_failed_checks(executor: Any, module_id: str, inputs: Any, make_context: MakeContext) -> FailedChecks:
    """Return the checks of apcore that a call of an existing module fails."""
    if hasattr(apcore, "PipelineEngine") and hasattr(executor, "current_strategy"):
        return await _run_dry(executor, module_id, inputs, make_context())
    validate = getattr(executor, "validate", None)
    if validate is not None and "context" in inspect.signature(validate).parameters:  # from 0.9 on
        result = validate(module_id, inputs, context=make_context())
        failed: FailedChecks = {}
        for check in result.checks:
            if not check.passed:
                failed[check.check] = check.error or {}
        return failed
    # This old `validate` checks the schema only. Its errors reveal the schema, so the ACL is checked first.
    if is_denied(executor, module_id, make_context):
        return {ACCESS: {}}
    if validate is None:
        return {}
    errors = validate(module_id, inputs).errors
    if errors:
        return {SCHEMA: {"errors": errors}}
    return {}


async def _run_dry(executor: Any, module_id: str, inputs: Any, context: Any) -> FailedChecks:
    """Run the executor's pipeline without side effects. `validate` does the same, but blocks the event loop."""
    if hasattr(context, "bind_executor"):  # from 0.22 on. Before, the Context is created with its executor.
        context.bind_executor(executor)
    call = apcore.PipelineContext(module_id=module_id, inputs=inputs, context=context, dry_run=True)
    try:
        _, trace = await apcore.PipelineEngine().run(executor.current_strategy, call)
    except apcore.ModuleError as error:  # raised by middleware between the steps, and before 0.32 by each failed check
        return _from_error(error)
    failed: FailedChecks = {}
    for step in trace.steps:
        if step.result.action == "abort" and not step.skipped:
            reason = call.preflight_errors.get(step.name, {"message": step.result.explanation})
            failed[_BY_STEP.get(step.name, step.name)] = reason
    return failed


def _from_error(error: Exception) -> FailedChecks:
    """Return the failed check of a dry run, identified by the code of its error."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):  # the error of the check, inside a PipelineStepError
        error = cause
    code = getattr(error, "code", type(error).__name__)
    reason = {"code": code, "message": str(error), "details": getattr(error, "details", {})}
    return {_BY_CODE.get(code, code): reason}


# ---- modules --------------------------------------------------------------------------------------------------------
# Registry and executor of any apcore version behind one typed class, `Modules`.
#
# The description of a module differs between apcore 0.6.0 and the newest version. Only this file handles the
# difference. All other code uses `ModuleInfo`.

CallModule = Callable[[str, Any, Any], Any]
"""Calls a module by its id, with inputs and apcore's Context."""

MAX_CHECKED: Final = 1_000  # slow inputs that are known to be valid
SYSTEM: Final = "system."  # apcore's control modules, for its operator only: messages cannot call them


class ModuleInfo(Struct, frozen=True, kw_only=True):
    """The description of a module. A schema is empty if the module has none, and never contains a `$ref`."""

    id: str
    description: str
    tags: tuple[str, ...]
    version: str
    annotations: Annotations | None
    examples: tuple[Example, ...]
    input_schema: Schema
    integers: IntegerSchema
    """Restores integers in its inputs."""
    cost: InputCost
    """What makes the check of its inputs slow. It has the original input schema."""
    output_schema: Schema
    display: Mapping[str, Any]
    streams: bool
    blocks: bool
    """Whether it runs on a thread."""
    hidden: bool
    source: Any
    """The module itself."""

    @property
    def is_skill(self) -> bool:
        """Whether the card lists the module. Clients that know the id can call other modules as well."""
        return bool(self.description) and not self.hidden

    @property
    def is_repeatable(self) -> bool:
        return self.annotations is not None and (self.annotations.idempotent or self.annotations.readonly)

    @property
    def requires_approval(self) -> bool:
        return self.annotations is not None and self.annotations.requires_approval


class Modules:
    """The modules of a registry, and the executor that runs them.

    Args:
        config: apcore's configuration, or None. The agent card takes its name from it.
    """

    def __init__(self, registry: Any, executor: Any, *, config: Any = None) -> None:  # Any: apcore is untyped
        self.registry = registry
        self.executor = executor
        self.config = config
        self.call: CallModule = passing_context(executor.call_async)
        self.stream: CallModule | None = None
        if hasattr(executor, "stream"):
            self.stream = passing_context(executor.stream)
        # Each module with its description, or None if it cannot be described: see `_describe_or_skip`.
        self._known: dict[str, tuple[Any, ModuleInfo | None]] = {}
        self._unaudited = UnauditedACL()
        self._checker = Checker()
        # Of a ServedExecutor. Any other executor checks inputs again on the event loop.
        self._checked: CheckedInputs | None = getattr(executor, "checked_inputs", None)
        self._all: dict[str, list[str]] = {}
        if "visibility" in inspect.signature(registry.list).parameters:  # from 0.21 on modules can be hidden
            self._all = {"visibility": ["public", "hidden"]}

    def __len__(self) -> int:
        """The number of registered modules, including hidden ones and those that cannot be described."""
        return len(self.registry.list(**self._all))

    def __iter__(self) -> Iterator[ModuleInfo]:
        """Yield the modules that can be called, ordered by id."""
        for module_id in self.registry.list(**self._all):
            module = self.find(module_id)
            if module is not None:
                yield module

    def find(self, module_id: str) -> ModuleInfo | None:
        """Return the current module with this id, or None."""
        source = None
        if module_id and not module_id.startswith(SYSTEM):  # apcore raises for an empty id
            source = self.registry.get(module_id)
        if source is None:
            self._known.pop(module_id, None)
            return None
        known = self._known.get(module_id)
        if known is not None and known[0] is source:
            return known[1]
        # New or registered again. Then it is another object, possibly with another description.
        description = self._describe_or_skip(module_id, source)
        self._known[module_id] = (source, description)
        return description

    def _describe_or_skip(self, module_id: str, source: Any) -> ModuleInfo | None:
        try:
            module = _describe(self.registry, module_id, source)
            if module.is_skill:
                _check_card(module)
            return module
        except Exception:  # for example an invalid schema, which must not affect the other modules
            logger.exception("module cannot be described, so it is left out", extra={"module_id": module_id})
            return None

    def watch(self, changed: Callable[[], object]) -> None:
        """Call `changed` after each registration and removal, on the thread that made it."""

        def forget(module_id: str, _: Any) -> None:
            self._known.pop(module_id, None)  # otherwise a removed module would be kept until the next `find`
            changed()

        for event in ("register", "unregister"):
            self.registry.on(event, forget)

    def denies(self, module_id: str, make_context: MakeContext) -> bool:
        """Whether the ACL denies a call, which its audit log records. The module need not exist."""
        return is_denied(self.executor, module_id, make_context)

    def would_deny(self, module_id: str, make_context: MakeContext) -> bool:
        """Whether the ACL would deny a call, without an entry in its audit log."""
        acl = find_acl(self.executor)
        return acl is not None and is_denied_by(self._unaudited.of(acl), module_id, make_context)

    def may_be_slow(self, module: ModuleInfo, inputs: Any) -> bool:
        """Whether the validation of these inputs may block the event loop."""
        if is_json_schema(module.source):
            return module.cost.may_be_slow(inputs)
        return module.cost.may_be_slow_for_model(inputs)

    async def check_slow_inputs(self, module: ModuleInfo, inputs: Any, caller: str) -> FailedChecks:
        """Check inputs whose validation may be slow, in a process. The validation by apcore is short after that.

        Args:
            caller: What the checks are counted by (`checker.quota_key_of`).

        Raises:
            InvalidParamsError: The validation would take too long.
            OverloadedError: Too many checks of this caller wait.
        """
        cost = module.cost
        if not is_json_schema(module.source):  # a pydantic model, whose own validation is fast but for these three
            await asyncio.to_thread(cost.refuse_if_too_complex, inputs)
            if cost.has_slow_patterns(inputs):
                await self._checker.try_patterns(cost.patterns, texts_of(inputs), caller)
            await asyncio.to_thread(refuse_many_errors, module.source, inputs)
            return {}
        if self._checked is not None and self._checked.has(cost.schema, inputs):
            return {}
        repeated = self._checked is None
        answer = await self._checker.find_errors(cost.schema, inputs, caller, repeated=repeated)
        if answer.failed:
            return {SCHEMA: {"code": "SCHEMA_UNUSABLE", "message": answer.failed}}
        if answer.errors:
            found = [{"path": error.path, "message": error.message} for error in answer.errors]
            return {SCHEMA: {"code": "SCHEMA_VALIDATION_ERROR", "errors": found}}
        if self._checked is not None:
            self._checked.add(cost.schema, inputs)
        return {}

    async def find_failed_checks(self, module: ModuleInfo, inputs: Any, make_context: MakeContext) -> FailedChecks:
        """Return the checks of apcore that a call would fail, with their errors."""
        return await find_failed_checks(self.executor, module.id, inputs, make_context)


# Whether apcore validates inputs by schemas that are dicts. Older versions do not, and do not depend on jsonschema.
CHECKS_JSON_SCHEMAS: Final = importlib.util.find_spec("jsonschema") is not None


def is_json_schema(module: Any) -> bool:
    """Whether the input schema of a module is a dict, which apcore validates by jsonschema."""
    return CHECKS_JSON_SCHEMAS and is_apcores_adapter(getattr(module, "input_schema", None))


def is_apcores_adapter(schema: Any) -> bool:
    """Whether apcore made this object of a schema that is a dict."""
    return not isinstance(schema, type | dict) and type(schema).__module__.partition(".")[0] == "apcore"


# apcore validates inputs strictly from 0.32 on: "1" is no integer.
IS_STRICT: Final = [int(number) for number in re.findall(r"\d+", apcore.__version__)] >= [0, 32]


def refuse_many_errors(module: Any, inputs: Any) -> None:
    """Raise InvalidParamsError if the pydantic model of a module finds more than MAX_ERRORS errors in its inputs."""
    validate = getattr(getattr(module, "input_schema", None), "model_validate_json", None)
    if validate is None:
        return
    count = 0
    try:
        validate(msgspec.json.encode(inputs), strict=IS_STRICT)
    except ValidationError as error:
        count = error.error_count()
    except Exception:  # a validator of the application, which fails in apcore again, where it is translated
        logger.debug("validator of a module failed", exc_info=True)
    if count > MAX_ERRORS:
        raise refuse_inputs([Violation("", TOO_MANY_ERRORS.format(count), "too_many_errors")])


class CheckedInputs:
    """The valid inputs that a `Checker` has found last, as digests. apcore does not validate these again."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def add(self, schema: Schema, inputs: Any) -> None:
        self._digests[_digest(schema, inputs)] = None
        if len(self._digests) > MAX_CHECKED:
            self._digests.popitem(last=False)

    def has(self, schema: Any, inputs: Any) -> bool:
        if not self._digests:  # the usual case
            return False
        try:
            return _digest(schema, inputs) in self._digests
        except (TypeError, ValueError, RecursionError):  # inputs of another module may be any objects
            return False


def _digest(schema: Any, inputs: Any) -> bytes:
    return hashlib.sha256(msgspec.json.encode((schema, inputs))).digest()


def passing_context(method: Callable[..., Any]) -> CallModule:
    """Adapt a method of an executor that takes the context by position, by keyword or not at all."""
    try:
        signature = inspect.signature(method)
    except ValueError:  # raised for some functions written in C
        return method
    try:
        signature.bind("", {}, None)
    except TypeError:
        pass
    else:
        return method  # apcore's own methods take the context by position

    def with_named_context(module_id: str, inputs: Any, context: Any) -> Any:
        return method(module_id, inputs, context=context)

    def without_context(module_id: str, inputs: Any, context: Any) -> Any:
        return method(module_id, inputs)

    if "context" in signature.parameters:
        return with_named_context
    return without_context


def _describe(registry: Any, module_id: str, source: Any) -> ModuleInfo:
    try:
        described = registry.get_definition(module_id)
    except AttributeError:  # 0.6.0 cannot describe a module whose schemas are dicts
        described = source

    def read(name: str, default: Any) -> Any:
        """Read from the description, else from the module: 0.6.0 leaves some attributes there."""
        return getattr(described, name, None) or getattr(source, name, None) or default

    def read_schema(name: str) -> dict[str, Any]:
        """Read a schema. An empty one of the description counts, because the module holds an adapter of apcore."""
        found = getattr(described, name, None)
        if found is None:
            found = getattr(source, name, None)
        return found or {}

    description = read("description", "")
    if not description:
        logger.warning("module has no description, so the card does not list it", extra={"module_id": module_id})
    annotations = read("annotations", None)
    input_schema = read_schema("input_schema")
    return ModuleInfo(
        id=module_id,
        description=description,
        tags=tuple(read("tags", ())),
        version=read("version", ""),
        annotations=msgspec.convert(annotations, Annotations | None, strict=False, from_attributes=True),
        examples=msgspec.convert(read("examples", ()), tuple[Example, ...], from_attributes=True),
        input_schema=inline(input_schema),
        integers=IntegerSchema(input_schema),
        cost=InputCost(input_schema),
        output_schema=inline(read_schema("output_schema")),
        # `@module(display=…)` sets it on the module, all other ways in the metadata.
        display=read("metadata", {}).get("display") or getattr(source, "display", None) or {},
        # The method decides: apcore ignores the annotation when it runs a module.
        streams=inspect.isasyncgenfunction(getattr(source, "stream", None)),
        blocks=blocks(source),
        hidden=_is_hidden(annotations),
        source=source,
    )


class _Display(Struct):
    """The fields of `display` that the card shows."""

    alias: str | None = None
    description: str | None = None
    tags: list[str] | None = None
    a2a: "_Display | None" = None


def _check_card(module: ModuleInfo) -> None:
    """Raise an exception of msgspec if a card cannot contain the description of the module."""
    texts = msgspec.convert([module.description, *module.tags], list[str])
    display = msgspec.convert(module.display, _Display)
    encode([texts, display, module.examples, module.input_schema, module.output_schema])


def _is_hidden(annotations: Any) -> bool:
    if isinstance(annotations, Mapping):  # 0.6.0 keeps the annotations of `@module` as a dict
        return annotations.get("discoverable") is False
    return getattr(annotations, "discoverable", None) is False


# ---- blocking modules -----------------------------------------------------------------------------------------------
# Runs blocking modules on threads that are counted.
#
# apcore runs them in asyncio's own pool. That pool is small (six threads on a machine with two cores), does not count
# modules that never return, and also resolves host names and reads large pages for the server: six stuck modules would
# freeze it. So the step of a `ServedExecutor` that runs a module passes a blocking one to `Threads`, as for functions.
#
# Invariant: this applies only to runs of this package, on the event loop that they began on. All other calls of the
# executor use apcore's own step.


class RunToken(apcore.CancelToken):  # type: ignore[misc]  # apcore is untyped
    """apcore's cancel token for one of our runs, or for one call of a module in it."""

    def __init__(self, run: CancelToken, loop: asyncio.AbstractEventLoop | None, **linked: Any) -> None:
        super().__init__(**linked)
        self.run = run
        self._loop = loop
        self._callbacks: tuple[Callable[[], object], ...] = ()

    @classmethod
    def of_run(cls, run: CancelToken) -> "RunToken":
        """Return the token of a run on the running event loop. Without a loop it serves only checks."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return cls(run, None)
        return cls(run, loop)

    def is_on_run_loop(self) -> bool:
        """Whether this code runs on the event loop of the run.

        A module that calls another one synchronously does so on another loop.
        """
        return self._loop is asyncio.get_running_loop()

    def child(self) -> "RunToken":
        """Return the token of one call, which apcore cancels when the call times out."""
        return RunToken(self.run, self._loop, parent=self)  # not the running loop: see `is_on_run_loop`

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the loop of the run when this token is cancelled."""
        self._callbacks += (callback,)

    def cancel(self) -> None:
        super().cancel()
        if self._loop is not None and not self._loop.is_closed():
            for callback in self._callbacks:
                self._loop.call_soon_threadsafe(callback)


class BlockingModule:
    """An awaitable wrapper of a module whose `execute` blocks."""

    def __init__(self, module: Any, threads: Threads, token: RunToken) -> None:  # Any: apcore is untyped
        self._module = module
        self._threads = threads
        self._token = token

    async def execute(self, inputs: Any, context: Any) -> Any:
        async with self._threads.worker(f"module {context.call_chain[-1]}", self._token.run) as worker:
            # apcore stops waiting after the module's time limit, without cancelling this coroutine.
            self._token.on_cancel(partial(self._threads.expect_end, worker))
            return await worker.call(self._module.execute, inputs, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def blocks(module: Any) -> bool:
    return not inspect.iscoroutinefunction(getattr(module, "execute", None))


def on_thread(module: Any, context: Any, threads: Threads) -> Any:
    """Return the module, wrapped to run on a thread if it blocks and belongs to one of our runs."""
    token = getattr(context, "cancel_token", None)
    if not isinstance(token, RunToken) or not token.is_on_run_loop() or not blocks(module):
        return module
    return BlockingModule(module, threads, token)
