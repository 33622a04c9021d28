"""Tokens for tests: made with a real library, signed with real keys."""

import time
from typing import Any

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
    whole = {"exp": int(time.time()) + 60, **said, **changes}
    kept = {name: value for name, value in whole.items() if value is not None}
    token = jwt.encode({"alg": alg}, kept, key or OctKey.import_key(SECRET), algorithms=[alg])
    return {"authorization": f"Bearer {token}"}
