"""JWTAuthenticator: valid tokens, and every way in which a token can be invalid."""

import base64
import hmac
import json
import logging
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey

from apcore_a2a.auth.authenticator import Authenticator
from apcore_a2a.auth.jwt import MAX_TOKEN, ClaimMapping, JWTAuthenticator
from tests.auth.tokens import RSA, SECRET, bearer
from tests.requirements import requirement

NOW = int(time.time())


def authenticator(**options: Any) -> JWTAuthenticator:
    return JWTAuthenticator(SECRET, issuer="https://idp.example", audience="agents", **options)


@requirement("FR-AUT-001", "FR-AUT-002")
def test_a_valid_token_names_its_caller() -> None:
    caller = authenticator().authenticate(bearer(email="ada@example.com", name="Ada", team="engines"))
    assert caller is not None
    assert (caller.id, caller.type, caller.issuer) == ("ada", "user", "https://idp.example")
    assert caller.roles == ("admin",)
    assert caller.attributes["email"] == "ada@example.com"
    assert caller.attributes["team"] == "engines"
    assert "exp" not in caller.attributes


@requirement("FR-AUT-004")
def test_it_is_an_authenticator() -> None:
    assert isinstance(authenticator(), Authenticator)


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - 120},
        {"exp": None},
        {"exp": "tomorrow"},
        {"nbf": NOW + 600},
        {"iat": NOW + 600},
        {"iss": "https://idp.example.evil"},
        {"iss": "https://idp"},
        {"iss": None},
        {"aud": "others"},
        {"aud": None},
        {"aud": []},
        {"sub": None},
        {"sub": ""},
        {"sub": True},
        {"sub": 7.5},
        {"sub": ["ada"]},
    ],
    ids=" ".join,
)
@requirement("FR-AUT-001")
def test_a_token_with_wrong_claims_is_refused(changes: dict[str, Any]) -> None:
    assert authenticator().authenticate(bearer()) is not None
    assert authenticator().authenticate(bearer(**changes)) is None


def test_one_of_several_audiences_is_enough() -> None:
    assert authenticator().authenticate(bearer(aud=["others", "agents"])) is not None


def _unsigned(header: dict[str, Any]) -> dict[str, str]:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return {"authorization": f"Bearer {part(header)}.{part({'sub': 'ada', 'exp': NOW + 60})}."}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Basic YWRhOmFkYQ=="},
        {"authorization": "Bearer a.b.c"},
        {"authorization": "Bearer " + "a" * (MAX_TOKEN + 1)},
        _unsigned({"alg": "none"}),
        _unsigned({"alg": "HS256", "crit": ["x"], "x": 1}),
        _unsigned({"alg": "HS256", "jwk": {"kty": "oct", "k": "AAAA"}}),
        _unsigned({"alg": "HS256", "kid": "../../dev/null"}),
        bearer(key=OctKey.import_key("another secret of more than thirty-two characters")),
        bearer(key=RSA, alg="RS256"),
    ],
    ids=lambda headers: str(headers)[:50],
)
def test_what_is_not_a_token_of_ours_is_refused(headers: dict[str, str]) -> None:
    assert authenticator().authenticate(headers) is None


def test_the_scheme_may_be_written_in_any_case() -> None:
    headers = {"authorization": bearer()["authorization"].replace("Bearer", "bearer")}
    assert authenticator().authenticate(headers) is not None


def test_a_public_key_is_never_taken_for_a_shared_secret() -> None:
    public = RSA.as_pem(private=False)
    auth = JWTAuthenticator(public)
    assert auth.authenticate(bearer(key=RSA, alg="RS256")) is not None
    forged = bearer(key=OctKey.import_key(base64.b64encode(public)), alg="HS256")
    assert auth.authenticate(forged) is None


PEM = RSA.as_pem(private=False).decode()
PASTED = {
    "between triple quotes": f"\n    {PEM}",
    "with a byte order mark": f"\ufeff{PEM}",
    "in quotes": f'"{PEM}"',
    "below a comment": f"# of the realm main\n{PEM}",
    "on one line": PEM.replace("\n", "\\n"),
    "as bytes": f"\n{PEM}".encode(),
    "without its first and last line, as Keycloak shows it": "".join(PEM.splitlines()[1:-1]),
    "of OpenSSH": RSA.public_key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode(),
    "as a JWK": json.dumps(RSA.as_dict(private=False)),
    "as a set of keys": json.dumps({"keys": [RSA.as_dict(private=False)]}),
}


