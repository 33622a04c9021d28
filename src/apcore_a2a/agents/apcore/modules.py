"""Modules of apcore: which there are, who may call them, and on which thread they run."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import apcore
import msgspec
from msgspec import Struct

from apcore_a2a.agent import CancelToken
from apcore_a2a.agents.inputs import IntegerSchema
from apcore_a2a.agents.schema import Schema, inline
from apcore_a2a.agents.skills import Annotations, Example
from apcore_a2a.agents.threads import Threads
from apcore_a2a.protocol.model import encode

logger = logging.getLogger(__name__)

# ---- who may call what, and would it work ---------------------------------------------------------------------------
# What apcore says of a call before it is made: whether its ACL lets the caller in, and whether the inputs will do.
#
# The checks are apcore's own. From 0.18 on its pipeline can be run dry, by the classes that it exports for that;
# before, there is `Executor.validate`, which knows the schema only until 0.8.
#
# Rule: nothing private of an executor is read. What it does not tell is not known, and is decided when the call is
# made.

MakeContext = Callable[[], Any]
"""Makes apcore's Context of the call; only if it is needed, for that takes time."""
FailedChecks = dict[str, Mapping[str, Any]]
"""By the name of the check, what apcore says of it; empty if the call may be made."""

ACCESS: Final = "acl"
SCHEMA: Final = "schema"
_BY_STEP: Final = {"acl_check": ACCESS, "input_validation": SCHEMA}
_BY_CODE: Final = {"ACL_DENIED": ACCESS, "SCHEMA_VALIDATION_ERROR": SCHEMA, "GENERAL_INVALID_INPUT": SCHEMA}


# ---- access ----------------------------------------------------------------------------------------------------------


def is_denied(executor: Any, module_id: str, make_context: MakeContext) -> bool:
    """Whether the executor's ACL refuses a call, be there such a module or not."""
    acl = find_acl(executor)
    return acl is not None and refuses(acl, module_id, make_context)


def refuses(acl: Any, module_id: str, make_context: MakeContext) -> bool:
    context = make_context().child(module_id)
    if hasattr(acl, "check_access"):  # newer; unlike `check` it tells "ask a human first" from "no"
        return bool(acl.check_access(context.caller_id, module_id, context).access != "allow")
    return not acl.check(context.caller_id, module_id, context)


class UnauditedACL:
    """What an ACL would say, without a trace in its audit log: whoever reads a card has not tried to call anything.

    apcore's ACL tells its rules from 0.32 on; a copy of it, which has no log to write to, then answers instead. Before,
    and where somebody has made an ACL of their own, there is no other way to know than to ask.
    """

    def __init__(self) -> None:
        self._rules: tuple[Any, ...] = ()
        self._copy: Any = None  # of the rules above; Any: apcore is untyped

    def of(self, acl: Any) -> Any:
        if type(acl) is not apcore.ACL or not hasattr(acl, "rules"):
            return acl
        rules = (acl.default_effect, *acl.rules)
        if rules != self._rules:  # made once for each set of rules, because apcore warns of odd ones each time
            self._copy = apcore.ACL(rules=list(acl.rules), default_effect=acl.default_effect)
            self._rules = rules
        return self._copy


def find_acl(executor: Any) -> Any:
    """The ACL of an executor, as it is now; None if there is none, or if the executor does not tell."""
    acl = held_by_gate(executor, "BuiltinACLCheck", "acl")
    if acl is not None:
        return acl
    return getattr(executor, "acl", None)  # a ServedExecutor tells on every version of apcore


def held_by_gate(executor: Any, gate: str, name: str) -> Any:
    """What a gate of the executor's pipeline holds; None before apcore 0.32, whose gates were the first to tell."""
    strategy = getattr(executor, "current_strategy", None)
    kind = getattr(apcore, gate, None)
    if strategy is None or kind is None:
        return None
    for step in strategy.steps:
        held = getattr(step, name, None)
        # By its class, as apcore does: a step of the same name or with such an attribute need not be the gate.
        if isinstance(step, kind) and held is not None:
            return held
    return None


# ---- the dry run -----------------------------------------------------------------------------------------------------


async def find_failed_checks(executor: Any, module_id: str, inputs: Any, make_context: MakeContext) -> FailedChecks:
    """Have apcore check a call of a module that exists."""
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
    # This old `validate` compares with the schema and asks no ACL. Its errors would tell about the schema, so access
    # comes first.
    if is_denied(executor, module_id, make_context):
        return {ACCESS: {}}
    if validate is None:
        return {}
    errors = validate(module_id, inputs).errors
    if errors:
        return {SCHEMA: {"errors": errors}}
    return {}


