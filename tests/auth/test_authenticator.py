"""What becomes of an authenticator's answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from apcore_a2a.agent import Caller
from apcore_a2a.auth.authenticator import BEARER, Authenticator, identify, security_schemes
from tests.requirements import requirement


class Answers:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def authenticate(self, headers: dict[str, str]) -> Any:
        return self._answer


class AnswersLater(Answers):
    async def authenticate(self, headers: dict[str, str]) -> Any:
        return self._answer


@requirement("FR-AUT-004")
def test_any_class_with_the_one_method_is_an_authenticator() -> None:
    assert isinstance(Answers(None), Authenticator)
    assert not isinstance(object(), Authenticator)


@pytest.mark.parametrize("kind", [Answers, AnswersLater])
@requirement("FR-AUT-004", "FR-EXE-003")
async def test_an_identity_becomes_a_caller(kind: type[Answers]) -> None:
    identity = SimpleNamespace(id="ada", type="service", roles=["ops"], attrs={"team": "x"})
    caller = await identify(kind(identity), {})
    assert caller == Caller(id="ada", type="service", roles=("ops",), attributes={"team": "x"})


async def test_an_identity_needs_no_more_than_an_id() -> None:
    assert await identify(Answers(SimpleNamespace(id=7)), {}) == Caller(id="7", type="user")


async def test_a_caller_is_taken_as_it_is() -> None:
    caller = Caller(id="ada", type="user")
    assert await identify(Answers(caller), {}) is caller


async def test_a_caller_with_a_name_is_not_one_of_those_without() -> None:
    caller = await identify(Answers(Caller(id="ada")), {})
    assert caller == Caller(id="ada", type="user")
    assert await identify(Answers(Caller()), {}) == Caller()


@pytest.mark.parametrize(
    "answer", [SimpleNamespace(id=None), SimpleNamespace(id=""), Caller(id="", type="user")], ids=repr
)
async def test_who_has_no_id_is_refused(answer: Any) -> None:
    assert await identify(Answers(answer), {}) is None


async def test_a_single_role_needs_no_list() -> None:
    caller = await identify(Answers(SimpleNamespace(id="ada", roles="ops", scopes="read")), {})
    assert caller == Caller(id="ada", type="user", roles=("ops",), scopes=("read",))


async def test_a_request_without_credentials_is_anonymous() -> None:
    assert await identify(Answers(None), {}) is None


@pytest.mark.parametrize("claimed", ["system", "anonymous"])
async def test_an_identity_is_neither_the_system_nor_anonymous(claimed: str) -> None:
    caller = await identify(Answers(SimpleNamespace(id="ada", type=claimed)), {})
    assert caller is not None
    assert caller.type == "user"


async def test_a_caller_named_anonymous_does_not_own_anonymous_tasks() -> None:
    caller = await identify(Answers(SimpleNamespace(id="anonymous")), {})
    assert caller is not None
    assert caller.owner != Caller().owner


def test_schemes_are_what_the_authenticator_says_else_a_bearer_token() -> None:
    assert security_schemes(Answers(None)) == [BEARER]
    key = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    saying = SimpleNamespace(authenticate=lambda headers: None, security_schemes=lambda: [key])
    assert security_schemes(saying) == [key]


async def test_a_pipe_in_an_issuer_cannot_give_the_owner_key_of_another_issuer() -> None:
    one = await identify(Answers(Caller(id="b|c", type="user", issuer="a")), {})
    assert one is not None
    assert one.owner == Caller(id="c", type="user", issuer="a|b").owner
    assert await identify(Answers(Caller(id="c", type="user", issuer="a|b")), {}) is None
