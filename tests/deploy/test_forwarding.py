"""What our nginx.conf and our Caddyfile say of a request to a replica that believes them, and what they do not."""

import json
import shlex
from pathlib import Path
from typing import Final
from uuid import uuid4

import httpx
import pytest

from apcore_a2a import ClientCertificateAuthenticator, Limits
from tests.deploy.balancers import COUNTER, DEADLINE, Balancer, Certificate, find_balancer
from tests.deploy.test_files import ENVIRONMENTS, unit
from tests.fakes import COMPLETED, ScriptedAgent
from tests.http.server.test_tls import Authority, in_header
from tests.interaction.serving import serving
from tests.processes import running

AGENT: Final = ScriptedAgent(default=(COMPLETED,))
PROXY: Final = "127.0.0.1"
MIB: Final = 2**20
V1: Final = {"A2A-Version": "1.0"}


@pytest.fixture(params=["nginx", "caddy"])
def balancer(request: pytest.FixtureRequest, tmp_path: Path) -> Balancer:
    return find_balancer(request.param, tmp_path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def address_of(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]


def message(size: int) -> bytes:
    """A message of so many bytes and a few more."""
    said = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": "a" * size}]}
    return json.dumps({"message": said}).encode()


async def test_who_asks_is_told_by_the_balancer_alone(balancer: Balancer) -> None:
    limits = Limits(max_requests_per_second=0.001, request_burst=2)
    async with serving(AGENT, trusted_proxies=["127.0.0.0/29"], limits=limits) as agent:
        async with balancer.before([address_of(agent)]) as url:
            assert await statuses(url, "127.0.0.9") == [200, 200, 429]  # whatever else it says it is
            assert await statuses(url, "127.0.0.10") == [200, 200, 429]


async def statuses(url: str, source: str) -> list[int]:
    """Return the statuses for a client at this address that reports another address with each request."""
    transport = httpx.AsyncHTTPTransport(local_address=source)
    found = []
    async with httpx.AsyncClient(transport=transport, headers=V1, timeout=DEADLINE) as http:
        for number in range(3):
            claimed = {"X-Forwarded-For": f"203.0.113.{number}", "Forwarded": f"for=203.0.113.{number}"}
            found.append((await http.get(f"{url}/tasks", headers=claimed)).status_code)
    return found


async def test_the_card_says_https_where_the_balancer_does_tls(balancer: Balancer, authority: Authority) -> None:
    claimed = {"X-Forwarded-Prefix": "/elsewhere", "X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "gopher"}
    async with serving(AGENT, trusted_proxies=[PROXY]) as agent:
        async with balancer.before([address_of(agent)], Certificate(*authority.server)) as url:
            async with httpx.AsyncClient(verify=authority.trusting(), timeout=DEADLINE) as http:
                card = (await http.get(f"{url}/.well-known/agent-card.json", headers=claimed)).json()
                assert url.startswith("https://localhost:")
                assert card["url"] == f"{url}/"


async def test_the_unit_answers_to_the_balancer_of_its_machine(tmp_path: Path) -> None:
    nginx = find_balancer("nginx", tmp_path)
    arguments = shlex.split(unit()["ExecStart"])
    host = arguments[arguments.index("--host") + 1]  # the loopback interface: whose Host is another is refused there
    environment = ENVIRONMENTS["deploy/agent.service"]
    command = ("-m", "apcore_a2a", "serve", COUNTER, "--factory", "--host", host, "--port", "0")
    async with running(*command, APCORE_A2A_STORE="memory://", **environment) as process:
        address = (await process.says(r"running on http://([\d.]+:\d+)"))[1]
        async with nginx.before([address]) as url, httpx.AsyncClient(headers=V1, timeout=DEADLINE) as http:
            asked_for = {"Host": "agent.example.com"}
            assert (await http.get(f"{url}/tasks", headers=asked_for)).status_code == 200
            card = (await http.get(f"{url}/.well-known/agent-card.json", headers=asked_for)).json()
            assert card["supportedInterfaces"][0]["url"] == "https://agent.example.com/"


async def test_a_large_message_is_let_through(balancer: Balancer) -> None:
    async with serving(AGENT) as agent, balancer.before([address_of(agent)]) as url:
        async with httpx.AsyncClient(headers={**V1, "Content-Type": "application/json"}, timeout=DEADLINE) as http:
            answer = await http.post(f"{url}/message:send", content=message(9 * MIB))
            assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_message_that_is_too_large_is_refused_in_words_of_the_agents(tmp_path: Path) -> None:
    # Not with Caddy: it resets the connection of a client that is still sending, now and then before that reads this.
    nginx = find_balancer("nginx", tmp_path)
    async with serving(AGENT) as agent, nginx.before([address_of(agent)]) as url:
        async with httpx.AsyncClient(headers={**V1, "Content-Type": "application/json"}, timeout=DEADLINE) as http:
            answer = await http.post(f"{url}/message:send", content=message(11 * MIB))
            assert answer.status_code == 413
            assert answer.json()["error"]["message"] == "Request body larger than 10485760 bytes"


async def test_a_certificate_in_a_header_authenticates_no_caller(balancer: Balancer, authority: Authority) -> None:
    claimed = {"Client-Cert": in_header(authority.files("planner", "planner.example")), **V1}
    auth = ClientCertificateAuthenticator(names=["planner.example"])
    async with serving(AGENT, auth=auth, trusted_proxies=[PROXY]) as agent:
        async with balancer.before([address_of(agent)]) as url:
            async with httpx.AsyncClient(headers=claimed, timeout=DEADLINE) as http:
                assert (await http.get(f"{agent}/tasks")).status_code == 200  # it would believe its proxy
                assert (await http.get(f"{url}/tasks")).status_code == 401


async def test_nginx_hands_on_the_certificate_that_it_has_checked(tmp_path: Path, authority: Authority) -> None:
    nginx = find_balancer("nginx", tmp_path)
    auth = ClientCertificateAuthenticator(names=["planner.example"])
    planner = authority.files("planner", "planner.example")
    other = authority.files("other", "other.example")
    handed_on = {"proxy_set_header Client-Cert": "$ssl_client_escaped_cert"}  # as the comment beside it says
    async with serving(AGENT, auth=auth, trusted_proxies=[PROXY]) as agent:
        mutual = Certificate(*authority.server, callers=authority.pem)
        async with nginx.before([address_of(agent)], mutual, **handed_on) as url:
            for shown, status in ((planner, 200), (other, 401)):
                context = authority.trusting(shown)
                async with httpx.AsyncClient(verify=context, headers=V1, timeout=DEADLINE) as http:
                    assert (await http.get(f"{url}/tasks")).status_code == status
