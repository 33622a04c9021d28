"""The authentication that the card declares is the one that requests need."""

from collections.abc import Mapping
from typing import Any

import httpx

from apcore_a2a import JWTAuthenticator
from apcore_a2a.agent import Caller
from tests.auth.tokens import SECRET, bearer
from tests.fakes import COMPLETED, ScriptedAgent
from tests.interaction.conftest import Serve
from tests.interaction.test_jsonrpc_wire import OLD_MESSAGE, V1, call
from tests.requirements import requirement


class APIKeys:
    """Accepts requests with the key."""

    def authenticate(self, headers: Mapping[str, str]) -> Caller | None:
        if headers.get("x-api-key") != "open sesame":
            return None
        return Caller(id="ada", type="user")

    def security_schemes(self) -> list[dict[str, str]]:
        return [{"type": "apiKey", "in": "header", "name": "X-API-Key"}]


async def cards(http: httpx.AsyncClient, url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The card in 0.3 and in 1.0."""
    old = await http.get(f"{url}/.well-known/agent.json")
    new = await http.get(f"{url}/.well-known/agent-card.json", headers=V1)
    return old.json(), new.json()


async def status_of(http: httpx.AsyncClient, url: str, headers: dict[str, str]) -> int:
    answer = await http.post(url, json=call("message/send", {"message": OLD_MESSAGE}), headers=headers)
    return answer.status_code


@requirement("FR-AUT-003")
async def test_a_bearer_token_is_declared_and_required(serve: Serve, http: httpx.AsyncClient) -> None:
    url = await serve(ScriptedAgent({"hi": (COMPLETED,)}), auth=JWTAuthenticator(SECRET))
    old, new = await cards(http, url)
    ((name, scheme),) = old["securitySchemes"].items()
    assert scheme == {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    assert old["security"] == [{name: []}]
    assert new["securitySchemes"] == {name: {"httpAuthSecurityScheme": {"scheme": "bearer", "bearerFormat": "JWT"}}}
    assert [list(one["schemes"]) for one in new["securityRequirements"]] == [[name]]
    assert await status_of(http, url, {}) == 401
    assert await status_of(http, url, bearer()) == 200


@requirement("FR-AUT-003")
async def test_a_key_in_a_header_is_declared_and_required(serve: Serve, http: httpx.AsyncClient) -> None:
    url = await serve(ScriptedAgent({"hi": (COMPLETED,)}), auth=APIKeys())
    old, new = await cards(http, url)
    assert list(old["securitySchemes"].values()) == [{"type": "apiKey", "in": "header", "name": "X-API-Key"}]
    declared = [scheme["apiKeySecurityScheme"] for scheme in new["securitySchemes"].values()]
    assert declared == [{"location": "header", "name": "X-API-Key"}]
    assert await status_of(http, url, {}) == 401
    assert await status_of(http, url, {"X-API-Key": "open sesame"}) == 200


@requirement("FR-AUT-003")
async def test_an_open_agent_declares_nothing(serve: Serve, http: httpx.AsyncClient) -> None:
    url = await serve(ScriptedAgent({"hi": (COMPLETED,)}))
    for card in await cards(http, url):
        assert not card.get("securitySchemes")
        assert not card.get("security") and not card.get("securityRequirements")
    assert await status_of(http, url, {}) == 200
