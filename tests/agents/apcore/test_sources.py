"""What users hand to us becomes `Modules`, and stays as it was."""

import asyncio
from typing import Any

import apcore
import pytest

from apcore_a2a.agents.apcore import sources
from apcore_a2a.agents.apcore.module_agent import ModuleAgent
from apcore_a2a.agents.apcore.registry import Modules
from apcore_a2a.agents.apcore.sources import FOREVER, open_modules, unhurried
from apcore_a2a.errors import AgentError
from tests.agents.apcore.running import Add, Data, agent_of, call_of, registry_of, run


class Slow:
    description = "Take longer than the limit"

    async def execute(self, inputs: Data, context: Any) -> Data:
        await asyncio.sleep(0.05)
        return {"done": True}


class SlowToStream(Slow):
    async def stream(self, inputs: Data, context: Any) -> Any:
        for number in range(2):
            await asyncio.sleep(0.03)
            yield {"done": number}


class Nests(Slow):
    async def execute(self, inputs: Data, context: Any) -> Any:
        return await context.executor.call_async("a.slow", inputs, context)


def limited(milliseconds: int, **modules: Any) -> apcore.Executor:
    limits = {"default_timeout": milliseconds, "global_timeout": milliseconds}
    return apcore.Executor(registry_of(**modules), config=apcore.Config({"executor": limits}))


async def test_a_registry_an_executor_and_a_client_are_the_same_to_us() -> None:
    registry = registry_of(math__add=Add())
    held = [registry, apcore.Executor(registry)]
    if hasattr(apcore, "APCore"):
        held.append(apcore.APCore(registry=registry))
    for source in held:
        assert (await run(agent_of(source), call_of({"a": 1, "b": 2}))).data == {"total": 3}


@pytest.mark.parametrize("source", [None, 1, "registry", {}, object(), apcore.Registry])
def test_anything_else_is_a_type_error_that_says_what_is_needed(source: object) -> None:
    with pytest.raises(TypeError, match="Registry, Executor or APCore client"):
        open_modules(source)


async def test_an_executor_that_is_not_apcores_is_taken_as_it_is() -> None:
    class Own:
        def __init__(self, registry: apcore.Registry) -> None:
            self.registry = registry

        def validate(self, module_id: str, inputs: Data) -> Any:
            return apcore.ValidationResult(valid=True, errors=[])

        async def call_async(self, module_id: str, inputs: Data, context: Any) -> Data:
            return {"called": module_id}

    assert (await run(agent_of(Own(registry_of(math__add=Add()))), call_of({"a": 1}))).data == {"called": "math.add"}


@pytest.mark.parametrize("module", [Slow(), SlowToStream()])
async def test_peer_weakness_29_a_limit_nobody_chose_does_not_end_a_run(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LIMITS", {"_default_timeout": 1, "_global_timeout": 1})  # as if apcore's were 1 ms
    assert "done" in (await run(agent_of(limited(1, a__slow=module)), call_of("go"))).data


async def test_a_module_called_by_a_module_is_not_cut_off_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LIMITS", {"_default_timeout": 1, "_global_timeout": 1})
    agent = agent_of(limited(1, a__slow=Slow(), a__nests=Nests()))
    assert (await run(agent, call_of("go", skill="a.nests"))).data == {"done": True}


async def test_without_this_the_same_limit_ends_the_run() -> None:
    executor = limited(1, a__slow=Slow())
    with pytest.raises(AgentError, match="Execution timed out"):
        await run(ModuleAgent(Modules(executor.registry, executor)), call_of("go"))


async def test_a_limit_somebody_chose_stays() -> None:
    with pytest.raises(AgentError) as failed:
        await run(agent_of(limited(1, a__slow=Slow())), call_of("go"))
    assert (failed.value.message, failed.value.kind) == ("Execution timed out", "ModuleTimeoutError")


async def test_others_keep_the_limits_of_their_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LIMITS", {"_default_timeout": 10, "_global_timeout": 10})
    executor = limited(10, a__slow=Slow())
    await run(agent_of(executor), call_of("go"))
    with pytest.raises(apcore.ModuleTimeoutError):
        await executor.call_async("a.slow", {})


async def test_a_middleware_added_later_counts() -> None:
    seen: list[str] = []
    executor = apcore.Executor(registry_of(math__add=Add()))
    agent = agent_of(executor)
    executor.use_before(lambda module_id, inputs, context: seen.append(module_id))
    await run(agent, call_of({"a": 1, "b": 2}))
    assert seen == ["math.add"]


async def test_a_step_added_later_counts() -> None:
    if not hasattr(apcore.Executor, "_validate_async"):
        pytest.skip("this apcore runs no pipeline")
    seen: list[str] = []

    class Step(apcore.BaseStep):  # type: ignore[misc]  # apcore is untyped
        def __init__(self) -> None:
            super().__init__(name="look", description="Look", removable=True, replaceable=True)

        async def execute(self, ctx: Any) -> Any:
            seen.append(ctx.module_id)
            return apcore.StepResult(action="continue")

    executor = apcore.Executor(registry_of(math__add=Add()))
    agent = agent_of(executor)
    executor.current_strategy.insert_after("module_lookup", Step())
    await run(agent, call_of({"a": 1, "b": 2}))
    assert seen == ["math.add"]


async def test_the_acl_that_the_configuration_names_is_enforced(tmp_path: Any) -> None:
    if not hasattr(apcore.ACL, "discover"):
        pytest.skip("this apcore does not look for an ACL")
    (tmp_path / "global_acl.yaml").write_text("default_effect: deny\nrules: []\n")
    registry = apcore.Registry(config=apcore.Config({"acl": {"root": str(tmp_path)}}), extensions_dir=str(tmp_path))
    registry.register("math.add", Add())
    with pytest.raises(Exception, match="Task not found"):
        await agent_of(registry).admit(call_of({"a": 1, "b": 2}))


def test_peer_weakness_32_nothing_is_added_to_the_source() -> None:
    registry = registry_of(math__add=Add())
    executor = apcore.Executor(registry)
    before = dict(vars(executor))
    modules = open_modules(executor)
    assert vars(executor) == before
    assert modules.registry is registry
    assert isinstance(modules.executor, apcore.Executor)


def test_an_executor_from_before_the_pipeline_has_its_limits_eased_too() -> None:
    """Until 0.16 an executor keeps its limits itself, and has no strategy."""
    old = object.__new__(apcore.Executor)
    old.__dict__ = {"_default_timeout": 30_000, "_global_timeout": 5_000}
    eased = unhurried(old)
    assert (eased._default_timeout, eased._global_timeout) == (FOREVER, 5_000)
    assert old._default_timeout == 30_000
