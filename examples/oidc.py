"""An agent behind an OpenID Connect provider. Callers need a token, and some skills need a scope.

OIDC_ISSUER=https://id.example.com/realms/main OIDC_AUDIENCE=agents python examples/oidc.py
apcore-a2a send http://127.0.0.1:8000 --skill look --bearer "$TOKEN"
"""

import os

from starlette.applications import Starlette

from apcore_a2a import Call, JWTAuthenticator, create_app, serve, skill


@skill(annotations={"readonly": True})
async def look(call: Call) -> str:
    """Say who calls."""
    return f"You are {call.caller.id}"


@skill(annotations={"destructive": True})
async def remove(name: str) -> str:
    """Remove something. It needs the scope agents:write."""
    return f"Removed {name}"


SKILLS = [look, remove]
SCOPES = {"remove": ["agents:write"]}


def authenticator() -> JWTAuthenticator:
    """Return what verifies the tokens: the keys are found by the discovery of OpenID Connect."""
    return JWTAuthenticator(issuer=os.environ["OIDC_ISSUER"], audience=os.environ.get("OIDC_AUDIENCE", "agents"))


def app() -> Starlette:
    """Return the application, for `uvicorn --factory examples.oidc:app`."""
    return create_app(SKILLS, auth=authenticator(), skill_scopes=SCOPES)


if __name__ == "__main__":
    serve(SKILLS, auth=authenticator(), skill_scopes=SCOPES, host="127.0.0.1", port=8000)
