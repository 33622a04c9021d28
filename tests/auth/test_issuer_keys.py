"""The keys that an issuer publishes: when they are fetched, how often, and what a failure changes."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey

from apcore_a2a.auth.keys import (
    MAX_KEYS,
    MIN_PAUSE,
    MIN_PAUSE_WITHOUT_KEYS,
    REFRESH,
    FetchError,
    IssuerKeys,
    check_address,
    import_published_keys,
)
from tests.auth.tokens import RSA, short_rsa_jwk
from tests.engine.driving import until

ISSUER = "https://idp.example"
DISCOVERY = f"{ISSUER}/.well-known/openid-configuration"
CERTS = f"{ISSUER}/certs"


def published(*kids: str) -> dict[str, Any]:
    return {"keys": [{**RSA.as_dict(private=False), "kid": kid} for kid in kids]}


class Web:
    """The documents of an issuer by address; an exception is raised. Remembers what was asked for."""

    def __init__(self, **changes: Any) -> None:
        self.documents: dict[str, Any] = {
            DISCOVERY: {"issuer": ISSUER, "jwks_uri": CERTS, **changes},
            CERTS: published("one"),
        }
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None

    async def fetch(self, url: str) -> Any:
        self.asked.append(url)
        if self.gate is not None:
            await self.gate.wait()
        found = self.documents.get(url, FetchError("404"))
        if isinstance(found, Exception):
            raise found
        return found


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def web() -> Web:
    return Web()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def fetched(web: Web, clock: Callable[[], float] | None = None, **source: str) -> IssuerKeys:
    """Return keys that were fetched once and are not fetched again by a timer."""
    keys = IssuerKeys(**source or {"issuer": ISSUER}, fetch=web.fetch, clock=clock or Clock())
    await keys.fetch_again()
    return keys


def has(keys: IssuerKeys, kid: str) -> bool:
    return keys.current is not None and keys.current.has(kid)


async def test_the_keys_are_where_the_discovery_document_says(web: Web) -> None:
    keys = await fetched(web)
    assert has(keys, "one")
    assert DISCOVERY in web.asked and CERTS in web.asked


async def test_an_address_of_keys_needs_no_discovery(web: Web) -> None:
    keys = await fetched(web, jwks_url=CERTS)
    assert has(keys, "one")
    assert set(web.asked) == {CERTS}


async def test_many_who_wait_cause_one_fetch(web: Web, clock: Clock) -> None:
    keys = IssuerKeys(jwks_url=CERTS, fetch=web.fetch, clock=clock)
    web.gate = asyncio.Event()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = [group.create_task(keys.fetch_again()) for _ in range(50)]
        await until(lambda: bool(web.asked))
        web.gate.set()
        await asyncio.wait(waiting)
    assert has(keys, "one")
    assert len(web.asked) == 1


async def test_many_who_wait_for_a_provider_that_hangs_wait_once(clock: Clock) -> None:
    asked: list[str] = []

    async def hang(url: str) -> Any:
        asked.append(url)
        await asyncio.sleep(0)
        clock.now += MIN_PAUSE_WITHOUT_KEYS  # as long as a fetch may take
        raise FetchError("timeout")

    keys = IssuerKeys(jwks_url=CERTS, fetch=hang, clock=clock)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(keys.fetch_again())
    assert len(asked) == 1


async def test_who_waits_for_the_fetch_of_the_start_causes_no_other(web: Web, clock: Clock) -> None:
    keys = IssuerKeys(jwks_url=CERTS, fetch=web.fetch, clock=clock)
    web.gate = asyncio.Event()
    keys.open()
    await until(lambda: bool(web.asked))
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(keys.fetch_again())
        await asyncio.sleep(0)
        web.gate.set()
        await waiting
    await keys.close()
    assert has(keys, "one")
    assert len(web.asked) == 1


async def test_an_unknown_key_is_looked_for_at_most_once_a_minute(web: Web, clock: Clock) -> None:
    keys = await fetched(web, clock, jwks_url=CERTS)
    clock.now += MIN_PAUSE
    asked = len(web.asked)
    for _ in range(100):
        await keys.fetch_again()
    clock.now += MIN_PAUSE - 0.1
    await keys.fetch_again()
    assert len(web.asked) <= asked + 2  # one for them all, one of the refreshing that was begun and ended
    before = len(web.asked)
    await keys.close()
    clock.now += 0.2
    web.documents[CERTS] = published("two")
    await keys.fetch_again()
    assert has(keys, "two") and not has(keys, "one")
    assert len(web.asked) > before


async def test_without_any_key_it_is_tried_more_often(web: Web, clock: Clock) -> None:
    web.documents[CERTS] = FetchError("503")
    keys = await fetched(web, clock, jwks_url=CERTS)
    assert keys.current is None
    web.documents[CERTS] = published("one")
    clock.now += MIN_PAUSE_WITHOUT_KEYS
    await keys.fetch_again()
    assert has(keys, "one")


@pytest.mark.parametrize(
    "answer",
    [
        FetchError("503"),
        None,
        [],
        "keys",
        {},
        {"keys": {}},
        {"keys": []},
        {"keys": [7, None, "RSA"]},
        {"keys": [{"kty": "RSA"}]},
        published(*map(str, range(MAX_KEYS + 1))),
    ],
    ids=[
        "an error",
        "null",
        "a list",
        "a text",
        "no keys",
        "an object",
        "no key",
        "no objects",
        "half a key",
        "too many",
    ],
)
async def test_an_answer_without_keys_changes_nothing(
    web: Web, clock: Clock, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keys = await fetched(web, clock, jwks_url=CERTS)
    generation = keys.generation
    web.documents[CERTS] = answer
    clock.now += MIN_PAUSE
    await keys.fetch_again()
    assert has(keys, "one")
    assert keys.generation == generation
    assert "keys of the issuer not fetched" in caplog.text


async def test_the_same_keys_are_the_same_generation(web: Web, clock: Clock) -> None:
    keys = await fetched(web, clock, jwks_url=CERTS)
    clock.now += MIN_PAUSE
    await keys.fetch_again()
    assert keys.generation == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"issuer": f"{ISSUER}/"}, "set issuer to exactly that"),
        ({"issuer": "https://evil.example"}, "set issuer to exactly that"),
        ({"issuer": None}, "set issuer to exactly that"),
        ({"jwks_uri": None}, "no jwks_uri"),
        ({"jwks_uri": 7}, "no jwks_uri"),
        ({"jwks_uri": "http://idp.example/certs"}, "not https"),
        ({"jwks_uri": "http://127.0.0.1/certs"}, "not https"),
        ({"jwks_uri": "file:///etc/passwd"}, "not https"),
        ({"jwks_uri": "https:///certs"}, "must be an https address"),
    ],
    ids=str,
)
async def test_a_discovery_document_must_be_the_issuers_own(
    changes: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    web = Web(**changes)
    keys = await fetched(web)
    assert keys.current is None
    assert set(web.asked) == {DISCOVERY}
    assert said in " ".join(str(vars(record)) for record in caplog.records)


@pytest.mark.parametrize("document", [None, [], "x", 7], ids=str)
async def test_a_discovery_document_must_be_one(document: Any) -> None:
    web = Web()
    web.documents[DISCOVERY] = document
    assert (await fetched(web)).current is None


async def test_keys_are_fetched_when_the_server_starts_and_again_later(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: asyncio.Queue[float] = asyncio.Queue()
    go_on = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.put_nowait(seconds)
        await go_on.wait()
        go_on.clear()

    monkeypatch.setattr("apcore_a2a.auth.authenticator.asyncio.sleep", sleep)
    keys = IssuerKeys(jwks_url=CERTS, fetch=web.fetch)
    keys.open()
    keys.open()  # once is enough
    async with asyncio.timeout(5):
        assert await pauses.get() == REFRESH
        web.documents[CERTS] = FetchError("503")
        backoff = []
        for _ in range(8):
            go_on.set()
            backoff.append(await pauses.get())
        assert backoff == [1, 2, 4, 8, 16, 32, 60, 60]
        web.documents[CERTS] = published("two")
        go_on.set()
        assert await pauses.get() == REFRESH
    assert has(keys, "two")
    await keys.close()
    await keys.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://idp.example/certs",
        "http://10.0.0.1/certs",
        "http://127.0.0.1.evil.example/certs",
        "http://localhost.evil.example/certs",
        "http://localhost@evil.example/certs",
        "ftp://idp.example/certs",
        "file:///etc/keys.json",
        "//idp.example/certs",
        "https://",
        "certs.json",
        "",
    ],
)
def test_an_address_must_be_https_or_on_this_machine(url: str) -> None:
    with pytest.raises(ValueError, match="must be an https address"):
        check_address(url, "jwks_url")


@pytest.mark.parametrize(
    "url", ["https://idp.example", "http://127.0.0.1:8080/x", "http://localhost/x", "http://[::1]:80/x"]
)
def test_an_address_that_will_do(url: str) -> None:
    assert check_address(url, "jwks_url") == url


# ---- which of the published keys are used ----------------------------------------------------------------------------

PUBLIC = RSA.as_dict(private=False)
EC = ECKey.generate_key("P-256").as_dict(private=False)


@pytest.mark.filterwarnings("ignore")  # of joserfc's, about short keys
@pytest.mark.parametrize(
    "jwk",
    [
        pytest.param(OctKey.import_key("a secret of at least thirty-two characters").as_dict(), id="a shared secret"),
        pytest.param(RSA.as_dict(private=True), id="a private RSA key"),
        pytest.param(ECKey.generate_key("P-256").as_dict(private=True), id="a private EC key"),
        pytest.param(short_rsa_jwk(), id="1024 bits"),
        pytest.param({**PUBLIC, "use": "enc"}, id="for encryption"),
        pytest.param({**PUBLIC, "key_ops": ["encrypt"]}, id="for encryption, by key_ops"),
        pytest.param({**PUBLIC, "key_ops": "verify"}, id="key_ops is no list"),
        pytest.param({**PUBLIC, "alg": "RSA-OAEP"}, id="of another algorithm"),
        pytest.param({**PUBLIC, "alg": "HS256"}, id="a public key for HMAC"),
        pytest.param({**PUBLIC, "alg": "none"}, id="for no algorithm"),
        pytest.param({**EC, "alg": "RS256"}, id="an EC key for RSA"),
        pytest.param(OKPKey.generate_key("X25519").as_dict(private=False), id="for key agreement"),
        pytest.param(ECKey.generate_key("secp256k1").as_dict(private=False), id="another curve"),
        pytest.param({**PUBLIC, "e": "AQ"}, id="exponent 1"),
        pytest.param({**PUBLIC, "n": "!!!"}, id="no number"),
        pytest.param({**PUBLIC, "kty": "MAGIC"}, id="of an unknown kind"),
        pytest.param({**PUBLIC, "kty": ["RSA"]}, id="of a kind that is a list"),
        pytest.param({**EC, "x": EC["y"]}, id="a point that is not on the curve"),
        pytest.param({}, id="empty"),
    ],
)
def test_a_published_key_that_cannot_be_trusted_is_none(jwk: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="none of its keys"):
        import_published_keys({"keys": [jwk]})
    keys = import_published_keys({"keys": [jwk, {**PUBLIC, "kid": "good"}]})
    assert len(keys) == 1 and keys.has("good")


def test_a_key_is_for_its_own_algorithms_only() -> None:
    keys = import_published_keys({"keys": [{**PUBLIC, "kid": "rsa"}, {**EC, "kid": "ec"}]})
    assert keys.find("rsa", "RS256") and keys.find("rsa", "PS512") and keys.find("ec", "ES256")
    for kid, algorithm in [
        ("rsa", "ES256"),
        ("rsa", "HS256"),
        ("rsa", "none"),
        ("rsa", None),
        ("rsa", ["RS256"]),
        ("ec", "ES384"),
        ("ec", "RS256"),
        ("other", "RS256"),
        (["rsa"], "RS256"),
        ("", "RS256"),
    ]:
        assert keys.find(kid, algorithm) is None, (kid, algorithm)


def test_a_key_that_names_its_algorithm_is_for_no_other() -> None:
    keys = import_published_keys({"keys": [{**PUBLIC, "kid": "rsa", "alg": "RS256"}]})
    assert keys.find("rsa", "RS256") is not None
    assert keys.find("rsa", "RS512") is None


def test_a_token_that_names_no_key_is_checked_if_one_alone_fits() -> None:
    one = import_published_keys({"keys": [{**PUBLIC, "kid": "rsa"}, {**EC, "kid": "ec"}]})
    assert one.find(None, "RS256") is not None
    two = import_published_keys(published("one", "two"))
    assert two.find(None, "RS256") is None


def test_a_name_that_two_keys_have_names_none() -> None:
    keys = import_published_keys(published("one", "one"))
    assert keys.find("one", "RS256") is None


def test_the_logged_reason_is_kept_short(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ValueError, match="none of its keys"):
        import_published_keys({"keys": [{"kty": "RSA", "n": "x" * 10_000}]})
    assert len(caplog.text) < 1_000
