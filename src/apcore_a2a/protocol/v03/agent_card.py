"""The agent card in A2A 0.3, and the hybrid that the SDKs of both generations read.

Rule: `decode` reads any card: 0.3, 1.0 or both in one. Where a hybrid says a thing twice, 1.0 counts.
"""

from typing import Any, Final

import msgspec
from msgspec import inspect

from apcore_a2a.protocol import decoding, v1
from apcore_a2a.protocol.card import AgentCard, SecurityRequirement, SecurityScheme
from apcore_a2a.protocol.model import Value, encode

Json = dict[str, Any]
Requirement = dict[str, list[str]]  # {scheme name: [scope, …]}

PROTOCOL_VERSION: Final = "0.3.0"
SCHEME_TYPES: Final = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}
_TYPE_OF_SCHEME: Final = {name: type_ for type_, name in SCHEME_TYPES.items()}


# ---- out ---------------------------------------------------------------------------------------------------------


def to_json(card: AgentCard) -> Json:
    """The 0.3 card, as Python objects."""
    body = to_hybrid_json(card)
    del body["supportedInterfaces"]
    body.pop("securityRequirements", None)
    body["capabilities"].pop("extendedAgentCard", None)
    for skill in body["skills"]:
        skill.pop("securityRequirements", None)
    for scheme in body.get("securitySchemes", {}).values():
        for name in _TYPE_OF_SCHEME:
            scheme.pop(name, None)
    return body


def to_hybrid_json(card: AgentCard) -> Json:
    """The 1.0 card with the fields of 0.3 beside its own; each generation's parser ignores the other's."""
    body: Json = msgspec.to_builtins(card)
    served = [one for one in card.supported_interfaces if _minor(one.protocol_version) == "0.3"]
    served = served or list(card.supported_interfaces[:1])  # one URL answers to both versions
    body["protocolVersion"] = PROTOCOL_VERSION
    body["url"] = served[0].url if served else ""
    body["preferredTransport"] = served[0].protocol_binding if served else "JSONRPC"
    body["additionalInterfaces"] = [{"url": one.url, "transport": one.protocol_binding} for one in served]
    body["capabilities"]["stateTransitionHistory"] = False  # `history` holds messages; past states are not kept
    if card.capabilities.extended_agent_card is not None:
        body["supportsAuthenticatedExtendedCard"] = card.capabilities.extended_agent_card
    for holder in (body, *body["skills"]):
        if "securityRequirements" in holder:
            holder["security"] = [_requirement(entry) for entry in holder["securityRequirements"]]
    for scheme in body.get("securitySchemes", {}).values():
        scheme.update(_scheme(scheme))
    return body


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _requirement(entry: SecurityRequirement) -> Requirement:
    return {name: scopes.get("list", []) for name, scopes in entry["schemes"].items()}


def _scheme(scheme: SecurityScheme) -> Json:
    ((name, fields),) = scheme.items()
    flat = {"type": _TYPE_OF_SCHEME[name], **fields}
    if "location" in flat:
        flat["in"] = flat.pop("location")
    return flat


# ---- in ----------------------------------------------------------------------------------------------------------


class _Interface(Value, frozen=True):
    url: str
    transport: str


class _Skill(Value, frozen=True):
    security: tuple[Requirement, ...] = ()


class _Card(Value, frozen=True):
    """What 0.3 says in its own way; the rest of a card is the same in both versions."""

    url: str = ""
    preferred_transport: str = "JSONRPC"
    protocol_version: str = PROTOCOL_VERSION
    additional_interfaces: tuple[_Interface, ...] = ()
    supports_authenticated_extended_card: bool | None = None
    capabilities: Json | None = None
    security_schemes: dict[str, Json] | None = None
    security: tuple[Requirement, ...] = ()
    skills: tuple[_Skill, ...] = ()


_CARD: Final = (msgspec.json.Decoder(_Card), inspect.type_info(_Card))
_BODY: Final = msgspec.json.Decoder(Json)


def decode(data: bytes) -> AgentCard:
    old = decoding.decode_loosely(data, *_CARD)
    body = decoding.decode(data, _BODY)
    if old.url and "supportedInterfaces" not in body:
        body["supportedInterfaces"] = _interfaces(old)
    extended = old.supports_authenticated_extended_card
    if extended is not None and old.capabilities is not None:
        body["capabilities"] = {"extendedAgentCard": extended, **old.capabilities}
    if old.security_schemes is not None:
        schemes = {name: _to_scheme(scheme) for name, scheme in old.security_schemes.items()}
        body["securitySchemes"] = {name: scheme for name, scheme in schemes.items() if scheme is not None}
    _secure(body, old.security)
    for skill, old_skill in zip(body.get("skills") or (), old.skills, strict=True):
        _secure(skill, old_skill.security)
    return v1.decode_card(encode(body))


def _interfaces(old: _Card) -> list[Json]:
    version = _minor(old.protocol_version)
    served = dict.fromkeys(
        [(old.url, old.preferred_transport), *((i.url, i.transport) for i in old.additional_interfaces)]
    )
    return [{"url": url, "protocolBinding": binding, "protocolVersion": version} for url, binding in served]


def _secure(holder: Json, security: tuple[Requirement, ...]) -> None:
    if security and "securityRequirements" not in holder:
        holder["securityRequirements"] = [_to_requirement(entry) for entry in security]


def _to_requirement(entry: Requirement) -> SecurityRequirement:
    return {"schemes": {name: {"list": scopes} for name, scopes in entry.items()}}


def _to_scheme(scheme: Json) -> SecurityScheme | None:
    """The 1.0 form; None for a kind of scheme that neither version has."""
    for name in _TYPE_OF_SCHEME:
        if isinstance(scheme.get(name), dict):
            return {name: scheme[name]}
    known = SCHEME_TYPES.get(str(scheme.get("type")))
    if known is None:
        return None
    fields = {("location" if name == "in" else name): value for name, value in scheme.items() if name != "type"}
    return {known: fields}
