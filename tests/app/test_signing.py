"""Signed cards: as our server signs them, our client and other people's verify them; and the other way round."""

import json
import shutil
import subprocess
from base64 import urlsafe_b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import signing as sdk
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf.json_format import MessageToDict, ParseDict
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from jwt import PyJWK
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from apcore_a2a import A2AClient, JWTAuthenticator
from apcore_a2a.app.serve import build_app
from apcore_a2a.app.signing import make_signer
from apcore_a2a.client.signatures import CardVerifier
from apcore_a2a.errors import A2ADiscoveryError, CardRewrittenError
from apcore_a2a.http.card import CardRules
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentSkill
from apcore_a2a.protocol.card_forms import payloads_03, payloads_1
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.app.test_command_flags import SCRIPT, output_of
from tests.app.test_serving import EXTENSIONS, address, command
from tests.auth.tokens import SECRET, bearer
from tests.fakes import ScriptedAgent
from tests.interaction.serving import serving, serving_app
from tests.sources import ROOT

KEY = ECKey.generate_key("P-256", {"kid": "key-1"})
JWKS = "/.well-known/jwks.json"
VENVS = ROOT / ".venvs"
# Everything that §8.4.1 and JCS have something to say about.
RICH = AgentCard(
    name="Zürich 東京 🤖 \u2028 \x7f",
    description="",  # REQUIRED and empty
    version="1.0.0",
    supported_interfaces=(),
    capabilities=AgentCapabilities(
        streaming=True,
        extensions=(
            AgentExtension(
                uri="urn:x",
                params={"n": 1.0, "big": 1e21, "tiny": 1e-7, "é": "ß", "\ufb33": 1, "\U0001f600": 2, "no": False},
            ),
        ),
    ),
    default_input_modes=(),  # REQUIRED and empty
    default_output_modes=("text/plain",),
    skills=(AgentSkill(id="a", name="Ä", description="", tags=()),),
    documentation_url="https://agent.example/docs",
)
PLAIN = replace(
    RICH,
    description="Says it",
    default_input_modes=("text/plain",),
    skills=(AgentSkill(id="a", name="A", description="Does", tags=("t",)),),
)
FORMS = {"1.0": {"A2A-Version": "1.0"}, "hybrid": {}}


def options(card: AgentCard, **more: Any) -> dict[str, Any]:
    return {"card": card, "card_signing_key": KEY.as_dict(private=True), **more}


def headers_of(card: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(urlsafe_b64decode(entry["protected"] + "===")) for entry in card["signatures"]]


def sdk_verifier(keys: dict[str, Any]) -> Callable[[pb.AgentCard], None]:
    by_id = {key["kid"]: PyJWK.from_dict(key) for key in keys["keys"]}
    return sdk.create_signature_verifier(lambda kid, jku: by_id[str(kid)], ["ES256", "RS256", "EdDSA"])


# ---- what is served ------------------------------------------------------------------------------------------------


async def test_the_card_is_signed_in_every_form_and_its_public_key_is_published() -> None:
    async with serving(ScriptedAgent(), **options(PLAIN)) as url, httpx.AsyncClient(base_url=url) as http:
        published = await http.get(JWKS)
        (key,) = published.json()["keys"]
        assert set(key) == {"kty", "crv", "x", "y", "kid", "alg", "use"}  # and nothing private
        assert published.headers["cache-control"] == "max-age=300"
        assert (await http.head(JWKS)).status_code == 200
        assert (await http.get(JWKS, headers={"If-None-Match": published.headers["etag"]})).status_code == 304
        for path in ("/.well-known/agent-card.json", "/.well-known/agent.json"):
            card = (await http.get(path)).json()
            for header in headers_of(card):
                assert header == {"alg": "ES256", "typ": "JOSE", "kid": "key-1", "jku": f"{url}{JWKS}"}
            again = (await http.get(path)).json()
            assert again["signatures"] == card["signatures"]


async def test_without_a_key_nothing_is_signed_and_there_is_no_route() -> None:
    async with serving(ScriptedAgent(), card=PLAIN) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await http.get(JWKS, headers=FORMS["1.0"])).status_code == 404
        assert "signatures" not in (await http.get("/.well-known/agent-card.json")).json()


