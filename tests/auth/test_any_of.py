"""Several authenticators as one: they are asked in order, and invalid credentials do not make a caller anonymous."""

from typing import Any

import pytest

from apcore_a2a import JWTAuthenticator
from apcore_a2a.agent import Caller
from apcore_a2a.auth.api_keys import APIKeyAuthenticator, hash_key
from apcore_a2a.auth.authenticator import AnyOf, as_authenticator, challenge, credential_headers
from apcore_a2a.errors import OverloadedError
from tests.auth.tokens import SECRET, bearer
from tests.requirements import requirement

KEY = "apcore_" + "k" * 43
JWT = JWTAuthenticator(SECRET)
KEYS = APIKeyAuthenticator({"bob": hash_key(KEY)})
OTHER_ISSUER = JWTAuthenticator("another secret of more than thirty-two characters")
OPEN_ID = {"type": "openIdConnect", "openIdConnectUrl": "https://idp.example/.well-known/openid-configuration"}


class Guests:
    """Accepts every caller as a guest."""

    async def authenticate(self, headers: dict[str, str]) -> Caller:
        return Caller(id="guest", type="user")

    def security_schemes(self) -> list[dict[str, Any]]:
        return []


class Down:
    """An issuer that cannot be reached."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def authenticate(self, headers: dict[str, str]) -> Caller | None:
        raise OverloadedError("no keys")

    async def open(self) -> None:
        self.told.append("open")

    def close(self) -> None:
        self.told.append("close")


async def who(auth: Any, headers: dict[str, str]) -> str | None:
    combined = as_authenticator(auth)
    assert isinstance(combined, AnyOf)
    caller = await combined.authenticate(headers)
    return None if caller is None else caller.id


async def test_each_lets_in_its_own() -> None:
    assert await who([JWT, KEYS], bearer()) == "ada"
    assert await who([JWT, KEYS], {"x-api-key": KEY}) == "bob"
    assert await who([JWT, KEYS], {}) is None


async def test_the_first_that_knows_the_caller_says_who_it_is() -> None:
    both = {**bearer(), "x-api-key": KEY}
    assert await who([JWT, KEYS], both) == "ada"
    assert await who([KEYS, JWT], both) == "bob"


async def test_tokens_of_two_issuers() -> None:
    assert await who([OTHER_ISSUER, JWT], bearer()) == "ada"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer bad"},
        {"authorization": "bearer bad"},
        {"authorization": "Bearer"},
        {"x-api-key": "bad"},
        {"x-api-key": ""},
        {"authorization": "Bearer bad", "x-api-key": "bad"},
    ],
    ids=str,
)
async def test_bad_credentials_do_not_make_a_guest(headers: dict[str, str]) -> None:
    assert await who([JWT, KEYS, Guests()], {}) == "guest"
    assert await who([JWT, KEYS, Guests()], headers) is None
    assert await who([Guests(), JWT, KEYS], headers) is None


async def test_an_issuer_that_is_down_locks_out_its_own_callers_only() -> None:
    assert await who([Down(), JWT], bearer()) == "ada"
    assert await who([Down(), KEYS], {"x-api-key": KEY}) == "bob"
    with pytest.raises(OverloadedError):
        await who([Down(), OTHER_ISSUER], bearer())


async def test_those_who_want_to_know_are_told_of_start_and_end() -> None:
    down = Down()
    combined = as_authenticator([JWT, down, Guests()])
    assert isinstance(combined, AnyOf)
    await combined.open()
    await combined.close()
    assert down.told == ["open", "close"]


def test_the_card_names_each_kind_once() -> None:
    combined = as_authenticator((JWT, OTHER_ISSUER, KEYS))
    assert isinstance(combined, AnyOf)
    assert [scheme["type"] for scheme in combined.security_schemes()] == ["http", "apiKey"]


# ---- checked at start-up ---------------------------------------------------------------------------------------------


class ClosesBadly(Down):
    def close(self) -> None:
        self.told.append("close")
        raise RuntimeError("one of the user's")


async def test_one_that_fails_to_close_keeps_no_other_open() -> None:
    both = [ClosesBadly(), ClosesBadly()]
    with pytest.raises(RuntimeError):
        await AnyOf(both).close()
    assert [each.told for each in both] == [["close"], ["close"]]


class Wrong:
    authenticate = "yes"


class TakesNothing:
    def authenticate(self) -> None: ...


class TakesTooMuch:
    def authenticate(self, headers: dict[str, str], body: bytes) -> None: ...


@requirement("FR-AUT-004")
@pytest.mark.parametrize(
    ("auth", "error", "said"),
    [
        (object(), TypeError, "auth object lacks the method authenticate"),
        ("secret", TypeError, "auth str lacks the method authenticate"),
        (Wrong(), TypeError, "auth Wrong lacks the method authenticate"),
        (TakesNothing(), TypeError, "must take the headers"),
        (TakesTooMuch(), TypeError, "must take the headers"),
        (JWTAuthenticator, TypeError, "is the class JWTAuthenticator: pass an instance"),
        ([], ValueError, "auth is empty"),
        ([JWT, object()], TypeError, r"auth\[1\] object lacks"),
        ([[JWT]], TypeError, r"auth\[0\] list lacks"),
    ],
    ids=["object", "text", "no method", "nothing", "too much", "class", "empty", "second", "nested"],
)
def test_what_is_no_authenticator_is_named_at_once(auth: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        as_authenticator(auth)


def test_one_in_a_list_is_that_one() -> None:
    assert as_authenticator([JWT]) is JWT
    assert as_authenticator(None) is None


# ---- how they are asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schemes", "headers", "asked"),
    [
        (JWT.security_schemes(), {}, b"Bearer"),
        (JWT.security_schemes(), {"authorization": "Bearer x"}, b'Bearer error="invalid_token"'),
        (KEYS.security_schemes(), {"x-api-key": "x"}, b'ApiKey header="X-API-Key"'),
        ([*JWT.security_schemes(), OPEN_ID, *KEYS.security_schemes()], {}, b'Bearer, ApiKey header="X-API-Key"'),
        ([{"type": "http", "scheme": "basic"}], {"authorization": "Basic x"}, b'Basic realm="agent"'),
        ([{"type": "mutualTLS"}], {}, b"Bearer"),
        ([{"type": "apiKey", "in": "query", "name": "key"}], {}, b"Bearer"),
        ([], {}, b"Bearer"),
    ],
    ids=str,
)
def test_every_kind_of_credentials_is_asked_for(schemes: Any, headers: dict[str, str], asked: bytes) -> None:
    assert challenge(schemes, headers) == asked


def test_a_key_shown_twice_is_noticed_as_a_token_is() -> None:
    assert credential_headers(KEYS.security_schemes()) == {"authorization", "x-api-key"}
