"""An identity provider in a process of its own, shaped as Keycloak is: discovery, published keys, tokens, rotation.

`python -m tests.auth.issuer` listens on a free port of the loopback interface and says the issuer on standard error.
What only tests want stands under /test: a new key, a token with any claims, another behaviour, how often it was asked.
"""

import json
import sys
import threading
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlsplit

import httpx
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from tests.processes import PATIENCE, running

REALM = "/realms/main"
DISCOVERY = f"{REALM}/.well-known/openid-configuration"
CERTS = f"{REALM}/protocol/openid-connect/certs"
TOKEN = f"{REALM}/protocol/openid-connect/token"


# ---- the process -----------------------------------------------------------------------------------------------------


class Issuer:
    """The keys and the behaviour of the provider. The last key signs; all that were not dropped are published."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys: list[RSAKey | ECKey] = []
        self.behaviour = "well"
        self.asked: dict[str, int] = {}
        self.released = threading.Event()
        self.rotate()

    def rotate(self) -> None:
        self.keys.append(RSAKey.generate_key(2048, parameters={"kid": f"key-{len(self.keys) + 1}"}))

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url + REALM,
            "authorization_endpoint": f"{self.url}{REALM}/protocol/openid-connect/auth",
            "token_endpoint": self.url + TOKEN,
            "jwks_uri": self.url + CERTS,
            "grant_types_supported": ["authorization_code", "client_credentials", "refresh_token"],
            "response_types_supported": ["code"],
            "subject_types_supported": ["public", "pairwise"],
            "id_token_signing_alg_values_supported": ["RS256", "ES256", "PS256"],
        }

    @property
    def names_keys(self) -> bool:
        return self.behaviour != "names no keys"

    def certs(self) -> dict[str, Any]:
        if not self.names_keys:  # then it publishes one key only, since a verifier could not choose between several
            unnamed = self.keys[-1].as_dict(private=False)
            del unnamed["kid"]
            return {"keys": [unnamed]}
        keys: list[dict[str, Any]] = [{**key.as_dict(private=False), "alg": "RS256", "use": "sig"} for key in self.keys]
        # As Keycloak does: a key for encryption beside those for signatures.
        keys.append({**self.keys[0].as_dict(private=False), "kid": "enc", "use": "enc", "alg": "RSA-OAEP"})
        return {"keys": keys}

    def token(self, claims: dict[str, Any]) -> str:
        now = int(time.time())
        whole = {
            "exp": now + 300,
            "iat": now,
            "jti": "d2c0f6a2",
            "iss": self.url + REALM,
            "aud": ["agents", "account"],
            "typ": "Bearer",
            "azp": "orchestrator",
            **claims,
        }
        key = self.keys[-1]
        header = {"alg": "RS256"}
        if self.names_keys:
            header["kid"] = str(key.kid)
        return jwt.encode(header, whole, key, algorithms=["RS256"])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    issuer: Issuer

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        issuer = self.issuer
        issuer.asked[path] = issuer.asked.get(path, 0) + 1
        if path == DISCOVERY:
            self.answer(issuer.discovery())
        elif path == CERTS:
            self.answer_certs()
        elif path == "/elsewhere":
            self.answer(issuer.certs())
        elif path == "/test/asked":
            self.answer(issuer.asked)
        else:
            self.answer({}, 404)

    def answer_certs(self) -> None:
        match self.issuer.behaviour:
            case "hangs":
                self.issuer.released.wait(PATIENCE)
                self.answer({}, 500)
            case "fails":
                self.answer({}, 500)
            case "is garbage":
                self.write(200, b"<html>maintenance</html>")
            case "is empty":
                self.answer({"keys": []})
            case "is endless":
                self.write(200, json.dumps(self.issuer.certs()).encode() + b" " * 2_000_000)
            case "redirects":
                self.write(302, b"", location="/elsewhere")
            case _:
                self.answer(self.issuer.certs())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        path = urlsplit(self.path).path
        issuer = self.issuer
        if path == TOKEN:
            form = parse_qs(body)
            claims = {"sub": self.client_id(form), "scope": form.get("scope", [""])[0]}
            self.answer({"access_token": issuer.token(claims), "token_type": "Bearer", "expires_in": 300})
            return
        if path == "/test/rotate":
            issuer.rotate()
        elif path == "/test/drop":
            del issuer.keys[0]
        elif path == "/test/behave":
            issuer.behaviour = body
            issuer.released.set()
            issuer.released = threading.Event()
        elif path == "/test/token":
            self.answer({"access_token": issuer.token(json.loads(body))})
            return
        self.answer({})

    def client_id(self, form: dict[str, list[str]]) -> str:
        """Who asks for a token: as the form says, or as the header does (RFC 6749 §2.3.1)."""
        if "client_id" in form:
            return form["client_id"][0]
        pair = b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        return unquote_plus(pair.partition(":")[0])

    def answer(self, value: Any, status: int = 200) -> None:
        self.write(status, json.dumps(value).encode())

    def write(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.issuer = Issuer(f"http://127.0.0.1:{server.server_port}")
    print(f"issuer {Handler.issuer.url}", file=sys.stderr, flush=True)
    server.serve_forever()


# ---- the tests' side -------------------------------------------------------------------------------------------------


class Provider:
    """The running provider, as a test talks to it."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.issuer = url + REALM
        self.jwks_url = url + CERTS
        self.token_url = url + TOKEN
        self._url = url
        self._http = http

    async def bearer(self, **claims: Any) -> dict[str, str]:
        """The Authorization header of a token of ada's, signed with the newest key."""
        answer = await self._http.post(f"{self._url}/test/token", json={"sub": "ada", **claims})
        return {"authorization": f"Bearer {answer.json()['access_token']}"}

    async def rotate(self) -> None:
        await self._http.post(f"{self._url}/test/rotate")

    async def drop(self) -> None:
        await self._http.post(f"{self._url}/test/drop")

    async def behave(self, how: str) -> None:
        await self._http.post(f"{self._url}/test/behave", content=how)

    async def asked(self, path: str) -> int:
        """Return how often a document was requested."""
        answer = await self._http.get(f"{self._url}/test/asked")
        return int(answer.json().get(path, 0))


@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    """A provider that runs until the end of the test."""
    async with running("-m", "tests.auth.issuer") as process, httpx.AsyncClient(timeout=PATIENCE) as http:
        url = await process.says(r"issuer (\S+)")
        yield Provider(url[1], http)


if __name__ == "__main__":
    main()
