"""Tokens that were checked a moment ago: for how long, with which keys, and how many."""

import time
from typing import Any

import pytest

from apcore_a2a import JWTAuthenticator
from apcore_a2a.agent import Caller
from apcore_a2a.auth import jwt
from apcore_a2a.auth.jwt import MAX_SECONDS, TokenCache, digest_of
from tests.auth.tokens import SECRET, bearer

ADA = Caller(id="ada", type="user")
ONE = digest_of("one")
TWO = digest_of("two")


def test_a_token_is_known_for_a_minute() -> None:
    tokens = TokenCache()
    tokens.add(ONE, ADA, until=1e9, now=1_000, size=3)
    assert tokens.find(ONE, 1_000 + MAX_SECONDS - 1, 0) == ADA
    assert tokens.find(TWO, 1_000, 0) is None
    assert tokens.find(ONE, 1_000 + MAX_SECONDS, 0) is None


def test_a_token_is_not_known_for_longer_than_it_lives() -> None:
    tokens = TokenCache()
    tokens.add(ONE, ADA, until=1_010, now=1_000, size=3)
    assert tokens.find(ONE, 1_009, 0) == ADA
    assert tokens.find(ONE, 1_010, 0) is None


def test_other_keys_make_all_tokens_unknown() -> None:
    tokens = TokenCache()
    tokens.add(ONE, ADA, until=1e9, now=1_000, size=3)
    assert tokens.find(ONE, 1_000, 1) is None
    assert tokens.find(ONE, 1_000, 0) is None


def test_the_oldest_is_forgotten_when_there_are_too_many() -> None:
    tokens = TokenCache(max_characters=10)
    tokens.add(ONE, ADA, until=1e9, now=1_000, size=6)
    tokens.add(ONE, ADA, until=1e9, now=1_000, size=6)  # the same one again takes no more room
    assert tokens.find(ONE, 1_000, 0) == ADA
    tokens.add(TWO, ADA, until=1e9, now=1_000, size=6)
    assert tokens.find(ONE, 1_000, 0) is None
    assert tokens.find(TWO, 1_000, 0) == ADA
    tokens.add(ONE, ADA, until=1e9, now=1_000, size=11)  # alone too large
    assert tokens.find(ONE, 1_000, 0) is None
    assert tokens.find(TWO, 1_000, 0) == ADA


def test_a_token_that_expires_while_it_is_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    auth = JWTAuthenticator(SECRET, leeway=0)
    headers = bearer(exp=int(now) + 20)
    assert auth.authenticate(headers) is not None
    monkeypatch.setattr("apcore_a2a.auth.jwt.time.time", lambda: now + 10)
    assert auth.authenticate(headers) is not None
    monkeypatch.setattr("apcore_a2a.auth.jwt.time.time", lambda: now + 21)
    assert auth.authenticate(headers) is None


def test_a_token_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    auth = JWTAuthenticator(SECRET)
    headers = bearer()
    first = auth.authenticate(headers)

    def never(*arguments: Any) -> None:
        raise AssertionError("it was checked again")

    monkeypatch.setattr("apcore_a2a.auth.jwt._verify", never)
    assert auth.authenticate(headers) is first
    assert jwt.digest_of(headers["authorization"][7:]) != ONE
