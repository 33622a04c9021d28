"""The error report of a command: a name, a message, a hint and an exit code, and never a traceback."""

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from apcore_a2a.auth.jwt import JWTAuthenticator
from apcore_a2a.cli import failures
from apcore_a2a.errors import (
    WIRE,
    A2AError,
    A2AServerError,
    InvalidParamsError,
    OverloadedError,
    SkillNotFoundError,
    UnauthenticatedError,
)
from tests.auth.tokens import SECRET, bearer
from tests.cli.conftest import Ran, Terminal, hosted, scripted
from tests.client.scripted import CARD, Request, hang, respond, result
from tests.client.scripted import card as card_of
from tests.fakes import PATIENCE, ScriptedAgent


def told(ran: Ran) -> tuple[int, str]:
    return ran.code, ran.json["error"]["code"]


def test_an_unknown_task_is_reported_with_the_error_name_of_the_protocol(terminal: Terminal, url: str) -> None:
    as_json = terminal("task", url, "unknown", "--json")
    as_text = terminal("task", url, "unknown")

    assert told(as_json) == (1, "TaskNotFoundError")
    assert as_json.json["error"]["a2aCode"] == -32001
    assert "task list" in as_json.json["error"]["hint"]
    assert (as_text.code, as_text.out) == (1, "")
    assert as_text.err.startswith("Error: Task not found: unknown (TaskNotFoundError)\nHint: ")


def test_over_rest_an_error_has_the_same_name(terminal: Terminal, url: str) -> None:
    assert told(terminal("task", url, "unknown", "--json", "--transport", "rest")) == (1, "TaskNotFoundError")


def test_a_reply_to_an_unknown_task_starts_no_task(terminal: Terminal, url: str) -> None:
    assert told(terminal("send", url, "hello", "--task-id", "unknown", "--json")) == (1, "TaskNotFoundError")
    assert terminal("tasks", url, "--json").json["totalSize"] == 0


def test_an_address_without_a_server_exits_with_3(terminal: Terminal) -> None:
    ran = terminal("card", "http://127.0.0.1:9", "--json")

    assert told(ran) == (3, "A2ACLI_ERR_UNREACHABLE")
    assert "Is the agent running" in ran.json["error"]["message"]


