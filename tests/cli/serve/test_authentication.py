"""The flags for authentication, and the command that creates API keys: as processes."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.app.test_app import send
from tests.app.test_serving import EXTENSIONS, address, command
from tests.auth.issuer import provider
from tests.auth.tokens import RSA, SECRET, bearer
from tests.interaction.serving import listen
from tests.processes import PATIENCE, SOURCES
from tests.requirements import requirement

ASKED = send({"text": "a b"}, skill="text.stats")


def keys_new(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "apcore_a2a", "keys", "new", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, env={"PYTHONPATH": str(SOURCES)})


async def status(client: httpx.AsyncClient, headers: dict[str, str]) -> int:
    return (await client.post("/", json=ASKED, headers=headers)).status_code


@requirement("FR-CMD-001")
async def test_an_issuer_is_enough_and_keys_may_be_asked_for_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    made = keys_new("bob", "--file", str(file), "--role", "ops", "--scope", "pay")
    assert made.returncode == 0
    key = made.stdout.strip()
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with provider() as idp:
        flags = ["--auth-type", "oidc", "--auth-issuer", idp.issuer, "--auth-audience", "agents"]
        keys = ["--auth-type", "api-key", "--auth-key-file", str(file)]
        async with command("--extensions-dir", str(EXTENSIONS), *flags, *keys) as process:
            async with httpx.AsyncClient(base_url=await address(process), timeout=PATIENCE) as client:
                assert await status(client, {}) == 401
                assert await status(client, await idp.bearer()) == 200
                assert await status(client, await idp.bearer(aud="others")) == 401
                assert await status(client, {"X-API-Key": key}) == 200
                second = keys_new("bob", "--file", str(file)).stdout.strip()
                await process.says("API keys read again")
                assert await status(client, {"X-API-Key": second}) == 200
    assert "auth    JWT bearer, OpenID Connect, API key" in process.said
    assert key not in process.said and second not in process.said


@requirement("FR-CMD-001")
async def test_tokens_are_asked_for_when_the_environment_says_whose() -> None:
    async with provider() as idp:
        async with command("--extensions-dir", str(EXTENSIONS), JWT_ISSUER=idp.issuer) as process:
            async with httpx.AsyncClient(base_url=await address(process), timeout=PATIENCE) as client:
                assert await status(client, {}) == 401
                assert await status(client, await idp.bearer()) == 200
        await process.ends()
        assert "set an audience" in process.said


ENTRA: dict[str, Any] = {"oid": "ada-in-the-directory", "sub": "ada-at-this-application", "roles": ["stats"]}
CLAIM_FLAGS = ["--auth-id-claim", "oid", "--auth-scopes-claim", "scp", "--auth-scopes-claim", "roles"]
AUDIENCE_FLAGS = ["--auth-audience", "api://agents", "--auth-audience", "6f1c"]


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        ([*CLAIM_FLAGS, *AUDIENCE_FLAGS], {}),
        ([], {"JWT_ID_CLAIM": "oid", "JWT_SCOPES_CLAIM": "scp roles", "JWT_AUDIENCE": "api://agents 6f1c"}),
    ],
    ids=["flags", "environment"],
)
@requirement("FR-CMD-001")
async def test_claims_audience_and_leeway_are_flags_too(
    tmp_path: Path, flags: list[str], environment: dict[str, str]
) -> None:
    log = tmp_path / "audit.jsonl"
    asked = ["--auth-key", SECRET, "--skill-scope", "text.*=stats", "--audit-log", str(log)]
    async with command("--extensions-dir", str(EXTENSIONS), *asked, *flags, **environment) as process:
        async with httpx.AsyncClient(base_url=await address(process), timeout=PATIENCE) as client:
            for audience in ("api://agents", "6f1c"):
                done = await client.post("/", json=ASKED, headers=bearer(**ENTRA, aud=audience))
                assert done.json()["result"]["status"]["state"] == "completed"
            assert await status(client, bearer(**ENTRA, aud="others")) == 401
            assert await status(client, bearer(sub="bob", aud="6f1c")) == 401  # without the claim that names callers
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["caller"] for line in lines if line["event"] == "operation"} == {
        "https://idp.example|ada-in-the-directory"
    }


async def test_a_key_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(RSA.as_pem(private=False))
    flags = ["--auth-type", "bearer", "--auth-key-file", str(tmp_path / "key.pem")]
    async with command("--extensions-dir", str(EXTENSIONS), *flags) as process:
        async with httpx.AsyncClient(base_url=await address(process), timeout=PATIENCE) as client:
            assert await status(client, bearer(key=RSA, alg="RS256")) == 200
            assert await status(client, bearer()) == 401


# Command lines that `serve` rejects, and the reason that it gives.
REJECTED: Final = [
    (["--auth-type", "oidc"], "--auth-issuer is required when --auth-type is oidc"),
    (["--auth-type", "oidc", "--auth-issuer", "https://i.example", "--auth-key", SECRET], "--auth-key is not for"),
    (["--auth-type", "api-key"], "--auth-key-file is required when --auth-type is api-key"),
    (["--auth-type", "api-key", "--auth-key-file", "not/there"], "cannot be read"),
    (["--auth-key-file", "keys"], "--auth-key-file is given without --auth-type"),
    (["--auth-audience", "agents"], "--auth-audience is given without --auth-type"),
    (["--auth-issuer", "http://idp.example"], "issuer must be an https address"),
    (["--auth-jwks-url", "http://idp.example/certs"], "jwks_url must be an https address"),
    (["--auth-key", "hunter2"], "use at least 32 random characters, such as those that `openssl rand -hex 32`"),
    (["--auth-key", "a" * 64], "the shared secret is weak"),
    (["--auth-key", __file__], f"--auth-key names a file: write @{__file__}"),
    (["--auth-key", SECRET, "--skill-scope", "text.*"], "--skill-scope must look like"),
    (["--skill-scope", "text.*=read"], "skill_scopes needs auth"),
    (["--audit-log", "/no/such/dir/log"], "the audit log /no/such/dir/log cannot be written"),
    (["--auth-type", "ldap"], "'ldap' is not one of 'bearer', 'api-key', 'oidc'"),
    # What a shell makes of a variable that is not set.
    (["--auth-key", ""], "--auth-key is empty"),
    (["--auth-issuer", ""], "--auth-issuer is empty"),
    (["--auth-jwks-url", ""], "--auth-jwks-url is empty"),
    (["--auth-key-file", ""], "--auth-key-file is empty"),
    (["--auth-key", SECRET, "--auth-audience", ""], "--auth-audience is empty"),
    (["--auth-key", SECRET, "--auth-audience", "agents", "--auth-audience", ""], "--auth-audience is empty"),
    (["--auth-key", SECRET, "--auth-id-claim", ""], "--auth-id-claim is empty"),
    (["--auth-key", SECRET, "--auth-scopes-claim", ""], "--auth-scopes-claim is empty"),
    (["--auth-key", SECRET, "--auth-roles-claim", ""], "--auth-roles-claim is empty"),
    (["--card-signing-key", ""], "--card-signing-key is empty"),
    (["--push-notifications", "--webhook-secret", ""], "--webhook-secret is empty"),
    (["--ssl-keyfile", "a.key"], "--ssl-keyfile has no effect without --ssl-certfile"),
    (["--ssl-keyfile-password", "x"], "--ssl-keyfile-password has no effect without --ssl-certfile"),
    (["--ssl-ca-certs", "ca.pem"], "--ssl-ca-certs has no effect without --ssl-certfile"),
]
REJECT = """
import io, json, sys
from contextlib import redirect_stderr
from apcore_a2a.cli import main

