"""Requests of web pages: rejected, unless the page is of this server or of an allowed origin."""

from typing import Any

import httpx
import pytest

from apcore_a2a.app.serve import ServeOptions, build
from tests.fakes import COMPLETED, ScriptedAgent
from tests.hostile.test_smuggling import said
from tests.interaction.serving import CARD, serving
from tests.requirements import requirement

V1 = {"A2A-Version": "1.0"}
HERE = "http://127.0.0.1:8000"
THERE = "https://evil.example"


class RejectAll:
    def authenticate(self, headers: dict[str, str]) -> None:
        return None


def client(host: str = "127.0.0.1", **options: Any) -> httpx.AsyncClient:
    given: ServeOptions = {"card": CARD, **options}  # type: ignore[typeddict-item]  # whatever a test gives
    app = build(ScriptedAgent({"hi": (COMPLETED,)}), given, host=host)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=HERE, headers=V1)


@requirement("NFR-SEC-003")
@pytest.mark.parametrize("host", ["evil.example:8000", "127.0.0.1.evil.example", "", "[", "10.0.0.7:8000", "mybox"])
@pytest.mark.parametrize(("method", "path"), [("POST", "/"), ("GET", "/tasks"), ("GET", "/health")])
async def test_on_the_loopback_another_name_is_refused(host: str, method: str, path: str) -> None:
    async with client() as http:
        answer = await http.request(method, path, headers={"Host": host}, json={})
        assert answer.status_code == 421
        error = answer.json()["error"]
        assert "localhost" in error["message"]
        assert ("jsonrpc" in answer.json()) == (method == "POST")


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST", "localhost:9000"])
async def test_on_the_loopback_its_own_names_are_right_through_whatever_port(host: str) -> None:
    async with client() as http:
        for _ in range(2):
            assert (await http.get("/tasks", headers={"Host": host})).status_code == 200


async def test_the_name_in_the_url_and_what_a_proxy_hands_on_are_right() -> None:
    async with client(url="https://agent.example/") as http:
        assert (await http.get("/tasks", headers={"Host": "agent.example"})).status_code == 200
        assert (await http.get("/tasks", headers={"Origin": "https://agent.example"})).status_code == 200
        assert (await http.get("/tasks", headers={"Host": "other.example"})).status_code == 421
    async with client(trusted_proxies=["127.0.0.1"]) as http:
        assert (await http.get("/tasks", headers={"Host": "other.example"})).status_code == 200


@pytest.mark.parametrize(("version", "status"), [(b"1.0", b"200"), (b"1.1", b"400")], ids=["1.0", "1.1"])
async def test_a_probe_may_name_no_host_where_http_lets_it(version: bytes, status: bytes) -> None:
    async with serving(ScriptedAgent({"hi": (COMPLETED,)}), host="127.0.0.1") as url:
        answer = await said(url, b"GET /health HTTP/%b\r\nConnection: close\r\n\r\n" % version)
    assert answer.split()[1] == status
    assert (b"names no host" in answer) == (status == b"400")


async def test_who_names_no_host_is_still_no_page_of_another_origin() -> None:
    async with serving(ScriptedAgent({"hi": (COMPLETED,)}), host="127.0.0.1") as url:
        answer = await said(url, b"GET /tasks HTTP/1.0\r\nOrigin: https://evil.example\r\n\r\n")
    assert answer.split()[1] == b"403"


REBOUND = ["evil.example:8000", "127.0.0.1.evil.example", "", "[", "localhost.evil.example", "evil.example."]
REBOUND += ["internal.evil.example", "evilinternal.example", "evil.internal.example", "[2001:db8::1]:8000"]


async def test_on_the_loopback_another_name_is_refused_though_there_is_a_door() -> None:
    async with client(auth=RejectAll()) as http:
        assert (await http.get("/tasks", headers={"Host": "evil.example"})).status_code == 421
        assert (await http.get("/tasks")).status_code == 401


async def test_any_header_but_the_host_may_be_there_twice() -> None:
    async with client() as http:
        assert (await http.get("/tasks", headers=[("X-Trace", "1"), ("X-Trace", "2")])).status_code == 200


@requirement("NFR-SEC-003")
@pytest.mark.parametrize("host", REBOUND)
async def test_on_every_interface_another_name_is_refused_where_it_comes_in_by_the_loopback(host: str) -> None:
    async with client("0.0.0.0") as http:
        for _ in range(2):
            answer = await http.post("/message:send", headers={"Host": host}, json={})
            assert answer.status_code == 421
            assert (await http.get("/tasks", headers={"Host": host})).status_code == 421