def test_an_error_names_the_flag_instead_of_the_argument(terminal: Terminal) -> None:
    ran = terminal("card", "http://ada:secret@127.0.0.1:9", "--json")

    assert told(ran) == (2, "A2ACLI_ERR_USAGE")
    assert ran.json["error"]["message"].endswith("Pass --token instead")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize(
    "options", [(), ("--json",), ("--json", "--stream")], ids=lambda options: " ".join(options) or "text"
)
def test_a_full_disk_is_reported_in_one_line(url: str, options: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "apcore_a2a", "send", url, "hello", *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE * 5,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr == "Error: cannot write the output: No space left on device\n"


def test_an_address_without_a_card_exits_with_3(terminal: Terminal, url: str) -> None:
    assert told(terminal("card", f"{url}/elsewhere", "--json")) == (3, "A2ACLI_ERR_CARD_NOT_FOUND")


def test_a_missing_card_file_exits_with_3(terminal: Terminal) -> None:
    assert told(terminal("card", "./no-such-card.json", "--json")) == (3, "A2ACLI_ERR_CARD_NOT_FOUND")


def test_an_invalid_card_file_is_reported(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("{}")

    assert told(terminal("card", str(tmp_path / "card.json"), "--json")) == (1, "A2ACLI_ERR_CARD_INVALID")


def test_missing_rejected_and_valid_credentials(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    good = bearer(aud=None)["authorization"].removeprefix("Bearer ")
    with hosted(ScriptedAgent(), auth=JWTAuthenticator(SECRET)) as url:
        missing = terminal("send", url, "hi", "--json")
        refused = terminal("send", url, "hi", "--json", "--token", "not.a.token")
        monkeypatch.setenv("A2ACLI_BEARER", good)
        right = terminal("send", url, "hi", "--json", "--debug")

    assert told(missing) == (4, "A2ACLI_ERR_CREDENTIALS_MISSING")
    assert "--token" in missing.json["error"]["hint"]
    assert told(refused) == (4, "A2ACLI_ERR_AUTH_FAILED")
    assert right.code == 0
    assert good not in right.err and "Authorization: …" in right.err


def test_an_api_key_is_sent_as_the_card_specifies(terminal: Terminal) -> None:
    scheme = {"key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Door"}}}
    with scripted() as server:
        server.on(CARD, respond(card_of(server.url, securitySchemes=scheme)))
        terminal("task", server.url, "t-1", "--api-key", "s3cret", "--json")
        (asked,) = server.asked("/")
        (seen,) = server.asked(CARD)

    assert asked.headers["x-door"] == "s3cret"
    assert "s3cret" not in str(seen.headers)


def test_headers_reach_the_agent(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(CARD, respond(card_of(server.url)))
        flags = ("-H", "X-Trace: my-secret", "--header", "a2a-version:0.3")
        ran = terminal("task", server.url, "t-1", *flags, "--debug")
        (asked,) = server.asked("/")

    assert (asked.headers["x-trace"], asked.headers["a2a-version"]) == ("my-secret", "0.3")
    assert "X-Trace: …" in ran.err and "my-secret" not in ran.err


@pytest.mark.parametrize("name", ["", "X-Door: open\r\nX", "two words"])
def test_a_card_with_an_invalid_api_key_header_is_an_error(terminal: Terminal, name: str) -> None:
    scheme = {"key": {"apiKeySecurityScheme": {"location": "header", "name": name}}}
    with scripted() as server:
        server.on(CARD, respond(card_of(server.url, securitySchemes=scheme)))
        ran = terminal("task", server.url, "t-1", "--api-key", "s3cret", "--json")

    assert told(ran) == (1, "InternalError")
    assert "which is not a valid header or cookie name" in ran.json["error"]["message"]


def test_data_that_is_not_json_is_a_usage_error(terminal: Terminal, tmp_path: Path) -> None:
    for content in (b"[" * 6000, b'{"city": "K\xf6ln"}', b"nonsense"):
        (tmp_path / "data.json").write_bytes(content)
        ran = terminal("send", "http://a", "--data", str(tmp_path / "data.json"))
        assert ran.code == 2
        assert "is not JSON" in ran.err


def test_the_secrets_of_a_webhook_are_not_shown(terminal: Terminal) -> None:
    stored = {"taskId": "t-1", "id": "p-1", "url": "https://example.com/hook", "token": 'my-"secret'}
    with scripted() as server:
        server.on(CARD, respond(card_of(server.url))).on("/", result(stored))
        flags = ("--push-token", 'my-"secret', "--push-bearer", "s3cret", "--debug")
        ran = terminal("push", "create", server.url, "t-1", "https://example.com/hook", *flags)
        (asked,) = server.asked("/")

    assert ran.code == 0
    assert asked.json["params"]["token"] == 'my-"secret'
    assert '"token":"…"' in ran.err.replace(": ", ":") and "secret" not in ran.err and "s3cret" not in ran.err


def test_a_card_that_points_to_another_origin_is_not_followed(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(CARD, respond(card_of("http://127.0.0.1:9")))
        ran = terminal("send", server.url, "hi", "--json")
        allowed = terminal("send", server.url, "hi", "--json", "--allow-origin", "http://127.0.0.1:9")

    assert told(ran) == (1, "A2ACLI_ERR_CARD_INVALID")
    assert "--allow-origin" in ran.json["error"]["message"]
    assert told(allowed) == (3, "A2ACLI_ERR_UNREACHABLE")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("send", "http://a", "hi", "--stream", "--async"), "exclude each other"),
        (("send", "http://a"), "Missing message."),
        (("send", "http://a", "hi", "there"), "Unexpected argument: there"),
        (("send", "http://a", "--media-type", "x/y", "--text", "t"), "Put --media-type after the part"),
        (("send", "http://a", "--data", "{"), "not JSON"),
        (("send", "http://a", "--file", "/no/such/file"), "cannot read /no/such/file"),
        (("send", "http://a", "hi", "--metadata", "[]"), "not a JSON object"),
        (("send", "http://a", "hi", "-o", "./out"), "To save artifacts, use --save DIR"),
        (("send", "http://a", "hi", "-H", "no colon"), "NAME:VALUE"),
        (("send", "http://a", "--file", "~no-such-user/x"), "no such user"),
        (("send", "http://a", "hi", "--timeout", "soon"), "not a duration"),
        (("send", "ftp://a", "hi"), "Not an http or https address"),
        (("task", "get"), "Missing agent."),
        (("task", "http://a"), "Missing argument TASK"),
        (("nonsense",), "No such command"),
        (("help", "nonsense"), "No such command"),
        (("card", "http://a", "--nonsense"), "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_usage_error_names_the_problem_and_exits_with_2(terminal: Terminal, args: tuple[str, ...], text: str) -> None:
    plain = terminal(*args)
    as_json = terminal(*args, "--json")

    assert (plain.code, plain.out) == (2, "")
    assert text in plain.err
    assert told(as_json) == (2, "A2ACLI_ERR_USAGE")


@pytest.mark.parametrize("args", [("--extensions-dir", "/no/such/directory"), ("--nonsense",)])
def test_serve_has_its_own_exit_codes(args: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "apcore_a2a", "serve", *args]
    run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)

    assert run.returncode == 1


NAMED = [
    kind
    for kind in WIRE
    if issubclass(kind, InvalidParamsError) or ("__init__" not in vars(kind) and not issubclass(kind, OverloadedError))
]


@pytest.mark.parametrize("kind", NAMED, ids=lambda kind: kind.__name__)
def test_every_protocol_error_is_reported_by_its_name(kind: type[A2AError]) -> None:
    failure = failures.explain(kind("text"))

    assert failure.message == "text"
    if kind is UnauthenticatedError:
        assert failure.exit_code == 4
    else:
        other = {"ParseError": "JSONParseError", "A2AError": "InternalError", "AgentError": "InternalError"}
        assert failure.code == other.get(kind.__name__, kind.__name__)
        assert (failure.exit_code, failure.a2a_code) == (1, WIRE[kind].code)


def test_a_subclass_is_reported_by_the_protocol_name_of_its_base() -> None:
    assert failures.explain(SkillNotFoundError("x")).code == InvalidParamsError.__name__
    assert failures.explain(A2AServerError("no", code=-32099)).a2a_code == -32099
    assert failures.explain(OverloadedError(retry_after=7)).hint == "Try again in 7 s"
    assert failures.explain(UnauthenticatedError(), with_credentials=True).exit_code == 4
    assert failures.explain(RuntimeError("secret")).message == "Internal error: RuntimeError"


def test_a_closed_output_pipe_is_not_an_error(url: str) -> None:
    command = f"{sys.executable} -m apcore_a2a tasks {url} --json | true"
    run = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=10, check=False)

    assert run.stderr == ""


def test_fetching_the_card_has_a_time_limit(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    async def be_silent(request: Request, writer: asyncio.StreamWriter) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await hang(request, writer)

    monkeypatch.setattr("apcore_a2a.cli.connection.DEFAULT_TIME_LIMIT", 0.1)
    with scripted() as server:
        server.on(CARD, be_silent)
        ran = terminal("send", server.url, "hi", "--json")

    assert told(ran) == (3, "A2ACLI_ERR_UNREACHABLE")
    assert ran.json["error"]["message"] == "The agent did not answer within 0.1 seconds. Pass --timeout to wait longer"
