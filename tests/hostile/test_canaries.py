"""A server with secrets of every kind, and a search for them in all of its output.

The search covers every response with its headers, every event, the card, the metrics, the audit log, and the log at its
most verbose level. A secret may appear only where it belongs: in a response that returns a caller's own input.
"""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import OctKey

from apcore_a2a.settings import TLS, Settings
from apcore_a2a.testing import WebhookReceiver
from tests.auth.tokens import bearer
from tests.processes import Process, running
from tests.requirements import requirement

CANARY = "CANARY"
KEY = f"{CANARY}-jwt-secret-of-more-than-32-bytes-0123456789"
SECRETS = {
    "jwt key": KEY,
    "token": f"{CANARY}-token",
    "api key": f"{CANARY}-api-key",
    "cookie": f"{CANARY}-cookie",
    "query": f"{CANARY}-query",
    "exception": f"{CANARY}-exception",
    "path": f"{CANARY}-path",
    "environment": f"{CANARY}-environment",
    "webhook token": f"{CANARY}-webhook-token",
    "webhook credentials": f"{CANARY}-webhook-credentials",
    "webhook secret": "whsec_" + "Q0FOQVJZLXdlYmhvb2stc2VjcmV0LTAxMjM0NTY3ODkwMTIz",
    "sql": f"{CANARY}-sql",
}
SERVE = """
import sqlite3, sys
from apcore_a2a import JWTAuthenticator, serve
from apcore_a2a.app import logs

logs.configure("debug", sys.argv[3], color=False)

async def agent(text: str) -> str:
    password = {exception!r}
    if text == "raise":
        raise RuntimeError("password is " + password)
    if text == "sql":
        sqlite3.connect(":memory:").execute("SELECT * FROM users WHERE password = '{sql}'")
    if text == "file":
        open({path!r} + "/" + password)
    if text == "exit":
        sys.exit(password)
    if text == "nan":
        return {{"password": password, "number": float("nan")}}
    return "fine"

serve(
    agent,
    host="127.0.0.1",
    port=0,
    auth=JWTAuthenticator({key!r}),
    store="sqlite:///" + sys.argv[1],
    audit_log=sys.argv[2],
    metrics=True,
    explorer=True,
    push_notifications=True,
    allow_insecure_webhooks=True,
    webhook_secret={webhook_secret!r},
    log_level="debug",
    shutdown_timeout=1,
)
"""
V1 = {"A2A-Version": "1.0"}
ASKED = ("fine", "raise", "sql", "file", "exit", "nan")


@asynccontextmanager
async def served(folder: Path, style: str) -> AsyncIterator[tuple[Process, str]]:
    script = SERVE.format(
        exception=SECRETS["exception"],
        sql=SECRETS["sql"],
        path=SECRETS["path"],
        key=KEY,
        webhook_secret=SECRETS["webhook secret"],
    )
    file = folder / "serve.py"  # a file, because a traceback could show the command line
    file.write_text(script)
    secret_folder = folder / SECRETS["path"]
    secret_folder.mkdir()
    arguments = [str(file), str(secret_folder / "tasks.db"), str(folder / "audit.log"), style]
    async with running(*arguments, A2A_TEST_SECRET=SECRETS["environment"]) as process:
        url = (await process.says(r"running on (http://[\d.:]+)"))[1]
        yield process, url


def credentials() -> list[dict[str, str]]:
    """Return valid credentials, and credentials that are invalid in many ways. Each is a secret of a caller."""
    wrong = [
        f"Bearer {SECRETS['token']}",
        f"Basic {SECRETS['token']}",
        SECRETS["token"],
        f"Bearer a.{SECRETS['token']}.b",
    ]
    good = bearer(key=_key())
    return [
        good,
        *({"authorization": value} for value in wrong),
        {"x-api-key": SECRETS["api key"]},
        good | {"x-api-key": SECRETS["api key"], "cookie": f"session={SECRETS['cookie']}"},
        good | {"proxy-authorization": SECRETS["token"], "client-cert": f":{SECRETS['token']}:"},
        bearer(key=_key(), sub=None),
    ]


def _key() -> OctKey:
    return OctKey.import_key(KEY)


def send(text: str, **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}, **more}


def hook(url: str) -> dict[str, Any]:
    authentication = {"scheme": "Bearer", "credentials": SECRETS["webhook credentials"]}
    return {"url": url, "token": SECRETS["webhook token"], "authentication": authentication}


