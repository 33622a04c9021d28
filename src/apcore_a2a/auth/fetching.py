"""Fetching what an issuer publishes: a JSON document from an address that the operator configured.

Rule: https, or http on this machine; no redirects, no proxies of the environment, so many bytes, so many seconds.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from apcore_a2a.loopback import is_loopback

MAX_DOCUMENT: Final = 512 * 1024  # bytes; a set of a hundred large keys has 60,000
TIMEOUT: Final = 5.0  # seconds for all of it

Fetch = Callable[[str], Awaitable[Any]]
"""From an address to the decoded JSON there; raises FetchError."""


class FetchError(Exception):
    """The document could not be had; the text says why, for the log."""


def check_address(url: str, what: str) -> str:
    """The address, if what is found there can be trusted.

    Raises:
        ValueError: it cannot; the text says what an address must be.
    """
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url
    if parts.scheme == "http" and is_loopback(parts.hostname or ""):
        return url
    raise ValueError(
        f"{what} must be an https address (http only on this machine), not {url!r}: "
        "whoever is on the way could put their own keys there"
    )


async def fetch_json(url: str) -> Any:
    """The JSON document at an address."""
    import aiohttp  # a tenth of a second: for those whose keys are elsewhere

    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    try:
        # A session each time: it is asked for every few minutes, and a connection that was kept would be stale.
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False) as http,
            http.get(url, headers=headers, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise FetchError(f"{url} answered {response.status}")
            body = await _read(response.content, url)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise FetchError(f"{url} could not be read: {str(error) or type(error).__name__}") from error
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FetchError(f"{url} answered with something that is no JSON") from error


async def _read(content: Any, url: str) -> bytes:  # Any: aiohttp's StreamReader; it is not imported before it is needed
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > MAX_DOCUMENT:
            raise FetchError(f"{url} answered with more than {MAX_DOCUMENT} bytes")
    return bytes(body)
