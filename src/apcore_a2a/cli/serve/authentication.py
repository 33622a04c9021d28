"""The authentication flags of `apcore-a2a serve`.

Invariant: an agent for which authentication is requested never starts without it because a flag or a variable is
missing.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from apcore_a2a.auth.api_keys import APIKeyAuthenticator
from apcore_a2a.auth.authenticator import Authenticator
from apcore_a2a.auth.client_certificates import ClientCertificateAuthenticator
from apcore_a2a.auth.jwt import LEEWAY, ClaimMapping, JWTAuthenticator
from apcore_a2a.cli.options import combine
from apcore_a2a.cli.serve.setting_options import serve_option, setting_option

BEARER: Final = "bearer"
API_KEY: Final = "api-key"
OIDC: Final = "oidc"
MTLS: Final = "mtls"
CLAIMS: Final = ClaimMapping()  # the defaults of the --auth-…-claim flags

auth_options: Final = combine(
    serve_option(
        "--auth-type",
        type=click.Choice([BEARER, API_KEY, OIDC, MTLS]),
        multiple=True,
        help="Require a JWT (bearer), a JWT of an OpenID Connect issuer (oidc), an API key (api-key), or a client "
        "certificate (mtls). Repeat it to accept any one of several.",
    ),
    serve_option("--auth-key", variable="JWT_KEY", help="JWT key: a shared secret, or @FILE with a PEM public key."),
    serve_option(
        "--auth-key-file",
        metavar="FILE",
        help="File with the JWT key, or for api-key with the hashes of API keys ('apcore-a2a keys new' writes it).",
    ),
    serve_option(
        "--auth-issuer", variable="JWT_ISSUER", help="Issuer of the tokens. Without a key, its keys are discovered."
    ),
    serve_option(
        "--auth-audience",
        variable="JWT_AUDIENCE",
        multiple=True,
        help="Audience that the token must name. May be repeated to accept any one of several.",
    ),
    serve_option(
        "--auth-jwks-url", variable="JWT_JWKS_URL", metavar="URL", help="Address of the issuer's published keys."
    ),
    serve_option(
        "--auth-id-claim",
        variable="JWT_ID_CLAIM",
        default=CLAIMS.id,
        show_default=True,
        help="Claim with the caller's id. Entra ID: oid.",
    ),
    serve_option(
        "--auth-roles-claim",
        variable="JWT_ROLES_CLAIM",
        default=CLAIMS.roles,
        show_default=True,
        help="Claim with the caller's roles. Keycloak: realm_access.roles.",
    ),
    serve_option(
        "--auth-scopes-claim",
        variable="JWT_SCOPES_CLAIM",
        multiple=True,
        default=CLAIMS.scopes,
        show_default=True,
        help="Claim with the caller's scopes. Auth0: permissions. May be repeated: the scopes of all of them add up.",
    ),
    serve_option(
        "--auth-leeway",
        variable="JWT_LEEWAY",
        type=click.IntRange(min=0),
        default=LEEWAY,
        show_default=True,
        help="Allowed clock skew of the issuer in seconds. 0 allows none.",
    ),
    setting_option("skill_scopes"),
    setting_option("admin_role"),
    setting_option("audit_log"),
)


def choose_authenticators(given: dict[str, Any]) -> list[Authenticator] | None:  # Any: the values of the flags
    """Return the authenticators that the flags describe, or None without authentication."""
    kinds = given["auth_type"] or _guess_kind(given)
    if not kinds:
        return None
    return [_MAKERS[kind](given) for kind in dict.fromkeys(kinds)]


def _guess_kind(given: dict[str, Any]) -> tuple[str, ...]:
    """Return the kind of authentication that other flags imply, if --auth-type is missing.

    Raises:
        click.ClickException: a flag of authentication does not imply a kind.
    """
    if given["auth_key"] or given["auth_jwks_url"] or given["auth_issuer"]:
        return (BEARER,)
    for flag in ("auth_key_file", "auth_audience"):
        if given[flag]:
            name = flag.replace("_", "-")
            raise click.ClickException(f"--{name} is given without --auth-type: add bearer, api-key or oidc")
    return ()


def _make_bearer(given: dict[str, Any]) -> Authenticator:
    key = given["auth_key"]
    if key is not None and key.startswith("@"):
        key = _read_key(key[1:])
    elif key is not None and os.path.isfile(key):  # a file name is not a secret: an attacker could guess it
        raise click.ClickException(f"--auth-key names a file: write @{key}, or use --auth-key-file")
    elif key is None and given["auth_key_file"] and API_KEY not in given["auth_type"]:
        key = _read_key(given["auth_key_file"])
    if not (key or given["auth_jwks_url"] or given["auth_issuer"]):
        raise click.ClickException(
            "--auth-key is required when --auth-type is bearer; or --auth-issuer, or --auth-jwks-url"
        )
    return _make_jwt(given, key)


def _make_oidc(given: dict[str, Any]) -> Authenticator:
    if not given["auth_issuer"]:
        raise click.ClickException("--auth-issuer is required when --auth-type is oidc")
    if given["auth_key"]:
        raise click.ClickException("--auth-key is not for --auth-type oidc, whose keys the issuer publishes")
    return _make_jwt(given, None)


def _make_jwt(given: dict[str, Any], key: str | None) -> Authenticator:
    try:
        return JWTAuthenticator(
            key,
            jwks_url=given["auth_jwks_url"],
            issuer=given["auth_issuer"],
            audience=given["auth_audience"] or None,
            leeway=given["auth_leeway"],
            claim_mapping=ClaimMapping(
                id=given["auth_id_claim"], roles=given["auth_roles_claim"], scopes=given["auth_scopes_claim"]
            ),
        )
    except ValueError as error:
        raise click.ClickException(f"JWT key not usable: {error}") from error


def _make_api_keys(given: dict[str, Any]) -> Authenticator:
    if not given["auth_key_file"]:
        raise click.ClickException(
            "--auth-key-file is required when --auth-type is api-key; 'apcore-a2a keys new' makes one"
        )
    try:
        return APIKeyAuthenticator(Path(given["auth_key_file"]))
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _make_mtls(given: dict[str, Any]) -> Authenticator:
    if not given["ssl_ca_certs"] and not given["trusted_proxies"]:
        raise click.ClickException(
            "--auth-type mtls needs --ssl-ca-certs, the authorities that issue the client certificates; "
            "or --trusted-proxies, if a proxy requests the certificates"
        )
    return ClientCertificateAuthenticator()


_MAKERS: Final[dict[str, Callable[[dict[str, Any]], Authenticator]]] = {
    BEARER: _make_bearer,
    OIDC: _make_oidc,
    API_KEY: _make_api_keys,
    MTLS: _make_mtls,
}


def _read_key(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        raise click.ClickException(f"JWT key file not readable: {path}") from error
