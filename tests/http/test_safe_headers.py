"""Every response forbids browsers to guess its type, frame it, cache it, or send its URL as a referrer."""

from typing import Any

import httpx
import pytest

from apcore_a2a import JWTAuthenticator
from apcore_a2a.app.serve import ServeOptions, _server_headers, build
from apcore_a2a.http.server.connection import NO_ROOM
from apcore_a2a.settings import TLS, Limits, Settings
from apcore_a2a.web import NO_STORE, SAFE
from tests.auth.tokens import SECRET, bearer
from tests.fakes import COMPLETED, ScriptedAgent
from tests.interaction.serving import CARD
from tests.requirements import requirement

V1 = {"A2A-Version": "1.0"}
MESSAGE = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
SEND = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": MESSAGE}
ANSWERS: list[tuple[int, str, str, dict[str, Any]]] = [
    (200, "POST", "/", {"json": SEND}),
    (200, "POST", "/", {"json": SEND | {"method": "nonsense"}}),
    (200, "POST", "/", {"content": b"{", "headers": {"Content-Type": "application/json"}}),
    (415, "POST", "/", {"content": b"{}"}),
    (413, "POST", "/", {"content": b" " * 20_000, "headers": {"Content-Type": "application/json"}}),
    (200, "POST", "/message:send", {"json": MESSAGE}),
    (200, "POST", "/message:stream", {"json": MESSAGE}),
    (200, "POST", "/", {"json": SEND | {"method": "SendStreamingMessage"}}),
    (200, "GET", "/tasks", {}),
    (404, "GET", "/tasks/unknown", {}),
    (404, "GET", "/nothing", {}),
    (405, "DELETE", "/tasks", {}),
    (421, "GET", "/tasks", {"headers": {"Host": "evil.example"}}),
    (403, "GET", "/tasks", {"headers": {"Origin": "https://evil.example"}}),
    (200, "GET", "/health", {}),
    (200, "GET", "/health/live", {}),
    (200, "GET", "/metrics", {}),
    (200, "GET", "/.well-known/agent-card.json", {}),
    (304, "GET", "/.well-known/agent-card.json", {"headers": {"If-None-Match": "*"}}),
    (200, "GET", "/explorer/", {}),
    (307, "GET", "/", {"headers": {"Accept": "text/html"}}),
    (307, "GET", "/explorer", {}),
]


def client(**options: Any) -> httpx.AsyncClient:
    given: ServeOptions = {"card": CARD, **options}  # type: ignore[typeddict-item]  # whatever a test gives
    app = build(ScriptedAgent(default=(COMPLETED,)), given, host="127.0.0.1")
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=V1)


def check(answer: httpx.Response) -> None:
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    names = [name.lower() for name, _ in answer.headers.raw]
    assert len(names) == len(set(names)), "one header of each name"


@pytest.mark.parametrize(("status", "method", "path", "content"), ANSWERS)
async def test_every_answer_is_safe_for_a_browser(status: int, method: str, path: str, content: dict[str, Any]) -> None:
    async with client(metrics=True, explorer=True, limits=Limits(max_request_bytes=10_000)) as http:
        answer = await http.request(method, path, **content)
        assert answer.status_code == status
        check(answer)
        if path != "/explorer":  # which leads to another place, and holds nothing
            kept = "agent-card.json" in path
            assert answer.headers["cache-control"] == ("max-age=300" if kept else "no-store")


async def test_so_are_the_answers_of_the_door_and_of_the_limits() -> None:
    async with client(
        auth=JWTAuthenticator(SECRET), limits=Limits(max_requests_per_second=0.001, request_burst=1)
    ) as http:
        for status, headers in ((401, {}), (200, bearer()), (429, bearer())):
            for method, path in (("POST", "/"), ("GET", "/tasks"))[: 2 if status == 401 else 1]:
                answer = await http.request(method, path, headers=headers, json=SEND)
                assert answer.status_code == status
                check(answer)
                assert answer.headers["cache-control"] == "no-store"


def test_a_connection_too_many_hears_it_as_well() -> None:
    for name, value in (*SAFE, *NO_STORE):
        assert all(b"\r\n%b: %b\r\n" % (name, value) in answer for answer in NO_ROOM.values())


@pytest.mark.parametrize(
    ("host", "certificate", "said"),
    [
        ("0.0.0.0", "a.pem", True),
        ("0.0.0.0", None, False),
        ("127.0.0.1", "a.pem", False),
        ("::1", "a.pem", False),
    ],
)
def test_browsers_are_told_to_come_back_by_https_where_that_is_spoken(
    host: str, certificate: str | None, said: bool
) -> None:
    tls = None if certificate is None else TLS(certfile=certificate)
    headers = dict(_server_headers(Settings(host=host, tls=tls)))
    assert ("strict-transport-security" in headers) is said


# ---- CORS, as NFR-SEC-003 has it -----------------------------------------------------------------------------------

PAGE = "https://app.example"
ASKS = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "a2a-version, authorization, content-type",
}
ALLOWED = "access-control-allow-origin"


@requirement("NFR-SEC-003")
async def test_by_default_no_origin_is_allowed_anything() -> None:
    app: ServeOptions = {"card": CARD}
    transport = httpx.ASGITransport(app=build(ScriptedAgent(), app, host="0.0.0.0"))
    async with httpx.AsyncClient(transport=transport, base_url="http://192.0.2.7:8000", headers=V1) as http:
        for answer in (
            await http.options("/", headers=ASKS),
            await http.get("/tasks", headers={"Origin": PAGE}),
            await http.post("/", json=SEND, headers={"Origin": PAGE}),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control-")]


@requirement("NFR-SEC-003")
@pytest.mark.parametrize("auth", [False, True])
async def test_named_origins_are_allowed_and_others_are_not_with_or_without_authentication(auth: bool) -> None:
    options: dict[str, Any] = {"auth": JWTAuthenticator(SECRET)} if auth else {}
    async with client(cors_origins=[PAGE], **options) as http:
        asked = await http.options("/", headers=ASKS)
        assert (asked.status_code, asked.headers[ALLOWED]) == (200, PAGE)
        check(asked)
        assert "access-control-allow-credentials" not in asked.headers
        assert {"A2A-Version", "Authorization", "Last-Event-ID"} <= set(
            asked.headers["access-control-allow-headers"].split(", ")
        )
        answer = await http.post("/", json=SEND, headers={"Origin": PAGE})
        assert answer.headers[ALLOWED] == PAGE
        assert answer.status_code == (401 if auth else 200)
        assert "origin" in answer.headers["vary"].lower()
        for foreign in ("https://evil.example", "https://app.example.evil.example", "http://app.example", "null"):
            refused = await http.options("/", headers=ASKS | {"Origin": foreign})
            assert refused.status_code >= 400
            assert refused.headers.get(ALLOWED) != foreign
            assert refused.headers.get(ALLOWED) != "*"


@requirement("NFR-SEC-003")
async def test_all_origins_are_allowed_with_a_warning_and_never_with_credentials(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client(cors_origins=["*"]) as http:
        assert "CORS is open to every origin" in caplog.text
        for answer in (
            await http.options("/", headers=ASKS),
            await http.post("/", json=SEND, headers={"Origin": PAGE, "Cookie": "session=1"}),
        ):
            assert "access-control-allow-credentials" not in answer.headers
            assert answer.headers[ALLOWED] in ("*", PAGE)