def _forge(secret: str | bytes) -> dict[str, str]:
    """A token that is signed with a secret, whatever a library thinks of such a secret."""
    key = secret.encode() if isinstance(secret, str) else secret

    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    said = part(b'{"alg":"HS256"}') + b"." + part(json.dumps({"sub": "eve", "exp": NOW + 3600}).encode())
    token = said + b"." + part(hmac.digest(key, said, "sha256"))
    return {"authorization": f"Bearer {token.decode()}"}


@pytest.mark.parametrize("pasted", PASTED.values(), ids=PASTED)
def test_a_public_key_is_one_however_it_was_pasted(pasted: str | bytes) -> None:
    auth = JWTAuthenticator(pasted)
    assert auth.authenticate(_forge(pasted)) is None
    assert auth.authenticate(bearer(key=RSA, alg="RS256")) is not None


@pytest.mark.parametrize("secret", [bytes(range(200, 240)), "{a secret} that begins as JSON does, and is none"])
def test_any_text_and_any_bytes_are_a_secret(secret: str | bytes) -> None:
    auth = JWTAuthenticator(secret)
    assert auth.authenticate(_forge(secret)) is not None
    assert auth.authenticate(_forge(SECRET)) is None


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (base64.b64encode(PEM.encode()).decode(), "neither RSA, EC nor Ed25519"),
        ("https://sso.example.com/realms/main/protocol/openid-connect/certs", "use jwks_url, or issuer"),
        ('{"kty":"RSA","n":', "looks like a JSON Web Key"),
        ({"kty": "RSA"}, "cannot be used"),
        ({"keys": 7}, "a list of keys"),
        ({"keys": [7]}, "a list of keys"),
        ({"keys": []}, "no key to check a signature with"),
        ({"keys": [{**RSA.as_dict(private=False), "use": "enc"}]}, "no key to check a signature with"),
    ],
    ids=[
        "base64 of PEM",
        "address",
        "half of a JWK",
        "empty JWK",
        "number",
        "list of a number",
        "empty set",
        "for encryption",
    ],
)
def test_what_is_no_key_is_refused_at_once(key: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        JWTAuthenticator(key)


def test_a_set_of_keys_may_be_one_that_a_provider_published() -> None:
    signs = {**RSA.as_dict(private=False), "kid": "one", "use": "sig"}
    encrypts = {**RSA.as_dict(private=False), "kid": "two", "use": "enc", "alg": "RSA-OAEP"}
    auth = JWTAuthenticator({"keys": [signs, encrypts]})
    assert auth.authenticate(bearer(key=RSA, alg="RS256")) is not None


@pytest.mark.parametrize(
    ("key", "alg"),
    [(ECKey.generate_key("P-256"), "ES256"), (OKPKey.generate_key("Ed25519"), "EdDSA"), (RSA, "PS256")],
    ids=["EC", "Ed25519", "RSA-PSS"],
)
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")  # and what most issuers still send
def test_every_kind_of_public_key_works_as_pem_and_as_jwk(key: Any, alg: str) -> None:
    headers = bearer(key=key, alg=alg)
    assert JWTAuthenticator(key.as_pem(private=False)).authenticate(headers) is not None
    assert JWTAuthenticator(key.as_dict(private=False)).authenticate(headers) is not None


def test_a_key_set_finds_its_key() -> None:
    key = RSAKey.generate_key(2048, parameters={"kid": "one"})
    keys = KeySet([key]).as_dict(private=False)
    assert JWTAuthenticator(keys).authenticate(bearer(key=key, alg="RS256")) is not None


def test_a_pem_that_is_no_key_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="neither RSA, EC nor Ed25519"):
        JWTAuthenticator("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")


@pytest.mark.parametrize("algorithms", [["none"], ["HS256", "none"]])
def test_no_signature_is_no_choice(algorithms: list[str]) -> None:
    with pytest.raises(ValueError, match="never 'none'"):
        JWTAuthenticator(SECRET, algorithms=algorithms)


def test_an_algorithm_that_does_not_exist_is_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"names 'RS265'; there are .*RS256"):
        JWTAuthenticator(issuer="https://idp.example", algorithms=["ES256", "RS265"])


