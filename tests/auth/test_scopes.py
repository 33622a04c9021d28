"""Scopes for skills: on the card, asked for before there is a task, and silent about what a caller may not have."""

import logging
from typing import Any

import httpx
import pytest

from apcore_a2a import JWTAuthenticator, as_agent, async_serve, skill
from apcore_a2a.agent import Caller
from apcore_a2a.auth.scopes import SkillScopes
from tests.app.test_app import browsing, send
from tests.auth.tokens import SECRET, bearer
from tests.fakes import ASKS, COMPLETED, ScriptedAgent
from tests.interaction.serving import CARD
from tests.modules import Add, Pay, registry
from tests.requirements import requirement

SCOPES = {"bank.*": ["bank:write"], "math.secret": ["math", "secret"]}
V1 = {"A2A-Version": "1.0"}
EXTENDED = "/agent/authenticatedExtendedCard"


async def bank(**options: Any) -> Any:
    modules = registry(math__add=Add(), math__secret=Add(), bank__pay=Pay(), bank__add=Add())
    return await async_serve(modules, auth=JWTAuthenticator(SECRET), skill_scopes=SCOPES, **options)


async def ask(client: httpx.AsyncClient, skill: str, scope: str, **data: Any) -> dict[str, Any]:
    answer = await client.post("/", json=send(data or None, skill=skill), headers=bearer(scope=scope))
    said: dict[str, Any] = answer.json()
    return said


def test_all_patterns_that_fit_count_together() -> None:
    scopes = SkillScopes({"bank.*": ["bank"], "*.pay": ["pay", "money"], "other": ["x"]})
    assert scopes.required("bank.pay") == {"bank", "pay", "money"}
    assert scopes.required("bank.look") == {"bank"}
    assert scopes.required("math.add") == frozenset()
    assert not scopes.permits(Caller(scopes=("bank", "pay")), "bank.pay")
    assert scopes.permits(Caller(scopes=("bank", "pay", "money")), "bank.pay")
    assert scopes.unused(["bank.pay"]) == ["other"]


@pytest.mark.parametrize("wrong", [{"bank.*": []}, {"bank.*": [""]}], ids=str)
async def test_a_pattern_without_a_scope_is_a_mistake(wrong: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="must name a scope"):
        await async_serve(registry(), auth=JWTAuthenticator(SECRET), skill_scopes=wrong)


async def test_scopes_without_authentication_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="skill_scopes needs auth"):
        await async_serve(registry(), skill_scopes=SCOPES)


async def test_a_pattern_that_fits_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    await async_serve(registry(), name="math", auth=JWTAuthenticator(SECRET), skill_scopes={"mathh.*": "x"})
    assert [vars(record)["pattern"] for record in caplog.records] == ["mathh.*"]


async def test_who_has_the_scopes_gets_the_skill() -> None:
    async with browsing(await bank()) as client:
        assert (await ask(client, "bank.add", "openid bank:write"))["result"]["status"]["state"] == "completed"
        assert (await ask(client, "math.secret", "secret math"))["result"]["status"]["state"] == "completed"
        assert (await ask(client, "math.add", ""))["result"]["status"]["state"] == "completed"


