"""What may be logged of a call that we make is what apcore alone would let be logged: nothing is redacted less."""

import asyncio
from contextlib import suppress
from typing import Any

import apcore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel

from apcore_a2a.errors import A2AError
from tests.agents.apcore.running import Data, Echo, Returns, agent_of, call_of, registry_of, run

pytestmark = pytest.mark.skipif(not hasattr(apcore.Executor, "_validate_async"), reason="this apcore runs no pipeline")

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
    """Keeps what may be logged, before and after the call; may change the inputs."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.more = more
        self.seen: list[Any] = []

    def before(self, module_id: str, inputs: Data, context: Any) -> Data:
        self.seen.append(context.redacted_inputs)
        return {**inputs, **self.more}

    def after(self, module_id: str, inputs: Data, output: Data, context: Any) -> None:
        self.seen += [context.redacted_inputs, context.redacted_output]

    def on_error(self, module_id: str, inputs: Data, error: Exception, context: Any) -> None:
        self.seen += [type(error), context.redacted_inputs, context.redacted_output]


async def logged(schema: Any, inputs: Data, *, ours: bool, rules: Data | None = None, **more: Any) -> list[Any]:
    """What the log of a call could hold: the call made by us, or by apcore alone."""
    watch, config = Watch(**more), apcore.Config({"obs": {"redaction": rules}}) if rules else None
    kind = type("Own", (schema,), {})  # has not remembered anything
    executor = apcore.Executor(registry_of(a__module=Echo(kind)), middlewares=[watch], config=config)
    with suppress(apcore.ModuleError, A2AError):
        if ours:
            await run(agent_of(executor), call_of(inputs))
        else:
            await executor.call_async("a.module", {**inputs})
    return watch.seen


@pytest.mark.parametrize("schema", [Anything, Marked, Nested])
@given(inputs=st.dictionaries(NAMES, VALUES, max_size=4))
def test_whatever_apcore_redacts_is_redacted(schema: Any, inputs: Data) -> None:
    inputs = {name: {"pin": value} if name == "inner" else value for name, value in inputs.items()}
    plain = asyncio.run(logged(schema, inputs, ours=False))
    assert asyncio.run(logged(schema, inputs, ours=True)) == plain


@pytest.mark.parametrize("schema", [Anything, Marked])
@pytest.mark.parametrize("more", [{}, {"password": "x"}, {"a": {"b": [{"colour": "red"}]}}, {"count": "not one"}])
@pytest.mark.parametrize(
    "inputs",
    [{"a": "Bearer x"}, {"pin": 1}, {"a": [{"Colours": {"b": 1}}]}, {"session": "s"}, {f"{'x' * 1000}password": "s"}],
)
async def test_rules_of_the_configuration_and_what_a_middleware_adds_count(
    inputs: Data, more: Data, schema: Any
) -> None:
    for rules in (None, RULES):
        plain = await logged(schema, inputs, ours=False, rules=rules, **more)
        assert await logged(schema, inputs, ours=True, rules=rules, **more) == plain


async def test_a_rule_added_later_counts() -> None:
    from apcore.builtin_steps import BuiltinInputValidation
    from apcore.observability import RedactionConfig

    rules, watch = RedactionConfig(sensitive_keys=["token"]), Watch()
    executor = apcore.Executor(registry_of(a__module=Echo(Anything)), middlewares=[watch])
    executor.current_strategy.replace("input_validation", BuiltinInputValidation(redaction=rules))
    agent = agent_of(executor)
    await run(agent, call_of({"colour": "red"}))
    rules.sensitive_keys.append("colour")
    await run(agent, call_of({"colour": "red"}))
    assert [seen["colour"] for seen in watch.seen[1::3]] == ["red", rules.replacement]


async def test_a_step_without_rules_keeps_to_apcores() -> None:
    from apcore.builtin_steps import BuiltinInputValidation

    watch = Watch()
    executor = apcore.Executor(registry_of(a__module=Echo(Anything)), middlewares=[watch])
    executor.current_strategy.replace("input_validation", BuiltinInputValidation())
    await run(agent_of(executor), call_of({"token": "t"}))
    assert watch.seen[1] == {"token": "***REDACTED***"}


@pytest.mark.parametrize("output", [None, [1]])
async def test_an_output_that_is_no_object_is_left_to_apcore(output: Any) -> None:
    async def seen(*, ours: bool) -> list[Any]:
        watch, module = Watch(), Returns(output, output_schema=type("Own", (RootModel[Any],), {}))
        executor = apcore.Executor(registry_of(a__module=module), middlewares=[watch])
        with suppress(apcore.ModuleError, A2AError):
            await (run(agent_of(executor), call_of("go")) if ours else executor.call_async("a.module", {"text": "go"}))
        return watch.seen

    assert await seen(ours=True) == await seen(ours=False)


async def test_a_copy_for_the_log_shares_nothing_with_the_call() -> None:
    inputs = {"list": [{"a": 1}]}
    before, after, output = await logged(Anything, inputs, ours=True)
    assert before == after == output == inputs
    assert before["list"][0] is not after["list"][0] is not output["list"][0]


async def test_steps_of_ones_own_see_the_module_itself() -> None:
    seen: list[Any] = []

    class Looks(apcore.BaseStep):  # type: ignore[misc]  # apcore is untyped
        async def execute(self, ctx: Any) -> Any:
            seen.append(ctx.module)
            return apcore.StepResult(action="continue")

    module = Echo(type("Own", (Anything,), {}))
    executor = apcore.Executor(registry_of(a__module=module))
    for name in ("module_lookup", "input_validation", "output_validation"):
        executor.current_strategy.insert_after(name, Looks(name=f"after_{name}"))
    await run(agent_of(executor), call_of({"a": 1}))
    assert seen == [module] * 3


async def test_a_step_of_ones_own_redacts_by_itself() -> None:
    from apcore.builtin_steps import BuiltinInputValidation
    from apcore.observability import RedactionConfig

    class Own(BuiltinInputValidation):  # type: ignore[misc]  # apcore is untyped
        async def execute(self, ctx: Any) -> Any:
            seen.append(apcore.redact_sensitive({"token": "t"}, {}, sensitive_keys=self._redaction.sensitive_keys))
            return await super().execute(ctx)

    seen: list[Any] = []
    executor = apcore.Executor(registry_of(a__module=Echo(Anything)))
    executor.current_strategy.replace("input_validation", Own(redaction=RedactionConfig.default()))
    await run(agent_of(executor), call_of({"a": 1}))
    assert {value for one in seen for value in one.values()} == {"***REDACTED***"}
