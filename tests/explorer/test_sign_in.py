"""The sign-in of the page: the schemes of the card, and authorization codes with PKCE from a real issuer."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode

import aiohttp
import pytest
import uvicorn
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from apcore_a2a import APIKeyAuthenticator
from apcore_a2a.agent import Caller
from apcore_a2a.auth.api_keys import hash_key
from apcore_a2a.explorer.page import issuers_of
from tests.explorer.conftest import OpenPage
from tests.explorer.pages import choose, runs, say
from tests.explorer.test_explore import exploring
from tests.interaction.serving import listen, serving

pytestmark = pytest.mark.asyncio(loop_scope="package")

TOKEN = "token-of-ada"
CORS = {"access-control-allow-origin": "*", "access-control-allow-headers": "*"}


class Issuer:
    """An authorization server that signs in every user at once, and checks what the standards require of a client."""

    def __init__(self) -> None:
        self.url = ""
        self.refuses = ""
        self.asked: list[dict[str, str]] = []
        self.granted: list[dict[str, str]] = []
        self.lifetime = 3600
        self._challenges: dict[str, str] = {}

    def app(self) -> Starlette:
        routes = [
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST", "OPTIONS"]),
            Route("/.well-known/openid-configuration", self._discovery, methods=["GET", "OPTIONS"]),
        ]
        return Starlette(routes=routes)

    async def _discovery(self, request: Request) -> Response:
        endpoints = {"authorization_endpoint": f"{self.url}/authorize", "token_endpoint": f"{self.url}/token"}
        return JSONResponse({"issuer": self.url, **endpoints}, headers=CORS)

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        self.asked.append(asked)
        self._challenges["code-1"] = asked["code_challenge"]
        answer = {"state": asked["state"]}
        answer |= {"error": self.refuses} if self.refuses else {"code": "code-1"}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(answer)}")

    async def _token(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(headers=CORS)
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        self.granted.append(form)
        if form["grant_type"] == "authorization_code":
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            if base64.urlsafe_b64encode(digest).decode().rstrip("=") != self._challenges[form["code"]]:
                return JSONResponse({"error": "invalid_grant"}, 400, headers=CORS)
        token = {"access_token": TOKEN, "expires_in": self.lifetime, "refresh_token": "again"}
        return JSONResponse(token, headers={**CORS, "cache-control": "no-store"})


class Granted:
    """Accepts the issuer's token, and declares a scheme for the card."""

    def __init__(self, scheme: dict[str, Any]) -> None:
        self._scheme = scheme

    def authenticate(self, headers: Mapping[str, str]) -> Caller | None:
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return None
        return Caller(id="ada", type="user", issuer="issuer")

    def security_schemes(self) -> list[dict[str, Any]]:
        return [self._scheme]


def shout(text: str) -> str:
    return text.upper()


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    server = uvicorn.Server(uvicorn.Config(issuer.app(), log_config=None, lifespan="off"))
    with listen() as listener:
        issuer.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listener]))
            yield issuer
            server.should_exit = True


def oauth(issuer: Issuer) -> dict[str, Any]:
    flow = {
        "authorizationUrl": f"{issuer.url}/authorize",
        "tokenUrl": f"{issuer.url}/token",
        "scopes": {"talk": "Talk"},
    }
    return {"type": "oauth2", "flows": {"authorizationCode": flow}}


def connect(issuer: Issuer) -> dict[str, Any]:
    return {"type": "openIdConnect", "openIdConnectUrl": f"{issuer.url}/.well-known/openid-configuration"}


async def sign_in(page: Page, *, client: str = "explorer") -> None:
    dialog = page.get_by_role("dialog", name="Credentials")
    await dialog.get_by_label("Client id").fill(client)
    await dialog.get_by_role("button", name="Sign in at").click()


@pytest.mark.parametrize("kind", [oauth, connect])
async def test_a_user_signs_in_at_the_issuer_of_the_card(open_page: OpenPage, kind: Any) -> None:
    async with issuing() as issuer:
        async with serving([shout], card=None, explorer=True, auth=Granted(kind(issuer))) as url:
            page = await open_page(f"{url}/explorer/", issuer=issuer.url)
            await expect(page.get_by_role("dialog", name="Credentials")).to_contain_text(f"{url}/explorer/")
            await sign_in(page)
            await expect(page.get_by_role("button", name="Signed in")).to_be_visible()
            await page.get_by_role("button", name="Done").click()
            await choose(page, "shout")
            await say(page, "hello")
            await expect(runs(page).locator(".artifact")).to_contain_text("HELLO")

    (asked,) = issuer.asked
    assert asked["response_type"] == "code"
    assert asked["code_challenge_method"] == "S256"
    assert asked["redirect_uri"] == f"{url}/explorer/"
    assert asked["scope"] == ("talk" if kind is oauth else "openid")
    assert issuer.granted[0]["client_id"] == "explorer"


async def test_a_refused_sign_in_says_why(open_page: OpenPage) -> None:
    async with issuing() as issuer:
        issuer.refuses = "access_denied"
        async with serving([shout], card=None, explorer=True, auth=Granted(oauth(issuer))) as url:
            page = await open_page(f"{url}/explorer/", issuer=issuer.url)
            await sign_in(page)
            await expect(page.get_by_role("alert").last).to_contain_text("refused the sign-in: access_denied")
            await expect(page.get_by_role("button", name="Sign in", exact=True)).to_be_visible()