async def _run_dry(executor: Any, module_id: str, inputs: Any, context: Any) -> FailedChecks:
    """Run the executor's pipeline without what has effects. `validate` does the same, but blocks the event loop."""
    if hasattr(context, "bind_executor"):  # from 0.22 on; before, the Context is made with its executor
        context.bind_executor(executor)
    call = apcore.PipelineContext(module_id=module_id, inputs=inputs, context=context, dry_run=True)
    try:
        _, trace = await apcore.PipelineEngine().run(executor.current_strategy, call)
    except apcore.ModuleError as error:  # of a middleware between the steps; before 0.32 of each check that fails
        return _from_error(error)
    failed: FailedChecks = {}
    for step in trace.steps:
        if step.result.action == "abort" and not step.skipped:
            told = call.preflight_errors.get(step.name, {"message": step.result.explanation})
            failed[_BY_STEP.get(step.name, step.name)] = told
    return failed


def _from_error(error: Exception) -> FailedChecks:
    """The check that ended a dry run, known by the code of its error."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):  # what the check said, in a PipelineStepError
        error = cause
    code = getattr(error, "code", type(error).__name__)
    told = {"code": code, "message": str(error), "details": getattr(error, "details", {})}
    return {_BY_CODE.get(code, code): told}


# ---- modules --------------------------------------------------------------------------------------------------------
# Registry and executor of apcore, whatever its version, as one typed thing: `Modules`.
#
# Rule: how a module is described differs between apcore 0.6.0 and the newest; that is settled here, once, and everybody
# else sees `ModuleInfo`.

CallModule = Callable[[str, Any, Any], Any]
"""Calls a module by its id, with inputs and apcore's Context."""

SYSTEM: Final = "system."  # apcore's own control modules are for its operator: no message gets there


class ModuleInfo(Struct, frozen=True, kw_only=True):
    """A module, described once. A schema is empty where the module has none, and never holds a `$ref`."""

    id: str
    description: str
    tags: tuple[str, ...]
    version: str
    annotations: Annotations | None
    examples: tuple[Example, ...]
    input_schema: Schema
    integers: IntegerSchema
    """Where its inputs are integers."""
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
        """Whether the module is offered; one that is not can still be called by whoever knows its id."""
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
        config: apcore's configuration, where there is one; the agent card is named by it.
    """

    def __init__(self, registry: Any, executor: Any, *, config: Any = None) -> None:  # Any: apcore is untyped
        self.registry = registry
        self.executor = executor
        self.config = config
        self.call: CallModule = passing_context(executor.call_async)
        self.stream: CallModule | None = None
        if hasattr(executor, "stream"):
            self.stream = passing_context(executor.stream)
        # Each module with its description, which is None if it has none: see `_describe_or_leave_out`.
        self._known: dict[str, tuple[Any, ModuleInfo | None]] = {}
        self._unaudited = UnauditedACL()
        self._all: dict[str, list[str]] = {}
        if "visibility" in inspect.signature(registry.list).parameters:  # from 0.21 on modules can be hidden
            self._all = {"visibility": ["public", "hidden"]}

    def __len__(self) -> int:
        """How many modules are registered, with those that are hidden, and those that cannot be described."""
        return len(self.registry.list(**self._all))

    def __iter__(self) -> Iterator[ModuleInfo]:
        """Every module that can be called, by id."""
        for module_id in self.registry.list(**self._all):
            module = self.find(module_id)
            if module is not None:
                yield module

    def find(self, module_id: str) -> ModuleInfo | None:
        """The module that has this id now."""
        source = None
        if module_id and not module_id.startswith(SYSTEM):  # apcore raises for an empty id
            source = self.registry.get(module_id)
        if source is None:
            self._known.pop(module_id, None)
            return None
        known = self._known.get(module_id)
        if known is not None and known[0] is source:
            return known[1]
        # New, or registered anew: then it is another object, which may say other things about itself.
        description = self._describe_or_leave_out(module_id, source)
        self._known[module_id] = (source, description)
        return description

    def _describe_or_leave_out(self, module_id: str, source: Any) -> ModuleInfo | None:
        try:
            module = _describe(self.registry, module_id, source)
            if module.is_skill:
                _check_card(module)
            return module
        except Exception:  # a schema that cannot be made, for one: this module's trouble, not the others'
            logger.exception("module cannot be described, so it is left out", extra={"module_id": module_id})
            return None

    def watch(self, changed: Callable[[], object]) -> None:
        """Have `changed` called after each registration and removal, on the thread that made it."""

        def forget(module_id: str, _: Any) -> None:
            self._known.pop(module_id, None)  # or a module that was removed would be kept until somebody asks for it
            changed()

        for event in ("register", "unregister"):
            self.registry.on(event, forget)

    def denies(self, module_id: str, make_context: MakeContext) -> bool:
        """Whether the ACL refuses a call, be the module known or not."""
        return is_denied(self.executor, module_id, make_context)

    def would_deny(self, module_id: str, make_context: MakeContext) -> bool:
        """The same for a call that nobody makes, so the ACL's audit log hears nothing of it."""
        acl = find_acl(self.executor)
        return acl is not None and refuses(self._unaudited.of(acl), module_id, make_context)

    async def find_failed_checks(self, module: ModuleInfo, inputs: Any, make_context: MakeContext) -> FailedChecks:
        """The checks of apcore that a call would not pass, and what each says."""
        return await find_failed_checks(self.executor, module.id, inputs, make_context)


