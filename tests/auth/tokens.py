"""Tokens for tests: made with a real library, signed with real keys."""

import base64
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

SECRET = "a secret of at least thirty-two characters"
RSA = RSAKey.generate_key(2048)
CLAIMS: dict[str, Any] = {"sub": "ada", "iss": "https://idp.example", "aud": "agents", "roles": ["admin"]}


def bearer(
    claims: dict[str, Any] | None = None, *, key: Any = None, alg: str = "HS256", **changes: Any
) -> dict[str, str]:
    """The Authorization header of a token; a change to None leaves the claim out."""
    said = CLAIMS if claims is None else claims
    whole = {"exp": int(time.time()) + 3600, **said, **changes}
    kept = {name: value for name, value in whole.items() if value is not None}
    token = jwt.encode({"alg": alg}, kept, key or OctKey.import_key(SECRET), algorithms=[alg])
    return {"authorization": f"Bearer {token}"}


def short_rsa_jwk() -> dict[str, str]:
    """An RSA key that can be broken; made without joserfc, which warns of it."""
    numbers = rsa.generate_private_key(65537, 1024).public_key().public_numbers()
    modulus = base64.urlsafe_b64encode(numbers.n.to_bytes(128)).rstrip(b"=").decode()
    return {"kty": "RSA", "n": modulus, "e": "AQAB"}
