"""Admission agrees with the checks of apcore, for any pipeline."""

from typing import Any

import apcore
import pytest
from pydantic import BaseModel, RootModel, field_validator

from apcore_a2a.agents.apcore.executor import ServedExecutor
from apcore_a2a.agents.apcore.modules import find_failed_checks
from apcore_a2a.errors import A2AError, SkillNotFoundError
from tests.agents.apcore.running import (
    EXECUTORS,
    Add,
    Data,
    Echo,
    Returns,
    agent_of,
    call_of,
    needs_pipeline,
    registry_of,
    run,
)

pytestmark = needs_pipeline

DENY_ALL = apcore.ACL(rules=[], default_effect="deny")


class Short(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def look_up(cls, text: str) -> str:
        return {"a": "b"}[text]  # a bug: KeyError is not a ValueError


class Refuses(apcore.BaseStep if hasattr(apcore, "BaseStep") else object):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name="refuse", description="Refuse", pure=True)

    async def execute(self, ctx: Any) -> Any:
        raise apcore.InvalidInputError(message="refused")


class Aborts(Refuses):
    async def execute(self, ctx: Any) -> Any:
        return apcore.StepResult(action="abort", explanation="not today")


class Stumbles:
    def before_step(self, step_name: str, state: Any) -> None:
        if step_name == "input_validation":
            raise RuntimeError("stumbled")


def plain(executor: apcore.Executor) -> None:
    pass


def with_a_step(executor: apcore.Executor) -> None:
    executor.current_strategy.insert_after("module_lookup", Refuses())


def with_a_step_that_aborts(executor: apcore.Executor) -> None:
    executor.current_strategy.insert_after("module_lookup", Aborts())


def with_a_step_middleware(executor: apcore.Executor) -> None:
    executor.current_strategy.add_step_middleware(Stumbles())


def with_an_acl(executor: apcore.Executor) -> None:
    executor.set_acl(DENY_ALL)


def with_an_acl_of_the_step(executor: apcore.Executor) -> None:
    next(step for step in executor.current_strategy.steps if step.name == "acl_check").set_acl(DENY_ALL)


def without_validation(executor: apcore.Executor) -> None:
    executor.current_strategy.remove("input_validation")


CHANGES = [
    plain,
    with_a_step,
    with_a_step_that_aborts,
    with_a_step_middleware,
    with_an_acl,
    with_an_acl_of_the_step,
    without_validation,
]


@pytest.mark.parametrize("make_executor", EXECUTORS)
@pytest.mark.parametrize("inputs", [{"a": 1, "b": 2}, {"a": 1}, {"a": "1", "b": 2}, {"text": "a"}, {"text": "c"}, {}])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("module", [Add(), Echo(Short), Echo({"required": ["a"]}), Returns({})])
async def test_admission_agrees_with_the_checks_of_apcore(
    make_executor: Any, module: Any, change: Any, inputs: Data
) -> None:
    executor = make_executor(registry_of(a__module=module))
    agent = agent_of(executor)
    change(executor)  # after the agent was created
    if executor.validate("a.module", inputs).valid:
        await agent.admit(call_of(inputs))
    else:
        with pytest.raises((A2AError, KeyError)):  # a bug in a validator is still a bug
            await agent.admit(call_of(inputs))


async def test_another_executor_can_have_a_pipeline() -> None:
    class Own:
        def __init__(self, executor: apcore.Executor) -> None:
            self.registry = executor.registry
            self.call_async = executor.call_async
            self.current_strategy = executor.current_strategy

    agent = agent_of(Own(ServedExecutor(registry_of(math__add=Add()))))
    with pytest.raises(A2AError):
        await agent.admit(call_of({"a": 1}))


async def test_inputs_that_are_not_objects_are_left_to_apcore() -> None:
    class Text(RootModel[str]):
        pass

    executor = apcore.Executor(registry_of(a__module=Returns({}, input_schema=Text)))
    assert not executor.validate("a.module", "hello").valid
    with pytest.raises(A2AError):
        await agent_of(executor).admit(call_of("hello"))


async def test_the_first_check_of_an_older_pipeline_that_fails_ends_the_dry_run() -> None:
    """Before 0.32 the failure is raised, itself or inside a PipelineStepError."""

    class Strategy:
        """Raises when apcore's engine first accesses it."""

        def __init__(self, error: Exception) -> None:
            self.name = "older"
            self.error = error

        @property
        def steps(self) -> Any:
            raise self.error

    class Older:
        registry = registry_of(math__add=Add())

        async def call_async(self, *args: Any) -> Any:
            raise NotImplementedError

    async def refusal(error: Exception) -> A2AError:
        executor = Older()
        vars(executor).update(current_strategy=Strategy(error))
        with pytest.raises(A2AError) as refused:
            await agent_of(executor).admit(call_of({"a": 1, "b": "two"}))
        return refused.value

    denied = apcore.ACLDeniedError(caller_id="", target_id="math.add")
    wrong = apcore.SchemaValidationError(message="wrong", errors=[{"field": "b", "code": "int", "message": "no"}])
    for error in (denied, apcore.PipelineStepError(step_name="acl_check", cause=denied)):
        assert (await refusal(error)).message == "Task not found"
    for error in (wrong, apcore.PipelineStepError(step_name="input_validation", cause=wrong)):
        assert (await refusal(error)).message == "Invalid parameters: b: no"
    assert isinstance(await refusal(apcore.PipelineAbortError(step="own", explanation="no")), SkillNotFoundError)


async def test_an_older_context_is_created_with_its_executor() -> None:
    class Older:
        current_strategy = apcore.ExecutionStrategy("older", [])

    assert await find_failed_checks(Older(), "math.add", {}, object) == {}


async def test_a_message_that_passes_the_checks_runs() -> None:
    agent = agent_of(apcore.Executor(registry_of(math__add=Add())))
    assert (await run(agent, call_of({"a": 1, "b": 2}))).data == {"total": 3}
