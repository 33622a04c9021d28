"""Credentials: their kinds, and the origins that receive them."""

import asyncio
import json
from base64 import b64decode
from typing import Any
from urllib.parse import parse_qs

import pytest

from apcore_a2a.client import ApiKeyAuth, BasicAuth, BearerAuth, CardAuth, OAuth2ClientCredentials, Retry
from apcore_a2a.errors import A2AError, UnauthenticatedError
from tests.client.conftest import Connect
from tests.client.scripted import CARD, Request, ScriptedServer, card, respond, result, stream, task

TOKEN = "/token"


def headers(server: ScriptedServer, name: str = "authorization") -> list[str | None]:
    return [request.headers.get(name) for request in server.requests]


def secured(url: str, token_url: str, **changes: Any) -> bytes:
    flow = {"clientCredentials": {"tokenUrl": token_url, "scopes": {"read": "to read"}}}
    schemes = {"key": {"apiKeySecurityScheme": {}}, "oauth": {"oauth2SecurityScheme": {"flows": flow}}}
    requirements = [{"schemes": {"key": {}}}, {"schemes": {"oauth": {"list": ["read", "write"]}}}]
    return respond(card(url, securitySchemes=schemes, securityRequirements=requirements, **changes))


def grant(token: str = "t0k", **more: object) -> bytes:
    return respond({"access_token": token, "token_type": "bearer", "expires_in": 3600} | more)


async def test_an_api_key_goes_into_its_header(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result(task()))

    await connect(auth=ApiKeyAuth("s3cret", header="X-Key")).get_task("t-1")

    assert headers(server, "x-key") == ["s3cret", "s3cret"]


async def test_a_token_provider_is_called_for_every_request(server: ScriptedServer, connect: Connect) -> None:
    tokens = iter(["one", "two", "three"])

    async def provide() -> str:
        return next(tokens)

    server.on("/", result(task()))
    await connect(auth=provide).get_task("t-1")
    await connect(auth=BearerAuth(provide)).refresh_card()

    assert headers(server) == ["Bearer one", "Bearer two", "Bearer three"]


async def test_a_call_may_have_its_own_credentials(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result(task()), stream({"task": task("WORKING")}), stream({"task": task()}), result(task()))
    client = connect(auth="Bearer mine")

    await client.get_task("t-1", auth="Bearer theirs")
    async for _ in client.stream_message("hi", auth=ApiKeyAuth("theirs")):
        pass  # the stream ends early and is resumed
    await client.get_task("t-1")
    await client.get_task("t-1", auth=None)

    assert headers(server) == ["Bearer mine", "Bearer theirs", None, None, "Bearer mine", None]
    assert headers(server, "x-api-key") == [None, None, "theirs", "theirs", None, None]


async def test_rejected_credentials_that_can_be_renewed_are_retried_once(
    server: ScriptedServer, connect: Connect
) -> None:
    tokens = iter(["card", "old", "new"])

    async def provide() -> str:
        return next(tokens)

    server.on("/", respond(b"", 401), result({"task": task()}))
    await connect(auth=provide).send_message("hi")

    assert headers(server) == ["Bearer card", "Bearer old", "Bearer new"]


async def test_rejected_credentials_of_a_stream_are_renewed_and_retried_once(
    server: ScriptedServer, connect: Connect
) -> None:
    tokens = iter(["card", "old", "new"])

    async def provide() -> str:
        return next(tokens)

    server.on("/", respond(b"", 401), stream({"task": task()}))

    assert len([event async for event in connect(auth=provide).stream_message("hi")]) == 1
    assert headers(server) == ["Bearer card", "Bearer old", "Bearer new"]