@pytest.mark.parametrize("card", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_our_client_believes_it_the_extended_card_too(card: AgentCard, version: Any) -> None:
    auth = JWTAuthenticator(SECRET)
    async with serving(ScriptedAgent(), **options(card, auth=auth)) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            keys = (await http.get(JWKS)).json()  # open to all, like the card
            answer = await http.get("/agent/authenticatedExtendedCard", headers=bearer())
            assert answer.json()["signatures"]
        token = bearer()["authorization"].removeprefix("Bearer ")
        for binding in ("JSONRPC", "HTTP+JSON"):
            async with A2AClient(url, keys=keys, auth=token, version=version, binding=binding) as client:
                assert (await client.agent_card).name == RICH.name
                assert (await client.extended_card()).name == RICH.name
        other = ECKey.generate_key("P-256", {"kid": "key-1"}).as_dict(private=False)
        async with A2AClient(url, keys={"keys": [other]}, auth=token, version=version) as client:
            with pytest.raises(A2ADiscoveryError, match="is valid with the pinned keys"):
                _ = await client.agent_card


class Gateway:
    """A gateway that puts its own address into the interfaces of 1.0, as agentgateway does, and forwards the rest."""

    def __init__(self, target: str, **changes: Any) -> None:
        self._target = target
        self._changes = changes
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError("this gateway has no lifespan")
        body = b""
        while (part := await receive())["type"] == "http.request":
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        headers = [pair for pair in scope["headers"] if pair[0] not in (b"host", b"content-length")]
        async with httpx.AsyncClient(base_url=self._target) as http:
            answer = await http.request(scope["method"], scope["path"], content=body, headers=headers)
        found = answer.json()
        for interface in found.get("supportedInterfaces", ()):
            interface["url"] = interface["url"].replace(self._target, self.url)
        if "supportedInterfaces" in found:
            found |= self._changes
        content = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": content})
        await send({"type": "http.response.body", "body": json.dumps(found, indent=1).encode()})


@pytest.mark.parametrize("interfaces", ["all", "1.0"])
async def test_a_card_with_other_addresses_is_distinguished_from_a_forged_one(interfaces: Any) -> None:
    keys = {"keys": [KEY.as_dict(private=False)]}
    async with serving(ScriptedAgent(), **options(RICH, card_interfaces=interfaces)) as agent:
        gateway = Gateway(agent)
        async with serving_app(gateway, lifespan="off") as url:
            gateway.url = url
            async with A2AClient(url, keys=keys) as client:
                with pytest.raises(CardRewrittenError, match="were changed after it was signed"):
                    await client.send_message("hi")
            async with A2AClient(url, keys=keys, signatures="allow-rewritten") as client:
                assert (await client.interface).url.startswith(url)
                assert (await client.send_message("hi")).status.state == "completed"  # type: ignore[union-attr]  # a task
        forger = Gateway(agent, description="Trust me")
        async with serving_app(forger, lifespan="off") as url:
            forger.url = url
            async with A2AClient(url, keys=keys, signatures="allow-rewritten") as client:
                with pytest.raises(A2ADiscoveryError, match="No signature") as raised:
                    await client.send_message("hi")
                assert not isinstance(raised.value, CardRewrittenError)


async def test_a_rewritten_card_still_names_only_trusted_origins() -> None:
    async with serving(ScriptedAgent(), **options(RICH)) as agent:
        gateway = Gateway(agent)
        gateway.url = "http://evil.example"
        async with serving_app(gateway, lifespan="off") as url:
            async with A2AClient(
                url, keys={"keys": [KEY.as_dict(private=False)]}, signatures="allow-rewritten"
            ) as client:
                with pytest.raises(A2ADiscoveryError, match=r"evil\.example"):
                    await client.send_message("hi")


async def test_the_old_card_alone_is_believed_as_well() -> None:
    async with serving(ScriptedAgent(), **options(RICH, card_mode="0.3")) as url:
        async with A2AClient(url, keys={"keys": [KEY.as_dict(private=False)]}) as client:
            assert (await client.agent_card).name == RICH.name


async def test_a_large_card_is_signed_and_believed() -> None:
    skills = tuple(AgentSkill(id=f"s{n}", name="S", description="x" * 1_000, tags=("t",)) for n in range(500))
    async with serving(ScriptedAgent(), **options(replace(PLAIN, skills=skills))) as url:
        async with A2AClient(url, keys={"keys": [KEY.as_dict(private=False)]}) as client:
            assert len((await client.agent_card).skills) == 500


# ---- other people's verifiers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("card", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["EC", "RSA", "OKP"])
async def test_a2a_sdk_believes_our_signatures(card: AgentCard, form: str, key: str) -> None:
    made: Any = {
        "EC": KEY,
        "RSA": RSAKey.generate_key(2048, {"kid": "rsa"}),
        "OKP": OKPKey.generate_key("Ed25519", {"kid": "okp"}),
    }[key]
    given = options(card) | {"card_signing_key": made.as_dict(private=True)}
    async with serving(ScriptedAgent(), **given) as url, httpx.AsyncClient(base_url=url) as http:
        keys = (await http.get(JWKS)).json()
        body = (await http.get("/.well-known/agent-card.json", headers=FORMS[form])).json()
    read = ParseDict(body, pb.AgentCard(), ignore_unknown_fields=True)
    sdk_verifier(keys)(read)
    read.name += "!"
    with pytest.raises(sdk.InvalidSignaturesError):
        sdk_verifier(keys)(read)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
@pytest.mark.parametrize("card", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("form", FORMS)
async def test_the_javascript_sdk_believes_our_signatures(card: AgentCard, form: str) -> None:
    packages = VENVS / "js"
    if not (packages / "node_modules/@a2a-js/sdk").exists():
        pytest.skip("the JavaScript SDK is not installed")
    async with serving(ScriptedAgent(), **options(card)) as url, httpx.AsyncClient(base_url=url) as http:
        keys = (await http.get(JWKS)).json()
        body = (await http.get("/.well-known/agent-card.json", headers=FORMS[form])).json()
    script = str(Path(__file__).with_name("verify_card.cjs"))

    def verdict(shown: dict[str, Any]) -> str:
        given = json.dumps({"card": shown, "keys": keys})
        run = subprocess.run(
            ["node", script], input=given, cwd=packages, capture_output=True, text=True, timeout=20, check=True
        )
        return run.stdout.strip().splitlines()[-1]  # it tells of every signature that does not hold

    assert verdict(body) == "holds"
    assert verdict(body | {"name": "another"}).startswith("refused")


@pytest.mark.parametrize("card", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("auth", [False, True])
def test_a2a_sdk_0_3_signs_and_checks_the_bytes_that_we_sign(card: AgentCard, auth: bool) -> None:
    python = VENVS / "sdk03/bin/python"
    if not python.exists():
        pytest.skip("a2a-sdk 0.3 is not installed")
    app = build_app(
        ScriptedAgent(), card=card, url="https://a.example/", auth=JWTAuthenticator(SECRET) if auth else None
    )
    located = app.cards.at(app.cards.card, {"type": "http", "headers": []}, "0.3")
    for body in (v03.encode_card(located), v03.encode_hybrid_card(located)):
        script = str(Path(__file__).with_name("canonicalize_with_sdk03.py"))
        run = subprocess.run([str(python), script], input=body, capture_output=True, timeout=20, check=True)
        assert run.stdout.strip() in payloads_03(located)


@pytest.mark.parametrize("card", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("algorithm", ["ES256", "RS256", "EdDSA"])
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
async def test_our_client_believes_what_a2a_sdk_signs(card: AgentCard, algorithm: str, tmp_path: Path) -> None:
    kinds: dict[str, Any] = {
        "ES256": KEY,
        "RS256": RSAKey.generate_key(2048, {"kid": "key-1"}),
        "EdDSA": OKPKey.generate_key("Ed25519", {"kid": "key-1"}),
    }
    key = kinds[algorithm]
    app = build_app(ScriptedAgent(), card=card, url="https://agent.example/")
    header: sdk.ProtectedHeader = {"alg": algorithm, "kid": "key-1", "typ": "JOSE", "jku": None}
    signer = sdk.create_agent_card_signer(PyJWK.from_dict(key.as_dict(private=True), algorithm), header)
    signed = MessageToDict(signer(ParseDict(app_card(app), pb.AgentCard())))
    verifier = CardVerifier({"keys": [key.as_dict(private=False)]}, required=True)
    read = v03.decode_card(json.dumps(signed).encode())
    verifier.check(read, signed, "https://agent.example/")
    with pytest.raises(A2ADiscoveryError, match="is valid with the pinned keys"):
        verifier.check(replace(read, version="2"), signed | {"version": "2"}, "https://agent.example/")


def app_card(app: Any) -> Any:
    return json.loads(v1.encode_card(app.cards.at(app.cards.card, {"type": "http", "headers": []}, "1.0")))


# ---- vectors ---------------------------------------------------------------------------------------------------------


def test_the_example_of_section_8_4_1() -> None:
    card = AgentCard(
        name="Example Agent",
        supported_interfaces=(),
        capabilities=AgentCapabilities(streaming=False, push_notifications=False, extensions=()),
    )
    # The specification's fragment, and the REQUIRED fields that it leaves out.
    assert payloads_1(card)[0] == (
        b'{"capabilities":{"pushNotifications":false,"streaming":false},"defaultInputModes":[],"defaultOutputModes":[],'
        b'"description":"","name":"Example Agent","skills":[],"supportedInterfaces":[],"version":""}'
    )
    assert payloads_1(card)[1] == (
        b'{"capabilities":{"pushNotifications":false,"streaming":false},"name":"Example Agent"}'
    )


def test_text_that_is_not_ascii_and_numbers_are_written_as_jcs_has_them() -> None:
    standard = payloads_1(RICH)[0].decode()
    assert '"name":"Zürich 東京 🤖 \u2028 \x7f"' in standard
    params = '{"big":1e+21,"n":1,"no":false,"tiny":1e-7,"é":"ß","😀":2,"\ufb33":1}'  # by UTF-16 code units
    assert f'"params":{params}' in standard


def test_what_is_the_same_in_both_ways_is_signed_once() -> None:
    assert len(payloads_1(replace(PLAIN, supported_interfaces=app_interfaces()))) == 1
    assert len(payloads_1(RICH)) == 2


def app_interfaces() -> Any:
    return CardRules().interfaces_at("https://agent.example/")


# ---- keys ------------------------------------------------------------------------------------------------------------


def pem(key: Any) -> str:
    return str(key.as_pem(private=True).decode())


@pytest.mark.parametrize("as_what", ["text", "path", "path as text", "mapping", "set", "jwk text", "callable"])
def test_a_key_may_come_in_many_ways(as_what: str, tmp_path: Path) -> None:
    file = tmp_path / "card.pem"
    file.write_text(pem(KEY))
    jwk = KEY.as_dict(private=True)
    source: Any = {
        "text": pem(KEY),
        "path": file,
        "path as text": str(file),
        "mapping": jwk,
        "set": {"keys": [jwk]},
        "jwk text": json.dumps(jwk),
        "callable": lambda: pem(KEY),
    }[as_what]
    (key,) = json.loads(make_signer(source).jwks)["keys"]
    assert (key["x"], key["alg"]) == (KEY.as_dict()["x"], "ES256")
    assert key["kid"] == ("key-1" if as_what in ("mapping", "set", "jwk text") else KEY.thumbprint())


def test_while_keys_change_the_card_is_signed_with_both() -> None:
    new = ECKey.generate_key("P-384", {"kid": "key-2"})
    signer = make_signer({"keys": [KEY.as_dict(private=True), new.as_dict(private=True)]})
    card = signer.sign(PLAIN, "1.0", "https://agent.example/")
    assert {json.loads(urlsafe_b64decode(entry.protected + "==="))["kid"] for entry in card.signatures} == {
        "key-1",
        "key-2",
    }


def short_rsa() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


PUBLIC = KEY.as_dict(private=False)
BAD_KEYS: list[tuple[Any, str]] = [
    ("nowhere.pem", r"nowhere.pem cannot be read \(No such file"),
    (PUBLIC, "is a public key"),
    ({"keys": [PUBLIC]}, "is a public key"),
    ({"keys": []}, "between 1 and 4 keys"),
    ({"keys": [PUBLIC] * 5}, "between 1 and 4 keys"),
    ({"keys": "x"}, "between 1 and 4 keys"),
    ({"keys": ["x"]}, "values that are not keys"),
    ({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "d": "secret"}, "no usable key"),
    ({}, "no usable key"),
    ("{", "not valid JSON"),
    ("-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----", "no usable key"),
    ("-----BEGIN ENCRYPTED PRIVATE KEY-----\n-----END ENCRYPTED PRIVATE KEY-----", "is encrypted"),
    (OctKey.generate_key(256).as_dict(private=True), "shared secret"),
    (short_rsa(), "less than 2048 bits"),
    (KEY.as_dict(private=True) | {"alg": "HS256"}, "cannot sign with 'HS256'"),
    (KEY.as_dict(private=True) | {"alg": "none"}, "cannot sign with 'none'"),
    (KEY.as_dict(private=True) | {"alg": "RS256"}, "cannot sign with 'RS256'"),
    (ECKey.generate_key("secp256k1").as_dict(private=True), "curve secp256k1"),
    (17, "is a int"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("source", "why"), BAD_KEYS)
def test_a_key_that_cannot_sign_is_refused_at_the_start_without_being_quoted(source: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        build_app(ScriptedAgent(), card=PLAIN, card_signing_key=source)
    assert "secret\n" not in str(caught.value)
    assert str(KEY.as_dict(private=True)["d"]) not in str(caught.value)


def test_a_card_that_cannot_be_signed_is_refused_at_the_start_and_served_unsigned_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    endless = replace(PLAIN, capabilities=AgentCapabilities(extensions=(AgentExtension("u", params={"n": 2**53 + 1}),)))
    with pytest.raises(ValueError, match="cannot be signed: an integer that no double holds"):
        build_app(ScriptedAgent(), card=endless, card_signing_key=KEY.as_dict(private=True))
    signer = make_signer(KEY.as_dict(private=True))
    assert signer.sign(endless, "1.0", "https://agent.example/") is endless
    assert "card not signed" in caplog.text


# ---- the command ---------------------------------------------------------------------------------------------------


async def test_the_command_signs_and_validate_tells(tmp_path: Path) -> None:
    file, good, bad = tmp_path / "card.pem", tmp_path / "good.json", tmp_path / "bad.json"
    file.write_text(pem(KEY))
    good.write_text(make_signer(pem(KEY)).jwks.decode())
    stranger = ECKey.generate_key("P-256", {"kid": KEY.thumbprint()}).as_dict(private=False)
    bad.write_text(json.dumps({"keys": [stranger]}))
    async with command("--extensions-dir", str(EXTENSIONS), "--card-signing-key", str(file)) as process:
        url = await address(process)
        said: dict[str, dict[str, str]] = {}
        for name, flags in (("none", []), ("good", ["--keys", str(good)]), ("bad", ["--keys", str(bad)])):
            _, out = await output_of(str(SCRIPT), "validate", url, "--json", *flags)
            (said[name],) = (check for check in json.loads(out)["checks"] if check["id"] == "card.signed")
    assert said["none"]["result"] == "skip"
    assert "signed with" in said["none"]["message"] and KEY.thumbprint() in said["none"]["message"]
    assert said["good"]["result"] == "pass"
    assert said["bad"]["result"] == "fail"
    assert "is valid with the pinned keys" in said["bad"]["message"]


async def test_a_missing_key_file_is_said_in_a_line() -> None:
    flags = ["--extensions-dir", str(EXTENSIONS)]
    async with command(*flags, APCORE_A2A_CARD_SIGNING_KEY="nowhere.pem") as process:
        assert await process.ends() == 1
    assert "card_signing_key: nowhere.pem cannot be read" in process.said
    assert "Traceback" not in process.said


@pytest.mark.parametrize("kind", ["OKP", "RSA"])
def test_two_processes_with_an_ed25519_or_rsa_key_have_the_same_card(kind: str) -> None:
    keys: dict[str, Any] = {"OKP": OKPKey.generate_key("Ed25519"), "RSA": RSAKey.generate_key(2048)}
    key = keys[kind].as_dict(private=True)
    one, other = (make_signer(key).sign(PLAIN, "hybrid", "https://agent.example/") for _ in range(2))
    assert one == other


def test_what_a2a_sdk_0_3_would_not_guess_is_signed() -> None:
    rest = AgentInterface(url="https://a.example/v1", protocol_binding="HTTP+JSON", protocol_version="0.3")
    for payload in payloads_03(replace(PLAIN, supported_interfaces=(rest,))):
        assert b'"preferredTransport":"HTTP+JSON"' in payload
