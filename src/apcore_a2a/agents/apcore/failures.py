"""What a client is told when apcore or a module fails.

Rule: one table says it; the texts are ours. Whatever is not in the table is logged, and told as a reference to the log.
"""

import json
import logging
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from apcore_a2a import errors
from apcore_a2a.agents.apcore.registry import ModuleInfo
from apcore_a2a.errors import A2AError, AgentError

logger = logging.getLogger(__name__)

MAX_TEXT: Final = 500
SAFETY: Final = "Safety limit exceeded"

# By apcore's code: the name of its class, what we say, and which of our errors it is.
FAILURES: Final[Mapping[object, tuple[str, str, type[A2AError]]]] = {
    "MODULE_TIMEOUT": ("ModuleTimeoutError", "Execution timed out", AgentError),
    "CALL_DEPTH_EXCEEDED": ("CallDepthExceededError", SAFETY, AgentError),
    "CIRCULAR_CALL": ("CircularCallError", SAFETY, AgentError),
    "CALL_FREQUENCY_EXCEEDED": ("CallFrequencyExceededError", SAFETY, AgentError),
    "APPROVAL_PENDING": ("ApprovalPendingError", "Approval required", AgentError),
    "APPROVAL_DENIED": ("ApprovalDeniedError", "Approval denied", AgentError),
    "APPROVAL_TIMEOUT": ("ApprovalTimeoutError", "Approval timed out", AgentError),
    "MODULE_DISABLED": ("ModuleDisabledError", "This skill is switched off", errors.UnsupportedOperationError),
    "CIRCUIT_BREAKER_OPEN": ("CircuitBreakerOpenError", "This skill keeps failing; try again later", AgentError),
    "EXECUTION_CANCELLED": ("ExecutionCancelledError", "Execution canceled", AgentError),
    "ExecutionCancelledError": ("ExecutionCancelledError", "Execution canceled", AgentError),  # 0.6.0: it has no code
    "TASK_LIMIT_EXCEEDED": ("TaskLimitExceededError", "Too much to do; try again later", AgentError),
}

_UNFIT: Final = (  # to be seen outside: our machine's paths, our code, other people's secrets
    (re.compile(r"Traceback \(most recent call last\).*", re.DOTALL), ""),
    (re.compile(r'File "[^"]*", line \d+(?:, in \S+)?'), "…"),
    (re.compile(r"(?<![\w:/.])/(?:[\w.@~-]+/)+[\w.@~-]*|\b[A-Za-z]:\\[^\s\"']+|\\\\[\w.$-]+\\[^\s\"']*"), "…"),
    (re.compile(r"(://)[^/\s:@]+:[^/\s@]+@"), r"\1…@"),
    (re.compile(r"(?i)\b(pass(?:word|wd)?|secret|token|api[_-]?key|authorization)(\s*[=:]\s*)\S+"), r"\1\2…"),
)
_REQUIRED: Final = re.compile(r"^'(.+)' is a required property$")


def public(text: object) -> str:
    """Somebody else's text, fit to be seen outside."""
    said = str(text or "")
    for pattern, instead in _UNFIT:
        said = pattern.sub(instead, said)
    return said.strip()[:MAX_TEXT]


def refuse(failed: Mapping[str, Any], module: ModuleInfo, inputs: Any) -> A2AError:
    """The error for a call that did not pass apcore's checks; access is judged before anything is told."""
    if "acl" in failed:
        return mask(module.id, failed["acl"].get("message"))
    if "schema" in failed:
        return _invalid_input(failed["schema"], module, inputs)
    return _from_table(next(iter(failed.values())).get("code")) or errors.SkillNotFoundError(module.id)


def mask(skill: str, reason: object) -> A2AError:
    """Who may not call a skill is told what one who asks for nothing real is told (FR-ERR-003)."""
    logger.warning("call denied by ACL", extra={"module_id": skill, "reason": str(reason)})
    return errors.TaskNotFoundError()


def explain(error: Exception, skill: str) -> A2AError:
    """The error for an exception that ended a run."""
    for said in (error, getattr(error, "cause", None)):  # what apcore wrapped; `__cause__` may be the error itself
        if isinstance(said, A2AError):
            return said
    code, details = getattr(error, "code", type(error).__name__), getattr(error, "details", {})
    if code == "ACL_DENIED":
        return mask(skill, error)
    if code == "SCHEMA_VALIDATION_ERROR" and "Output" in str(error):
        return invalid_output(skill, error)
    if code == "GENERAL_INVALID_INPUT" and details.get("module_id", skill) == skill and "code" not in details:
        return errors.InvalidParamsError(
            f"Invalid input: {public(getattr(error, 'message', ''))}", kind="InvalidInputError"
        )
    return _from_table(code) or _internal(error, skill)


def _from_table(code: object) -> A2AError | None:
    row = FAILURES.get(code)
    return None if row is None else row[2](row[1], kind=row[0])


def _internal(error: Exception, skill: str) -> A2AError:
    reference = secrets.token_hex(6)
    logger.error("module failed", exc_info=error, extra={"module_id": skill, "reference": reference})
    kind = "ModuleExecuteError" if getattr(error, "code", None) == "MODULE_EXECUTE_ERROR" else "InternalError"
    return AgentError(f"Internal error (reference {reference})", kind=kind, reference=reference)


def invalid_output(skill: str, reason: object) -> A2AError:
    logger.error("module output does not match its schema", extra={"module_id": skill, "reason": str(reason)})
    return errors.InvalidAgentResponseError(
        "The module's output does not match its schema", kind="SchemaValidationError"
    )


def _invalid_input(error: Mapping[str, Any], module: ModuleInfo, inputs: Any) -> A2AError:
    found = error.get("errors") or error.get("details", {}).get("errors") or ()
    items = [item if isinstance(item, Mapping) else vars(item) for item in found]
    if not items or any("field" not in item for item in items):  # 0.17 loses all fields, 0.32 those that are missing
        items = validate(module.source.input_schema, inputs, strict=any("path" in item for item in items)) or items
    said = [errors.Violation(_field(item), public(item["message"]), item.get("code") or "invalid") for item in items]
    texts = [f"{each.field}: {each.message}" if each.field else each.message for each in said[:3]]
    return errors.InvalidParamsError(f"Invalid parameters: {'; '.join(texts)}", said, kind="SchemaValidationError")


def _field(item: Mapping[str, Any]) -> str:
    named = _REQUIRED.match(item["message"])
    return item.get("field") or item.get("path", "").strip("/").replace("/", ".") or (named[1] if named else "")


def validate(model: Any, value: Any, *, strict: bool) -> list[Any]:
    """What a pydantic model says of a JSON value, field by field; nothing if it is no such model."""
    try:
        if hasattr(model, "model_validate_json"):
            model.model_validate_json(json.dumps(value), strict=strict)
    except ValidationError as error:
        return [{"field": ".".join(map(str, e["loc"])), "code": e["type"], "message": e["msg"]} for e in error.errors()]
    return []
