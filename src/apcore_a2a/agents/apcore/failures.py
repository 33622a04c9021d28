"""Translates failures of apcore and of modules to the errors that a client sees.

Invariant: one table holds the codes and our texts. Any other failure is logged, and the client sees a reference to the
log.
"""

import json
import logging
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

import apcore
from pydantic import ValidationError

from apcore_a2a import errors
from apcore_a2a.agent import Caller
from apcore_a2a.agents.apcore.modules import ACCESS, SCHEMA, FailedChecks, ModuleInfo
from apcore_a2a.agents.inputs import MAX_VIOLATIONS, refuse_inputs
from apcore_a2a.clean_text import clean_line
from apcore_a2a.errors import A2AError, AgentError

logger = logging.getLogger(__name__)

MAX_TEXT: Final = 500
MAX_READ: Final = 5_000  # characters of a text that are sanitized. It may repeat megabytes of a client's input.
SAFETY: Final = "Safety limit exceeded"

# By the code of apcore: the name of its class, our text, and our error class.
FAILURES: Final[Mapping[object, tuple[str, str, type[A2AError]]]] = {
    "MODULE_TIMEOUT": ("ModuleTimeoutError", "Execution timed out", AgentError),
    "CALL_DEPTH_EXCEEDED": ("CallDepthExceededError", SAFETY, AgentError),
    "CIRCULAR_CALL": ("CircularCallError", SAFETY, AgentError),
    "CALL_FREQUENCY_EXCEEDED": ("CallFrequencyExceededError", SAFETY, AgentError),
    "APPROVAL_TIMEOUT": ("ApprovalTimeoutError", "Approval timed out", AgentError),
    "MODULE_DISABLED": ("ModuleDisabledError", "This skill is switched off", errors.UnsupportedOperationError),
    "CIRCUIT_BREAKER_OPEN": ("CircuitBreakerOpenError", "This skill keeps failing; try again later", AgentError),
    "EXECUTION_CANCELLED": ("ExecutionCancelledError", "Execution canceled", AgentError),
    "ExecutionCancelledError": ("ExecutionCancelledError", "Execution canceled", AgentError),  # 0.6.0 has no code
    "TASK_LIMIT_EXCEEDED": ("TaskLimitExceededError", "Too many tasks are running; try again later", AgentError),
}

# Removed from texts: tracebacks, local paths, credentials in URLs, and values that look like secrets.
_REDACTIONS: Final = (
    (re.compile(r"Traceback \(most recent call last\).*", re.DOTALL), ""),
    (re.compile(r'File "[^"]*", line \d+(?:, in \S+)?'), "…"),
    (re.compile(r"(?<![\w:/.])/(?:[\w.@~-]+/)+[\w.@~-]*|\b[A-Za-z]:\\[^\s\"']+|\\\\[\w.$-]+\\[^\s\"']*"), "…"),
    (re.compile(r"(://)[^/\s:@]+:[^/\s@]+@"), r"\1…@"),
    (re.compile(r"(?i)\b(pass(?:word|wd)?|secret|token|api[_-]?key|authorization)(\s*[=:]\s*)\S+"), r"\1\2…"),
)
# Codes of errors in the inputs. Older versions of apcore have none. Any other code is about the schema itself.
_OF_INPUTS: Final = (None, "SCHEMA_VALIDATION_ERROR", "GENERAL_INVALID_INPUT")
_REQUIRED: Final = re.compile(r"^'(.+)' is a required property$")


def sanitize(text: object) -> str:
    """Return a third-party text without internal details, truncated to MAX_TEXT characters."""
    sanitized = str(text or "")[:MAX_READ]
    for pattern, replacement in _REDACTIONS:
        sanitized = pattern.sub(replacement, sanitized)
    return sanitized.strip()[:MAX_TEXT]


# ---- before a task exists --------------------------------------------------------------------------------------------


def refuse(failed: FailedChecks, module: ModuleInfo, inputs: Any, caller: Caller) -> A2AError:
    """Return the error for a call that did not pass apcore's checks."""
    if ACCESS in failed:  # first: a caller without access must not learn the inputs
        return mask(module.id, caller, failed[ACCESS].get("message"))
    if SCHEMA in failed:
        return _invalid_input(failed[SCHEMA], module, inputs)
    first = next(iter(failed.values()))
    return _from_table(first.get("code")) or errors.SkillNotFoundError(module.id)


def mask(skill: str, caller: Caller, reason: object) -> A2AError:
    """Log a call that the ACL denies, and return an error that looks like that of an unknown task (FR-ERR-003)."""
    details = {"module_id": skill, "caller": caller.id, "issuer": caller.issuer, "reason": str(reason)}
    for name, value in details.items():  # the client controls most of it
        details[name] = clean_line(value, MAX_TEXT)
    logger.warning("call denied by ACL", extra=details)
    return errors.AccessDeniedError(str(reason))


def _invalid_input(error: Mapping[str, Any], module: ModuleInfo, inputs: Any) -> A2AError:
    """Return the error that names each wrong field."""
    found = error.get("errors") or error.get("details", {}).get("errors") or ()
    items: list[Mapping[str, Any]] = []
    for item in found:
        if isinstance(item, Mapping):
            items.append(item)
        else:
            items.append(vars(item))  # 0.9 returns objects
    has_fields = bool(items) and all("field" in item for item in items)
    if not has_fields:  # 0.17 omits the names of all fields, 0.32 those of missing ones: validate with the model
        is_strict = any("path" in item for item in items)  # only 0.32 has "path", and it is strict
        items = validate(module.source.input_schema, inputs, strict=is_strict) or items
    if not items and error.get("code") not in _OF_INPUTS:
        return _unusable_schema(error, module)
    violations: list[errors.Violation] = []
    for item in items[:MAX_VIOLATIONS]:
        message = sanitize(item["message"])
        violations.append(errors.Violation(_field(item), message, item.get("code") or "invalid"))
    return refuse_inputs(violations)


