"""The card of an agent that brought none, and what this server adds to every card."""

from typing import Any, Final

from msgspec.structs import replace

from apcore_a2a.auth.authenticator import Authenticator, security_schemes
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentExtension, AgentSkill, SecurityScheme
from apcore_a2a.settings import Settings

IDEMPOTENCY: Final = AgentExtension(
    uri="urn:apcore:a2a:idempotency-key:1",
    description="A send repeated with the same Idempotency-Key header answers with the same task",
)


def plain_card(target: Any, settings: Settings) -> AgentCard:  # Any: a function, an executor, an agent
    """A card for an agent that brought none: named for the function or class, described by its docstring."""
    name = settings.name or str(getattr(target, "__name__", type(target).__name__))
    about = (
        settings.description
        or (getattr(target, "__doc__", None) or "").strip().partition("\n")[0]
        or f"The agent {name}"
    )
    modes = ("text/plain", "application/json")
    return AgentCard(
        name=name,
        description=about,
        version=settings.version or "0.0.0",
        supported_interfaces=(),
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=modes,
        default_output_modes=modes,
        skills=(AgentSkill(id=name, name=name, description=about, tags=()),),
    )


def complete(card: AgentCard, auth: Authenticator | None) -> AgentCard:
    """The card with what this server adds: webhooks (none yet), its extensions, and what a caller must show."""
    capabilities = replace(
        card.capabilities,
        push_notifications=False,
        extended_agent_card=auth is not None,
        extensions=(*card.capabilities.extensions, IDEMPOTENCY),
    )
    card = replace(card, capabilities=capabilities)
    if auth is None:
        return card
    schemes = {_scheme_name(scheme): _to_scheme(scheme) for scheme in security_schemes(auth)}
    requirements = tuple({"schemes": {name: {"list": list[str]()}}} for name in schemes)
    return replace(card, security_schemes=schemes, security_requirements=requirements)


_MEMBERS: Final = {
    "http": "httpAuthSecurityScheme",
    "apiKey": "apiKeySecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}


def _scheme_name(scheme: dict[str, Any]) -> str:
    return str(scheme.get("scheme") or scheme.get("type"))


def _to_scheme(scheme: dict[str, Any]) -> SecurityScheme:
    """OpenAPI's way to write a security scheme, as A2A 1.0 writes it."""
    fields = {("location" if name == "in" else name): value for name, value in scheme.items() if name != "type"}
    return {_MEMBERS[scheme["type"]]: fields}
