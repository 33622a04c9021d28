"""The address in the card: what the operator set, the platform published, a trusted proxy or the client named."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from apcore_a2a import AgentInterface, Call, ClientCertificateAuthenticator, Limits, create_app, create_site
from apcore_a2a.app.application import Application
from apcore_a2a.hosts import ADDRESS_VARIABLES
from apcore_a2a.protocol.card import AgentCard
from tests.app.test_signing import KEY
from tests.fakes import ScriptedAgent
from tests.http.server.test_tls import Authority, in_header

CARD = "/.well-known/agent-card.json"
OLD_CARD = "/.well-known/agent.json"
PROXY = "10.0.0.1"
CLIENT = "192.0.2.7"


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tests as on a machine that is not one of a platform."""
    for variable in ADDRESS_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@asynccontextmanager
async def calling(app: Any, peer: str = CLIENT, base: str = "http://0.0.0.0:8000") -> AsyncIterator[httpx.AsyncClient]:
    """A client at the address `peer` of an application that listens at `base`."""
    transport = httpx.ASGITransport(app, client=(peer, 4711))
    async with httpx.AsyncClient(transport=transport, base_url=base) as http:
        yield http


async def card_of(app: Any, headers: dict[str, str], *, peer: str = CLIENT, path: str = CARD) -> dict[str, Any]:
    async with calling(app, peer) as http:
        found: dict[str, Any] = (await http.get(path, headers=headers)).json()
        return found


async def address_of(app: Any, headers: dict[str, str], *, peer: str = CLIENT) -> str:
    """Return the address in the card, which is the same at all of its places."""
    card = await card_of(app, headers, peer=peer)
    urls = {one["url"].rstrip("/") for one in card["supportedInterfaces"]} | {card["url"].rstrip("/")}
    assert len(urls) == 1, urls
    return str(card["url"])


def agent(**options: Any) -> Application:
    return create_app(ScriptedAgent(), **options)


# ---- the order ------------------------------------------------------------------------------------------------------


async def test_the_host_of_the_request_is_in_the_card() -> None:
    assert await address_of(agent(), {"Host": "my-agent.run.app"}) == "http://my-agent.run.app/"
    assert await address_of(agent(), {"Host": "Agent.Example:8080"}) == "http://agent.example:8080/"
    assert await address_of(agent(), {"Host": "[2001:DB8::1]:8080"}) == "http://[2001:db8::1]:8080/"


@pytest.mark.parametrize("host", ["a/b", "a@b", "a b", "a:0", "a:99999", "[::1", "-a", "a:80:80", "ä", "a%2fb", ""])
async def test_a_host_that_is_not_valid_is_not_in_the_card(host: str) -> None:
    scope_headers = [(b"host", host.encode("latin-1"))]
    app = agent()
    async with calling(app) as http:
        request = http.build_request("GET", CARD)
        request.headers = httpx.Headers(scope_headers)
        card = (await http.send(request)).json()
    assert card["url"] == "http://0.0.0.0:8000/"


async def test_a_trusted_proxy_names_the_address() -> None:
    headers = {"Host": "replica-1", "X-Forwarded-Host": "agent.example", "X-Forwarded-Proto": "https"}
    app = agent(trusted_proxies=[PROXY])
    assert await address_of(app, headers, peer=PROXY) == "https://agent.example/"
    assert (
        await address_of(app, {**headers, "X-Forwarded-Prefix": "/math/"}, peer=PROXY) == "https://agent.example/math/"
    )
    assert await address_of(app, headers, peer=CLIENT) == "http://replica-1/"


async def test_a_trusted_proxy_may_keep_the_host_and_name_only_the_scheme() -> None:
    headers = {"Host": "agent.example", "X-Forwarded-Proto": "https"}
    assert await address_of(agent(trusted_proxies=[PROXY]), headers, peer=PROXY) == "https://agent.example/"


async def test_a_trusted_proxy_may_use_the_standard_header() -> None:
    headers = {
        "Host": "replica-1",
        "Forwarded": 'for=evil;host=evil, for="[::1]:9";proto=https;host="agent.example:8443"',
    }
    app = agent(trusted_proxies=[PROXY])
    assert await address_of(app, headers, peer=PROXY) == "https://agent.example:8443/"
    assert await address_of(app, headers, peer=CLIENT) == "http://replica-1/"