async def call_every_operation(client: httpx.AsyncClient, webhook: str) -> list[httpx.Response]:
    """Call every operation with every kind of credentials, and cause internal errors."""
    answers: list[httpx.Response] = []

    async def ask(method: str, path: str, headers: dict[str, str], body: Any = None) -> httpx.Response:
        target = f"{path}?access_token={SECRETS['query']}"
        answers.append(await client.request(method, target, json=body, headers=V1 | headers))
        return answers[-1]

    for shown in credentials():
        for method in ("SendMessage", "ListTasks", "GetTask", "GetExtendedAgentCard", "nonsense"):
            params = {"id": "x"} if method == "GetTask" else {}
            await ask("POST", "/", shown, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        for path in ("/tasks", "/extendedAgentCard", "/agent/authenticatedExtendedCard", "/nothing", "/explorer/"):
            await ask("GET", path, shown)
        for path in ("/.well-known/agent-card.json", "/.well-known/agent.json", "/health", "/metrics"):
            await ask("GET", path, shown)
    good = credentials()[0]
    for text in ASKED:
        await ask("POST", "/message:send", good, send(text))
        await ask("POST", "/message:stream", good, send(text))
    configured = {"taskPushNotificationConfig": hook(webhook)}
    task = (await ask("POST", "/message:send", good, send("fine", configuration=configured))).json()["task"]
    configs = f"/tasks/{task['id']}/pushNotificationConfigs"
    await ask("POST", configs, good, hook("http://127.0.0.1:9/"))  # no server listens there
    await ask("POST", configs, good, hook("ftp://nowhere"))
    await ask("GET", f"/tasks/{task['id']}", good)
    await ask("GET", f"/tasks/{task['id']}", bearer(key=_key(), sub="another caller"))
    await ask("GET", configs, bearer(key=_key(), sub="another caller"))
    await ask("GET", configs, good)
    return answers


def found(text: str, *, but: tuple[str, ...] = ()) -> list[str]:
    return [name for name, secret in SECRETS.items() if name not in but and secret in text]


@requirement("NFR-SEC-001")
@pytest.mark.parametrize("style", ["text", "json"])
async def test_no_secret_is_in_any_response_or_log_line(tmp_path: Path, style: str) -> None:
    async with WebhookReceiver() as receiver:
        async with served(tmp_path, style) as (process, url):
            async with httpx.AsyncClient(base_url=url, timeout=20) as client:
                answers = await call_every_operation(client, receiver.url)
                await receiver.next()
            process.signal(signal.SIGTERM)
            await process.ends()
    statuses = {answer.status_code for answer in answers}
    assert {200, 401, 404} <= statuses
    assert sum("Internal error" in answer.text for answer in answers) >= 4, "too few internal errors"
    for answer in answers:
        said = answer.text + str(answer.headers.raw)
        assert found(said, but=_own(answer)) == [], f"{answer.request.method} {answer.url.path}: {said[:500]}"
    audit = (tmp_path / "audit.log").read_text()
    assert json.loads(audit.splitlines()[0])
    assert found(audit) == []
    # An exception belongs in the log, with its text. No other secret does.
    assert found(process.said, but=("exception", "sql", "path")) == [], process.said[-3_000:]
    assert SECRETS["exception"] in process.said


def _own(answer: httpx.Response) -> tuple[str, ...]:
    """Return the secrets that the webhook's owner receives: all when it is set, later not those for its server."""
    if "pushNotificationConfigs" not in answer.url.path or answer.status_code != 200:
        return ()
    if answer.request.method == "POST":
        return ("webhook token", "webhook credentials")
    return ("webhook token",)


def test_the_repr_of_settings_contains_no_secret() -> None:
    settings = Settings(tls=TLS(certfile="a.pem", keyfile_password=CANARY), webhook_secret=SECRETS["webhook secret"])
    assert CANARY not in repr(settings)
    assert SECRETS["webhook secret"] not in repr(settings)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://agent:{CANARY}@db.example/tasks",
        f"postgresql://agent:a@{CANARY}@db.example/tasks",
        f"postgresql://agent:a/{CANARY}@db.example/tasks",
        f"postgresql://agent:a?{CANARY}@db.example/tasks",
        f"postgresql://db.example/tasks?user=agent&password={CANARY}",
        f"postgresql://db.example/tasks?password=a@{CANARY}",
        f"mysql://agent:{CANARY}@db.example/tasks",
    ],
)
def test_the_password_in_a_store_s_url_is_not_shown(url: str) -> None:
    assert CANARY not in repr(Settings(store=url))


@pytest.mark.parametrize("url", ["sqlite:////var/lib/a@b.db?ttl=5", "memory://", "postgresql://db.example/tasks?ttl=5"])
def test_a_store_s_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert repr(url) in repr(Settings(store=url))
