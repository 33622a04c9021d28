"""Forged, modified and wrong tokens: each is rejected with the same 401 response.

docs/security.md lists the guards, and which of these cases fail when a guard is removed.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from joserfc import jwe, jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from apcore_a2a import JWTAuthenticator
from apcore_a2a.app.serve import build
from tests.auth.tokens import SECRET, short_rsa_jwk
from tests.fakes import COMPLETED, ScriptedAgent
from tests.interaction.serving import CARD
from tests.requirements import requirement

ISSUER = "https://idp.example"
NOW = int(time.time())
CLAIMS: dict[str, Any] = {"sub": "ada", "iss": ISSUER, "aud": "agents", "exp": NOW + 3600, "iat": NOW}

RSA = RSAKey.generate_key(2048, parameters={"kid": "rsa"})
OLD_RSA = RSAKey.generate_key(2048, parameters={"kid": "old"})
EC = ECKey.generate_key("P-256", parameters={"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", parameters={"kid": "ed"})
MINE_EC = ECKey.generate_key("P-256", parameters={"kid": "mine"})
MINE = RSAKey.generate_key(2048, parameters={"kid": "rsa"})  # the attacker's key, with the kid of the real one
KEYS: dict[str, Any] = {
    "keys": [
        RSA.as_dict(private=False),
        {**OLD_RSA.as_dict(private=False), "alg": "RS256"},
        EC.as_dict(private=False),
        ED.as_dict(private=False),
    ]
}
MESSAGE = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def part(value: Any) -> str:
    return b64(value if isinstance(value, bytes) else json.dumps(value).encode())


def sign(header: Any, claims: Any = CLAIMS, *, key: Any = RSA) -> str:
    """Return a token with this header, even if a library would reject it, and a matching signature."""
    body = f"{part(header)}.{part(claims)}"
    alg = header.get("alg") if isinstance(header, dict) else "RS256"
    algorithm = jws.JWSRegistry.algorithms[
        alg if isinstance(alg, str) and alg in jws.JWSRegistry.algorithms else "RS256"
    ]
    return f"{body}.{b64(algorithm.sign(body.encode(), key))}"


def hmac_with(secret: bytes, header: dict[str, Any]) -> str:
    body = f"{part(header)}.{part(CLAIMS)}"
    return f"{body}.{b64(hmac.new(secret, body.encode(), hashlib.sha256).digest())}"


def good(**changes: Any) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return sign({"alg": "RS256", "kid": "rsa"}, claims)


def unsigned(header: dict[str, Any], signature: str = "") -> str:
    return f"{part(header)}.{part(CLAIMS)}.{signature}"


def twist(change: Callable[[str], str]) -> str:
    return change(good())


PEM = RSA.as_pem(private=False)
RS = {"alg": "RS256", "kid": "rsa"}
EVIL = "https://evil.example/keys"
MINE_JWK = MINE_EC.as_dict(private=False)
HALF = f'{{"sub":"ada","iss":"{ISSUER}","aud":"agents","exp":{NOW + 3600},'

FORGED = {
    # No signature, or an invalid one.
    "alg none": unsigned({"alg": "none"}),
    "alg none with a kid": unsigned({"alg": "none", "kid": "rsa"}),
    "alg None": unsigned({"alg": "None", "kid": "rsa"}),
    "alg NONE": unsigned({"alg": "NONE", "kid": "rsa"}),
    "alg nOnE": unsigned({"alg": "nOnE", "kid": "rsa"}),
    "alg is empty": unsigned({"alg": "", "kid": "rsa"}),
    "alg is null": unsigned({"alg": None, "kid": "rsa"}),
    "alg is missing": unsigned({"kid": "rsa"}),
    "alg is a list": unsigned({"alg": ["RS256"], "kid": "rsa"}),
    "alg is an object": unsigned({"alg": {"RS256": 1}, "kid": "rsa"}),
    "alg is a number": unsigned({"alg": 256, "kid": "rsa"}),
    "alg with a space": unsigned({"alg": "RS256 ", "kid": "rsa"}),
    "alg in lower case": unsigned({"alg": "rs256", "kid": "rsa"}),
    "alg unknown": unsigned({"alg": "XX256", "kid": "rsa"}),
    "the signature is empty": unsigned(RS),
    "the signature is zeros": unsigned(RS, b64(bytes(256))),
    "the signature is one byte": unsigned(RS, b64(b"\x01")),
    "the signature is no base64": unsigned(RS, "!!!!"),
    "the signature of another token": good(sub="eve").rpartition(".")[0] + "." + good().rpartition(".")[2],
    "the signature is cut": twist(lambda token: token[:-4]),
    "the signature is longer": twist(lambda token: token + "AAAA"),
    "a bit of the signature": twist(lambda token: token[:-10] + ("A" if token[-10] != "A" else "B") + token[-9:]),
    "a bit of the claims": twist(lambda token: token.replace(part(CLAIMS), part({**CLAIMS, "sub": "eve"}))),
    "a bit of the header": twist(lambda token: token.replace(part(RS), part({**RS, "typ": "JWT"}))),
    "an ECDSA signature of zeros": unsigned({"alg": "ES256", "kid": "ec"}, b64(bytes(64))),
    "an Ed25519 signature of zeros": unsigned({"alg": "Ed25519", "kid": "ed"}, b64(bytes(64))),
    # Another key, or another use of the right key.
    "HS256 with the public key as PEM": hmac_with(PEM, {"alg": "HS256", "kid": "rsa"}),
    "HS256 with the PEM without its last line end": hmac_with(PEM.strip(), {"alg": "HS256", "kid": "rsa"}),
    "HS256 with the public key as JWK": hmac_with(json.dumps(KEYS["keys"][0]).encode(), {"alg": "HS256", "kid": "rsa"}),
    "HS256 with the modulus": hmac_with(str(KEYS["keys"][0]["n"]).encode(), {"alg": "HS256", "kid": "rsa"}),
    "HS256 with the kid": hmac_with(b"rsa", {"alg": "HS256", "kid": "rsa"}),
    "HS256 with nothing": hmac_with(b"", {"alg": "HS256"}),
    "HS256 without a kid": hmac_with(PEM, {"alg": "HS256"}),
    "a key of the attacker's": sign(RS, key=MINE),
    "a key of the attacker's and no kid": sign({"alg": "RS256"}, key=MINE),
    "the right key under another name": sign({"alg": "RS256", "kid": "old"}, key=RSA),
    "an EC key for an RSA kid": sign({"alg": "ES256", "kid": "rsa"}, key=EC),
    "an RSA key for an EC kid": sign({"alg": "RS256", "kid": "ec"}, key=RSA),
    "an RSA algorithm that the key does not name": sign({"alg": "PS256", "kid": "old"}, key=OLD_RSA),
    "two keys fit and no kid": sign({"alg": "RS256"}, key=OLD_RSA),
    # The kid as a path, a query, a command.
    "kid is a path": sign({"alg": "RS256", "kid": "../../../../dev/null"}),
    "kid is a file": sign({"alg": "RS256", "kid": "file:///etc/passwd"}),
    "kid is SQL": sign({"alg": "RS256", "kid": "x' UNION SELECT 'key"}),
    "kid is a command": sign({"alg": "RS256", "kid": "rsa|id"}),
    "kid is an address": sign({"alg": "RS256", "kid": EVIL}),
    "kid is long": sign({"alg": "RS256", "kid": "k" * 10_000}),
    "kid is empty": sign({"alg": "RS256", "kid": ""}),
    "kid is a number": sign({"alg": "RS256", "kid": 0}),
    "kid is a list": sign({"alg": "RS256", "kid": ["rsa"]}),
    "kid is an object": sign({"alg": "RS256", "kid": {"rsa": 1}}),
    "kid in another case": sign({"alg": "RS256", "kid": "RSA"}),
    "kid with a null byte": sign({"alg": "RS256", "kid": "rsa\0"}),
    # A key, or the URL of a key, in the token itself.
    "jwk": sign({"alg": "ES256", "kid": "mine", "jwk": MINE_JWK}, key=MINE_EC),
    "jwk under a known kid": sign({"alg": "ES256", "kid": "ec", "jwk": MINE_JWK}, key=MINE_EC),
    "jwk without a kid": sign({"alg": "ES256", "jwk": MINE_JWK}, key=MINE_EC),
    "jku": sign({"alg": "RS256", "kid": "mine", "jku": EVIL}, key=MINE),
    "jku under a known kid": sign({**RS, "jku": EVIL}, key=MINE),
    "x5u": sign({**RS, "x5u": EVIL}, key=MINE),
    "x5c": sign({**RS, "x5c": ["MIIB"]}, key=MINE),
    "x5t": sign({**RS, "x5t": "AAAA"}, key=MINE),
    # Critical headers that are not understood.
    "crit": sign({**RS, "crit": ["exp"], "exp": 1}),
    "crit of an unknown extension": sign({**RS, "crit": ["http://evil/x"], "http://evil/x": 1}),
    "crit is empty": sign({**RS, "crit": []}),
    "crit is a text": sign({**RS, "crit": "b64"}),
    "crit names what is not there": sign({**RS, "crit": ["b64"]}),
    # Signed by the issuer for another purpose.
    "typ of a logout": sign({**RS, "typ": "logout+jwt"}),
    "typ of a proof": sign({**RS, "typ": "dpop+jwt"}),
    "typ of an event": sign({**RS, "typ": "secevent+jwt"}),
    "typ is a list": sign({**RS, "typ": ["JWT"]}),
    # Times and audience.
    "expired": good(exp=NOW - 3600),
    "expired at the beginning of time": good(exp=0),
    "expired before that": good(exp=-1),
    "never expires": good(exp=None),
    "exp is a text": good(exp=str(NOW + 3600)),
    "exp is true": good(exp=True),
    "exp is a list": good(exp=[NOW + 3600]),
    "exp is infinite": sign(RS, (HALF.replace(f'"exp":{NOW + 3600},', '"exp":Infinity,') + '"x":1}').encode()),
    "exp is no number": sign(RS, (HALF.replace(f'"exp":{NOW + 3600},', '"exp":NaN,') + '"x":1}').encode()),
    "not yet": good(nbf=NOW + 3600),
    "nbf is a text": good(nbf="now"),
    "issued in the future": good(iat=NOW + 3600),
    "iat is a text": good(iat="yesterday"),
    "another issuer": good(iss="https://evil.example"),
    "an issuer that begins alike": good(iss="https://idp.example.evil.com"),
    "a part of the issuer": good(iss="https://idp"),
    "the issuer with a slash": good(iss="https://idp.example/"),
    "the issuer in capitals": good(iss="HTTPS://IDP.EXAMPLE"),
    "no issuer": good(iss=None),
    "the issuer in a list": good(iss=[ISSUER]),
    "another audience": good(aud="others"),
    "a part of the audience": good(aud="agent"),
    "no audience": good(aud=None),
    "an empty list of audiences": good(aud=[]),
    "other audiences": good(aud=["others", "agent"]),
    "the audience in an object": good(aud={"agents": 1}),
    "the audience is true": good(aud=True),
    # The subject, its type and its roles.
    "no subject": good(sub=None),
    "an empty subject": good(sub=""),
    "the subject is true": good(sub=True),
    "the subject is a fraction": good(sub=1.5),
    "the subject is a list": good(sub=["ada"]),
    "the subject is an object": good(sub={"id": "ada"}),
    "the type is system": good(type="system"),
    "the type is a list": good(type=["system"]),
    "the type is an object": good(type={"a": "system"}),
    "a role is a list": good(roles=[["admin"]]),
    "a role is an object": good(roles=[{"name": "admin"}]),
    "the roles are an object": good(roles={"admin": True}),
    "a role is true": good(roles=[True]),
    "the roles are true": good(roles=True),
    "a scope is a number": good(scope=["read", 7]),
    "the scopes are an object": good(scope={"read": 1}),
    "the scopes are a number": good(scp=7),
    "half a character": sign(RS, (HALF + '"name":"\\ud800"}').encode()),
    # Malformed tokens.
    "claims are a list": sign(RS, b"[]"),
    "claims are a text": sign(RS, b'"ada"'),
    "claims are null": sign(RS, b"null"),
    "claims are nothing": sign(RS, b""),
    "claims are not UTF-8": sign(RS, b'{"sub":"\xff\xfe"}'),
    "claims are deep": sign(RS, (HALF + '"x":' + "[" * 5_000 + "]" * 5_000 + "}").encode()),
    "claims have a number without end": sign(RS, (HALF + '"x":' + "9" * 5_000 + "}").encode()),
    "the header is a list": f"{part([])}.{part(CLAIMS)}.AAAA",
    "the header is null": f"{part(None)}.{part(CLAIMS)}.AAAA",
    "the header is no JSON": f"{b64(b'{')}.{part(CLAIMS)}.AAAA",
    "the header is not UTF-8": f"{b64(bytes([255, 254]))}.{part(CLAIMS)}.AAAA",
    "the header is long": sign({**RS, "x": "y" * 8_000}),
    "two parts": good().rpartition(".")[0],
    "four parts": good() + ".AAAA",
    "five parts, encrypted with the public key": jwe.encrypt_compact(
        {"alg": "RSA-OAEP", "enc": "A128GCM", "kid": "rsa"}, json.dumps(CLAIMS), RSA, ["RSA-OAEP", "A128GCM"]
    ),
    "one dot": ".",
    "two dots": "..",
    "four dots": "....",
    "20 KB": good(x="y" * 15_000),
    "100 KB": good(x="y" * 100_000),
    "100 KB of nothing": "A" * 100_000,
    "a space in the middle": good().replace(".", ". ", 1),
    "padding": good().replace(".", "=.", 1),
    "two tokens": f"{good()} {good()}",
    "two tokens with a comma": f"{good()},{good()}",
    "a quoted token": f'"{good()}"',
    "a token after its name": f"token={good()}",
    "JSON serialization": json.dumps({"payload": part(CLAIMS), "signatures": []}),
}


@pytest.fixture(scope="module")
def agent() -> ScriptedAgent:
    return ScriptedAgent(default=(COMPLETED,))


@pytest.fixture
async def http(agent: ScriptedAgent) -> AsyncIterator[httpx.AsyncClient]:
    auth = JWTAuthenticator(KEYS, issuer=ISSUER, audience="agents")
    transport = httpx.ASGITransport(app=build(agent, {"card": CARD, "auth": auth}))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"A2A-Version": "1.0"}
    ) as client:
        yield client


async def show(http: httpx.AsyncClient, credentials: str) -> httpx.Response:
    return await http.post("/message:send", json=MESSAGE, headers={"Authorization": credentials})


@requirement("FR-AUT-001", "NFR-SEC-001")
@pytest.mark.parametrize("token", FORGED.values(), ids=FORGED)
async def test_a_forged_token_is_rejected_without_a_reason(
    http: httpx.AsyncClient, agent: ScriptedAgent, token: str
) -> None:
    before = len(agent.calls)
    answer = await show(http, f"Bearer {token}")
    nonsense = await show(http, "Bearer nonsense")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert answer.content == nonsense.content  # the same response for all tokens, which does not reveal the reason
    assert len(agent.calls) == before


GOOD = {
    "as it should be": good(),
    "a number as its subject": good(sub=7),
    "several audiences": good(aud=["others", "agents"]),
    "an expiry with a fraction": good(exp=NOW + 3600.5),
    "an access token by its type": sign({**RS, "typ": "at+jwt"}),
    "an unknown header": sign({**RS, "nonce": "x"}),
    "an EC key": sign({"alg": "ES256", "kid": "ec"}, key=EC),
    "an EC key that alone fits": sign({"alg": "ES256"}, key=EC),
    "an Ed25519 key": sign({"alg": "Ed25519", "kid": "ed"}, key=ED),
    "the algorithm that the key names": sign({"alg": "RS256", "kid": "old"}, key=OLD_RSA),
    "a role alone": good(roles="admin"),
    "roles that are numbers": good(roles=[1, 2]),
}


@pytest.mark.parametrize("token", GOOD.values(), ids=GOOD)
async def test_a_token_of_the_issuer_is_accepted(http: httpx.AsyncClient, token: str) -> None:
    for _ in range(2):  # the second time it is in the cache
        assert (await show(http, f"Bearer {token}")).status_code == 200


async def test_clocks_may_differ_by_the_leeway(http: httpx.AsyncClient) -> None:
    now = int(time.time())
    assert (await show(http, f"Bearer {good(exp=now - 5)}")).status_code == 200
    assert (await show(http, f"Bearer {good(nbf=now + 25)}")).status_code == 200
    assert (await show(http, f"Bearer {good(exp=now - 60)}")).status_code == 401


SHOWN = {
    "nothing": "",
    "a word": "Bearer",
    "a word and a space": "Bearer ",
    "another scheme": f"Basic {good()}",
    "no scheme": good(),
    "a scheme that begins alike": f"Bearerx {good()}",
    "a tab": f"Bearer\t{good()}",
    "a colon": f"Bearer: {good()}",
    "DPoP": f"DPoP {good()}",
}


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
async def test_a_token_without_the_bearer_scheme_is_rejected(http: httpx.AsyncClient, shown: str) -> None:
    assert (await show(http, shown)).status_code == 401


async def test_a_token_is_only_read_from_the_authorization_header(http: httpx.AsyncClient) -> None:
    token = good()
    for headers in (
        {"X-Authorization": f"Bearer {token}"},
        {"Proxy-Authorization": f"Bearer {token}"},
        {"Cookie": f"access_token={token}; Authorization=Bearer {token}"},
    ):
        assert (await http.post("/message:send", json=MESSAGE, headers=headers)).status_code == 401
    for path in (f"/message:send?access_token={token}", f"/message:send?authorization=Bearer+{token}"):
        assert (await http.post(path, json=MESSAGE)).status_code == 401


async def test_two_authorization_headers_are_rejected(http: httpx.AsyncClient) -> None:
    for pair in ((good(), "bad"), ("bad", good()), (good(), good())):
        shown = [("Authorization", f"Bearer {token}") for token in pair]
        assert (await http.post("/message:send", json=MESSAGE, headers=shown)).status_code == 401


# ---- keys that an operator configures --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # warnings of joserfc about short keys
@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("secret", "the shared secret is weak"),
        ("", "the shared secret is weak"),
        ("a" * 31, "the shared secret is weak"),
        ("a" * 64, "the shared secret is weak"),
        ("abcabcabc" * 10, "the shared secret is weak"),
        ({"kty": "oct", "k": b64(b"secret")}, "the shared secret is weak"),
        (short_rsa_jwk(), "has 1024 bits: use one of at least 2048"),
        ({"keys": [short_rsa_jwk()]}, "has 1024 bits: use one of at least 2048"),
        ({"kty": "magic"}, "unknown type"),
        ({**RSA.as_dict(private=False), "alg": "HS256"}, "fits no signature algorithm"),
        (OKPKey.generate_key("X25519").as_dict(private=False), "fits no signature algorithm"),
    ],
    ids=["short", "empty", "31", "one letter", "three letters", "JWK", "RSA", "set", "kind", "RSA for HMAC", "X25519"],
)
def test_a_weak_key_is_rejected_at_the_start(key: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        JWTAuthenticator(key)


@pytest.mark.parametrize("algorithms", [["HS256"], ["none"], []], ids=str)
def test_algorithms_that_do_not_fit_the_key_are_rejected_at_the_start(algorithms: list[str]) -> None:
    with pytest.raises(ValueError, match="algorithms"):
        JWTAuthenticator(PEM, algorithms=algorithms)


def test_a_secret_is_only_used_with_hmac() -> None:
    auth = JWTAuthenticator(SECRET)
    key = OctKey.import_key(SECRET)
    assert auth.authenticate({"authorization": f"Bearer {sign({'alg': 'HS256'}, key=key)}"}) is not None
    for token in (good(), unsigned({"alg": "none"}), sign({"alg": "ES256"}, key=EC)):
        assert auth.authenticate({"authorization": f"Bearer {token}"}) is None
