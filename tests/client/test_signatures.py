"""Signed cards: which signatures are accepted."""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils._jcs import canonicalize as sdk_canonicalize
from google.protobuf.json_format import MessageToDict, ParseDict
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from apcore_a2a.client import A2AClient
from apcore_a2a.errors import A2ADiscoveryError
from apcore_a2a.protocol.card_forms import canonicalize
from tests.client.conftest import Connect
from tests.client.scripted import CARD, ScriptedServer, card, card_03, respond, result

NEWER = pytest.mark.skipif(
    "Ed25519" not in jws.JWSRegistry.algorithms, reason="this joserfc does not know the name yet"
)
KEY = ECKey.generate_key("P-256", {"kid": "key-1"})
PUBLIC = KEY.as_dict(private=False)
KEYS = {"keys": [PUBLIC]}
Form = Callable[[dict[str, Any]], bytes]


def sign(payload: bytes, key: Any = KEY, **header: Any) -> dict[str, str]:
    fields = {"alg": "ES256", "typ": "JOSE", "kid": "key-1"} | header
    token = jws.serialize_compact(fields, payload, key, algorithms=[fields["alg"]])
    protected, _, signature = token.split(".")
    return {"protected": protected, "signature": signature}


def signed(body: dict[str, Any], form: Form = canonicalize, **header: Any) -> dict[str, Any]:
    return body | {"signatures": [sign(form(body), **header)]}


async def discover(server: ScriptedServer, connect: Connect, body: dict[str, Any], **options: Any) -> str:
    server.on(CARD, respond(body))
    return (await connect(**{"keys": KEYS} | options).agent_card).name


def rich(url: str) -> dict[str, Any]:
    """Return a card with every case of the rules in §8.4.1."""
    return card(
        url,
        description="",
        capabilities={"streaming": False, "extensions": [{"uri": "u", "params": {"n": 1.5, "e": "", "é": [{}]}}]},
        documentationUrl="",
        defaultInputModes=[],
        securitySchemes={"http": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
        securityRequirements=[{"schemes": {"http": {}}}],
        skills=[{"id": "a", "name": "Ä", "description": "", "tags": []}],
    )


def bloated(body: dict[str, Any]) -> dict[str, Any]:
    """Return the same card with every default written out, as a server may send it."""
    body = json.loads(json.dumps(body))
    body["capabilities"]["extensions"][0] |= {"description": "", "required": False}
    body["securitySchemes"]["http"]["httpAuthSecurityScheme"] |= {"description": "", "bearerFormat": ""}
    body["securityRequirements"][0]["schemes"]["http"]["list"] = []
    body["skills"][0] |= {"examples": [], "inputModes": [], "securityRequirements": []}
    body["supportedInterfaces"][0]["tenant"] = ""
    return body


async def test_a_card_with_a_valid_signature_is_accepted(server: ScriptedServer, connect: Connect) -> None:
    assert await discover(server, connect, signed(rich(server.url))) == "Scripted"


async def test_explicit_default_values_do_not_invalidate_a_signature(server: ScriptedServer, connect: Connect) -> None:
    body = signed(rich(server.url))

    assert await discover(server, connect, bloated(body)) == "Scripted"


async def test_omitted_empty_required_fields_do_not_invalidate_a_signature(
    server: ScriptedServer, connect: Connect
) -> None:
    body = signed(rich(server.url))
    del body["description"], body["defaultInputModes"]

    assert await discover(server, connect, body) == "Scripted"


def without_empty(value: Any) -> Any:
    """Remove empty texts, lists and objects at any depth, as a2a-sdk does before signing. None if nothing is left."""
    if isinstance(value, dict):
        members = {name: without_empty(item) for name, item in value.items()}
        return {name: item for name, item in members.items() if item is not None} or None
    if isinstance(value, list):
        items = [without_empty(item) for item in value]
        return [item for item in items if item is not None] or None
    if value == "":
        return None
    return value


def as_the_sdk_signs(body: dict[str, Any]) -> bytes:
    known = MessageToDict(ParseDict(body, pb.AgentCard()))
    return sdk_canonicalize(without_empty(known)).encode()


async def test_a_card_signed_in_the_form_of_a2a_sdk_is_accepted(server: ScriptedServer, connect: Connect) -> None:
    body = signed(rich(server.url), as_the_sdk_signs)

    assert await discover(server, connect, body) == "Scripted"
    assert await discover(server, connect, card_03(server.url) | bloated(body)) == "Scripted"


async def test_a_0_3_card_signed_in_its_own_form_is_accepted(server: ScriptedServer, connect: Connect) -> None:
    assert await discover(server, connect, signed(card_03(server.url, description=""))) == "Scripted"


async def test_a_card_for_both_versions_with_a_signed_1_0_half_is_accepted(
    server: ScriptedServer, connect: Connect
) -> None:
    body = card_03(server.url) | signed(card(server.url))

    assert await discover(server, connect, body) == "Scripted"


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (RSAKey.generate_key(2048, {"kid": "key-1"}), "RS256"),
        (RSAKey.generate_key(2048, {"kid": "key-1"}), "PS256"),
        (OKPKey.generate_key("Ed25519", {"kid": "key-1"}), "EdDSA"),
        pytest.param(OKPKey.generate_key("Ed25519", {"kid": "key-1"}), "Ed25519", marks=NEWER),
        (ECKey.generate_key("P-384", {"kid": "key-1"}), "ES384"),
    ],
)
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
async def test_other_signature_algorithms_are_accepted(
    server: ScriptedServer, connect: Connect, key: Any, algorithm: str
) -> None:
    body = signed(card(server.url), key=key, alg=algorithm)

    assert await discover(server, connect, body, keys=key.as_dict(private=False)) == "Scripted"