def passing_context(method: Callable[..., Any]) -> CallModule:
    """A method of an executor that may take the context, take it by name alone, or not want it."""
    try:
        signature = inspect.signature(method)
    except ValueError:  # of what is written in C, some is not known
        return method
    try:
        signature.bind("", {}, None)
    except TypeError:
        pass
    else:
        return method  # as apcore's, which costs nothing

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
        """From the description, else from the module: 0.6.0 leaves half of it there."""
        return getattr(described, name, None) or getattr(source, name, None) or default

    def read_schema(name: str) -> dict[str, Any]:
        """An empty one, which anything matches, is a description, too: apcore keeps an adapter on the module."""
        found = getattr(described, name, None)
        if found is None:
            found = getattr(source, name, None)
        return found or {}

    description = read("description", "")
    if not description:
        logger.warning("module has no description, so it is no skill", extra={"module_id": module_id})
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
        output_schema=inline(read_schema("output_schema")),
        # `@module(display=…)` leaves it on the module, everything else in the metadata.
        display=read("metadata", {}).get("display") or getattr(source, "display", None) or {},
        # The method decides, not the annotation: apcore does not look at that one when it runs a module.
        streams=inspect.isasyncgenfunction(getattr(source, "stream", None)),
        blocks=blocks(source),
        hidden=_is_hidden(annotations),
        source=source,
    )


class _Display(Struct):
    """What is shown of `display`."""

    alias: str | None = None
    description: str | None = None
    tags: list[str] | None = None
    a2a: "_Display | None" = None


def _check_card(module: ModuleInfo) -> None:
    """Raise an exception of msgspec's if a card could not say what the module says of itself."""
    texts = msgspec.convert([module.description, *module.tags], list[str])
    display = msgspec.convert(module.display, _Display)
    encode([texts, display, module.examples, module.input_schema, module.output_schema])


def _is_hidden(annotations: Any) -> bool:
    if isinstance(annotations, Mapping):  # as 0.6.0 leaves those of `@module`
        return annotations.get("discoverable") is False
    return getattr(annotations, "discoverable", None) is False


# ---- modules that block ---------------------------------------------------------------------------------------------
# Modules that block, on threads that are counted.
#
# apcore runs them in asyncio's own pool. That one is small (six threads on a machine with two cores), knows nothing of
# those that never return, and resolves host names and reads large pages for the server, too: six stuck modules would
# freeze it. So the step of a `ServedExecutor` that runs a module hands a blocking one to `Threads`, as functions are.
#
# Rule: only for runs of ours, on the loop that they began on. Whoever calls the executor in another way gets apcore's.


class RunToken(apcore.CancelToken):  # type: ignore[misc]  # apcore is untyped
    """apcore's token for one run of ours, or for one call of a module in it."""

    def __init__(self, run: CancelToken, loop: asyncio.AbstractEventLoop | None, **linked: Any) -> None:
        super().__init__(**linked)
        self.run = run
        self._loop = loop
        self._callbacks: tuple[Callable[[], object], ...] = ()

    @classmethod
    def of_run(cls, run: CancelToken) -> "RunToken":
        """The token of a run on the loop that runs now; on none, if it is only made to look at."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return cls(run, None)
        return cls(run, loop)

    def is_here(self) -> bool:
        """Whether this is the loop of the run: a module that calls another synchronously has a loop of its own."""
        return self._loop is asyncio.get_running_loop()

    def child(self) -> "RunToken":
        """The token of one call, which apcore cancels when the call has used up its time."""
        return RunToken(self.run, self._loop, parent=self)  # not the loop of now: see `is_here`

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback`, on the loop of the run, when this token is cancelled."""
        self._callbacks += (callback,)

    def cancel(self) -> None:
        super().cancel()
        if self._loop is not None and not self._loop.is_closed():
            for callback in self._callbacks:
                self._loop.call_soon_threadsafe(callback)


class BlockingModule:
    """A module whose `execute` blocks, as apcore sees one that can be awaited."""

    def __init__(self, module: Any, threads: Threads, token: RunToken) -> None:  # Any: apcore is untyped
        self._module = module
        self._threads = threads
        self._token = token

    async def execute(self, inputs: Any, context: Any) -> Any:
        async with self._threads.worker(f"module {context.call_chain[-1]}", self._token.run) as worker:
            # apcore stops waiting after the module's own time limit, without a word to this coroutine.
            self._token.on_cancel(partial(self._threads.expect_end, worker))
            return await worker.call(self._module.execute, inputs, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def blocks(module: Any) -> bool:
    return not inspect.iscoroutinefunction(getattr(module, "execute", None))


def on_thread(module: Any, context: Any, threads: Threads) -> Any:
    """The module as apcore is to run it: on one of these threads, if it blocks and is part of a run of ours."""
    token = getattr(context, "cancel_token", None)
    if not isinstance(token, RunToken) or not token.is_here() or not blocks(module):
        return module
    return BlockingModule(module, threads, token)