async def test_rejected_credentials_that_cannot_change_are_not_retried(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on("/", respond(b"", 401))

    with pytest.raises(UnauthenticatedError) as caught:
        await connect(auth="Bearer s3cret").send_message("hi")
    assert len(server.asked("/")) == 1
    assert "s3cret" not in str(caught.value)


async def test_a_token_is_fetched_from_the_endpoint_of_the_card_and_cached(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on(CARD, secured(server.url, server.url + TOKEN)).on(TOKEN, grant()).on("/", result(task()))
    client = connect(auth=OAuth2ClientCredentials("my app", "s3:cret"))

    await client.get_task("t-1")
    await client.get_task("t-1")

    assert headers(server)[0] is None  # the card is fetched first, without credentials
    (asked,) = server.asked(TOKEN)
    assert b64decode(asked.headers["authorization"].removeprefix("Basic ")) == b"my+app:s3%3Acret"
    assert parse_qs(asked.body.decode()) == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    assert [request.headers["authorization"] for request in server.asked("/")] == ["Bearer t0k", "Bearer t0k"]


async def test_calls_at_the_same_time_share_one_token(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, secured(server.url, server.url + TOKEN)).on(TOKEN, grant()).on("/", result(task()))
    client = connect(auth=OAuth2ClientCredentials("app", "s3cret"))

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(client.get_task("t-1"))

    assert len(server.asked(TOKEN)) == 1


async def test_the_lifetime_of_a_token_may_be_a_string(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, secured(server.url, server.url + TOKEN)).on(TOKEN, grant(expires_in="3600")).on("/", result(task()))

    await connect(auth=OAuth2ClientCredentials("app", "s3cret")).get_task("t-1")

    assert headers(server)[-1] == "Bearer t0k"


async def test_a_rejected_token_is_fetched_again(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, secured(server.url, server.url + TOKEN)).on(TOKEN, grant("old"), grant("new"))
    server.on("/", respond(b"", 401), result(task()))

    await connect(auth=OAuth2ClientCredentials("app", "s3cret")).get_task("t-1")

    assert [request.headers["authorization"] for request in server.asked("/")] == ["Bearer old", "Bearer new"]


async def test_an_expired_token_is_fetched_again(
    server: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("apcore_a2a.client.auth.time.monotonic", lambda: now)
    server.on(CARD, secured(server.url, server.url + TOKEN)).on(TOKEN, grant("one"), grant("two"))
    server.on("/", result(task()))
    client = connect(auth=OAuth2ClientCredentials("app", "s3cret"), card_ttl=1e9)

    await client.get_task("t-1")
    now += 3600 - 31
    await client.get_task("t-1")
    now += 1
    await client.get_task("t-1")

    sent = [request.headers["authorization"] for request in server.asked("/")]
    assert sent == ["Bearer one", "Bearer one", "Bearer two"]


async def test_a_secret_is_not_sent_to_an_untrusted_endpoint_of_a_card(
    server: ScriptedServer, connect: Connect
) -> None:
    async with ScriptedServer() as evil:
        evil.on(TOKEN, grant())
        server.on(CARD, secured(server.url, evil.url + TOKEN)).on("/", result(task()))

        with pytest.raises(UnauthenticatedError, match=r"token endpoint on another origin, .*Pass token_url="):
            await connect(auth=OAuth2ClientCredentials("app", "s3cret")).get_task("t-1")
        assert evil.requests == []

        allowed = connect(auth=OAuth2ClientCredentials("app", "s3cret"), allow_origins=[evil.url])
        await allowed.get_task("t-1")
        named = connect(auth=OAuth2ClientCredentials("app", "s3cret", token_url=evil.url + TOKEN, scopes=["own"]))
        await named.get_task("t-1")
        assert [parse_qs(request.body.decode())["scope"] for request in evil.requests] == [["read write"], ["own"]]


async def test_the_token_of_one_agent_is_not_sent_to_another(server: ScriptedServer, connect: Connect) -> None:
    shared = OAuth2ClientCredentials("app", "s3cret")
    async with ScriptedServer() as other:
        for agent, token in ((server, "first"), (other, "second")):
            agent.on(CARD, secured(agent.url, agent.url + TOKEN)).on(TOKEN, grant(token)).on("/", result(task()))
            await connect(agent.url, auth=shared).get_task("t-1")

        assert other.asked("/")[0].headers["authorization"] == "Bearer second"


async def test_a_card_without_the_flow_requires_a_token_url(server: ScriptedServer, connect: Connect) -> None:
    server.on(TOKEN, grant()).on("/", result(task()))

    with pytest.raises(UnauthenticatedError, match=r"names no OAuth 2\.0 client credentials flow\. Pass token_url="):
        await connect(auth=OAuth2ClientCredentials("app", "s3cret")).get_task("t-1")
    await connect(auth=OAuth2ClientCredentials("app", "s3cret", token_url=server.url + TOKEN)).get_task("t-1")

    assert parse_qs(server.asked(TOKEN)[0].body.decode()) == {"grant_type": ["client_credentials"]}


async def test_scopes_may_be_one_string_and_an_audience_may_be_requested(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on(TOKEN, grant()).on("/", result(task()))
    auth = OAuth2ClientCredentials(
        "app", "s3cret", token_url=server.url + TOKEN, scopes="read write", audience="https://agents.example.com"
    )
    await connect(auth=auth).get_task("t-1")
    assert parse_qs(server.asked(TOKEN)[0].body.decode()) == {
        "grant_type": ["client_credentials"],
        "scope": ["read write"],
        "audience": ["https://agents.example.com"],
    }


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (respond({"error": "invalid_client"}, 400), "rejected the client credentials: HTTP 400"),
        (respond(b"", 302, {"Location": "http://169.254.169.254/"}), "HTTP 302"),
        (respond(b"<html>"), "no valid access token"),
        (respond({"token_type": "bearer"}), "no valid access token"),
        (respond(b'{"x":' + b"[" * 6000), "no valid access token"),
    ],
)
async def test_a_token_endpoint_without_a_token_is_an_authentication_error(
    server: ScriptedServer, connect: Connect, answer: bytes, said: str
) -> None:
    server.on(CARD, secured(server.url, server.url + TOKEN)).on(TOKEN, answer)

    with pytest.raises(UnauthenticatedError, match=said) as caught:
        await connect(auth=OAuth2ClientCredentials("app", "s3cret"), retry=Retry(attempts=1)).get_task("t-1")
    assert "s3cret" not in str(caught.value)


async def test_a_token_that_is_not_a_valid_header_is_rejected(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, secured(server.url, server.url + TOKEN)).on(TOKEN, grant("t0k\r\nX-Evil: 1"))

    with pytest.raises(UnauthenticatedError, match="no valid access token"):
        await connect(auth=OAuth2ClientCredentials("app", "s3cret")).get_task("t-1")


async def test_credentials_are_not_sent_to_a_redirect_target(server: ScriptedServer, connect: Connect) -> None:
    async with ScriptedServer() as evil:
        server.on("/", respond(b"", 307, {"Location": evil.url + "/"}))

        with pytest.raises(Exception, match="Redirects are not followed"):
            await connect(auth="Bearer s3cret").send_message("hi")
        assert evil.requests == []


async def test_secrets_are_not_logged(
    server: ScriptedServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async def cut(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")

    caplog.set_level(0)
    server.on("/", stream({"task": task("WORKING")}), cut, stream({"task": task()}))

    _ = [event async for event in connect(auth="Bearer s3cret").stream_message("my s3cret plan")]

    assert any("stream broke" in record.message for record in caplog.records)
    assert "s3cret" not in json.dumps([vars(record) for record in caplog.records], default=str)


# ---- the security schemes of the card -------------------------------------------------------------------------------

BEARER = {"httpAuthSecurityScheme": {"scheme": "Bearer"}}
BASIC = {"httpAuthSecurityScheme": {"scheme": "basic"}}
KEY = {"apiKeySecurityScheme": {"location": "header", "name": "X-Door"}}
COOKIE = {"apiKeySecurityScheme": {"location": "cookie", "name": "door"}}
QUERY = {"apiKeySecurityScheme": {"location": "query", "name": "door"}}
OIDC = {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://issuer.example"}}
MTLS: dict[str, Any] = {"mtlsSecurityScheme": {}}
DIGEST = {"httpAuthSecurityScheme": {"scheme": "digest"}}
ALL = CardAuth(token="t0k", api_key="k3y", basic=("ada", "p:w"))
BASIC_ADA = "Basic YWRhOnA6dw=="


def asking_for(url: str, *alternatives: list[dict[str, Any]]) -> bytes:
    """Return a card whose security requirements are these alternatives, each a list of schemes."""
    schemes: dict[str, Any] = {}
    requirements: list[dict[str, Any]] = []
    for alternative in alternatives:
        names: dict[str, Any] = {}
        for scheme in alternative:
            name = f"s{len(schemes)}"
            schemes[name] = scheme
            names[name] = {"list": []}
        requirements.append({"schemes": names})
    return respond(card(url, securitySchemes=schemes, securityRequirements=requirements))


@pytest.mark.parametrize(
    ("alternatives", "auth", "sent"),
    [
        ([[BEARER]], ALL, {"authorization": "Bearer t0k"}),
        ([[OIDC]], ALL, {"authorization": "Bearer t0k"}),
        ([[BASIC]], ALL, {"authorization": BASIC_ADA}),
        ([[KEY]], ALL, {"x-door": "k3y"}),
        ([[COOKIE]], ALL, {"cookie": "door=k3y"}),
        ([[KEY, BASIC]], ALL, {"x-door": "k3y", "authorization": BASIC_ADA}),
        ([[DIGEST], [KEY, BEARER]], ALL, {"x-door": "k3y", "authorization": "Bearer t0k"}),
        ([[BEARER], [KEY]], CardAuth(api_key="k3y"), {"x-door": "k3y"}),
        ([[MTLS, KEY]], CardAuth(api_key="k3y"), {"x-door": "k3y"}),
        ([[], [KEY]], CardAuth(api_key="k3y"), {"x-door": "k3y"}),
        ([[], [KEY]], CardAuth(token="t0k"), {}),
        ([], CardAuth(api_key="k3y"), {"x-api-key": "k3y"}),
        ([], CardAuth(basic=BasicAuth("ada", "p:w")), {"authorization": BASIC_ADA}),
        ([], CardAuth(), {}),
    ],
)
async def test_the_credentials_that_the_card_asks_for_are_sent(
    server: ScriptedServer,
    connect: Connect,
    alternatives: list[list[dict[str, Any]]],
    auth: CardAuth,
    sent: dict[str, str],
) -> None:
    server.on(CARD, asking_for(server.url, *alternatives)).on("/", result(task()))

    await connect(auth=auth).get_task("t-1")

    (asked,) = server.asked("/")
    found = {
        name: asked.headers[name]
        for name in ("authorization", "x-door", "cookie", "x-api-key")
        if name in asked.headers
    }
    assert found == sent


@pytest.mark.parametrize("header", ["Cookie", "Host", "Transfer-Encoding", "Sec-Fetch-Site", "X-Forwarded-For"])
async def test_a_card_cannot_ask_for_the_api_key_in_a_header_with_another_meaning(
    server: ScriptedServer, connect: Connect, header: str
) -> None:
    scheme = {"apiKeySecurityScheme": {"location": "header", "name": header}}
    server.on(CARD, asking_for(server.url, [scheme])).on("/", result(task()))
    with pytest.raises(A2AError, match="which has another meaning"):
        await connect(auth=CardAuth(api_key="k3y")).get_task("t-1")
    assert not server.asked("/")


async def test_schemes_without_requirements_are_alternatives(server: ScriptedServer, connect: Connect) -> None:
    schemes = {"oauth": {"oauth2SecurityScheme": {"flows": {}}}, "key": KEY}
    server.on(CARD, respond(card(server.url, securitySchemes=schemes))).on("/", result(task()))

    await connect(auth=CardAuth(api_key="k3y")).get_task("t-1")

    assert server.asked("/")[0].headers["x-door"] == "k3y"


async def test_client_credentials_use_the_flow_of_the_card(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, secured(server.url, server.url + TOKEN)).on(TOKEN, grant()).on("/", result(task()))

    await connect(auth=CardAuth(client=("app", "s3cret"))).get_task("t-1")

    assert headers(server)[-1] == "Bearer t0k"


@pytest.mark.parametrize(
    ("alternatives", "said"),
    [
        ([[KEY]], "an API key in the header 'X-Door' (scheme 's0')"),
        ([[BASIC], [BEARER]], "a name and a password (HTTP Basic) (scheme 's0'), or a bearer token (scheme 's1')"),
        ([[KEY, OIDC]], "an API key in the header 'X-Door' (scheme 's0') and an OpenID Connect token (scheme 's1')"),
        ([[DIGEST]], "HTTP credentials of the type digest (scheme 's0')"),
        ([[MTLS, BEARER]], "a client certificate (scheme 's0') and a bearer token (scheme 's1')"),
        ([[{"strange": {}}]], "credentials of an unknown type (scheme 's0')"),
    ],
)
async def test_missing_credentials_are_named_before_anything_is_sent(
    server: ScriptedServer, connect: Connect, alternatives: list[list[dict[str, Any]]], said: str
) -> None:
    server.on(CARD, asking_for(server.url, *alternatives)).on("/", result(task()))

    with pytest.raises(UnauthenticatedError) as caught:
        await connect(auth=CardAuth()).get_task("t-1")

    assert str(caught.value) == f"The agent card asks for {said}. CardAuth() contains none of these. Pass auth="
    assert not server.asked("/")


async def test_a_rejected_call_names_the_schemes_of_the_card(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, asking_for(server.url, [KEY])).on("/", respond(b"", 401))
    client = connect(auth="Bearer wrong")

    for call in (client.get_task("t-1"), anext(client.stream_message("hi"))):
        with pytest.raises(
            UnauthenticatedError, match=r"Pass auth=\. The agent card asks for an API key in the header"
        ):
            await call


async def test_an_api_key_in_the_query_is_not_supported(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, asking_for(server.url, [QUERY]))

    with pytest.raises(A2AError, match="API key in the query, which this client does not support"):
        await connect(auth=ALL).get_task("t-1")


async def test_a_token_is_sent_for_a_card_that_needs_one(server: ScriptedServer, connect: Connect) -> None:
    await connect(auth=ALL).refresh_card()

    assert headers(server) == ["Bearer t0k"]


def test_credentials_of_the_environment() -> None:
    everything = {
        "A2ACLI_BEARER": "t0k",
        "A2ACLI_API_KEY": "k3y",
        "A2ACLI_BASIC": "ada:p:w",
        "A2ACLI_CLIENT_ID": "app",
        "A2ACLI_CLIENT_SECRET": "s3cret",
    }

    assert repr(CardAuth.from_environment(everything)) == "CardAuth(token=…, api_key=…, basic=…, client=…)"
    assert repr(CardAuth.from_environment({"A2ACLI_BEARER": ""})) == "CardAuth()"


def test_a_name_with_a_colon_is_rejected() -> None:
    with pytest.raises(ValueError, match="must not contain a colon"):
        BasicAuth("a:b", "c")
