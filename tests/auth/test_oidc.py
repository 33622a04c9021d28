"""An agent and an identity provider, each on its socket: discovery, rotation, and a provider that misbehaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import apcore
import httpx
import pytest

from apcore_a2a import A2AClient, JWTAuthenticator
from apcore_a2a.auth import keys
from apcore_a2a.auth.jwt import ClaimMapping
from apcore_a2a.client import OAuth2ClientCredentials
from tests.app.test_app import send
from tests.app.test_options import banking
from tests.auth.issuer import CERTS, Provider, provider
from tests.fakes import COMPLETED, PATIENCE, ScriptedAgent
from tests.interaction.serving import serving
from tests.requirements import requirement

SEND = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "SendMessage",
    "params": {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}},
}


@pytest.fixture
async def idp() -> AsyncIterator[Provider]:
    async with provider() as running:
        yield running


class Agent:
    """An agent that takes the tokens of a provider."""

    def __init__(self, http: httpx.AsyncClient, agent: ScriptedAgent) -> None:
        self.http = http
        self.played = agent

    async def status(self, credentials: dict[str, str]) -> int:
        answer = await self.http.post("/", json=SEND, headers={"A2A-Version": "1.0", **credentials})
        return answer.status_code


@asynccontextmanager
async def agent(auth: JWTAuthenticator | list[JWTAuthenticator]) -> AsyncIterator[Agent]:
    scripted = ScriptedAgent({"hi": (COMPLETED,)})
    async with serving(scripted, auth=auth) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http:
        yield Agent(http, scripted)


@pytest.mark.skipif(not hasattr(apcore, "PipelineEngine"), reason="an older executor does not tell its ACL")
@requirement("UC-006", "FR-AUT-002", "FR-EXE-003", "FR-AGC-004")
async def test_an_orchestrator_gets_a_token_finds_its_skill_and_runs_it(idp: Provider) -> None:
    auth = JWTAuthenticator(issuer=idp.issuer, audience="agents")
    async with serving(banking(), card=None, auth=auth) as url, httpx.AsyncClient(base_url=url) as http:
        public = (await http.get("/.well-known/agent.json")).json()
        assert "bank.pay" not in str(public)
        assert public["securitySchemes"]["bearer"]["scheme"] == "bearer"
        teller = await idp.bearer(roles=["teller"])
        extended = (await http.get("/agent/authenticatedExtendedCard", headers=teller)).json()
        assert {"bank.pay", "math.add"} <= {skill["id"] for skill in extended["skills"]}
        asked = send(skill="bank.pay")
        waiting = (await http.post("/", json=asked, headers=teller)).json()["result"]
        assert waiting["status"]["state"] == "input-required"  # bank.pay asks first; the ACL let it come so far
        # A1: the token expires; A2: the ACL says no; E1: there is no token; E2: it is none.
        expired = await http.post("/", json=asked, headers=await idp.bearer(roles=["teller"], exp=1))
        assert (expired.status_code, expired.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')
        denied = (await http.post("/", json=asked, headers=await idp.bearer(roles=["guest"]))).json()["error"]
        assert (denied["code"], denied["message"]) == (-32001, "Task not found")
        missing = await http.post("/", json=asked)
        assert (missing.status_code, missing.headers["www-authenticate"]) == (401, "Bearer")
        malformed = await http.post("/", json=asked, headers={"Authorization": "Bearer secret-nonsense"})
        assert malformed.status_code == 401
        assert "secret-nonsense" not in malformed.text


@requirement("UC-006")
async def test_an_issuer_is_all_that_an_agent_must_know(idp: Provider) -> None:
    mapping = ClaimMapping(roles="realm_access.roles")
    async with agent(JWTAuthenticator(issuer=idp.issuer, audience="agents", claim_mapping=mapping)) as served:
        token = await idp.bearer(sub="ada", realm_access={"roles": ["ops"]}, scope="openid tasks")
        assert await served.status(token) == 200
        caller = served.played.calls[0].caller
        assert (caller.id, caller.issuer, caller.roles, caller.scopes) == (
            "ada",
            idp.issuer,
            ("ops",),
            ("openid", "tasks"),
        )
        card = (await served.http.get("/.well-known/agent.json")).json()
        assert card["securitySchemes"]["bearer"]["scheme"] == "bearer"
        assert card["securitySchemes"]["openIdConnect"]["openIdConnectUrl"].startswith(idp.issuer)
        for wrong in ({"aud": "others"}, {"iss": "https://evil.example"}, {"exp": 1}):
            assert await served.status(await idp.bearer(**wrong)) == 401


async def test_a_key_that_the_provider_rotates_in_is_found_with_its_first_token(idp: Provider) -> None:
    async with agent(JWTAuthenticator(issuer=idp.issuer, audience="agents")) as served:
        old = await idp.bearer()
        assert await served.status(old) == 200
        await idp.rotate()
        asked = await idp.asked(CERTS)
        new = await idp.bearer()
        assert await asyncio.gather(*(served.status(new) for _ in range(20))) == [200] * 20
        assert await served.status(old) == 200
        assert await idp.asked(CERTS) == asked + 1


async def test_a_rotation_shows_without_names_of_keys_too(idp: Provider) -> None:
    await idp.behave("names no keys")
    async with agent(JWTAuthenticator(issuer=idp.issuer, audience="agents")) as served:
        old = await idp.bearer()
        assert await served.status(old) == 200
        asked = await idp.asked(CERTS)
        assert await served.status(await idp.bearer(exp=1)) == 401  # signed with a key that is here: none is looked for
        assert await idp.asked(CERTS) == asked
        await idp.rotate()
        new = await idp.bearer()
        assert await asyncio.gather(*(served.status(new) for _ in range(20))) == [200] * 20
        assert await idp.asked(CERTS) == asked + 1
        assert await served.status(old) == 401
        assert await idp.asked(CERTS) == asked + 1  # at most once a minute


async def test_a_key_that_is_gone_counts_no_more_for_tokens_that_were_seen(idp: Provider) -> None:
    async with agent(JWTAuthenticator(jwks_url=idp.jwks_url, issuer=idp.issuer)) as served:
        old = await idp.bearer()
        assert await served.status(old) == 200
        await idp.rotate()
        await idp.drop()
        assert await served.status(await idp.bearer()) == 200  # brings the new keys
        assert await served.status(old) == 401


@pytest.mark.parametrize("how", ["fails", "is garbage", "is empty", "is endless", "redirects"])
async def test_tokens_of_known_keys_are_accepted_while_the_provider_fails(idp: Provider, how: str) -> None:
    async with agent(JWTAuthenticator(issuer=idp.issuer, audience="agents")) as served:
        assert await served.status(await idp.bearer()) == 200
        await idp.behave(how)
        await idp.rotate()
        assert await served.status(await idp.bearer()) == 401  # looked for, and not found
        asked = await idp.asked(CERTS)
        assert await served.status(await idp.bearer()) == 401  # not looked for again
        assert await idp.asked(CERTS) == asked


@pytest.mark.parametrize("how", ["fails", "is garbage"])
async def test_without_any_key_tokens_are_rejected_with_503_and_retry_after(idp: Provider, how: str) -> None:
    await idp.behave(how)
    async with agent(JWTAuthenticator(issuer=idp.issuer, audience="agents")) as served:
        answer = await served.http.post("/", json=SEND, headers={"A2A-Version": "1.0", **await idp.bearer()})
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "Authentication is not available; try again later"
        assert int(answer.headers["retry-after"]) > 0
        assert await served.status({}) == 401  # who shows nothing is asked for a token, keys or no keys


async def test_tokens_of_known_keys_do_not_wait_for_a_provider_that_hangs(
    idp: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "TIMEOUT", 0.2)
    async with agent(JWTAuthenticator(issuer=idp.issuer, audience="agents")) as served:
        old = await idp.bearer()
        assert await served.status(old) == 200
        await idp.behave("hangs")
        await idp.rotate()
        new = await idp.bearer()
        waiting = asyncio.create_task(served.status(new))
        known = await idp.bearer(sub="bob")  # signed with the new key, too: it waits with the other
        others = [await served.status(old) for _ in range(3)]
        assert others == [200, 200, 200]
        async with asyncio.timeout(PATIENCE):
            assert await waiting == 401
        assert await served.status(known) == 401
        await idp.behave("well")


async def test_a_fetch_from_a_provider_that_hangs_is_given_up(idp: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "TIMEOUT", 0.2)
    await idp.behave("hangs")
    with pytest.raises(keys.FetchError, match="could not be read"):
        await asyncio.wait_for(keys.fetch_json(idp.jwks_url), PATIENCE / 2)
    await idp.behave("well")


@requirement("FR-AUT-001")
async def test_an_issuer_and_a_secret_do_not_mix() -> None:
    arguments: list[dict[str, Any]] = [
        {},
        {"audience": "agents"},
        {"key": "a secret of at least thirty-two characters", "jwks_url": "https://idp.example/certs"},
        {"jwks_url": "http://idp.example/certs"},
        {"issuer": "idp.example"},
        {"issuer": "https://idp.example", "audience": []},
    ]
    for given in arguments:
        with pytest.raises(ValueError):
            JWTAuthenticator(**given)


async def test_a_provider_is_not_asked_about_the_tokens_of_another(idp: Provider) -> None:
    async with provider() as other:
        auth = [JWTAuthenticator(issuer=one.issuer, audience="agents") for one in (other, idp)]
        async with agent(auth) as served:
            assert await served.status(await idp.bearer()) == 200
            assert await served.status(await other.bearer()) == 200
            await other.behave("hangs")
            await idp.rotate()  # a key of which the first of the two has never heard
            asked = await other.asked(CERTS)
            assert await served.status(await idp.bearer()) == 200
            assert await other.asked(CERTS) == asked


async def test_a_client_with_an_id_and_a_secret_gets_in_by_the_provider_alone(idp: Provider) -> None:
    scripted = ScriptedAgent({"hi": (COMPLETED,)})
    accepted = JWTAuthenticator(issuer=idp.issuer, audience="agents")
    credentials = OAuth2ClientCredentials("my client", "s3:cret", token_url=idp.token_url, scopes="read write")
    async with serving(scripted, auth=accepted) as url, A2AClient(url, auth=credentials) as client:
        await client.send_message("hi")
    caller = scripted.calls[0].caller
    assert (caller.id, caller.issuer, caller.scopes) == ("my client", idp.issuer, ("read", "write"))
