"""`ServedExecutor`: no default time limits, the configured ACL, and an approval handler."""

import asyncio
from typing import Any

import apcore
import pytest

from apcore_a2a.agents.apcore import executor as executor_module
from apcore_a2a.agents.apcore.approvals import AskCaller, find_approval_handler
from apcore_a2a.agents.apcore.executor import FOREVER, ConfigWithoutLimits, ServedExecutor
from apcore_a2a.agents.apcore.modules import find_acl
from apcore_a2a.errors import AgentError, TaskNotFoundError
from tests.agents.apcore.running import Add, Data, agent_of, call_of, needs_approvals, needs_pipeline, registry_of, run

DENY_ALL = apcore.ACL(rules=[], default_effect="deny")


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


def limited(milliseconds: int) -> apcore.Config:
    limits = {"default_timeout": milliseconds, "global_timeout": milliseconds}
    return apcore.Config({"executor": limits})


@pytest.fixture
def tiny_defaults(monkeypatch: pytest.MonkeyPatch) -> apcore.Config:
    """Sets apcore's default limits to 1 ms: a configuration with these values has only defaults."""
    limits = {executor_module.DEFAULT_TIMEOUT: 1, executor_module.GLOBAL_TIMEOUT: 1}
    monkeypatch.setattr(executor_module, "APCORES_LIMITS", limits)
    return limited(1)


# Time limits


@pytest.mark.parametrize("module", [Slow(), SlowToStream()])
async def test_peer_weakness_29_a_default_limit_does_not_end_a_run(module: Any, tiny_defaults: apcore.Config) -> None:
    executor = ServedExecutor(registry_of(a__slow=module), config=tiny_defaults)
    assert "done" in (await run(agent_of(executor), call_of("go"))).data


async def test_a_default_limit_does_not_end_a_nested_call(tiny_defaults: apcore.Config) -> None:
    executor = ServedExecutor(registry_of(a__slow=Slow(), a__nests=Nests()), config=tiny_defaults)
    assert (await run(agent_of(executor), call_of("go", skill="a.nests"))).data == {"done": True}


@pytest.mark.parametrize("kind", [ServedExecutor, apcore.Executor])
async def test_a_configured_limit_applies(kind: Any) -> None:
    executor = kind(registry_of(a__slow=Slow()), config=limited(1))
    with pytest.raises(AgentError) as failed:
        await run(agent_of(executor), call_of("go"))
    assert (failed.value.message, failed.value.kind) == ("Execution timed out", "ModuleTimeoutError")


async def test_a_custom_executor_keeps_its_limits(tiny_defaults: apcore.Config) -> None:
    with pytest.raises(AgentError, match="Execution timed out"):
        await run(agent_of(apcore.Executor(registry_of(a__slow=Slow()), config=tiny_defaults)), call_of("go"))


@pytest.mark.parametrize("key", executor_module.APCORES_LIMITS)
@pytest.mark.parametrize("config", [None, apcore.Config({}), limited(30_000), limited(60_000)])
def test_only_apcores_own_limits_are_lifted(config: Any, key: str) -> None:
    served = ConfigWithoutLimits(config)
    chosen = config is not None and config.get(key) not in (None, executor_module.APCORES_LIMITS[key])
    assert (served.get(key) in (0, FOREVER)) is not chosen


def test_the_rest_of_a_configuration_is_unchanged() -> None:
    config = apcore.Config({"project": {"name": "calculator"}, "executor": {"max_call_depth": 3}})
    served = ConfigWithoutLimits(config)
    assert (served.get("project.name"), served.get("executor.max_call_depth")) == ("calculator", 3)
    assert (served.get("project.version"), served.get("project.version", "1")) == (None, "1")
    assert served.get == served.get
    assert type(served.__class__) is type
    assert hasattr(served, "set") == hasattr(config, "set")


@needs_pipeline
async def test_a_custom_pipeline_is_unchanged() -> None:
    strategy = apcore.Executor(registry_of(a__slow=Slow())).current_strategy
    steps = list(strategy.steps)
    ServedExecutor(apcore.Registry(), strategy=strategy)
    assert strategy.steps == steps
    config = apcore.Config({"pipeline": {"configure": {"execute": {"timeout_ms": 1}}}})
    with pytest.raises(AgentError, match="Execution timed out"):
        await run(agent_of(ServedExecutor(registry_of(a__slow=Slow()), config=config)), call_of("go"))


async def test_a_module_can_call_another_one_without_await() -> None:
    class Calls(Nests):
        async def execute(self, inputs: Data, context: Any) -> Any:
            return context.executor.call("a.slow", inputs, context)

    agent = agent_of(a__slow=Slow(), a__calls=Calls())
    assert (await run(agent, call_of("go", skill="a.calls"))).data == {"done": True}


# The ACL


async def test_the_acl_that_the_configuration_names_is_enforced(tmp_path: Any) -> None:
    if not hasattr(apcore.ACL, "discover"):
        pytest.skip("this apcore does not look for an ACL")
    (tmp_path / "global_acl.yaml").write_text("default_effect: deny\nrules: []\n")
    config = apcore.Config({"acl": {"root": str(tmp_path)}})
    executor = ServedExecutor(registry_of(math__add=Add()), config=config)
    with pytest.raises(TaskNotFoundError):
        await agent_of(executor).admit(call_of({"a": 1, "b": 2}))


def test_an_acl_is_exposed_whenever_it_was_set() -> None:
    executor = ServedExecutor(apcore.Registry())
    assert find_acl(executor) is None
    executor.set_acl(DENY_ALL)
    assert find_acl(executor) is executor.acl is DENY_ALL


@needs_pipeline
def test_an_acl_without_a_pipeline_step_is_not_that_of_a_custom_executor() -> None:
    executor = apcore.Executor(apcore.Registry(), acl=DENY_ALL)
    assert find_acl(executor) is DENY_ALL
    executor.current_strategy.remove("acl_check")
    assert find_acl(executor) is None


# The approval handler


@needs_approvals
def test_the_default_approval_handler_asks_the_caller() -> None:
    executor = ServedExecutor(apcore.Registry())
    assert isinstance(find_approval_handler(executor), AskCaller)
    handler = AskCaller()
    executor.set_approval_handler(handler)
    assert find_approval_handler(executor) is executor.approval_handler is handler
    assert find_approval_handler(ServedExecutor(apcore.Registry(), approval_handler=handler)) is handler


def test_an_apcore_without_approvals_gets_no_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "HAS_APPROVALS", False)
    assert find_approval_handler(ServedExecutor(apcore.Registry())) is None