async def test_the_standard_header_is_ignored_beside_the_usual_ones() -> None:
    headers = {"Host": "agent.example", "X-Forwarded-Proto": "https", "Forwarded": "host=evil.example;proto=http"}
    assert await address_of(agent(trusted_proxies=[PROXY]), headers, peer=PROXY) == "https://agent.example/"


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-Proto": "gopher"},
        {"X-Forwarded-Host": "evil.example/a?"},
        {"X-Forwarded-Prefix": "evil"},
        {"X-Forwarded-Prefix": "/a?b"},
        {"Forwarded": "host=evil;;proto=https"},
        {"Forwarded": 'host="evil'},
        {"Forwarded": "host"},
    ],
)
async def test_values_of_a_proxy_that_are_not_valid_are_ignored(headers: dict[str, str]) -> None:
    app = agent(trusted_proxies=[PROXY])
    assert await address_of(app, {"Host": "agent.example", **headers}, peer=PROXY) == "http://agent.example/"


async def test_the_operators_url_has_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCORE_RUNTIME_URL", "https://platform.example/")
    app = agent(url="https://agent.example/", trusted_proxies=[PROXY])
    headers = {"Host": "other", "X-Forwarded-Host": "third.example"}
    assert await address_of(app, headers, peer=PROXY) == "https://agent.example/"


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        (
            {"AGENTCORE_RUNTIME_URL": "https://aws.example/runtimes/arn%3Aaws/invocations/"},
            "https://aws.example/runtimes/arn%3Aaws/invocations/",
        ),
        ({"RENDER_EXTERNAL_URL": "https://math.onrender.com"}, "https://math.onrender.com/"),
        ({"RAILWAY_PUBLIC_DOMAIN": "math.up.railway.app"}, "https://math.up.railway.app/"),
        ({"FLY_APP_NAME": "math"}, "https://math.fly.dev/"),
        (
            {"CONTAINER_APP_NAME": "math", "CONTAINER_APP_ENV_DNS_SUFFIX": "hill.eastus.azurecontainerapps.io"},
            "https://math.hill.eastus.azurecontainerapps.io/",
        ),
        ({"WEBSITE_HOSTNAME": "localhost:7071"}, "http://other/"),  # a local emulator
        ({"CONTAINER_APP_NAME": "math"}, "http://other/"),
    ],
)
async def test_a_platform_publishes_the_address(
    variables: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert await address_of(agent(), {"Host": "other"}) == address


async def test_an_agent_of_a_site_has_its_path_below_the_published_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLY_APP_NAME", "math")
    card = await card_of(create_site({"/add": ScriptedAgent()}), {"Host": "other"}, path=f"/add{CARD}")
    assert card["url"] == "https://math.fly.dev/add/"


# ---- allowed hosts --------------------------------------------------------------------------------------------------


async def test_only_allowed_hosts_are_in_the_card() -> None:
    app = agent(allowed_hosts=["agent.example", "*.agents.example"], trusted_proxies=[PROXY])
    assert await address_of(app, {"Host": "agent.example:8080"}) == "http://agent.example:8080/"
    assert await address_of(app, {"Host": "math.agents.example"}) == "http://math.agents.example/"
    assert await address_of(app, {"Host": "evil.example"}) == "http://agent.example/"
    assert await address_of(app, {"Host": "agents.example"}) == "http://agent.example/"
    forwarded = {"Host": "evil.example", "X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}
    assert await address_of(app, forwarded, peer=PROXY) == "https://agent.example/"


async def test_an_allowed_host_may_have_a_port() -> None:
    app = agent(allowed_hosts=["agent.example:8443"])
    assert await address_of(app, {"Host": "agent.example:9"}) == "http://agent.example:8443/"


@pytest.mark.parametrize("name", ["https://agent.example", "agent.example/a", "*"])
def test_a_name_that_is_not_a_host_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="allowed_hosts"):
        agent(allowed_hosts=[name])


async def test_a_signed_card_has_no_address_that_any_client_can_choose() -> None:
    key = KEY.as_dict(private=True)
    assert await address_of(agent(card_signing_key=key), {"Host": "evil.example"}) == "http://0.0.0.0:8000/"
    allowed = agent(card_signing_key=key, allowed_hosts=["agent.example"])
    assert await address_of(allowed, {"Host": "agent.example"}) == "http://agent.example/"
    assert await address_of(allowed, {"Host": "evil.example"}) == "http://agent.example/"


async def test_a_server_on_the_loopback_interface_accepts_its_allowed_hosts() -> None:
    app = agent(allowed_hosts=["agent.example"])
    async with calling(app, "127.0.0.1", "http://127.0.0.1:8000") as http:
        assert (await http.get(CARD, headers={"Host": "agent.example"})).status_code == 200
        assert (await http.get(CARD, headers={"Host": "evil.example"})).status_code == 421


async def test_many_invented_hosts_do_not_fill_the_memory() -> None:
    app = agent()
    for number in range(300):
        await card_of(app, {"Host": f"host-{number}.example"})
    assert 0 < app.cards.cached_forms <= 96
    answers = app.cards.cached_answers
    assert 0 < answers <= 96
    await card_of(app, {"Host": "h" * 300})  # an entry has a maximum size
    await card_of(app, {"A2A-Version": "1." + "0" * 300})
    assert app.cards.cached_answers == answers


async def test_a_replaced_card_is_served_at_once() -> None:
    app = agent()
    before = await card_of(app, {"Host": "one.example"})
    app.cards.replace(replace(app.cards.card, name="another"))
    assert await card_of(app, {"Host": "one.example"}) == before | {"name": "another"}


async def test_a_request_gets_the_card_for_its_own_address_whatever_was_requested_before() -> None:
    requests: list[tuple[dict[str, str], str, str]] = [
        ({"Host": "one.example"}, CLIENT, CARD),
        ({"Host": "two.example"}, CLIENT, CARD),
        ({"Host": "one.example", "A2A-Version": "1.0"}, CLIENT, CARD),
        ({"Host": "one.example"}, CLIENT, OLD_CARD),
        ({"Host": "one.example"}, CLIENT, f"{CARD}?A2A-Version=1.0"),
        ({"Host": "one.example"}, PROXY, CARD),
        ({"Host": "one.example", "X-Forwarded-Host": "public.example"}, PROXY, CARD),
        ({"Host": "one.example", "X-Forwarded-Host": "public.example"}, CLIENT, CARD),
        ({"Host": "one.example", "X-Forwarded-Proto": "https"}, PROXY, CARD),
        ({"Host": "one.example", "X-Forwarded-Prefix": "/math"}, PROXY, CARD),
        ({"Host": "one.example", "Forwarded": "host=public.example;proto=https"}, PROXY, CARD),
    ]
    app = agent(trusted_proxies=[PROXY])
    for headers, peer, path in [*requests, *requests]:
        fresh = agent(trusted_proxies=[PROXY])
        expected = await card_of(fresh, headers, peer=peer, path=path)
        assert await card_of(app, headers, peer=peer, path=path) == expected, (headers, peer, path)


async def test_the_card_of_a_request_depends_on_its_scheme_and_its_socket() -> None:
    app = agent(allowed_hosts=["*.example"])
    addresses = set()
    for base in ("http://0.0.0.0:8000", "http://0.0.0.0:9000", "https://0.0.0.0:9000"):
        async with calling(app, CLIENT, base) as http:
            addresses.add((await http.get(CARD, headers={"Host": "other"})).json()["url"])
    assert addresses == {"http://0.0.0.0:8000/", "http://0.0.0.0:9000/", "https://0.0.0.0:9000/"}


# ---- the log --------------------------------------------------------------------------------------------------------

OTHER = "the card names another address than a client has used"


async def logged(
    app: Any, caplog: pytest.LogCaptureFixture, *requests: dict[str, str], peer: str = CLIENT
) -> list[Any]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for headers in requests:
            await card_of(app, headers, peer=peer)
    return [record for record in caplog.records if record.message == OTHER]


async def test_a_card_with_another_address_than_the_clients_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    app = agent(url="http://localhost:8000/")
    (line,) = await logged(app, caplog, {"Host": "agent.example"}, {"Host": "agent.example"})
    assert (line.card, line.used) == ("http://localhost:8000/", "http://agent.example/")
    assert "--url" in line.hint and "--trusted-proxies" not in line.hint


async def test_a_proxy_that_is_not_trusted_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    headers = {"Host": "my-agent.run.app", "X-Forwarded-Proto": "https"}
    (line,) = await logged(agent(), caplog, headers)
    assert (line.card, line.used) == ("http://my-agent.run.app/", "https://my-agent.run.app/")
    assert "--trusted-proxies" in line.hint


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://agent.example/", "agent.example"),  # TLS ends at a proxy that reports nothing
        ("https://agent.example:8443/", "agent.example"),
        ("http://localhost:8000/", "127.0.0.1:8000"),
    ],
)
async def test_a_card_with_the_address_of_the_client_is_not_logged(
    url: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await logged(agent(url=url), caplog, {"Host": host}) == []


async def test_invented_hosts_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    invented = [{"Host": f"host-{number}.example"} for number in range(50)]
    assert len(await logged(agent(url="https://agent.example"), caplog, *invented)) == 8


# ---- versions in the card -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CARD, OLD_CARD])
async def test_a_card_of_one_version_has_one_place_for_addresses(path: str) -> None:
    new = await card_of(agent(card_interfaces="1.0"), {"Host": "agent.example"}, path=path)
    assert {one["protocolVersion"] for one in new["supportedInterfaces"]} == {"1.0"}
    assert "url" not in new and "additionalInterfaces" not in new
    old = await card_of(agent(card_interfaces="0.3"), {"Host": "agent.example"}, path=path)
    assert (old["url"], old["preferredTransport"]) == ("http://agent.example/", "JSONRPC")
    assert "supportedInterfaces" not in old and "additionalInterfaces" not in old


async def test_the_interfaces_of_an_own_card_are_selected_as_well() -> None:
    listed = [
        AgentInterface(url="https://a.example", protocol_binding="JSONRPC", protocol_version=v) for v in ("1.0", "0.3")
    ]
    card = AgentCard(name="own", supported_interfaces=tuple(listed))
    found = await card_of(agent(card=card, card_interfaces="1.0"), {})
    assert [one["protocolVersion"] for one in found["supportedInterfaces"]] == ["1.0"]
    only_old = AgentCard(name="own", supported_interfaces=(listed[1],))
    with pytest.raises(ValueError, match="has no interface of that version"):
        agent(card=only_old, card_interfaces="1.0")


def test_versions_that_exclude_the_form_of_the_card_are_rejected() -> None:
    with pytest.raises(ValueError, match="excludes card_mode"):
        agent(card_interfaces="1.0", card_mode="hybrid")


# ---- platforms ------------------------------------------------------------------------------------------------------


async def test_a_platform_that_prescribes_paths_finds_the_bindings_there() -> None:
    app = agent(host_profile="wso2")
    card = await card_of(app, {"Host": "agent.example"})
    urls = {(one["protocolBinding"], one["url"]) for one in card["supportedInterfaces"]}
    assert urls == {("JSONRPC", "http://agent.example/rpc"), ("HTTP+JSON", "http://agent.example/rest")}
    sent = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": sent}}
    version = {"A2A-Version": "1.0"}
    async with calling(app) as http:
        for path in ("/rpc", "/rpc/", "/"):
            answer = (await http.post(path, json=call, headers=version)).json()
            assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        for prefix in ("/rest", ""):
            answer = (await http.post(f"{prefix}/message:send", json={"message": sent}, headers=version)).json()
            assert answer["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert (await http.get("/rest/tasks", headers=version)).status_code == 200
        assert (await http.get("/restless", headers=version)).status_code == 404
    await app.close()


@pytest.mark.parametrize(
    ("platform", "bindings", "versions"),
    [
        ("agentcore", ["JSONRPC"], ["1.0", "0.3"]),
        ("cloudrun", ["JSONRPC", "HTTP+JSON"], ["1.0", "0.3"]),
        ("agentgateway", ["JSONRPC", "HTTP+JSON"], ["1.0"]),
        ("wso2", ["JSONRPC", "HTTP+JSON"], ["1.0"]),
    ],
)
async def test_a_card_lists_only_what_the_platform_passes_on(
    platform: str, bindings: list[str], versions: list[str]
) -> None:
    """AgentCore has only POST /, WSO2 only 1.0, and agentgateway writes a URL where gRPC has host:port."""
    app = agent(host_profile=platform)
    assert app.settings.grpc is False
    card = await card_of(app, {"Host": "agent.example"})
    listed = [(one["protocolVersion"], one["protocolBinding"]) for one in card["supportedInterfaces"]]
    assert listed == [(version, binding) for version in versions for binding in bindings]
    assert ("url" in card) == ("0.3" in versions)


async def test_cloud_run_says_which_scheme_and_client_a_request_has(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"Host": "my-agent.run.app", "X-Forwarded-Proto": "https", "X-Forwarded-For": "6.6.6.6, 192.0.2.9"}
    app = agent(host_profile="cloudrun")
    assert await address_of(app, headers, peer="169.254.1.1") == "https://my-agent.run.app/"
    monkeypatch.setenv("PORT", "8081")
    assert agent(host_profile="cloudrun").settings.port == 8081
    assert agent(host_profile="agentcore").settings.port == 9000


async def test_a_gateway_of_the_same_machine_may_use_any_host() -> None:
    app = agent(host_profile="agentgateway")
    headers = {"Host": "gateway.example", "X-Forwarded-Proto": "https"}
    async with calling(app, "127.0.0.1", "http://127.0.0.1:8000") as http:
        card = (await http.get(CARD, headers=headers)).json()
    assert card["supportedInterfaces"][0]["url"] == "https://gateway.example/"
    assert "url" not in card


def test_an_unknown_platform_is_rejected() -> None:
    with pytest.raises(TypeError, match="host_profile"):
        agent(host_profile="mars")


# ---- what a platform says of its clients ----------------------------------------------------------------------------

SESSION = "x-amzn-bedrock-agentcore-runtime-session-id"


async def answer_of(app: Any, headers: dict[str, str], *, peer: str = CLIENT) -> httpx.Response:
    sent = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    async with calling(app, peer) as http:
        return await http.post("/message:send", json={"message": sent}, headers={"A2A-Version": "1.0", **headers})


async def test_agents_and_modules_see_the_session_of_the_platform() -> None:
    async def session(call: Call) -> str:
        return call.session

    app = create_app(session, host_profile="agentcore")
    assert (await answer_of(app, {SESSION: "s-1"})).json()["task"]["artifacts"][0]["parts"] == [{"text": "s-1"}]
    await app.close()


async def test_of_a_platforms_list_only_the_last_client_counts() -> None:
    app = agent(host_profile="cloudrun", limits=Limits(max_requests_per_second=0.001, request_burst=1))
    statuses = []
    for made_up in ("6.6.6.6", "7.7.7.7"):
        headers = {"X-Forwarded-For": f"{made_up}, 192.0.2.9"}
        statuses.append((await answer_of(app, headers, peer="169.254.1.1")).status_code)
    assert statuses == [200, 429]
    await app.close()


async def test_a_standard_header_names_the_client_as_well() -> None:
    app = agent(trusted_proxies=[PROXY], limits=Limits(max_requests_per_second=0.001, request_burst=1))
    clients = ("192.0.2.9", '"[2001:db8::9]:4711"', '"[2001:db8::9]:4712"')
    requests = [{"Forwarded": f"for=6.6.6.6, for={client}"} for client in clients]
    assert [(await answer_of(app, headers, peer=PROXY)).status_code for headers in requests] == [200, 200, 429]
    await app.close()


async def test_a_platform_vouches_for_no_client_certificate(tmp_path: Path) -> None:
    claimed = {"Client-Cert": in_header(Authority(tmp_path).files("planner", "planner.example"))}
    auth = ClientCertificateAuthenticator(names=["planner.example"])
    app = agent(host_profile="cloudrun", auth=auth)
    assert (await answer_of(app, claimed, peer="169.254.1.1")).status_code == 401
    trusting = agent(trusted_proxies=["169.254.1.1"], auth=auth)
    assert (await answer_of(trusting, claimed, peer="169.254.1.1")).status_code == 200
    await app.close()
    await trusting.close()