async def test_a_token_is_refreshed_before_it_expires(open_page: OpenPage) -> None:
    async with issuing() as issuer:
        issuer.lifetime = 1
        async with serving([shout], card=None, explorer=True, auth=Granted(oauth(issuer))) as url:
            page = await open_page(f"{url}/explorer/", issuer=issuer.url)
            async with page.expect_response(lambda response: "/token" in response.url and len(issuer.granted) > 1):
                await sign_in(page)

    assert issuer.granted[1] == {"grant_type": "refresh_token", "refresh_token": "again", "client_id": "explorer"}


async def test_the_operator_can_name_the_client(open_page: OpenPage) -> None:
    async with issuing() as issuer:
        options: dict[str, Any] = {"explorer": True, "auth": Granted(oauth(issuer)), "explorer_client_id": "the-app"}
        async with serving([shout], card=None, **options) as url:
            page = await open_page(f"{url}/explorer/", issuer=issuer.url)
            await expect(page.get_by_label("Client id")).to_have_value("the-app")


async def test_the_proxy_returns_to_an_address_without_a_secret(open_page: OpenPage) -> None:
    async with issuing() as issuer:
        async with serving([shout], card=None, auth=Granted(oauth(issuer))) as url, exploring(url) as address:
            page = await open_page(address, issuer=issuer.url)
            await sign_in(page)
            await expect(page.get_by_role("button", name="Signed in")).to_be_visible()

    root = address.partition("/explorer/")[0].rpartition("/")[0]
    assert issuer.asked[0]["redirect_uri"] == f"{root}/callback"


# ---- the schemes of the card ----------------------------------------------------------------------------------------


async def test_an_agent_without_authentication_has_no_sign_in(open_page: OpenPage) -> None:
    async with serving([shout], card=None, explorer=True) as url:
        page = await open_page(f"{url}/explorer/")
        await expect(page.locator(".dot")).to_have_text("online")
        await expect(page.get_by_role("button", name="Sign in")).to_have_count(0)


async def test_the_sign_in_opens_with_the_scheme_of_the_card(open_page: OpenPage) -> None:
    auth = APIKeyAuthenticator({"ada": hash_key("apcore_not-a-real-key")})
    async with serving([shout], card=None, explorer=True, auth=auth) as url:
        page = await open_page(f"{url}/explorer/")
        await expect(page.get_by_label("API key")).to_be_focused()
        await page.get_by_label("API key").fill("apcore_not-a-real-key")
        await page.get_by_role("button", name="Done").click()
        await choose(page, "shout")
        await say(page, "hello")
        await expect(runs(page).locator(".artifact")).to_contain_text("HELLO")


class Named:
    """Accepts a name and a password."""

    def authenticate(self, headers: Mapping[str, str]) -> Caller | None:
        wanted = base64.b64encode("ada:pässword".encode()).decode()
        if headers.get("authorization") != f"Basic {wanted}":
            return None
        return Caller(id="ada", type="user")

    def security_schemes(self) -> list[dict[str, Any]]:
        return [{"type": "http", "scheme": "basic"}]


async def test_a_name_and_a_password_are_sent_as_utf_8(open_page: OpenPage) -> None:
    async with serving([shout], card=None, explorer=True, auth=Named()) as url:
        page = await open_page(f"{url}/explorer/")
        await page.get_by_label("Name").fill("ada")
        await page.get_by_label("Password").fill("pässword")
        await page.get_by_role("button", name="Done").click()
        await choose(page, "shout")
        await say(page, "hello")
        await expect(runs(page).locator(".artifact")).to_contain_text("HELLO")


# ---- the policy of the page -----------------------------------------------------------------------------------------


def flow(begin: str, token: str) -> dict[str, Any]:
    return {"oauth2SecurityScheme": {"flows": {"authorizationCode": {"authorizationUrl": begin, "tokenUrl": token}}}}


@pytest.mark.parametrize(
    ("scheme", "found"),
    [
        (
            flow("https://id.example/a", "https://id.example:8443/t"),
            [("https://id.example", "https://id.example:8443")],
        ),
        (flow("http://localhost:9/a", "http://127.0.0.1:9/t"), [("http://localhost:9", "http://127.0.0.1:9")]),
        (flow("http://id.example/a", "http://id.example/t"), []),
        (flow("https://id.example/a", "https://x; script-src *"), []),
        (flow("https://id.example/a", "https://user:secret@id.example/t"), []),
        (flow("https://id.example/a", "https://[/t"), []),
        ({"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": "https://id.example"}}}}, []),
        ({"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://id.example/x"}}, [("https://id.example",) * 2]),
        ({"openIdConnectSecurityScheme": {"openIdConnectUrl": 5}}, []),
    ],
)
async def test_only_safe_origins_of_the_card_may_receive_a_sign_in(scheme: Any, found: list[tuple[str, str]]) -> None:
    assert issuers_of({"a": scheme}) == found


async def test_a_remote_card_that_sends_the_code_elsewhere_is_not_followed(open_page: OpenPage) -> None:
    async with issuing() as issuer, issuing() as thief:
        scheme = oauth(issuer)
        scheme["flows"]["authorizationCode"]["tokenUrl"] = f"{thief.url}/token"
        async with serving([shout], card=None, auth=Granted(scheme)) as url, exploring(url) as address:
            async with aiohttp.ClientSession() as client, client.get(address) as page_:
                policy = page_.headers["content-security-policy"]
    assert thief.url not in policy and issuer.url not in policy
    assert "connect-src 'self';" in policy