def test_claims_can_be_called_anything() -> None:
    mapping = ClaimMapping(id="uid", type="kind", roles="groups", attributes=["team"])
    auth = JWTAuthenticator(SECRET, claim_mapping=mapping)
    caller = auth.authenticate(bearer({"uid": "ada", "kind": "service", "groups": "ops", "team": "x", "other": 1}))
    assert caller is not None
    assert (caller.id, caller.type, caller.roles, dict(caller.attributes)) == (
        "ada",
        "service",
        ("ops",),
        {"team": "x"},
    )


@pytest.mark.parametrize("uid", [None, "", True, 1.5, ["ada"], {"id": "ada"}], ids=str)
def test_an_id_of_another_name_is_checked_as_sub_is(uid: Any) -> None:
    auth = JWTAuthenticator(SECRET, claim_mapping=ClaimMapping(id="user.uid"))
    assert auth.authenticate(bearer(user={"uid": "ada"})) is not None
    assert auth.authenticate(bearer(user={"uid": uid})) is None


NESTED: dict[str, Any] = {
    "resource_access": {"my.agent": {"roles": ["ops"]}, "https://agents.example.com": {"roles": ["ops"]}}
}


@pytest.mark.parametrize("client", ["my.agent", "https://agents.example.com"])
def test_a_step_of_a_path_may_have_dots(client: str) -> None:
    auth = JWTAuthenticator(SECRET, claim_mapping=ClaimMapping(roles=f"resource_access.{client}.roles"))
    caller = auth.authenticate(bearer(**NESTED))
    assert caller is not None
    assert caller.roles == ("ops",)


def test_one_name_may_stand_where_several_may() -> None:
    mapping = ClaimMapping(scopes="permissions", attributes="team")
    auth = authenticator(claim_mapping=mapping, algorithms="HS256", require_claims="team")
    assert auth.authenticate(bearer(permissions=["read"])) is None
    caller = auth.authenticate(bearer(permissions=["read"], team="x", t="y"))
    assert caller is not None
    assert (caller.scopes, caller.attributes) == (("read",), {"team": "x"})


def test_a_required_claim_must_be_there() -> None:
    auth = authenticator(require_claims=["team"])
    assert auth.authenticate(bearer()) is None
    assert auth.authenticate(bearer(team="x")) is not None


def test_no_claim_makes_a_caller_the_system() -> None:
    assert authenticator().authenticate(bearer(type="system")) is None


@pytest.mark.parametrize("claimed", ["anonymous", "", None])
def test_who_claims_no_type_of_their_own_is_a_user(claimed: str | None) -> None:
    caller = authenticator().authenticate(bearer(type=claimed))
    assert caller is not None
    assert caller.type == "user"


def test_a_subject_may_be_a_number() -> None:
    caller = authenticator().authenticate(bearer(sub=7))
    assert caller is not None
    assert caller.id == "7"


@pytest.mark.parametrize("exp", [10**400, 1e300], ids=["larger than any double", "a float"])
def test_a_token_may_live_as_long_as_its_issuer_likes(exp: float) -> None:
    assert JWTAuthenticator(SECRET).authenticate(bearer(exp=exp)) is not None


def test_the_same_subject_of_two_issuers_is_two_owners() -> None:
    auth = JWTAuthenticator(SECRET)
    one, two = (auth.authenticate(bearer(iss=iss)) for iss in ("https://one", "https://two"))
    assert one is not None and two is not None
    assert one.owner != two.owner


@requirement("FR-AUT-001")
def test_nothing_of_a_refused_token_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    headers = bearer(exp=NOW - 120, sub="a-secret-name")
    with caplog.at_level(logging.DEBUG):
        assert authenticator().authenticate(headers) is None
    logged = " ".join(str(vars(record)) for record in caplog.records)
    assert "token refused" in logged
    assert headers["authorization"].split()[1] not in logged
    assert "a-secret-name" not in logged


def test_why_tokens_are_refused_is_logged_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    auth = authenticator()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            auth.authenticate(bearer(exp=NOW - 120))
            auth.authenticate({"authorization": "Bearer nonsense"})
    reasons = [vars(record)["reason"] for record in caplog.records if record.getMessage() == "token refused"]
    assert reasons == ["ExpiredTokenError: exp", "DecodeError"]


def test_it_says_on_the_card_what_it_wants() -> None:
    assert authenticator().security_schemes() == [{"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}]