endings = []
for line in json.load(sys.stdin):
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            main(line)
    except SystemExit as end:
        endings.append((end.code, said.getvalue()))
print(json.dumps(endings))
"""


@pytest.fixture(scope="module")
def endings() -> dict[str, tuple[int, str]]:
    """Return the exit code and the output of each command line, all from one process, because its start takes a second.

    The port is in use: a command line that `serve` does not reject ends at once, too, with another code.
    """
    with listen() as taken:
        port = str(taken.getsockname()[1])
        given = ["serve", "--host", "127.0.0.1", "--port", port, "--extensions-dir", str(EXTENSIONS)]
        lines = [[*given, *flags] for flags, _ in REJECTED]
        ran = subprocess.run(
            [sys.executable, "-c", REJECT],
            input=json.dumps(lines),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
        )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    return {" ".join(flags): (code, said) for (flags, _), (code, said) in zip(REJECTED, found, strict=True)}


@requirement("FR-CMD-002")
@pytest.mark.parametrize(
    ("flags", "said"), REJECTED, ids=lambda flags: " ".join(flags)[:40] if isinstance(flags, list) else ""
)
def test_options_that_would_disable_authentication_stop_the_start(
    flags: list[str], said: str, endings: dict[str, tuple[int, str]]
) -> None:
    code, output = endings[" ".join(flags)]
    assert code == 1
    assert said in " ".join(output.split())


async def test_scopes_and_the_audit_log_are_flags_too(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    flags = ["--auth-key", SECRET, "--skill-scope", "text.*=read,text", "--audit-log", str(log)]
    async with command("--extensions-dir", str(EXTENSIONS), *flags) as process:
        async with httpx.AsyncClient(base_url=await address(process), timeout=PATIENCE) as client:
            refused = await client.post("/", json=ASKED, headers=bearer(scope="read"))
            assert refused.json()["error"]["code"] == -32001
            done = await client.post("/", json=ASKED, headers=bearer(scope="read text"))
            assert done.json()["result"]["status"]["state"] == "completed"
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["denied", "completed", "allowed"]


def test_keys_without_a_file_are_printed_with_their_line() -> None:
    made = keys_new("ada")
    key = made.stdout.strip()
    assert len(key) == 50
    assert "ada sha256:" in made.stderr and key not in made.stderr


def test_a_key_without_an_owner_is_rejected(tmp_path: Path) -> None:
    assert keys_new("two words").returncode == 2
    assert keys_new("ada", "--file", str(tmp_path / "no" / "keys")).returncode == 1


@pytest.mark.parametrize("word", ["read write", "read,write", "#1", ""])
@pytest.mark.parametrize("flag", ["--role", "--scope"])
def test_a_word_that_would_break_the_file_is_refused(tmp_path: Path, flag: str, word: str) -> None:
    made = keys_new("ada", "--file", str(tmp_path / "keys"), flag, word)
    assert (made.returncode, made.stdout) == (2, "")
    assert "must be one word" in made.stderr
    assert not (tmp_path / "keys").exists()


def test_a_line_that_an_editor_left_open_stays_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine")
    keys_new("ada", "--file", str(file))
    assert [line.split()[0] for line in file.read_text().splitlines()] == ["#", "ada"]
