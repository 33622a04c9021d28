"""The modules of a mounted agent: their ids, and how they are added and removed."""

import asyncio
import threading

import apcore
import pytest

from apcore_a2a.client.skills import sanitize_schema
from apcore_a2a.errors import A2AConnectionError
from apcore_a2a.protocol.card import AgentCard, AgentInterface, AgentSkill
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.remote.module import name_modules, to_module_id
from apcore_a2a.remote.mount import RemoteAgent, mount_remote
from tests.cli.conftest import EVIL
from tests.fakes import WORKING, Gate, ScriptedAgent, chunk
from tests.remote.conftest import (
    PLAY,
    Add,
    Count,
    Host,
    Mount,
    context_of,
    fails,
    only_task,
    registry_of,
    said,
    until,
)


def test_an_unreachable_agent_is_not_mounted() -> None:
    before = threading.active_count()
    with pytest.raises(A2AConnectionError):
        mount_remote(apcore.Registry(), "http://127.0.0.1:9")
    assert threading.active_count() == before


def test_the_registry_follows_the_remote_card(host: Host, mount: Mount) -> None:
    there = registry_of(math__add=Add())
    executor, agent = mount(host(there, card=None))
    first = executor.registry.get("partner.math.add")

    there.register("more.count", Count())
    until(lambda: len(refreshed(agent)) == 2)  # the remote card is built on its own thread
    assert executor.registry.get("partner.math.add") is first  # unchanged skills keep their modules
    there.unregister("math.add")
    until(lambda: len(refreshed(agent)) == 1)

    assert executor.registry.list() == ["partner.more.count"]


def refreshed(agent: RemoteAgent) -> tuple[str, ...]:
    agent.refresh()
    return agent.module_ids


def test_the_refresher_updates_the_registry_periodically(host: Host, mount: Mount) -> None:
    there, here, came = registry_of(math__add=Add()), apcore.Registry(), threading.Event()
    mount(host(there, card=None), registry=here, refresh=0.01)
    here.on("register", lambda *_: came.set())

    there.register("more.count", Count())

    assert came.wait(5)
    assert "partner.more.count" in here.list()


def test_closing_removes_the_modules_and_ends_the_thread(host: Host) -> None:
    registry, before = apcore.Registry(), threading.active_count()
    agent = mount_remote(registry, host(ScriptedAgent()), refresh=0.01)
    assert registry.list() == ["remote.play"]

    agent.close()
    agent.close()

    assert registry.list() == []
    assert threading.active_count() <= before + 1  # the remote agent's server


async def test_closing_ends_running_calls(host: Host, mount: Mount) -> None:
    url = host(ScriptedAgent(default=(WORKING, Gate())))
    executor, agent = mount(url)
    module = executor.registry.get(PLAY)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        call = group.create_task(fails(executor.call_async(PLAY, {"text": "go"})))
        await asyncio.to_thread(only_task, url, TaskState.WORKING)
        await asyncio.to_thread(agent.close)
        assert said(await call) == "The remote agent is no longer mounted"

    assert await asyncio.to_thread(only_task, url, TaskState.CANCELED)
    assert said(await fails(module.execute({"text": "go"}, context_of()))) == "The remote agent is no longer mounted"


async def test_closing_between_two_results_cancels_the_remote_task(host: Host, mount: Mount) -> None:
    url = host(ScriptedAgent(default=(chunk("first"), Gate())))
    executor, agent = mount(url)

    async with asyncio.timeout(10):
        results = executor.registry.get(PLAY).stream({"text": "go"}, context_of())
        await anext(results)
        await asyncio.to_thread(agent.close)
        await results.aclose()

        assert await asyncio.to_thread(only_task, url, TaskState.CANCELED)


def test_a_module_with_the_same_id_is_not_replaced(host: Host) -> None:
    registry, mine = apcore.Registry(), Add()
    registry.register("remote.play", mine)

    with pytest.raises(ValueError, match=r"already has a module 'remote\.play'\. Choose another prefix"):
        mount_remote(registry, host(ScriptedAgent()))

    assert registry.get("remote.play") is mine


@pytest.mark.parametrize("prefix", ["Partner", "a b", "system", "1st", "a..b"])
def test_a_prefix_is_a_module_id(prefix: str) -> None:
    with pytest.raises(ValueError, match="The prefix must be a valid apcore module id"):
        mount_remote(apcore.Registry(), "http://127.0.0.1:9", prefix=prefix)


@pytest.mark.parametrize(
    ("skill", "module"),
    [
        ("translate", "p.translate"),
        ("Trans-Late Now", "p.trans_late_now"),
        ("a/b:c.d", "p.a.b.c.d"),
        ("9lives", "p.s_9lives"),
        ("core", "p.s_core"),
        ("...", "p.skill"),
        ("日本語", "p.s"),
        ("x" * 500, "p." + "x" * 122),
    ],
)
def test_a_skill_gets_an_id_that_apcore_accepts(skill: str, module: str) -> None:
    assert to_module_id("p", skill) == module
    apcore.Registry().register(to_module_id("p", skill), Add())


def card_of(*skills: AgentSkill) -> AgentCard:
    interface = AgentInterface(url="http://a", protocol_binding="JSONRPC", protocol_version="1.0")
    return AgentCard(name="a", description="a", version="1", supported_interfaces=(interface,), skills=skills)


def test_text_of_a_card_is_sanitized_and_truncated() -> None:
    (skill,) = name_modules(card_of(AgentSkill(id="a", name=EVIL, description="d" * 5000, tags=(EVIL,) * 50)), "p")

    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(skill.name + "".join(skill.tags))
    assert (len(skill.description), len(skill.tags)) == (1000, 20)


def test_two_skills_with_one_name_become_two_modules() -> None:
    twins = (
        AgentSkill(id="a b", name="", description="1", tags=()),
        AgentSkill(id="a-b", name="", description="2", tags=()),
    )

    assert [skill.local_name for skill in name_modules(card_of(*twins), "p")] == ["p.a_b", "p.a_b_2"]


def test_a_remote_schema_loses_references_and_expressions_but_no_property() -> None:
    evil = {
        "type": "object",
        "$defs": {"x": {"type": "string", "pattern": "(a+)+$"}},
        "properties": {"pattern": {"$ref": "#/$defs/x"}, "far": {"$ref": "http://evil/schema"}},
        "patternProperties": {"(a+)+$": {}},
    }

    assert sanitize_schema(evil) == {"type": "object", "properties": {"pattern": {"type": "string"}, "far": {}}}
    assert sanitize_schema(["no", "schema"]) == {}
