"""What apcore says of a call before it is made: whether its ACL lets the caller in, and whether the inputs will do.

The checks are apcore's own. From 0.18 on its pipeline can be run dry, by the classes that it exports for that; before,
there is `Executor.validate`, which knows the schema only until 0.8.

Rule: nothing private of an executor is read. What it does not tell is not known, and is decided when the call is made.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import apcore

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
