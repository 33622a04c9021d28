"""The context of a module: its caller and the message, on every apcore."""

import time
from typing import Any

import apcore
import pytest

from apcore_a2a.agent import SESSION_HEADER, Caller
from apcore_a2a.agents.apcore import call as keys
from apcore_a2a.protocol.model import Message, Part, Role
from tests.agents.apcore.running import EXECUTORS, Add, Data, Spy, agent_of, call_of, registry_of, run
from tests.requirements import requirement

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def spied(*contents: Any, **fields: Any) -> Spy:
    spy = Spy()
    await run(agent_of(a__spy=spy), call_of(*contents, **fields))
    return spy


@requirement("FR-EXE-003")
async def test_peer_weakness_35_a_module_knows_its_caller() -> None:
    caller = Caller(id="ada", type="service", roles=("admin", "dev"), attributes={"email": "ada@example.com"})
    spy = await spied("hi", caller=caller)
    identity = spy.context.identity
    assert (identity.id, identity.type, tuple(identity.roles)) == ("ada", "service", ("admin", "dev"))
    assert identity.attrs == {"email": "ada@example.com"}


@requirement("FR-EXE-003")
async def test_without_authentication_there_is_no_identity() -> None:
    assert (await spied("hi")).context.identity is None


async def test_peer_weakness_30_no_client_is_the_system() -> None:
    spy = await spied("hi", caller=Caller(id="eve", type="system"))
    assert spy.context.identity.type == "user"


@pytest.mark.parametrize("make_executor", EXECUTORS)
async def test_an_acl_for_the_system_does_not_accept_a_token(make_executor: Any) -> None:
    rule = apcore.ACLRule(callers=["@system"], targets=["*"], effect="allow")
    executor = make_executor(registry_of(math__add=Add()), acl=apcore.ACL(rules=[rule], default_effect="deny"))
    with pytest.raises(Exception, match="Task not found"):
        await agent_of(executor).admit(call_of({"a": 1, "b": 2}, caller=Caller(id="eve", type="system")))


async def test_peer_weakness_15_a_module_continues_the_trace_of_its_caller() -> None:
    spy = await spied("hi", headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
    assert spy.context.trace_id.replace("-", "") == TRACE


@pytest.mark.parametrize("header", ["nonsense", "", f"ff-{TRACE}-00f067aa0ba902b7-01", "00-" + "0" * 32 + "-1-01"])
async def test_a_broken_trace_header_starts_a_new_trace(header: str) -> None:
    spy = await spied("hi", headers={"traceparent": header})
    assert len(spy.context.trace_id.replace("-", "")) == 32
    assert spy.context.trace_id.replace("-", "") != TRACE


async def test_a_module_knows_its_task() -> None:
    seen = (await spied("hi")).seen
    assert (seen[keys.TASK_ID], seen[keys.CONTEXT_ID]) == ("t-1", "c-1")
    assert seen[keys.MESSAGE]["messageId"] == "m-1"
    assert seen[keys.MESSAGE]["parts"] == [{"text": "hi"}]
    assert seen[keys.APPROVAL] is None
    assert seen[keys.SESSION] is None


async def test_a_module_knows_the_session_of_its_platform() -> None:
    spy = await spied("hi", raw_headers={SESSION_HEADER: b"s-1"})
    assert spy.seen[keys.SESSION] == "s-1"


async def test_peer_weakness_14_a_module_knows_the_conversation_oldest_first() -> None:
    earlier = (
        Message(message_id="m-8", role=Role.USER, parts=(Part(text="What is 1 + 1?"),)),
        Message(message_id="m-9", role=Role.AGENT, parts=(Part(data={"total": 2}),)),
    )
    seen = (await spied("And twice that?", history=earlier)).seen
    assert [(said["role"], said["parts"]) for said in seen[keys.HISTORY]] == [
        ("ROLE_USER", [{"text": "What is 1 + 1?"}]),
        ("ROLE_AGENT", [{"data": {"total": 2}}]),
    ]


async def test_a_new_conversation_has_no_history() -> None:
    assert (await spied("hi")).seen[keys.HISTORY] == []


@requirement("FR-MSG-003")
async def test_peer_weakness_18_the_unused_parts_are_in_the_context() -> None:
    seen = (await spied("hi", {"more": 1}, Part(raw=b"\x00", media_type="image/png"))).seen
    assert seen[keys.PARTS] == [{"data": {"more": 1}}, {"raw": "AA==", "mediaType": "image/png"}]


async def test_a_module_knows_its_deadline() -> None:
    seen = (await spied("hi", deadline=time.monotonic() + 60)).seen
    assert 50 < seen[keys.DEADLINE] - time.time() <= 60
    assert (await spied("hi")).seen[keys.DEADLINE] is None


async def test_two_calls_share_no_data() -> None:
    class Marks:
        description = "Leave a mark"

        async def execute(self, inputs: Data, context: Any) -> Data:
            marked = "mark" in context.data
            context.data["mark"] = True
            return {"marked": marked}

    agent = agent_of(a__marks=Marks())
    assert (await run(agent, call_of("hi"))).data == {"marked": False}
    assert (await run(agent, call_of("hi"))).data == {"marked": False}


def test_the_keys_are_extensions_by_apcores_rules() -> None:
    names = [value for name, value in vars(keys).items() if name.isupper() and str(value).startswith("ext.")]
    assert len(names) == 8
    assert all(name.startswith("ext.a2a.") for name in names)
