"""The program of the process that `checker.Checker` starts. It checks values whose check may take long.

It reads one request per line and writes one answer per line, both JSON. It imports no other module of the package, so
that it starts fast.

Invariant: each check ends within its processor time, and the memory of the process is limited. The handler of the timer
raises, also within a regular expression.
"""

import json
import re
import signal
import sys
import time
from contextlib import suppress
from itertools import islice
from types import FrameType
from typing import Any, Final

MAX_ERRORS: Final = 51  # one more than an error names
MAX_TEXT: Final = 1_000  # characters of a message, which may repeat the value
MAX_MEMORY: Final = 512 * 1024 * 1024  # bytes. Some regular expressions need 150 for each character of a text.
HAS_TIMERS: Final = hasattr(signal, "setitimer")  # not on Windows, where the server ends the process

Answer = dict[str, Any]


class OutOfTimeError(BaseException):
    """The check has used its processor time. A BaseException, so that no library catches it."""


def main() -> None:
    _limit_memory()
    if HAS_TIMERS:
        signal.signal(signal.SIGPROF, _raise_out_of_time)
    for line in sys.stdin.buffer:
        answer = _answer(json.loads(line))
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _limit_memory() -> None:
    with suppress(ImportError, ValueError, OSError):  # not on Windows, and not above the limit of the parent process
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def _raise_out_of_time(_signal: int, _frame: FrameType | None) -> None:
    raise OutOfTimeError


def _answer(request: dict[str, Any]) -> Answer:
    begun = time.process_time()
    try:
        try:
            _limit_time(request["seconds"])
            errors = _check(request)
        finally:
            _limit_time(0)
    except (OutOfTimeError, MemoryError):
        return {"too_slow": True}
    except Exception as error:  # the validator's: an invalid schema, which is the skill's defect
        return {"failed": f"{type(error).__name__}: {error}"[:MAX_TEXT]}
    return {"errors": errors, "seconds": time.process_time() - begun}


def _limit_time(seconds: float) -> None:
    if HAS_TIMERS:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _check(request: dict[str, Any]) -> list[Answer]:
    if "schema" in request:
        return _find_errors(request["schema"], request["value"], hashed=request["hashed"])
    for pattern in request["patterns"]:
        _search(pattern, request["texts"])
    return []


def _search(pattern: str, texts: list[str]) -> None:
    try:
        search = re.compile(pattern).search
    except re.error:  # a pattern of another engine, which Python never runs
        return
    for text in texts:
        search(text)


def _find_errors(schema: Any, value: Any, *, hashed: bool) -> list[Answer]:
    """Return the errors of a value by a JSON Schema, as apcore finds them.

    Args:
        hashed: Whether `uniqueItems` compares digests instead of each item with each other one.
    """
    import jsonschema  # a dependency of apcore, which older versions do not have

    validators: Any = jsonschema.validators  # Any: `extend` has no types
    kind = validators.Draft202012Validator
    if hashed:
        kind = validators.extend(kind, {"uniqueItems": _check_unique})
    errors: list[Answer] = []
    for error in islice(kind(schema).iter_errors(value), MAX_ERRORS):
        path = "/".join(map(str, error.absolute_path))
        errors.append({"path": path[:MAX_TEXT], "message": error.message[:MAX_TEXT], "code": str(error.validator)})
    return errors


def _check_unique(_validator: Any, unique: Any, items: Any, _schema: Any) -> Any:
    import jsonschema  # as above

    if unique is True and isinstance(items, list):
        found = {json.dumps(_with_integers(item), sort_keys=True) for item in items}
        if len(found) < len(items):
            yield jsonschema.ValidationError("has non-unique elements")


def _with_integers(value: Any) -> Any:
    """Return the value with 1.0 as 1, which are equal in JSON."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_integers(item) for name, item in value.items()}
    return value


if __name__ == "__main__":
    main()
