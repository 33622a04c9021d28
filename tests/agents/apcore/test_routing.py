"""The module that a message is for."""

import apcore
import pytest

from apcore_a2a.agents.apcore.executor import ServedExecutor
from apcore_a2a.errors import InvalidParamsError, SkillNotFoundError
from tests.agents.apcore.running import (
    Add,
    Returns,
    agent_of,
    call_of,
    registry_of,
    run,
)
from tests.requirements import requirement


async def test_the_message_names_its_skill_before_the_request_does() -> None:
    agent = agent_of(math__add=Add(), text__echo=Returns({"echo": 1}))
    call = call_of({"a": 1, "b": 2}, skill="math.add", request_metadata={"skillId": "text.echo"})
    assert (await run(agent, call)).data == {"total": 3}


@requirement("FR-EXE-001")
async def test_peer_weakness_7_the_request_can_name_the_skill() -> None:
    agent = agent_of(math__add=Add(), text__echo=Returns({"echo": 1}))
    call = call_of({"a": 1, "b": 2}, request_metadata={"skillId": "math.add"})
    assert (await run(agent, call)).data == {"total": 3}


async def test_a_message_without_a_skill_is_for_the_default_one() -> None:
    agent = agent_of(math__add=Add(), text__echo=Returns({"echo": 1}), default_skill="text.echo")
    assert (await run(agent, call_of("hi"))).data == {"echo": 1}


async def test_a_message_without_a_skill_is_for_the_only_one() -> None:
    nameless = Returns({}, description="")  # not a skill without a description
    assert (await run(agent_of(a__module=nameless, math__add=Add()), call_of({"a": 1, "b": 2}))).data == {"total": 3}


@pytest.mark.parametrize("skill", [7, 0, False, ["math.add"], {}], ids=repr)
async def test_a_skill_id_that_is_not_a_string_is_rejected(skill: object) -> None:
    agent = agent_of(math__add=Add(), text__echo=Returns({}), default_skill="text.echo")
    for call in (call_of("hi", skill=skill), call_of("hi", request_metadata={"skillId": skill})):
        with pytest.raises(InvalidParamsError) as refused:
            await agent.admit(call)
        assert refused.value.message == "Invalid parameter metadata.skillId: expected string"
        assert refused.value.violations[0].field == "metadata.skillId"


@pytest.mark.parametrize("skill", [None, ""])
async def test_peer_weakness_10_a_missing_skill_is_rejected_before_a_task_exists(skill: object) -> None:
    agent = agent_of(math__add=Add(), text__echo=Returns({}))
    with pytest.raises(InvalidParamsError) as refused:
        await agent.admit(call_of("hi", skill=skill))
    assert refused.value.message == "Missing required parameter: metadata.skillId"
    assert refused.value.violations[0].field == "metadata.skillId"


async def test_the_error_for_a_missing_or_unknown_skill_id_lists_the_skills() -> None:
    agent = agent_of(math__add=Add(), text__echo=Returns({}), secret=Returns({}, description=""))
    with pytest.raises(InvalidParamsError) as missing:
        await agent.admit(call_of("hi"))
    assert missing.value.violations[0].message.endswith("; the skills are: math.add, text.echo")
    with pytest.raises(SkillNotFoundError) as unknown:
        await agent.admit(call_of("hi", skill="text.ecko"))
    said = unknown.value.violations[0].message
    assert said.endswith("; did you mean text.echo? The skills are: math.add, text.echo")


async def test_an_error_lists_no_skills_that_the_acl_denies() -> None:
    rules = [apcore.ACLRule(callers=["*"], targets=["math.*", "text.ecko"], effect="allow")]
    modules = registry_of(math__add=Add(), text__echo=Returns({}))
    acl = apcore.ACL(rules=rules, default_effect="deny")
    agent = agent_of(ServedExecutor(modules, acl=acl))
    with pytest.raises(SkillNotFoundError) as unknown:
        await agent.admit(call_of("hi", skill="text.ecko"))
    assert unknown.value.violations[0].message.endswith("; the skills are: math.add")


async def test_the_list_of_skills_is_bounded() -> None:
    agent = agent_of(registry_of(**{f"module__number{number}": Returns({}) for number in range(300)}))
    with pytest.raises(InvalidParamsError) as missing:
        await agent.admit(call_of("hi"))
    said = missing.value.violations[0].message
    assert said.endswith(", …")
    assert said.count("module.number") == 20


@pytest.mark.parametrize("skill", ["math.sub", "Nonsense!", "../etc", "math"])
async def test_an_unknown_skill_is_rejected_by_name(skill: str) -> None:
    with pytest.raises(SkillNotFoundError) as refused:
        await agent_of(math__add=Add()).admit(call_of("hi", skill=skill))
    assert refused.value.message == f"Skill not found: {skill}"
    assert refused.value.kind == "ModuleNotFoundError"


async def test_peer_weakness_24_a_huge_skill_id_is_not_repeated_to_its_sender() -> None:
    with pytest.raises(SkillNotFoundError) as refused:
        await agent_of(math__add=Add()).admit(call_of("hi", skill="x" * 200_000))
    assert len(refused.value.message) < 100


async def test_peer_weakness_23_what_is_not_on_the_card_can_be_called_by_id() -> None:
    flags = {"discoverable": False} if hasattr(apcore.ModuleAnnotations(), "discoverable") else {}
    hidden = Returns({"hidden": True}, annotations=apcore.ModuleAnnotations(**flags))
    agent = agent_of(secret__tool=hidden, nameless__tool=Returns({"nameless": True}, description=""))
    assert (await run(agent, call_of("hi", skill="secret.tool"))).data == {"hidden": True}
    assert (await run(agent, call_of("hi", skill="nameless.tool"))).data == {"nameless": True}