@requirement("NFR-SEC-001")
async def test_who_has_not_learns_nothing_not_even_whether_there_is_such_a_skill(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with browsing(await bank()) as client:
        with caplog.at_level(logging.WARNING):
            forbidden = await ask(client, "bank.add", "openid")
            unknown = await ask(client, "bank.nothing", "openid")
            wrong_inputs = await ask(client, "bank.add", "openid", a="x")
            half = await ask(client, "math.secret", "secret")
        no_task = {**send(), "method": "tasks/get", "params": {"id": "none"}}
        missing = (await client.post("/", json=no_task, headers=bearer())).json()
        assert forbidden == unknown == wrong_inputs == half
        assert forbidden["error"]["code"] == missing["error"]["code"] == -32001
        assert forbidden["error"]["message"] == "Task not found"
        assert forbidden["error"]["data"]["type"] == missing["error"]["data"]["type"]
        listed = await client.get("/tasks", headers={**bearer(), **V1})
        assert listed.json()["totalSize"] == 0
    denied = [vars(record) for record in caplog.records if record.message == "call denied by scope"]
    assert [one["reason"] for one in denied] == ["missing scopes: bank:write"] * 3 + ["missing scopes: math"]
    assert denied[0]["caller"] == "ada"


async def test_a_task_that_waits_is_not_answered_with_fewer_scopes() -> None:
    async with browsing(await bank()) as client:
        waiting = (await ask(client, "bank.pay", "bank:write"))["result"]
        assert waiting["status"]["state"] == "input-required"
        message = {"role": "user", "parts": [{"kind": "text", "text": "yes"}], "taskId": waiting["id"]}
        reply = {**send(), "params": {"message": message}}
        refused = await client.post("/", json=reply, headers=bearer(scope="openid"))
        assert refused.json()["error"]["code"] == -32001
        done = await client.post("/", json=reply, headers=bearer(scope="bank:write"))
        assert done.json()["result"]["status"]["state"] == "completed"


@requirement("FR-AUT-003", "FR-AGC-004")
async def test_the_card_says_which_scopes_and_the_extended_card_what_this_caller_may_call() -> None:
    async with browsing(await bank()) as client:
        old = (await client.get("/.well-known/agent.json")).json()
        new = (await client.get("/.well-known/agent-card.json", headers=V1)).json()
        in_old = {skill["id"]: skill.get("security") for skill in old["skills"]}
        assert in_old["bank.add"] == [{"bearer": ["bank:write"]}]
        assert in_old["math.secret"] == [{"bearer": ["math", "secret"]}]
        assert in_old["math.add"] is None
        in_new = {skill["id"]: skill.get("securityRequirements") for skill in new["skills"]}
        assert in_new["bank.add"] == [{"schemes": {"bearer": {"list": ["bank:write"]}}}]
        for scope, seen in [
            ("", ["math.add"]),
            ("bank:write", ["bank.add", "bank.pay", "math.add"]),
            ("math secret", ["math.add", "math.secret"]),
        ]:
            card = (await client.get(EXTENDED, headers=bearer(scope=scope))).json()
            assert sorted(skill["id"] for skill in card["skills"]) == seen
            assert ("bank.add" in str(card)) is ("bank.add" in seen)


@requirement("FR-AGC-004")
async def test_a_callers_card_names_forbidden_skills_nowhere() -> None:
    def look() -> str:
        return "seen"

    @skill(annotations={"requires_approval": True})
    def pay() -> str:
        return "paid"

    app = await async_serve([look, pay], auth=JWTAuthenticator(SECRET), skill_scopes={"pay": "bank:write"})
    async with browsing(app) as client:
        public = (await client.get("/.well-known/agent-card.json", headers=V1)).json()
        lacking = (await client.get(EXTENDED, headers={**bearer(), **V1})).json()
        having = (await client.get(EXTENDED, headers={**bearer(scope="bank:write"), **V1})).json()
    assert "pay" not in str(public) and "pay" not in str(lacking)
    assert [one["id"] for one in having["skills"]] == ["look", "pay"]
    assert "look, pay" in having["description"]
    assert public["name"] == lacking["name"] == having["name"] == "agent"


@requirement("FR-AGC-004")
async def test_every_name_of_the_extended_card_answers_for_its_reader() -> None:
    async with browsing(await bank()) as client:

        async def rpc(method: str, headers: dict[str, str]) -> Any:
            call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
            return (await client.post("/", json=call, headers=headers)).json()["result"]

        async def get(path: str, headers: dict[str, str]) -> Any:
            return (await client.get(path, headers=headers)).json()

        for scope, seen in [("", ["math.add"]), ("bank:write", ["bank.add", "bank.pay", "math.add"])]:
            reader = bearer(scope=scope)
            cards = [
                await get(EXTENDED, reader),
                await get("/v1/card", reader),
                await get("/extendedAgentCard", {**reader, **V1}),
                await rpc("agentCard/get", reader),
                await rpc("agent/getAuthenticatedExtendedCard", reader),
                await rpc("GetExtendedAgentCard", {**reader, **V1}),
            ]
            for card in cards:
                assert sorted(skill["id"] for skill in card["skills"]) == seen


async def test_a_later_message_runs_with_the_rights_of_its_own_sender() -> None:
    played = ScriptedAgent({"hi": (ASKS,)})
    async with browsing(await async_serve(played, card=CARD, auth=JWTAuthenticator(SECRET))) as client:

        async def say(text: str, roles: list[str], **task: str) -> Any:
            message = {"role": "user", "parts": [{"kind": "text", "text": text}], **task}
            call = {**send(), "params": {"message": message}}
            return (await client.post("/", json=call, headers=bearer(roles=roles))).json()["result"]

        task = await say("hi", ["reader"])
        await say("more", ["writer"], taskId=task["id"])
    assert [call.caller.roles for call in played.calls] == [("reader",), ("writer",)]


async def test_an_agent_that_does_not_route_asks_for_the_scopes_of_all_its_skills() -> None:
    played = ScriptedAgent(default=(COMPLETED,))
    options: dict[str, Any] = {"auth": JWTAuthenticator(SECRET), "skill_scopes": {"play": "stage"}}
    async with browsing(await async_serve(played, card=CARD, **options)) as client:
        assert (await ask(client, "another", "openid"))["error"]["code"] == -32001
        assert not played.calls
        assert (await ask(client, "another", "stage"))["result"]["status"]["state"] == "completed"
        card = (await client.get(EXTENDED, headers=bearer(scope="openid"))).json()
        assert card["skills"] == []


@requirement("NFR-SEC-001")
def advice(answer: Any) -> Any:
    return answer["error"]["data"]["errors"][0]["message"]


async def test_a_function_asks_for_its_own_scopes_and_errors_name_what_a_caller_may_know() -> None:
    async def add(a: int, b: int = 0) -> int:
        return a + b

    @skill(annotations={"requires_approval": True})
    async def pay(a: int) -> int:
        raise AssertionError("it was not approved")

    for functions in ([add, pay], as_agent([add, pay])):
        app = await async_serve(functions, auth=JWTAuthenticator(SECRET), skill_scopes={"pay": ["money"]})
        async with browsing(app) as client:
            assert (await ask(client, "add", "", a=1))["result"]["status"]["state"] == "completed"
            assert (await ask(client, "pay", "", a=1))["error"]["message"] == "Task not found"
            assert (await ask(client, "pay", "money", a=1))["result"]["status"]["state"] == "input-required"
            unknown = await ask(client, "nothing", "", a=1)
            assert advice(unknown) == "Skill not found: nothing; the skills are: add"
            unknown = await ask(client, "nothing", "money", a=1)
            assert advice(unknown) == "Skill not found: nothing; the skills are: add, pay"
            shown = (await client.get(EXTENDED, headers=bearer(scope=""))).json()
            assert "pay" not in str(shown["capabilities"])  # its schema is not told either