async def test_one_valid_signature_of_several_is_enough(server: ScriptedServer, connect: Connect) -> None:
    body = signed(card(server.url))
    stranger = sign(b"{}", ECKey.generate_key("P-256"), kid="another")
    body["signatures"] = [{"protected": "!", "signature": ""}, stranger, *body["signatures"]]

    assert await discover(server, connect, body) == "Scripted"


def changed(body: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    *way, last = path.split(".")
    inner: Any = body
    for step in way:
        inner = inner[int(step) if step.isdecimal() else step]
    inner[last] = value
    return body


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "scripted"),
        ("supportedInterfaces.0.url", "http://127.0.0.1:1/"),
        ("supportedInterfaces.0.tenant", "x"),
        ("capabilities.streaming", True),
        ("capabilities.pushNotifications", False),
        ("capabilities.extensions.0.params.n", 2),
        ("securityRequirements", []),
        ("skills.0.description", "x"),
        ("iconUrl", ""),
    ],
)
async def test_a_changed_card_is_rejected(server: ScriptedServer, connect: Connect, path: str, value: object) -> None:
    body = changed(signed(rich(server.url)), path, value)

    with pytest.raises(A2ADiscoveryError, match=r"No signature of the agent card at .* is valid"):
        await discover(server, connect, body)


async def test_a_signature_with_a_flipped_bit_is_rejected(server: ScriptedServer, connect: Connect) -> None:
    body = signed(card(server.url))
    good = body["signatures"][0]["signature"]
    for place in (0, 20, 60):
        other = "A" if good[place] != "A" else "B"
        body["signatures"][0]["signature"] = good[:place] + other + good[place + 1 :]
        with pytest.raises(A2ADiscoveryError, match="is valid with the pinned keys"):
            await discover(server, connect, body)


async def test_a_card_without_a_canonical_form_is_rejected(server: ScriptedServer, connect: Connect) -> None:
    body = signed(card(server.url))
    body["capabilities"]["extensions"] = [{"uri": "u", "params": {"n": 2**53 + 1}}]

    with pytest.raises(A2ADiscoveryError, match="has no canonical form"):
        await discover(server, connect, body)


