"""Rejections before a task exists, and the details that they reveal to a caller."""

import logging
from typing import Any

import apcore
import pytest
from pydantic import BaseModel, Field

from apcore_a2a.agent import Caller
from apcore_a2a.agents.apcore.agent import ModuleAgent
from apcore_a2a.errors import InternalError, InvalidParamsError, SkillNotFoundError, TaskNotFoundError, Violation
from apcore_a2a.protocol.model import Part
from tests.agents.apcore.running import (
    EXECUTORS,
    Add,
    Data,
    Returns,
    agent_of,
    call_of,
    needs_pipeline,
    needs_preview,
    registry_of,
    run,
)
from tests.requirements import requirement

ADA = Caller(id="ada", type="user", roles=("admin",))


ADMINS_ONLY = apcore.ACLRule(callers=["*"], targets=["*"], effect="allow", conditions={"roles": ["admin"]})


@pytest.fixture(params=EXECUTORS)
def make_executor(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def for_admins(make_executor: Any) -> ModuleAgent:
    acl = apcore.ACL(rules=[ADMINS_ONLY], default_effect="deny")
    return agent_of(make_executor(registry_of(math__add=Add()), acl=acl))


@requirement("FR-EXE-001")
async def test_peer_weaknesses_11_and_41_invalid_input_is_rejected_with_the_names_of_the_fields() -> None:
    module = Add()
    with pytest.raises(InvalidParamsError) as refused:
        await agent_of(math__add=module).admit(call_of({"a": "many"}))
    assert refused.value.kind == "SchemaValidationError"
    assert [violation.field for violation in refused.value.violations] == ["a", "b"]
    assert refused.value.violations[1] == Violation("b", "Field required", "missing")
    assert "b: Field required" in refused.value.message
    assert module.calls == 0


async def test_a_nested_field_is_named_by_its_path() -> None:
    class Line(BaseModel):
        amount: int = Field(ge=0)

    class Order(BaseModel):
        lines: list[Line]

    class Book:
        description = "Book an order"
        input_schema = Order
        output_schema = None

        def execute(self, inputs: Data, context: Any) -> Data:
            return {}

    with pytest.raises(InvalidParamsError) as refused:
        await agent_of(shop__book=Book()).admit(call_of({"lines": [{"amount": 1}, {"amount": -1}, {}]}))
    assert [violation.field for violation in refused.value.violations] == ["lines.1.amount", "lines.2.amount"]


async def test_a_caller_denied_by_the_acl_receives_task_not_found(
    for_admins: ModuleAgent, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TaskNotFoundError) as refused, caplog.at_level(logging.WARNING):
        await for_admins.admit(call_of({"a": 1, "b": 2}, skill="math.add"))
    assert refused.value.message == "Task not found"
    assert not refused.value.metadata
    assert refused.value.kind == "TaskNotFoundError"
    (record,) = [record for record in caplog.records if record.name.startswith("apcore_a2a")]
    assert (record.levelname, record.__dict__["module_id"]) == ("WARNING", "math.add")


async def test_a_caller_with_the_role_is_admitted(for_admins: ModuleAgent) -> None:
    assert (await run(for_admins, call_of({"a": 1, "b": 2}, skill="math.add", caller=ADA))).data == {"total": 3}


@pytest.mark.parametrize(
    ("skill", "content"),
    [
        ("math.add", {"a": 1, "b": 2}),
        ("math.add", {"a": "wrong"}),
        ("math.add", "no JSON"),
        ("math.add", Part(url="https://example.com/a.png")),
        ("math.none", {"a": 1, "b": 2}),
        ("system.health.summary", {}),
    ],
)
async def test_peer_weakness_40_a_denied_caller_cannot_tell_what_exists(
    for_admins: ModuleAgent, skill: str, content: Any
) -> None:
    with pytest.raises(TaskNotFoundError) as refused:
        await for_admins.admit(call_of(content, skill=skill))
    assert (refused.value.message, dict(refused.value.metadata)) == ("Task not found", {})


async def test_an_allowed_caller_receives_skill_not_found(for_admins: ModuleAgent) -> None:
    with pytest.raises(SkillNotFoundError):
        await for_admins.admit(call_of("hi", skill="math.none", caller=ADA))


async def test_an_acl_set_after_the_agent_was_created_applies(make_executor: Any) -> None:
    executor = make_executor(registry_of(math__add=Add()))
    agent = agent_of(executor)
    await agent.admit(call_of({"a": 1, "b": 2}))
    executor.set_acl(apcore.ACL(rules=[], default_effect="deny"))
    for skill in ("math.add", "math.none"):
        with pytest.raises(TaskNotFoundError):
            await agent.admit(call_of({"a": 1, "b": 2}, skill=skill))


async def test_access_revoked_between_admission_and_run_is_masked_in_the_run() -> None:
    executor = apcore.Executor(registry_of(math__add=Add()))
    agent, call = agent_of(executor), call_of({"a": 1, "b": 2})
    await agent.admit(call)
    executor.set_acl(apcore.ACL(rules=[], default_effect="deny"))
    with pytest.raises(TaskNotFoundError):
        [event async for event in agent.run(call)]


async def test_a_skill_removed_between_admission_and_run_is_not_found() -> None:
    registry = registry_of(math__add=Add(), text__echo=Returns({}))
    agent, call = agent_of(registry), call_of({"a": 1, "b": 2}, skill="math.add")
    await agent.admit(call)
    registry.unregister("math.add")
    with pytest.raises(SkillNotFoundError):
        [event async for event in agent.run(call)]


async def test_apcores_own_control_modules_cannot_be_reached() -> None:
    registry = registry_of(math__add=Add())
    if not hasattr(registry, "register_internal"):
        pytest.skip("this apcore has no system modules")
    registry.register_internal("system.control.toggle", Returns({"toggled": True}))
    with pytest.raises(SkillNotFoundError):
        await agent_of(registry).admit(call_of({}, skill="system.control.toggle"))


@needs_preview
async def test_a_preview_is_not_run_to_check_a_message() -> None:
    """A preview rejects nothing, its result is not used, and it may block the event loop."""

    class Foresees(Add):
        def preview(self, inputs: Data, context: Any) -> None:
            raise AssertionError

    await agent_of(math__add=Foresees()).admit(call_of({"a": 1, "b": 2}))


async def test_an_acl_that_an_old_executor_does_not_expose_is_checked_by_the_call() -> None:
    """Before 0.9 apcore does not check access in advance, and a custom executor does not expose its ACL."""
    if hasattr(apcore, "PreflightResult"):
        pytest.skip("this apcore judges access beforehand")
    agent = agent_of(apcore.Executor(registry_of(math__add=Add()), acl=apcore.ACL(rules=[], default_effect="deny")))
    call = call_of({"a": 1, "b": 2})
    await agent.admit(call)
    with pytest.raises(TaskNotFoundError):
        [event async for event in agent.run(call)]


@pytest.mark.parametrize(
    ("flags", "safe"),
    [({}, False), ({"readonly": True}, True), ({"idempotent": True}, True), ({"destructive": True}, False)],
)
async def test_only_a_repeatable_module_runs_again_after_a_crash(flags: dict[str, bool], safe: bool) -> None:
    module = Add()
    module.annotations = apcore.ModuleAnnotations(**flags)
    assert (await agent_of(math__add=module).admit(call_of({"a": 1, "b": 2}))).retry_safe is safe


@needs_pipeline
async def test_a_broken_input_schema_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = agent_of(odd__one=Returns({}, input_schema={"type": "banana"}))
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError) as refused:
        await agent.admit(call_of({"a": 1}))
    logged = [record for record in caplog.records if record.name.startswith("apcore_a2a")]
    assert [record.__dict__["reference"] for record in logged] == [refused.value.reference]
    assert "banana" in logged[0].__dict__["reason"]