def _unusable_schema(error: Mapping[str, Any], module: ModuleInfo) -> A2AError:
    """Log an invalid input schema, a defect of the module, and return an internal error with a reference to the log."""
    reference = secrets.token_hex(6)
    reason = clean_line(str(error.get("message")), MAX_TEXT)
    extra = {"module_id": module.id, "reference": reference, "reason": reason}
    logger.error("module's input schema cannot be used", extra=extra)
    return errors.InternalError(reference)


def _field(item: Mapping[str, Any]) -> str:
    """Return the dotted field of an error item. apcore names it in three different ways."""
    field = item.get("field") or item.get("path", "").strip("/").replace("/", ".")
    if field:
        return str(field)
    named = _REQUIRED.match(item["message"])
    if named is None:
        return ""
    return named[1]


def find_wrong_output(schema: Any, value: Any) -> list[Any]:
    """Return the errors of a JSON output by its schema. Empty without a schema."""
    if hasattr(schema, "model_validate_json") or not hasattr(schema, "model_validate"):
        return validate(schema, value, strict=False)
    try:
        schema.model_validate(value)  # apcore's adapter of a schema that is a dict
    except apcore.SchemaValidationError as error:
        return list(error.details["errors"])
    return []


def validate(model: Any, value: Any, *, strict: bool) -> list[Any]:
    """Return the errors of a JSON value by a pydantic model, one per field. Empty for anything but such a model."""
    if not hasattr(model, "model_validate_json"):
        return []
    try:
        model.model_validate_json(json.dumps(value), strict=strict)
    except ValidationError as error:
        found: list[dict[str, str]] = []
        for item in error.errors():
            field = ".".join(map(str, item["loc"]))
            found.append({"field": field, "code": item["type"], "message": item["msg"]})
        return found
    return []


# ---- at the end of a run ---------------------------------------------------------------------------------------------


def translate(error: Exception, skill: str, caller: Caller, *, task_id: str = "") -> A2AError:
    """Return the error for an exception that ended a run. Internal errors are logged with the id of the task."""
    # One of our errors, possibly wrapped by apcore. Not `__cause__`: in newer versions that is often the error itself.
    for found in (error, getattr(error, "cause", None)):
        if isinstance(found, A2AError):
            return found
    code = getattr(error, "code", type(error).__name__)
    details = getattr(error, "details", {})
    if code == "ACL_DENIED":
        return mask(skill, caller, error)
    if code == "SCHEMA_VALIDATION_ERROR":
        if "Output" in str(error):
            return invalid_output(skill, error, task_id=task_id)
        # Raised by the module itself, about its inputs. 0.6.0 does not say which module an error comes from.
        violations = _read_violations(details.get("errors"))
        if violations and details.get("module_id") == skill:
            return refuse_inputs(violations)
    if code == "MODULE_NOT_FOUND" and details.get("module_id") == skill:  # removed after it was found
        return errors.SkillNotFoundError(skill)
    # Only errors about the inputs of this module are for the client. Errors of another module that it called name that
    # module, and errors about a chunk of a stream have a code of their own in the details.
    if code == "GENERAL_INVALID_INPUT" and details.get("module_id", skill) == skill and "code" not in details:
        text = f"Invalid input: {sanitize(getattr(error, 'message', ''))}"
        return errors.InvalidParamsError(text, kind="InvalidInputError")
    return _from_table(code) or _internal(error, skill, task_id)


def _read_violations(found: object) -> list[errors.Violation]:
    """Return the wrong fields that a module has listed. A module may put anything into the list."""
    violations: list[errors.Violation] = []
    if not isinstance(found, list):
        return violations
    for item in found:
        if isinstance(item, Mapping) and "message" in item:
            field = sanitize(item.get("field", item.get("path")))
            code = sanitize(item.get("code")) or "invalid"
            violations.append(errors.Violation(field, sanitize(item["message"]), code))
    return violations


def _from_table(code: object) -> A2AError | None:
    if code not in FAILURES:
        return None
    kind, text, ours = FAILURES[code]
    return ours(text, kind=kind)


def _internal(error: Exception, skill: str, task_id: str) -> A2AError:
    reference = secrets.token_hex(6)
    extra = {"task_id": task_id, "module_id": skill, "reference": reference}
    logger.error("module failed", exc_info=error, extra=extra)
    kind = "InternalError"
    if getattr(error, "code", None) == "MODULE_EXECUTE_ERROR":
        kind = "ModuleExecuteError"
    return AgentError("Internal error", kind=kind, reference=reference)


def invalid_output(skill: str, reason: object, *, task_id: str = "") -> A2AError:
    """Log an output that does not match the module's schema, a defect of the module, and return the error."""
    extra = {"task_id": task_id, "module_id": skill, "reason": clean_line(str(reason), MAX_TEXT)}
    logger.error("module output does not match its schema", extra=extra)
    text = "The module's output does not match its schema"
    return errors.InvalidAgentResponseError(text, kind="SchemaValidationError")
