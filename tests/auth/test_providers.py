"""Tokens and keys in the shapes that well-known providers give them, with the settings of docs/auth.md for each."""

from typing import Any, NamedTuple

import pytest
from joserfc.jwk import ECKey, OKPKey

from apcore_a2a import ClaimMapping, JWTAuthenticator
from apcore_a2a.auth.authenticator import AnyOf
from apcore_a2a.auth.keys import import_published_keys
from tests.auth.tokens import RSA, SECRET, bearer

TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47"
ENTRA_1 = f"https://sts.windows.net/{TENANT}/"
ENTRA_2 = f"https://login.microsoftonline.com/{TENANT}/v2.0"
KEYCLOAK = "https://sso.example.com/realms/main"
AUTH0 = "https://tenant.auth0.com/"
COGNITO = "https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_AbC"


class Provider(NamedTuple):
    """A token of a provider, what the agent is told of the provider, and who the token's bearer is."""

    issuer: str
    audience: str | None
    mapping: ClaimMapping
    claims: dict[str, Any]
    id: str
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


PROVIDERS = {
    "Keycloak, roles of the realm": Provider(
        KEYCLOAK,
        "agents",
        ClaimMapping(roles="realm_access.roles"),
        {
            "sub": "f1",
            "aud": ["agents", "account"],
            "typ": "Bearer",
            "azp": "web",
            "realm_access": {"roles": ["ops"]},
            "scope": "profile email",
        },
        "f1",
        ("ops",),
        ("email", "profile"),
    ),
    "Keycloak, roles of a client": Provider(
        KEYCLOAK,
        "agents",
        ClaimMapping(roles="resource_access.agents.example.roles"),
        {"sub": "f1", "aud": "agents", "resource_access": {"agents.example": {"roles": ["ops"]}}},
        "f1",
        ("ops",),
    ),
    "Entra ID, a user": Provider(
        ENTRA_2,
        "11111111-api",
        ClaimMapping(id="oid"),
        {"sub": "pairwise", "oid": "o1", "aud": "11111111-api", "scp": "access_as_user Tasks.Read", "ver": "2.0"},
        "o1",
        (),
        ("Tasks.Read", "access_as_user"),
    ),
    "Entra ID, an application": Provider(
        ENTRA_2,
        "11111111-api",
        ClaimMapping(scopes=("scp", "roles")),
        {"sub": "o2", "oid": "o2", "aud": "11111111-api", "roles": ["Tasks.All"], "idtyp": "app", "azp": "c"},
        "o2",
        ("Tasks.All",),
        ("Tasks.All",),
    ),
    "Entra ID, version 1": Provider(
        ENTRA_1,
        "api://11111111-api",
        ClaimMapping(),
        {"sub": "pairwise", "aud": "api://11111111-api", "scp": "access_as_user", "ver": "1.0", "appid": "c"},
        "pairwise",
        (),
        ("access_as_user",),
    ),
    "Auth0, a user": Provider(
        AUTH0,
        "https://agents.example.com",
        ClaimMapping(roles="https://example.com/roles", scopes=("scope", "permissions")),
        {
            "sub": "auth0|123",
            "aud": ["https://agents.example.com", f"{AUTH0}userinfo"],
            "scope": "openid",
            "permissions": ["read:tasks"],
            "https://example.com/roles": ["ops"],
        },
        "auth0|123",
        ("ops",),
        ("openid", "read:tasks"),
    ),
    "Okta": Provider(
        "https://example.okta.com/oauth2/default",
        "api://default",
        ClaimMapping(roles="groups"),
        {"sub": "ada@example.com", "aud": "api://default", "scp": ["openid", "tasks"], "groups": ["Everyone"]},
        "ada@example.com",
        ("Everyone",),
        ("openid", "tasks"),
    ),
    "Cognito, whose tokens have no audience": Provider(
        COGNITO,
        None,
        ClaimMapping(roles="cognito:groups"),
        {"sub": "s1", "token_use": "access", "client_id": "c", "scope": "agents/call", "cognito:groups": ["ops"]},
        "s1",
        ("ops",),
        ("agents/call",),
    ),
}


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
def test_the_token_of_a_provider_names_its_bearer(provider: Provider) -> None:
    auth = JWTAuthenticator(SECRET, issuer=provider.issuer, audience=provider.audience, claim_mapping=provider.mapping)
    caller = auth.authenticate(bearer({**provider.claims, "iss": provider.issuer}))
    assert caller is not None
    assert (caller.id, caller.issuer) == (provider.id, provider.issuer)
    assert (caller.roles, caller.scopes) == (provider.roles, provider.scopes)


async def test_applications_whose_tokens_have_no_subject_are_known_by_another_claim() -> None:
    people = JWTAuthenticator(SECRET, issuer=KEYCLOAK)
    applications = JWTAuthenticator(SECRET, issuer=KEYCLOAK, claim_mapping=ClaimMapping(id="azp"))
    auth = AnyOf([people, applications])
    found = [
        await auth.authenticate(bearer({"iss": KEYCLOAK, "azp": "nightly", **more})) for more in ({}, {"sub": "ada"})
    ]
    assert [caller and caller.id for caller in found] == ["nightly", "ada"]


CERTIFIED = {**RSA.as_dict(private=False), "x5t": "abc", "x5c": ["MIIC/zCCAeegAwIBAgIQ"], "issuer": ENTRA_2}
BESIDE = {
    "a certificate alone": {"kty": "RSA", "kid": "other", "use": "sig", "x5c": ["MIIC/zCCAeegAwIBAgIQ"]},
    "an unknown kind of key": {"kty": "AKP", "kid": "other", "alg": "ML-DSA-44", "pub": "AA"},
    "P-521": {**ECKey.generate_key("P-521").as_dict(private=False), "kid": "other"},
    "Ed448": {**OKPKey.generate_key("Ed448").as_dict(private=False), "kid": "other"},
    "half a key": {"kty": "EC", "kid": "other", "crv": "P-256", "x": "AA"},
}


@pytest.mark.parametrize("other", BESIDE.values(), ids=BESIDE)
def test_a_key_is_used_whatever_stands_beside_it(other: dict[str, Any]) -> None:
    keys = import_published_keys({"keys": [other, {**CERTIFIED, "kid": "one"}]})
    assert keys.find("one", "RS256") is not None  # it names no algorithm: those of its kind will do
    assert keys.find(None, "RS256") is not None  # a token need not say which, where only one fits
    assert keys.find("other", "RS256") is None
