"""The agent card in A2A 0.3, and the hybrid that the SDKs of both generations read.

Invariant: `decode` accepts any card: 0.3, 1.0 or a hybrid. If a hybrid has a value in both forms, 1.0 counts.
"""

from typing import Any, Final

import msgspec

from apcore_a2a.protocol import decoding, v1
from apcore_a2a.protocol.card import STATE_HISTORY, AgentCard, SecurityRequirement, SecurityScheme
from apcore_a2a.protocol.decoding import inverted
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
_TYPE_OF_SCHEME: Final = inverted(SCHEME_TYPES)


# ---- encoding ----------------------------------------------------------------------------------------------------


def to_json(card: AgentCard) -> Json:
    """Return the 0.3 card as Python objects."""
    # A hybrid card without the fields that only 1.0 has.
    body = to_hybrid_json(card)
    del body["supportedInterfaces"]
    body.pop("securityRequirements", None)
    body["capabilities"].pop("extendedAgentCard", None)
    for skill in body["skills"]:
        skill.pop("securityRequirements", None)
        skill.setdefault("examples", [])  # FR-SKL-002
    for scheme in body.get("securitySchemes", {}).values():
        for name in _TYPE_OF_SCHEME:
            scheme.pop(name, None)
    return body


def to_hybrid_json(card: AgentCard) -> Json:
    """Return the 1.0 card with the fields of 0.3 added. The parser of each version ignores the other fields."""
    body: Json = msgspec.to_builtins(card)
    _add_interfaces(body, card)
    extensions = {extension.uri for extension in card.capabilities.extensions}
    # The extension holds the past states. `history` holds messages.
    body["capabilities"]["stateTransitionHistory"] = STATE_HISTORY in extensions
    if card.capabilities.extended_agent_card is not None:
        body["supportsAuthenticatedExtendedCard"] = card.capabilities.extended_agent_card
    for holder in (body, *body["skills"]):
        if "securityRequirements" in holder:
            holder["security"] = [_from_requirement(entry) for entry in holder["securityRequirements"]]
    for scheme in body.get("securitySchemes", {}).values():
        scheme.update(_from_scheme(scheme))
    return body


def _add_interfaces(body: Json, card: AgentCard) -> None:
    """Add the URLs of the agent as in 0.3: a main URL, and a list of all."""
    served = [one for one in card.supported_interfaces if _minor(one.protocol_version) == "0.3"]
    if not served:
        served = list(card.supported_interfaces[:1])  # one URL serves both versions
    url = ""
    transport = "JSONRPC"
    if served:
        url = served[0].url
        transport = served[0].protocol_binding
    body["protocolVersion"] = PROTOCOL_VERSION
    body["url"] = url
    body["preferredTransport"] = transport
    if len(served) == 1:
        return  # the list is optional, and one address in two places is rewritten by some gateways in one of them
    # The main URL is repeated among the additional ones, as 0.3.0 asks (SHOULD), so that the list is complete.
    interfaces: list[Json] = []
    for one in served:
        interface = {"url": one.url, "transport": one.protocol_binding}
        interfaces.append(interface)
    body["additionalInterfaces"] = interfaces


def _minor(version: str) -> str:
    """Return the version without its patch number: 0.3.0 and 0.3 are equal."""
    return ".".join(version.split(".")[:2])


def _from_requirement(entry: SecurityRequirement) -> Requirement:
    flat: Requirement = {}
    for name, scopes in entry["schemes"].items():
        flat[name] = scopes.get("list", [])  # ProtoJSON omits an empty list
    return flat


def _from_scheme(scheme: SecurityScheme) -> Json:
    # In 1.0 the name of the only member is the type of the scheme. In 0.3, as in OpenAPI, a field has it.
    ((name, fields),) = scheme.items()
    flat = {"type": _TYPE_OF_SCHEME[name], **fields}
    if "location" in flat:
        flat["in"] = flat.pop("location")
    return flat


# ---- decoding ----------------------------------------------------------------------------------------------------


class _Interface(Value, frozen=True):
    url: str
    transport: str


class _Skill(Value, frozen=True):
    security: tuple[Requirement, ...] = ()


class _Card(Value, frozen=True):
    """The fields of a card that differ in 0.3. All others are the same in both versions."""

    url: str = ""
    preferred_transport: str = "JSONRPC"
    protocol_version: str = PROTOCOL_VERSION
    additional_interfaces: tuple[_Interface, ...] = ()
    supports_authenticated_extended_card: bool | None = None
    capabilities: Json | None = None
    security_schemes: dict[str, Json] | None = None
    security: tuple[Requirement, ...] = ()
    skills: tuple[_Skill, ...] = ()


_CARD: Final = decoding.LooseDecoder(_Card)
_BODY: Final = msgspec.json.Decoder(Json)


def decode(data: bytes) -> AgentCard:
    """Decode any card: the fields of 0.3 are converted to those of 1.0, and 1.0 decodes the result."""
    old = _CARD.decode(data)
    body = decoding.decode(data, _BODY)
    if old.url and "supportedInterfaces" not in body:
        body["supportedInterfaces"] = _interfaces(old)
    extended = old.supports_authenticated_extended_card
    if extended is not None and old.capabilities is not None:
        # First, so that the value of a hybrid takes precedence.
        body["capabilities"] = {"extendedAgentCard": extended, **old.capabilities}
    if old.security_schemes is not None:
        body["securitySchemes"] = _to_schemes(old.security_schemes)
    _add_requirements(body, old.security)
    for skill, old_skill in zip(body.get("skills") or (), old.skills, strict=True):
        _add_requirements(skill, old_skill.security)
    return v1.decode_card(encode(body))


def _interfaces(old: _Card) -> list[Json]:
    # A dictionary for its keys: the main URL is mostly among the additional ones too, and comes first.
    served = {(old.url, old.preferred_transport): None}
    for additional in old.additional_interfaces:
        served[additional.url, additional.transport] = None
    version = _minor(old.protocol_version)
    interfaces: list[Json] = []
    for url, binding in served:
        interface = {"url": url, "protocolBinding": binding, "protocolVersion": version}
        interfaces.append(interface)
    return interfaces


def _add_requirements(holder: Json, security: tuple[Requirement, ...]) -> None:
    if security and "securityRequirements" not in holder:
        holder["securityRequirements"] = [_to_requirement(entry) for entry in security]


def _to_requirement(entry: Requirement) -> SecurityRequirement:
    schemes: dict[str, dict[str, list[str]]] = {}
    for name, scopes in entry.items():
        schemes[name] = {"list": scopes}
    return {"schemes": schemes}


def _to_schemes(old: dict[str, Json]) -> dict[str, SecurityScheme]:
    schemes: dict[str, SecurityScheme] = {}
    for name, old_scheme in old.items():
        scheme = _to_scheme(old_scheme)
        if scheme is not None:
            schemes[name] = scheme
    return schemes


def _to_scheme(scheme: Json) -> SecurityScheme | None:
    """Return the 1.0 form, or None for an unknown type of scheme."""
    for name in _TYPE_OF_SCHEME:
        if isinstance(scheme.get(name), dict):  # a hybrid has both forms
            return {name: scheme[name]}
    known = SCHEME_TYPES.get(str(scheme.get("type")))
    if known is None:
        return None
    fields: Json = {}
    for name, value in scheme.items():
        if name == "in":
            fields["location"] = value
        elif name != "type":
            fields[name] = value
    return {known: fields}
