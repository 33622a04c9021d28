"""What is known beforehand is what apcore would have found out: nothing more is admitted, and less is done."""

from typing import Any

import apcore
import pytest
from pydantic import BaseModel, RootModel, field_validator

from apcore_a2a.agents.apcore.shortcuts import STEPS
from apcore_a2a.errors import A2AError
from tests.agents.apcore.running import Add, Data, Echo, Returns, agent_of, call_of, registry_of, run
from tests.calls import count_calls

pytestmark = pytest.mark.skipif(not hasattr(apcore.Executor, "_validate_async"), reason="this apcore runs no pipeline")

NOBODY = apcore.ACL(rules=[], default_effect="deny")


class Short(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def look_up(cls, text: str) -> str:
        return {"a": "b"}[text]  # a mistake: KeyError is no ValueError


def test_the_steps_of_this_apcore_have_been_read() -> None:
    """If they have not: see that they ask a model for its schema only to redact, and redact only inputs and output."""
    assert STEPS == apcore.BuiltinInputValidation.__module__


async def test_a_message_costs_less_than_the_bare_call_even_of_a_module_whose_schemas_are_remembered() -> None:
    """A guard for speed that is not a clock: it counts calls of functions, those of the checks at the door included.

    320 and 616 of them, and 1,874 where schemas are not remembered; each search for secrets would add 90.
    """
    executor = apcore.Executor(registry_of(math__add=Add()))
    agent, inputs = agent_of(math__add=Add()), {"a": 1, "b": 2}
    await run(agent, call_of(inputs))  # what is made once is made
    ours, _ = await count_calls(run(agent, call_of(inputs)))
    theirs, _ = await count_calls(executor.call_async("math.add", inputs))
    assert ours < 0.6 * theirs


# At the door


class Sealed(apcore.Executor):  # type: ignore[misc]  # apcore is untyped
    """Has not been asked for a dry run, or it fails."""

    async def _validate_async(self, *args: Any) -> Any:
        raise AssertionError("asked")


async def test_what_fits_is_admitted_without_a_dry_run() -> None:
    agent = agent_of(Sealed(registry_of(math__add=Add())))
    await agent.admit(call_of({"a": 1, "b": 2}))
    with pytest.raises(AssertionError, match="asked"):
        await agent.admit(call_of({"a": "1", "b": 2}))


class Refuses(apcore.BaseStep if hasattr(apcore, "BaseStep") else object):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name="refuse", description="Refuse", pure=True)

    async def execute(self, ctx: Any) -> Any:
        raise apcore.InvalidInputError(message="refused")


class Stumbles:
    def before_step(self, step_name: str, state: Any) -> None:
        if step_name == "input_validation":
            raise RuntimeError("stumbled")


def plain(executor: apcore.Executor) -> None:
    pass


def with_a_step(executor: apcore.Executor) -> None:
    executor.current_strategy.insert_after("module_lookup", Refuses())


def with_a_step_middleware(executor: apcore.Executor) -> None:
    executor.current_strategy.add_step_middleware(Stumbles())


def with_an_acl(executor: apcore.Executor) -> None:
    executor.set_acl(NOBODY)


def with_an_acl_of_the_step(executor: apcore.Executor) -> None:
    next(step for step in executor.current_strategy.steps if step.name == "acl_check").set_acl(NOBODY)


def without_validation(executor: apcore.Executor) -> None:
    executor.current_strategy.remove("input_validation")


def switched_off(executor: apcore.Executor) -> None:
    executor._toggle_state.disable("a.module")


@pytest.mark.parametrize("inputs", [{"a": 1, "b": 2}, {"a": 1}, {"a": "1", "b": 2}, {"text": "a"}, {"text": "c"}, {}])
@pytest.mark.parametrize(
    "change",
    [
        plain,
        with_a_step,
        with_a_step_middleware,
        with_an_acl,
        with_an_acl_of_the_step,
        without_validation,
        switched_off,
    ],
)
@pytest.mark.parametrize("module", [Add(), Echo(Short), Echo({"required": ["a"]}), Returns({})])
async def test_admitted_is_what_apcore_finds_valid(module: Any, change: Any, inputs: Data) -> None:
    from apcore.sys_modules.control import ToggleState

    executor = apcore.Executor(registry_of(a__module=module), toggle_state=ToggleState())
    agent = agent_of(executor)
    change(executor)  # later: the agent is there already
    if executor.validate("a.module", inputs).valid:
        await agent.admit(call_of(inputs))
    else:
        with pytest.raises((A2AError, KeyError)):  # the mistake of a validator is as much a bug as before
            await agent.admit(call_of(inputs))


async def test_an_executor_that_is_not_apcores_judges_for_itself() -> None:
    class Own:
        def __init__(self, executor: apcore.Executor) -> None:
            self.registry = executor.registry
            self.call_async = executor.call_async
            self._validate_async = executor._validate_async

        def validate(self, module_id: str, inputs: Data, context: Any) -> Any:
            raise AssertionError("would block")

    agent = agent_of(Own(apcore.Executor(registry_of(math__add=Add()))))
    assert (await run(agent, call_of({"a": 1, "b": 2}))).data == {"total": 3}


async def test_what_is_no_object_is_left_to_apcore() -> None:
    class Text(RootModel[str]):
        pass

    executor = apcore.Executor(registry_of(a__module=Echo(Text)))
    assert not executor.validate("a.module", "hello").valid
    with pytest.raises(A2AError):
        await agent_of(executor).admit(call_of("hello"))