OURS = ["localhost:8000", "127.0.0.1", "mybox", "mybox:8000", "[::1]:8000", "host.docker.internal:8000", "a.localhost"]


@pytest.mark.parametrize("host", OURS)
async def test_on_every_interface_this_machine_s_own_names_are_right(host: str) -> None:
    async with client("0.0.0.0") as http:
        assert (await http.get("/tasks", headers={"Host": host})).status_code == 200


async def test_on_every_interface_the_name_in_the_url_and_what_a_proxy_hands_on_are_right() -> None:
    async with client("0.0.0.0", url="https://agent.example/") as http:
        assert (await http.get("/tasks", headers={"Host": "agent.example"})).status_code == 200
        assert (await http.get("/tasks", headers={"Host": "other.example"})).status_code == 421
    async with client("0.0.0.0", trusted_proxies=["127.0.0.1"]) as http:
        assert (await http.get("/tasks", headers={"Host": "other.example"})).status_code == 200


async def test_elsewhere_any_name_is_right() -> None:
    async with client("0.0.0.0") as http:
        http.base_url = httpx.URL("http://192.0.2.7:8000")  # where the connection came in
        assert (await http.get("/tasks", headers={"Host": "agent.example"})).status_code == 200


async def test_who_must_prove_who_they_are_may_use_any_name() -> None:
    async with client("0.0.0.0", auth=RejectAll()) as http:
        assert (await http.get("/tasks", headers={"Host": "agent.example"})).status_code == 401


@requirement("NFR-SEC-003")
@pytest.mark.parametrize("origin", [THERE, "null", "http://localhost:3000", "http://127.0.0.1:8001", "127.0.0.1:8000"])
@pytest.mark.parametrize(("method", "path"), [("POST", "/tasks/t:cancel"), ("GET", "/tasks"), ("POST", "/")])
async def test_on_the_loopback_a_foreign_page_may_nothing(origin: str, method: str, path: str) -> None:
    async with client() as http:
        answer = await http.request(method, path, headers={"Origin": origin})
        assert answer.status_code == 403
        assert "cors" in answer.json()["error"]["message"]


@requirement("NFR-SEC-003")
async def test_a_foreign_page_cannot_cancel_with_a_post_that_needs_no_leave() -> None:
    async with client("0.0.0.0") as http:
        for given in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
            answer = await http.post("/tasks/t:cancel", headers={"Origin": THERE, **given})
            assert answer.status_code == 403
        # What is JSON needs leave, which the browser asks for first (CORS): such a request is no page's.
        answer = await http.post("/tasks/t:cancel", headers={"Origin": THERE, "Content-Type": "application/json"})
        assert answer.status_code == 404
        assert (await http.get("/tasks", headers={"Origin": THERE})).status_code == 200  # unreadable for the page


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_our_own_pages_and_those_that_were_named_may_call(host: str) -> None:
    async with client(host, cors_origins=["https://app.example"]) as http:
        for headers in (
            {"Origin": HERE},
            {"Origin": "https://app.example"},
            {"Origin": "https://behind.example", "Sec-Fetch-Site": "same-origin"},
            {},
        ):
            assert (await http.post("/tasks/t:cancel", headers=headers)).status_code == 404
    async with client(host, cors_origins=["*"]) as http:
        assert (await http.post("/tasks/t:cancel", headers={"Origin": THERE})).status_code == 404


@pytest.mark.parametrize("path", ["/", "/message:send"])
async def test_a_key_that_is_too_long_is_refused_and_not_cut(path: str) -> None:
    message = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message}
    body = call if path == "/" else message
    async with client() as http:
        longest = await http.post(path, json=body, headers={"Idempotency-Key": "k" * 256})
        assert "error" not in longest.json()
        refused = await http.post(path, json=body, headers={"Idempotency-Key": "k" * 257})
        error = refused.json()["error"]
        assert "Idempotency-Key is longer than 256 characters" in error["message"]
        if path == "/":
            assert error["code"] == -32602
        else:
            assert refused.status_code == 400
        tasks = (await http.get("/tasks")).json()["tasks"]
        assert len(tasks) == 1  # nothing was run for the second
