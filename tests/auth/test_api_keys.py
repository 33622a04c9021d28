"""API keys: hashes in a file or a mapping, rotation by overlap, a file that changes under a running agent."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from apcore_a2a import async_serve
from apcore_a2a.agent import Caller
from apcore_a2a.auth import api_keys
from apcore_a2a.auth.api_keys import MAX_KEY, APIKey, APIKeyAuthenticator, format_line, hash_key, new_key, read_key_file
from apcore_a2a.auth.authenticator import Authenticator
from tests.app.test_app import browsing
from tests.fakes import PATIENCE
from tests.requirements import requirement

KEY = "apcore_" + "k" * 43  # the same each time, for it is in the names of tests
OTHER = "apcore_" + "o" * 43


async def echo(text: str) -> str:
    return text


def show(key: str, header: str = "x-api-key") -> dict[str, str]:
    return {header: key}


@requirement("FR-AUT-004")
def test_a_key_names_its_owner_and_what_they_may_do() -> None:
    auth = APIKeyAuthenticator([APIKey(id="ada", hash=hash_key(KEY), roles=("ops",), scopes=("pay",))])
    assert isinstance(auth, Authenticator)
    assert auth.authenticate(show(KEY)) == Caller(
        id="ada", type="service", issuer="api-key", roles=("ops",), scopes=("pay",)
    )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        show(""),
        show(" "),
        show(OTHER),
        show(KEY + "x"),
        show(KEY[:-1]),
        show(KEY.upper()),
        show(hash_key(KEY)),
        show("k" * (MAX_KEY + 1)),
        show("\x00"),
        show("\xff\xfe"),
        show("ключ"),
        show(KEY, "authorization"),
        show(f"Bearer {KEY}", "authorization"),
        show(KEY, "x-other-key"),
    ],
    ids=str,
)
def test_what_is_not_the_key_is_refused(headers: dict[str, str]) -> None:
    assert APIKeyAuthenticator({"ada": hash_key(KEY)}).authenticate(headers) is None


def test_a_callers_old_and_new_key_work_while_one_replaces_the_other() -> None:
    auth = APIKeyAuthenticator({"ada": [hash_key(KEY), hash_key(OTHER)]})
    callers = [auth.authenticate(show(key)) for key in (KEY, OTHER)]
    assert [caller and caller.owner for caller in callers] == ["api-key|ada", "api-key|ada"]


def test_the_header_can_be_another() -> None:
    auth = APIKeyAuthenticator({"ada": hash_key(KEY)}, header="X-Agent-Key")
    assert auth.authenticate(show(KEY, "x-agent-key")) is not None
    assert auth.authenticate(show(KEY)) is None
    assert auth.security_schemes() == [{"type": "apiKey", "in": "header", "name": "X-Agent-Key"}]


def test_keys_are_long_and_random() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert {len(key) for key in made} == {50}


@pytest.mark.parametrize("type", ["system", "anonymous"])
def test_no_key_makes_its_owner_the_system_or_anonymous(type: str) -> None:
    caller = APIKeyAuthenticator([APIKey(id="ada", hash=hash_key(KEY), type=type)]).authenticate(show(KEY))
    assert caller is not None and caller.type == "user"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "there are no API keys"),
        ([], "there are no API keys"),
        ({"ada": KEY}, "is not given as a hash"),
        ({"ada": ""}, "is not given as a hash"),
        ({"ada": "sha256:"}, "is not given as a hash"),
        ({"ada": hash_key(KEY).upper()}, "is not given as a hash"),
        ({"ada": hash_key(KEY)[:-1]}, "is not given as a hash"),
        ({"ada": [hash_key(KEY), KEY]}, "is not given as a hash"),
        ({"": hash_key(KEY)}, "must be one word"),
        ({"two words": hash_key(KEY)}, "must be one word"),
        ({"ada": hash_key(KEY), "bob": hash_key(KEY)}, "have the same key"),
        ("/no/such/file", "cannot be read"),
    ],
    ids=str,
)
def test_what_is_no_hash_is_refused_at_once_and_not_repeated(keys: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        APIKeyAuthenticator(keys)
    assert KEY not in str(refused.value)


# ---- the file ------------------------------------------------------------------------------------------------------


def test_a_file_holds_what_was_written_to_it(tmp_path: Path) -> None:
    keys = (
        APIKey(id="ada", hash=hash_key(KEY), roles=("ops", "admin"), scopes=("pay:write",)),
        APIKey(id="bob@example.com", hash=hash_key(OTHER), type="user"),
    )
    path = tmp_path / "keys"
    path.write_text("# the keys of this agent\n\n" + "".join(map(format_line, keys)))
    assert read_key_file(path) == keys


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ada\n", "line 1: an id and a hash"),
        (f"ada {KEY}\n", "line 1: .* is not given as a hash"),
        (f"# keys\nada {hash_key(KEY)} role=ops\n", "line 2: after the hash"),
        (f"ada {hash_key(KEY)} ops\n", "line 1: after the hash"),
        ("", "there are no API keys"),
        ("\x00\x00\x00", "an id and a hash"),
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_line_is_named_and_not_repeated(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as refused:
        APIKeyAuthenticator(path)
    assert KEY not in str(refused.value)


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # a file tells no event of asyncio's
            await asyncio.sleep(0.005)


async def test_a_file_that_changes_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text(f"ada {hash_key(KEY)}\n")
    auth = APIKeyAuthenticator(path, check_file=0.005)
    await auth.open()
    path.write_text(f"ada {hash_key(KEY)}\nada {hash_key(OTHER)} # the next one\n")
    await until(lambda: auth.authenticate(show(OTHER)))
    assert auth.authenticate(show(KEY)) is not None
    swapped = tmp_path / "new"
    swapped.write_text(f"ada {hash_key(OTHER)}\n")
    os.replace(swapped, path)
    await until(lambda: auth.authenticate(show(KEY)) is None)
    await auth.close()


@pytest.mark.parametrize("breakage", ["garbage", "directory", "pipe", "huge"])
async def test_a_file_that_breaks_changes_nothing_but_the_log(
    tmp_path: Path, breakage: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"ada {hash_key(KEY)}\n")
    auth = APIKeyAuthenticator(path, check_file=0.005)
    await auth.open()
    match breakage:
        case "garbage":
            path.write_text(f"ada {KEY}\n")
        case "directory":
            path.unlink()
            path.mkdir()
        case "pipe":  # reading it would wait for a writer
            path.unlink()
            os.mkfifo(path)
        case "huge":
            path.write_bytes(b"#" * (api_keys.MAX_FILE + 1))
    await until(lambda: "API keys not read again" in caplog.text)
    assert auth.authenticate(show(KEY)) is not None
    assert auth.trouble() == ""
    assert KEY not in " ".join(str(vars(record)) for record in caplog.records)
    if breakage == "directory":
        path.rmdir()
    if breakage == "pipe":
        path.unlink()
    path.write_text(f"ada {hash_key(OTHER)}\n")
    await until(lambda: auth.authenticate(show(OTHER)))
    await auth.close()


@pytest.mark.parametrize("emptied", ["truncate", "remove", "comments"])
async def test_an_empty_or_deleted_file_revokes_all_keys(tmp_path: Path, emptied: str) -> None:
    path = tmp_path / "keys"
    path.write_text(f"ada {hash_key(KEY)}\n")
    auth = APIKeyAuthenticator(path, check_file=0.005)
    await auth.open()
    match emptied:
        case "truncate":
            path.write_text("")
        case "remove":
            path.unlink()
        case "comments":
            path.write_text(f"# ada {hash_key(KEY)}\n")
    await until(lambda: auth.authenticate(show(KEY)) is None)
    assert "no API keys" in auth.trouble()
    path.write_text(f"ada {hash_key(OTHER)}\n")
    await until(lambda: auth.authenticate(show(OTHER)))
    assert auth.trouble() == ""
    await auth.close()


async def test_a_file_with_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"ada {hash_key(KEY)}\n")
    before = path.stat()
    auth = APIKeyAuthenticator(path, check_file=0.005)
    await auth.open()
    path.write_text(f"ada {hash_key(OTHER)}\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    await until(lambda: auth.authenticate(show(OTHER)))
    assert auth.authenticate(show(KEY)) is None
    await auth.close()


def test_a_pipe_is_not_a_file_of_keys(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys")
    with pytest.raises(ValueError, match="not a regular file"):
        APIKeyAuthenticator(tmp_path / "keys")


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True), (0o660, True)])
def test_a_file_that_others_can_read_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"ada {hash_key(KEY)}\n")
    path.chmod(mode)
    APIKeyAuthenticator(path)
    assert ("other users can read or change the file of API keys" in caplog.messages) is warned


async def test_health_reports_that_no_caller_has_a_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"ada {hash_key(KEY)}\n")
    keys = APIKeyAuthenticator(path, check_file=0.005)
    other = APIKeyAuthenticator({"bob": hash_key(OTHER)})
    async with (
        browsing(await async_serve(echo, auth=keys)) as only,
        browsing(await async_serve(echo, auth=[APIKeyAuthenticator(path), other])) as both,
    ):
        assert (await only.get("/health/ready")).status_code == 200
        path.write_text("")
        await until(keys.trouble)
        answer = await only.get("/health/ready")
        assert answer.status_code == 503
        assert "no API keys" in answer.json()["reason"]
        assert (await only.get("/health/live")).status_code == 200
        assert (await both.get("/health/ready")).status_code == 200
