"""Redaction with cached schemas hides the same fields as apcore alone.

apcore redacts in both cases. It reads the schema either from the model itself or from a view that caches it.
"""

from contextlib import suppress
from typing import Any

import apcore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel

from apcore_a2a.agents.apcore.executor import ServedExecutor
from apcore_a2a.errors import A2AError
from tests.agents.apcore.running import Data, Echo, Returns, agent_of, call_of, needs_pipeline, registry_of, run

NAMES = st.sampled_from(["a", "password", "X-API-Key", "sessionId", "trace_id", "pin", "inner", "a b"]) | st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
RULES = {"sensitive_keys": ["*colour*", "pass"], "regex_patterns": ["^Bearer "], "replacement": "-"}


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")
    count: int = 0


class Marked(Anything):
    pin: Any = Field(default=None, json_schema_extra={"x-sensitive": True})


class Nested(Anything):
    inner: Marked = Marked()


class Watch(apcore.Middleware):  # type: ignore[misc]  # apcore is untyped
    """Records the redacted values before and after the call, and may change the inputs."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.more = more
        self.seen: list[Any] = []

    def before(self, module_id: str, inputs: Data, context: Any) -> Data:
        self.seen.append(context.redacted_inputs)
        return {**inputs, **self.more}

    def after(self, module_id: str, inputs: Data, output: Data, context: Any) -> None:
        self.seen += [context.redacted_inputs, self.redacted_output(context)]

    def on_error(self, module_id: str, inputs: Data, error: Exception, context: Any) -> None:
        self.seen += [type(error), context.redacted_inputs, self.redacted_output(context)]

    def redacted_output(self, context: Any) -> Any:
        return getattr(context, "redacted_output", None)  # 0.6.0 keeps none


async def logged_by_apcore(module: Any, inputs: Data, *, rules: Data | None = None, **more: Any) -> list[Any]:
    """Return the redacted values of a call through apcore alone."""
    watch, config = Watch(**more), apcore.Config({"obs": {"redaction": rules}}) if rules else None
    executor = apcore.Executor(registry_of(a__module=module), middlewares=[watch], config=config)
    with suppress(apcore.ModuleError, A2AError):
        await executor.call_async("a.module", {**inputs})
    return watch.seen


async def logged_by_us(module: Any, inputs: Data, *, rules: Data | None = None, **more: Any) -> list[Any]:
    """Return the redacted values of a message to an agent, in the second call, with cached schemas."""
    watch, config = Watch(**more), apcore.Config({"obs": {"redaction": rules}}) if rules else None
    executor = ServedExecutor(registry_of(a__module=module), middlewares=[watch], config=config)
    agent = agent_of(executor)
    for _ in range(2):
        watch.seen.clear()
        with suppress(apcore.ModuleError, A2AError):
            await run(agent, call_of({**inputs}))
    return watch.seen


@pytest.mark.parametrize("schema", [Anything, Marked, Nested])
@given(inputs=st.dictionaries(NAMES, VALUES, max_size=4))
async def test_all_fields_that_apcore_redacts_are_redacted(schema: Any, inputs: Data) -> None:
    inputs = {name: {"pin": value} if name == "inner" else value for name, value in inputs.items()}
    assert await logged_by_us(Echo(schema), inputs) == await logged_by_apcore(Echo(schema), inputs)


@pytest.mark.parametrize("schema", [Anything, Marked])
@pytest.mark.parametrize("more", [{}, {"password": "x"}, {"a": {"b": [{"colour": "red"}]}}, {"count": "not one"}])
@pytest.mark.parametrize(
    "inputs",
    [{"a": "Bearer x"}, {"pin": 1}, {"a": [{"Colours": {"b": 1}}]}, {"session": "s"}, {f"{'x' * 1000}password": "s"}],
)
async def test_rules_of_the_configuration_and_of_middleware_apply(inputs: Data, more: Data, schema: Any) -> None:
    for rules in (None, RULES):
        alone = await logged_by_apcore(Echo(schema), inputs, rules=rules, **more)
        assert await logged_by_us(Echo(schema), inputs, rules=rules, **more) == alone


@needs_pipeline
@pytest.mark.parametrize("output", ["a secret", 3, [{"pin": 1}]])
async def test_an_output_that_is_not_an_object_is_not_logged(output: Any) -> None:
    module = Returns(output, output_schema=RootModel[Any])
    assert await logged_by_us(module, {"a": 1}) == [{"a": 1}, {"a": 1}, {"result": "***REDACTED***"}]


@needs_pipeline
async def test_a_copy_for_the_log_shares_no_object_with_the_call() -> None:
    inputs = {"list": [{"a": 1}]}
    before, after, output = await logged_by_us(Echo(Anything), inputs)
    assert before == after == output == inputs
    assert before["list"][0] is not after["list"][0] is not output["list"][0]


async def seen_by_steps(executor: Any) -> list[Any]:
    """Return the modules that custom pipeline steps receive."""
    seen: list[Any] = []

    class Looks(apcore.BaseStep):  # type: ignore[misc]  # apcore is untyped
        async def execute(self, ctx: Any) -> Any:
            seen.append(ctx.module)
            return apcore.StepResult(action="continue")

    for name in ("module_lookup", "input_validation", "output_validation"):
        executor.current_strategy.insert_after(name, Looks(name=f"after_{name}"))
    await run(agent_of(executor), call_of({"a": 1}))
    return seen


@needs_pipeline
async def test_steps_of_a_custom_executor_see_the_module_itself() -> None:
    module = Echo(Anything)
    assert await seen_by_steps(apcore.Executor(registry_of(a__module=module))) == [module] * 3


@needs_pipeline
async def test_steps_of_a_served_executor_see_a_view_of_the_module() -> None:
    module = Echo(Anything)
    for seen in await seen_by_steps(ServedExecutor(registry_of(a__module=module))):
        assert (seen.description, seen.execute) == (module.description, module.execute)
        assert seen.input_schema.model_json_schema() == Anything.model_json_schema()
        assert seen.input_schema(count=1) == Anything(count=1)
