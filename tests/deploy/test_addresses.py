"""The address in the card behind a real proxy, and the contracts of platforms as a proxy can act them out."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import httpx
import pytest

from apcore_a2a import A2AClient
from tests.deploy.balancers import DEADLINE, Balancer, find_balancer
from tests.fakes import COMPLETED, ScriptedAgent
from tests.interaction.serving import serving
from tests.processes import running

AGENT: Final = ScriptedAgent(default=(COMPLETED,))
CARD: Final = "/.well-known/agent-card.json"
V1: Final = {"A2A-Version": "1.0"}
PROXY: Final = "127.0.0.1"
BINDINGS: Final[tuple[Literal["JSONRPC", "HTTP+JSON"], ...]] = ("JSONRPC", "HTTP+JSON")

# The same three proxies, for nginx and for Caddy.
STANDARD: Final = {  # only the header of RFC 7239
    "nginx": """location / {
        proxy_pass http://AGENT; proxy_set_header Host inside;
        proxy_set_header Forwarded 'for="$remote_addr";proto=https;host="$http_host"'; }""",
    "caddy": """reverse_proxy AGENT {
        header_up Host inside
        header_up Forwarded `for="{remote_host}";proto=https;host="{http.request.hostport}"`
        header_up -X-Forwarded-For
        header_up -X-Forwarded-Proto
        header_up -X-Forwarded-Host
    }""",
}
BELOW_A_PATH: Final = {
    "nginx": """location /math/ {
        proxy_pass http://AGENT/; proxy_set_header Host inside; proxy_set_header X-Forwarded-Proto https;
        proxy_set_header X-Forwarded-Host $http_host; proxy_set_header X-Forwarded-Prefix /math; }""",
    "caddy": """handle_path /math/* {
        reverse_proxy AGENT {
            header_up Host inside
            header_up X-Forwarded-Proto https
            header_up X-Forwarded-Prefix /math
        }
    }""",
}
HOST_ONLY: Final = {  # it keeps Host, and reports the scheme of a connection whose TLS ended before it
    "nginx": """location / {
        proxy_pass http://AGENT; proxy_set_header Host $http_host; proxy_set_header X-Forwarded-Proto https; }""",
    "caddy": """reverse_proxy AGENT {
        header_up X-Forwarded-Proto https
        header_up -X-Forwarded-Host
    }""",
}


@pytest.fixture(params=["nginx", "caddy"])
def balancer(request: pytest.FixtureRequest, tmp_path: Path) -> Balancer:
    return find_balancer(request.param, tmp_path)


@asynccontextmanager
async def behind(balancer: Balancer, routes: dict[str, str], **options: Any) -> AsyncIterator[str]:
    """Serve the agent behind a proxy; the URL of the proxy."""
    async with serving(AGENT, **options) as agent:
        async with balancer.forwarding(agent.removeprefix("http://"), routes[balancer.name]) as url:
            yield url


async def card_at(url: str, **headers: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=DEADLINE, headers=headers) as http:
        found: dict[str, Any] = (await http.get(f"{url}{CARD}")).json()
        return found


async def test_a_proxy_with_the_standard_header_names_the_address(balancer: Balancer) -> None:
    async with behind(balancer, STANDARD, trusted_proxies=[PROXY]) as url:
        card = await card_at(url, Forwarded="host=evil.example")
        assert card["url"] == f"{url.replace('http:', 'https:')}/"
    async with behind(balancer, STANDARD) as url:  # not trusted: what it says of itself is the Host
        assert (await card_at(url))["url"] == "http://inside/"


async def test_a_proxy_that_removes_a_prefix_names_it(balancer: Balancer) -> None:
    async with behind(balancer, BELOW_A_PATH, trusted_proxies=[PROXY]) as url:
        card = await card_at(f"{url}/math")
        assert card["url"] == f"{url.replace('http:', 'https:')}/math/"


async def test_a_client_reaches_an_agent_below_a_path_of_a_proxy(balancer: Balancer) -> None:
    routes = {
        name: text.replace("X-Forwarded-Proto https", "X-Forwarded-Proto http") for name, text in BELOW_A_PATH.items()
    }
    async with behind(balancer, routes, trusted_proxies=[PROXY]) as url:
        for binding in BINDINGS:
            async with A2AClient(f"{url}/math", binding=binding) as client:
                assert (await client.send_message("hi")).status.state == "completed"  # type: ignore[union-attr]  # a task


async def test_without_configuration_the_card_has_the_host_that_a_proxy_keeps(
    balancer: Balancer, caplog: pytest.LogCaptureFixture
) -> None:
    async with behind(balancer, HOST_ONLY) as url:
        with caplog.at_level(logging.WARNING):
            card = await card_at(url)
        assert card["url"] == f"{url}/"  # the scheme is not known from a proxy that is not trusted
        (line,) = [vars(record) for record in caplog.records if "another address" in record.message]
        assert line["used"] == f"{url.replace('http:', 'https:')}/"
        assert "--trusted-proxies" in line["hint"] and "--host-profile" in line["hint"]


async def test_only_allowed_hosts_pass_a_proxy_into_the_card(balancer: Balancer) -> None:
    async with behind(balancer, HOST_ONLY, trusted_proxies=[PROXY], allowed_hosts=["agent.example"]) as url:
        assert (await card_at(url))["url"] == "https://agent.example/"


async def test_behind_the_front_end_of_cloud_run_the_card_says_https(balancer: Balancer) -> None:
    async with behind(balancer, HOST_ONLY, host_profile="cloudrun") as url:
        assert (await card_at(url))["url"] == f"{url.replace('http:', 'https:')}/"


async def test_a_gateway_on_the_same_machine_needs_no_configuration(tmp_path: Path) -> None:
    nginx = find_balancer("nginx", tmp_path)
    async with behind(nginx, HOST_ONLY, host_profile="agentgateway") as url:
        async with httpx.AsyncClient(timeout=DEADLINE) as http:
            answer = await http.get(f"{url}{CARD}", headers={"Host": "gateway.example"})
            assert answer.json()["supportedInterfaces"][0]["url"] == "https://gateway.example/"
            assert "url" not in answer.json()
    async with behind(nginx, HOST_ONLY) as url, httpx.AsyncClient(timeout=DEADLINE) as http:
        assert (await http.get(f"{url}{CARD}", headers={"Host": "gateway.example"})).status_code == 421


async def test_a_platform_finds_the_bindings_at_its_paths(tmp_path: Path) -> None:
    caddy = find_balancer("caddy", tmp_path)
    routes = {"caddy": "reverse_proxy AGENT"}
    async with behind(caddy, routes, host_profile="wso2", trusted_proxies=[PROXY]) as url:
        urls = {(one["protocolBinding"], one["url"]) for one in (await card_at(url))["supportedInterfaces"]}
        assert urls == {("JSONRPC", f"{url}/rpc"), ("HTTP+JSON", f"{url}/rest")}
        for binding in BINDINGS:
            async with A2AClient(url, binding=binding) as client:
                events = [event async for event in client.stream_message("hi")]
                assert events[-1].status.state == "completed"  # type: ignore[union-attr]  # a status


async def test_the_command_keeps_the_contract_of_agentcore(tmp_path: Path) -> None:
    """AgentCore calls POST / and GET /ping with headers of its own, from the same machine, with any Host."""
    (tmp_path / "agent.py").write_text("def shout(text: str) -> str:\n    return text.upper()\n")
    command = ("-m", "apcore_a2a", "serve", str(tmp_path / "agent.py"), "--host-profile", "agentcore", "--port", "0")
    runtime = "https://bedrock-agentcore.eu-west-1.amazonaws.com/runtimes/arn%3Aaws%3A1/invocations/"
    environment = {"AGENTCORE_RUNTIME_URL": runtime}
    async with running(*command, **environment) as process:
        port = (await process.says(r"running on http://[^\s:]+:(\d+)"))[1]
        headers = {"Host": "runtime.internal", "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id": "s-1"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=DEADLINE) as http:
            assert (await http.get("/ping")).json()["status"] == "Healthy"
            assert (await http.get(CARD)).json()["url"] == runtime
            sent = {"messageId": "1", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "hi"}]}
            call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": sent}}
            answer = json.loads((await http.post("/", json=call)).content)
            assert answer["result"]["artifacts"][0]["parts"] == [{"kind": "text", "text": "HI"}]