def forged(header: dict[str, Any], signature: str = "") -> dict[str, str]:
    protected = urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
    return {"protected": protected, "signature": signature}


async def test_a_forged_signature_is_rejected(server: ScriptedServer, connect: Connect) -> None:
    body = card(server.url)
    secret = OctKey.import_key(json.dumps(PUBLIC).encode())
    worthless = [
        forged({"alg": "none", "kid": "key-1"}),
        sign(canonicalize(body), secret, alg="HS256"),  # with the public key as the secret
        sign(canonicalize(body), ECKey.generate_key("P-256")),
        sign(canonicalize(body), kid="key-2"),
        forged({"alg": "ES256"}),
        forged({"alg": "ES256", "kid": 1}),
        forged({"alg": "ES256", "kid": "key-1", "crit": 1}),
        forged({"alg": "ES256", "kid": "key-1", "crit": [[]]}),
        {"protected": urlsafe_b64encode(b'{"x":' + b"[" * 6000).decode(), "signature": ""},
        {**sign(canonicalize(body), kid="key-2"), "header": {"kid": "key-1"}},
    ]
    for signature in worthless:
        with pytest.raises(A2ADiscoveryError, match="is valid with the pinned keys"):
            await discover(server, connect, body | {"signatures": [signature]})


async def test_an_expired_key_is_not_used(server: ScriptedServer, connect: Connect) -> None:
    body = signed(card(server.url))

    assert await discover(server, connect, body, keys=PUBLIC | {"exp": time.time() + 60})
    with pytest.raises(A2ADiscoveryError, match="is valid with the pinned keys"):
        await discover(server, connect, body, keys=PUBLIC | {"exp": time.time() - 1})


async def test_keys_are_not_fetched_from_an_address_in_the_card(server: ScriptedServer, connect: Connect) -> None:
    stranger = ECKey.generate_key("P-256", {"kid": "key-2"})
    server.on("/jwks.json", respond({"keys": [stranger.as_dict(private=False)]}))
    body = signed(card(server.url), key=stranger, kid="key-2", jku=f"{server.url}/jwks.json")

    with pytest.raises(A2ADiscoveryError, match="is valid with the pinned keys"):
        await discover(server, connect, body)
    assert server.asked("/jwks.json") == []


@pytest.mark.parametrize(
    ("policy", "unsigned", "wrong"),
    [(None, False, False), ("require", False, False), ("if-present", True, False), ("off", True, True)],
)
async def test_the_signature_policy_decides_which_cards_are_accepted(
    server: ScriptedServer, connect: Connect, policy: str | None, unsigned: bool, wrong: bool
) -> None:
    plain = card(server.url)
    bad = signed(card(server.url), lambda _: b"{}")
    for body, accepted in ((plain, unsigned), (bad, wrong), (signed(plain), True)):
        if accepted:
            assert await discover(server, connect, body, signatures=policy)
        else:
            with pytest.raises(A2ADiscoveryError):
                await discover(server, connect, body, signatures=policy)


async def test_the_extended_card_must_be_signed_too(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, respond(signed(card(server.url))))
    extended = card(server.url, name="Extended")
    server.on("/", result(extended), result(signed(extended)))
    client = connect(keys=KEYS)

    with pytest.raises(A2ADiscoveryError, match="is not signed"):
        await client.extended_card()
    assert (await client.agent_card).name == "Scripted"
    assert (await client.extended_card()).name == "Extended"


def test_an_invalid_key_set_is_a_value_error() -> None:
    for keys in ({"keys": 1}, {"keys": ["a"]}, {"keys": [{"kty": "EC", "kid": "a"}]}, {"keys": [PUBLIC | {"exp": []}]}):
        with pytest.raises(ValueError, match="key"):
            A2AClient("http://agent.example", keys=keys)


@pytest.mark.parametrize("key", [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}, {**PUBLIC, "kid": ""}])
def test_a_key_that_cannot_be_pinned_is_a_value_error(key: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be public and have a kid"):
        A2AClient("http://agent.example", keys={"keys": [key]})
