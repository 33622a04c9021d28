"""Errors that clients see: by the table, with our texts, and without local details.

How it arrives is in `test_failures_on_the_wire.py`.
"""

import inspect
from typing import Any

import apcore
import apcore.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.agent import Caller
from apcore_a2a.agents.apcore.failures import FAILURES, sanitize, translate
from apcore_a2a.errors import A2AError, AgentError, InvalidParamsError, SkillNotFoundError, wire
from tests.agents.apcore.running import Add, Data, agent_of, call_of, run

SKILL = "a.module"


def every_error() -> list[Exception]:
    """Return one error of each class of apcore, without its constructor: only the code counts."""
    classes = {each for each in vars(apcore.errors).values() if isinstance(each, type) and issubclass(each, Exception)}
    made = []
    for kind in sorted(classes, key=lambda each: each.__name__):
        error = kind.__new__(kind)
        vars(error).update(code="MADE_UP", message="/secret/path/x", details={"secret": "x"}, cause=None)
        error.__cause__ = error  # as in newer apcore
        made.append(error)
    return made


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_an_unknown_code_is_an_internal_error_whatever_its_class(error: Exception) -> None:
    failed = translate(error, SKILL, Caller())
    assert wire(failed).code == -32603
    assert "secret" not in failed.message


@pytest.mark.parametrize("code", [code for code in map(str, FAILURES) if code.isupper()])
def test_every_row_of_the_table_gives_its_error(code: str) -> None:
    error = apcore.ModuleError(code=code, message="/secret/path/x")
    kind, text, ours = FAILURES[code]
    failed = translate(error, SKILL, Caller())
    assert (type(failed), failed.message, failed.kind) == (ours, text, kind)


def test_a_module_that_was_removed_before_it_was_called_is_not_found() -> None:
    failed = translate(apcore.errors.ModuleNotFoundError(module_id=SKILL), SKILL, Caller())
    assert (type(failed), failed.message) == (SkillNotFoundError, f"Skill not found: {SKILL}")


async def test_a_disabled_module_is_rejected() -> None:
    if "toggle_state" not in inspect.signature(apcore.Executor).parameters:
        pytest.skip("this apcore switches nothing off by executor")
    from apcore.sys_modules.control import ToggleState

    state = ToggleState()
    registry = apcore.Registry()
    registry.register("math.add", Add())
    executor = apcore.Executor(registry, toggle_state=state)
    state.disable("math.add")
    with pytest.raises(A2AError) as refused:
        await agent_of(executor).admit(call_of({"a": 1, "b": 2}))
    assert (refused.value.message, refused.value.kind) == ("This skill is switched off", "ModuleDisabledError")


@pytest.mark.parametrize(
    "error",
    [
        apcore.errors.ModuleNotFoundError(module_id="secret.module"),
        apcore.SchemaValidationError(message="Input validation failed", errors=[{"field": "secret", "message": "no"}]),
        apcore.InvalidInputError(message="secret"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_input_error_of_another_module_is_internal(error: Exception) -> None:
    vars(error)["details"] = {**getattr(error, "details", {}), "module_id": "secret.module"}
    failed = translate(error, SKILL, Caller())
    assert isinstance(failed, AgentError)
    assert "secret" not in failed.message


@pytest.mark.parametrize("wrong", [7, [], ["secret message"], [{"field": "secret"}]], ids=repr)
def test_an_input_error_of_a_module_that_lists_no_wrong_field_is_internal(wrong: object) -> None:
    error = apcore.SchemaValidationError(message="Input validation failed")
    vars(error)["details"] = {"errors": wrong, "module_id": SKILL}
    failed = translate(error, SKILL, Caller())
    assert isinstance(failed, AgentError)
    assert "secret" not in failed.message


def test_an_input_error_of_a_module_names_the_wrong_fields_among_other_things_that_it_lists() -> None:
    error = apcore.SchemaValidationError(message="Input validation failed")
    named = {"field": "a", "message": "must be even"}
    vars(error)["details"] = {"errors": ["a message", {"field": "b"}, named], "module_id": SKILL}
    failed = translate(error, SKILL, Caller())
    assert (type(failed), failed.message) == (InvalidParamsError, "Invalid parameters: a: must be even")


async def test_a_call_of_a_module_that_is_missing_names_no_module() -> None:
    class Calls:
        description = "Call a module that is not there"

        async def execute(self, inputs: Data, context: Any) -> Any:
            return await context.executor.call_async("secret.module", inputs, context)

    with pytest.raises(A2AError) as failed:
        await run(agent_of(a__calls=Calls()), call_of("go"))
    assert not isinstance(failed.value, SkillNotFoundError)
    assert "secret" not in failed.value.message


# Peer weakness 31: what is removed from third-party texts, and what is not


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("1/2 and/or 3/4 per km/h", "1/2 and/or 3/4 per km/h"),
        ("see https://example.com/a/b/c.html?d=e", "see https://example.com/a/b/c.html?d=e"),
        ("cannot read /etc/app/config.yaml", "cannot read …"),
        ("in '/usr/lib/python3/x.py'", "in '…'"),
        (r"cannot read C:\Users\ada\secret.txt now", "cannot read … now"),
        (r"cannot read \\server\share\x", "cannot read …"),
        ("login with password=hunter2 failed", "login with password=… failed"),
        ("API_KEY: abc123", "API_KEY: …"),
        ("Authorization: Bearer abc", "Authorization: … abc"),
        ("postgres://ada:hunter2@db/x", "postgres://…@db/x"),
        ('bad\nTraceback (most recent call last):\n  File "/a/b.py", line 1, in f\n    x()', "bad"),
        ('File "/a/b/c.py", line 12, in f', "…"),
        ("x" * 600, "x" * 500),
        (None, ""),
        ("", ""),
    ],
)
def test_peer_weakness_31_texts_are_sanitized(text: str | None, seen: str) -> None:
    assert sanitize(text) == seen


@given(st.text(max_size=2000))
def test_any_text_can_be_sanitized(text: str) -> None:
    assert len(sanitize(text)) <= 500
