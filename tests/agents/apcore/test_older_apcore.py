"""Behaviour of older versions of apcore, simulated by test executors and registries on every version."""

from typing import Any

import apcore
import pytest

from apcore_a2a.agents.apcore.agent import ModuleAgent
from apcore_a2a.agents.apcore.modules import Modules
from apcore_a2a.errors import InvalidParamsError, TaskNotFoundError, Violation
from tests.agents.apcore.running import Add, Data, Returns, call_of, needs_approvals, registry_of, reply, run


class Acl:
    """As before 0.28: allowed or denied."""

    def __init__(self, allows: bool) -> None:
        self.allows = allows

    def check(self, caller_id: str | None, target_id: str, context: Any) -> bool:
        return self.allows


class Check:
    def __init__(self, check: str, error: Data | None) -> None:
        self.check, self.error, self.passed = check, error, error is None


class Result:
    def __init__(self, *checks: Check, errors: list[Data] | None = None) -> None:
        self.checks, self.errors = checks, errors or []
        self.valid = not self.errors and all(check.passed for check in checks)


class Executor06:
    """As until 0.8: only the schema is checked."""

    def __init__(self, acl: Acl | None = None, errors: list[Data] | None = None) -> None:
        self.registry = registry_of(math__add=Add())
        self.acl = acl
        self.errors = errors

    def validate(self, module_id: str, inputs: Data) -> Result:
        return Result(errors=self.errors)

    async def call_async(self, module_id: str, inputs: Data, context: Any) -> Data:
        return {"total": 3}


class Executor09(Executor06):
    """As from 0.9 to 0.16: everything is checked at once."""

    def __init__(self, *checks: Check) -> None:
        super().__init__()
        self.checks = checks

    def validate(self, module_id: str, inputs: Data, context: Any = None) -> Result:
        return Result(*self.checks)


def agent_on(executor: Any) -> ModuleAgent:
    return ModuleAgent(Modules(executor.registry, executor))


ERROR = {"field": "a", "code": "int_type", "message": "Input should be a valid integer"}


@pytest.mark.parametrize("executor", [Executor06(), Executor06(Acl(True)), Executor09(Check("acl", None))])
async def test_a_call_that_passes_the_checks_runs(executor: Any) -> None:
    assert (await run(agent_on(executor), call_of({"a": 1, "b": 2}))).data == {"total": 3}


@pytest.mark.parametrize("executor", [Executor06(errors=[ERROR]), Executor09(Check("schema", {"errors": [ERROR]}))])
async def test_fields_have_the_names_that_apcore_gives(executor: Any) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        await agent_on(executor).admit(call_of({"a": "x"}))
    assert refused.value.violations == (Violation("a", "Input should be a valid integer", "int_type"),)


async def test_errors_may_be_objects() -> None:
    class Error:
        def __init__(self) -> None:
            vars(self).update(ERROR)

    with pytest.raises(InvalidParamsError) as refused:
        await agent_on(Executor09(Check("schema", {"errors": [Error()]}))).admit(call_of({"a": "x"}))
    assert refused.value.violations == (Violation("a", "Input should be a valid integer", "int_type"),)


async def test_fields_are_named_even_if_apcore_omits_their_names() -> None:
    lost = Check("schema", {"code": "STEP_INPUT_VALIDATION_FAILED", "message": "Input validation failed: ..."})
    with pytest.raises(InvalidParamsError) as refused:
        await agent_on(Executor09(lost)).admit(call_of({"a": "x"}))
    assert [violation.field for violation in refused.value.violations] == ["a", "b"]


@pytest.mark.parametrize(
    "executor",
    [
        Executor06(Acl(False), [ERROR]),
        Executor09(Check("schema", {"errors": [ERROR]}), Check("acl", {"message": "no"})),
    ],
)
async def test_access_is_checked_before_the_schema_is_revealed(executor: Any) -> None:
    with pytest.raises(TaskNotFoundError):
        await agent_on(executor).admit(call_of({"a": "x"}))


@pytest.mark.parametrize(
    ("error", "violation"),
    [
        ({"path": "", "message": "'n' is a required property"}, Violation("n", "'n' is a required property")),
        ({"path": "/list/0", "message": "is odd"}, Violation("list.0", "is odd")),
        ({"path": "", "message": "is odd"}, Violation("", "is odd")),
    ],
)
async def test_fields_of_a_schema_that_is_a_dict_are_named(error: Data, violation: Violation) -> None:
    executor = Executor09(Check("schema", {"details": {"errors": [error]}}))
    executor.registry = registry_of(a__module=Returns({}, input_schema={"type": "object"}))
    with pytest.raises(InvalidParamsError) as refused:
        await agent_on(executor).admit(call_of({}))
    assert refused.value.violations == (violation,)


@needs_approvals
async def test_without_an_approval_handler_no_token_is_passed() -> None:
    class Asking(Executor06):  # before 0.27 a token without a gate reaches the module
        calls: list[Data] = []  # noqa: RUF012  # one test, one list

        async def call_async(self, module_id: str, inputs: Data, context: Any) -> Data:
            self.calls.append(inputs)
            if len(self.calls) == 1:
                raise apcore.ApprovalPendingError(result=apcore.ApprovalResult(status="pending", approval_id="mine"))
            return {}

    executor = Asking()
    agent = agent_on(executor)
    outcome = await run(agent, call_of({"a": 1, "b": 2}))
    await reply(agent, outcome, "approve")
    assert executor.calls == [{"a": 1, "b": 2}, {"a": 1, "b": 2}]


def test_a_module_that_the_registry_cannot_describe_describes_itself() -> None:
    class Registry06:
        module = Returns({}, input_schema={"type": "object"}, tags=["x"], annotations={"discoverable": False})

        def list(self) -> list[str]:
            return ["a.module"]

        def get(self, module_id: str) -> Returns:
            return self.module

        def get_definition(self, module_id: str) -> Any:
            raise AttributeError("'dict' object has no attribute 'model_json_schema'")

    (found,) = Modules(Registry06(), Executor06())
    assert (found.description, found.tags, found.input_schema) == ("Return a value", ("x",), {"type": "object"})
    assert found.hidden
