"""The cost of authentication: a new token, a cached token, an API key, and the whole middleware.

python -m benchmarks.bench_auth

Each figure is the median call, in wall time of one process. A run takes two seconds.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from apcore_a2a.app.access import AuthMiddleware
from apcore_a2a.auth.api_keys import APIKeyAuthenticator, hash_key, new_key
from apcore_a2a.auth.authenticator import identify
from apcore_a2a.auth.jwt import JWTAuthenticator

ROUNDS = 2_000
LIMIT = 100.0  # microseconds for a cached token


def tokens(key: Any, alg: str, count: int) -> list[str]:
    """Create tokens like those of identity providers, about 900 characters each."""
    made: list[str] = []
    for number in range(count):
        claims = {
            "sub": f"user-{number}",
            "iss": "https://idp.example/realms/main",
            "aud": "agents",
            "exp": int(time.time()) + 600,
            "realm_access": {"roles": ["offline_access", "uma_authorization", "operator"]},
            "scope": "openid profile email",
            "email": "user@example.com",
        }
        made.append(jwt.encode({"alg": alg, "kid": "one"}, claims, key, algorithms=[alg]))
    return made


async def p50(work: Callable[[int], Awaitable[object]], rounds: int = ROUNDS) -> float:
    """Return the median call in microseconds."""
    taken: list[float] = []
    for number in range(rounds):
        begun = time.perf_counter()
        await work(number)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1e6


async def nothing(*arguments: Any) -> Any:  # Any: it replaces everything around the middleware
    """The application behind the middleware."""


async def measure_tokens(key: Any, alg: str) -> None:
    auth = JWTAuthenticator(key.as_dict(private=False), issuer="https://idp.example/realms/main", audience="agents")
    shown = [{"authorization": f"Bearer {token}"} for token in tokens(key, alg, 300)]
    first = await p50(lambda number: identify(auth, shown[number]), len(shown))
    again = await p50(lambda number: identify(auth, shown[-1]))
    headers = [(b"authorization", shown[-1]["authorization"].encode()), (b"content-type", b"application/json")]
    scope: Any = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    middleware = AuthMiddleware(nothing, auth)
    whole = await p50(lambda number: middleware(scope, nothing, nothing))
    verdict = "met" if again < LIMIT else "not met"
    print(f"{alg}, first time    {first:7.1f} µs")
    print(f"{alg}, seen before   {again:7.1f} µs (limit {LIMIT:g}: {verdict}); the whole middleware {whole:.1f} µs")


async def main() -> None:
    await measure_tokens(RSAKey.generate_key(2048, parameters={"kid": "one"}), "RS256")
    await measure_tokens(ECKey.generate_key("P-256", parameters={"kid": "one"}), "ES256")
    key_text = new_key()
    keys = APIKeyAuthenticator({f"caller-{number}": hash_key(f"{key_text}{number}") for number in range(1_000)})
    by_key = await p50(lambda number: identify(keys, {"x-api-key": f"{key_text}7"}))
    print(f"API key, of 1,000    {by_key:7.1f} µs")


if __name__ == "__main__":
    asyncio.run(main())
