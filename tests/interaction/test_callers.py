"""Callers: requests without credentials are rejected, and tasks of other owners look like unknown tasks."""

import asyncio

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import Caller
from apcore_a2a.protocol.model import Task, TaskState
from tests.fakes import ASKS, COMPLETED, Gate, Keys, ScriptedAgent
from tests.interaction.conftest import Connect
from tests.interaction.wire_client import PATHS, Refused
from tests.requirements import requirement

TASK_NOT_FOUND = -32001


async def test_requests_without_credentials_reach_only_card_and_health(connect: Connect) -> None:
    client = await connect(ScriptedAgent(), auth=Keys())
    for operation in PATHS:
        response = await client.http.send(client.anything(operation))
        assert response.status_code == 401, operation
        assert response.headers["www-authenticate"]
    for path in ("/.well-known/agent-card.json", "/.well-known/agent.json", "/health"):
        assert (await client.http.get(path)).status_code == 200


async def test_an_agent_receives_its_caller(connect: Connect) -> None:
    agent = ScriptedAgent()
    ada = (await connect(agent, auth=Keys())).as_caller("ada")
    await ada.send("hi")
    assert (agent.calls[0].caller.id, agent.calls[0].caller.type) == ("ada", "user")


async def test_a_task_of_another_owner_is_answered_like_an_unknown_task(connect: Connect) -> None:
    anonymous = await connect(ScriptedAgent(default=(ASKS,)), auth=Keys())
    ada, eve = anonymous.as_caller("ada"), anonymous.as_caller("eve")
    task = await ada.send("hi", context_id="talk")
    for id in (task.id, "00000000-0000-4000-8000-000000000000"):
        with pytest.raises(Refused) as got:
            await eve.get(id)
        with pytest.raises(Refused) as canceled:
            await eve.cancel(id)
        with pytest.raises(Refused) as said:
            await eve.send("hi", task_id=id)
        with pytest.raises(Refused) as subscribed:
            async with eve.subscribe(id) as stream:
                await stream.next()
        refusals = [refused.value for refused in (got, canceled, said, subscribed)]
        assert {(refusal.code, refusal.message) for refusal in refusals} == {(TASK_NOT_FOUND, f"Task not found: {id}")}
    assert (await eve.list()).tasks == ()
    assert (await eve.list(context_id="talk")).tasks == ()
    assert (await ada.get(task.id)).status.state is TaskState.INPUT_REQUIRED


class KeysWithRoles(Keys):
    """Gives the caller named root the roles of an administrator."""

    def authenticate(self, headers: dict[str, str]) -> Caller | None:
        caller = super().authenticate(headers)
        if caller is None or caller.id != "root":
            return caller
        return replace(caller, roles=("ops", "admin"))


async def test_an_administrator_may_list_and_cancel_tasks_of_all_owners_and_nothing_else(connect: Connect) -> None:
    anonymous = await connect(ScriptedAgent(default=(ASKS,)), auth=KeysWithRoles(), admin_role="admin")
    ada, eve, root = anonymous.as_caller("ada"), anonymous.as_caller("eve"), anonymous.as_caller("root")
    of_ada = await ada.send("hi")
    of_eve = await eve.send("hi")
    page = await root.list()
    assert {task.id for task in page.tasks} == {of_ada.id, of_eve.id}
    assert {(task.metadata or {})["apcore.owner"] for task in page.tasks} == {"|ada", "|eve"}
    assert [task.id for task in (await ada.list()).tasks] == [of_ada.id]
    assert "apcore.owner" not in ((await ada.list()).tasks[0].metadata or {})
    for operation in (root.get(of_ada.id), root.send("more", task_id=of_ada.id)):
        with pytest.raises(Refused) as refused:
            await operation
        assert refused.value.code == TASK_NOT_FOUND
    with pytest.raises(Refused) as foreign:
        await eve.cancel(of_ada.id)
    assert foreign.value.code == TASK_NOT_FOUND
    with pytest.raises(Refused) as unknown:
        await root.cancel("unknown")
    assert unknown.value.code == TASK_NOT_FOUND
    assert (await root.cancel(of_ada.id)).status.state is TaskState.CANCELED
    assert (await ada.get(of_ada.id)).status.state is TaskState.CANCELED


async def test_an_administrator_sees_no_content_of_other_owners(connect: Connect) -> None:
    anonymous = await connect(ScriptedAgent(default=(ASKS,)), auth=KeysWithRoles(), admin_role="admin")
    ada, root = anonymous.as_caller("ada"), anonymous.as_caller("root")
    of_ada = await ada.send("a secret of ada's")
    own = await root.send("hi")
    assert (await ada.get(of_ada.id)).history
    listed = {task.id: task for task in (await root.list(include_artifacts=True)).tasks}
    shown = listed[of_ada.id]
    assert (shown.status.state, shown.context_id) == (TaskState.INPUT_REQUIRED, of_ada.context_id)
    for task in (shown, await root.cancel(of_ada.id)):
        assert (task.history, task.artifacts, task.status.message) == ([], [], None)
        assert task.metadata == {"apcore.owner": "|ada"}
    assert listed[own.id].history
    assert (await root.cancel(own.id)).history


async def test_without_the_setting_no_caller_is_an_administrator(connect: Connect) -> None:
    anonymous = await connect(ScriptedAgent(default=(ASKS,)), auth=KeysWithRoles())
    task = await anonymous.as_caller("ada").send("hi")
    assert (await anonymous.as_caller("root").list()).tasks == ()
    with pytest.raises(Refused):
        await anonymous.as_caller("root").cancel(task.id)


async def test_two_callers_may_use_the_same_context_id_for_different_contexts(connect: Connect) -> None:
    agent = ScriptedAgent({"one": (ASKS,)})
    anonymous = await connect(agent, auth=Keys())
    first = await anonymous.as_caller("ada").send("one", context_id="talk")
    second = await anonymous.as_caller("eve").send("two", context_id="talk")
    assert second.id != first.id
    assert agent.calls[1].history == ()


async def test_a_stream_belongs_to_its_caller(connect: Connect) -> None:
    gate = Gate()
    anonymous = await connect(ScriptedAgent({"hi": (gate, COMPLETED)}), auth=Keys())
    ada, eve = anonymous.as_caller("ada"), anonymous.as_caller("eve")
    async with ada.stream("hi") as stream:
        task = await stream.next()
        assert isinstance(task, Task)
        await gate.reached()
        with pytest.raises(Refused):
            async with eve.subscribe(task.id) as other:
                await other.next()
        gate.open()
        async with asyncio.timeout(5):
            await stream.rest()


@requirement("FR-AGC-004")
async def test_an_authenticated_caller_gets_the_extended_card_with_its_address(connect: Connect) -> None:
    anonymous = await connect(ScriptedAgent(), auth=Keys())
    card = await anonymous.as_caller("ada").extended_card()
    assert card.name == "scripted"
    url = str(anonymous.http.base_url)
    assert {one.url.rstrip("/") for one in card.supported_interfaces} <= {url, url.removeprefix("http://")}
    assert card.capabilities.extended_agent_card is True
    response = await anonymous.http.get("/agent/authenticatedExtendedCard", headers={"X-API-Key": "key of ada"})
    assert response.json()["name"] == "scripted"
    assert (await anonymous.http.get("/agent/authenticatedExtendedCard")).status_code == 401
