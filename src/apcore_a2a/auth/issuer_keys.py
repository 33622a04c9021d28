"""The keys that an issuer publishes, kept fresh beside the requests.

Keys are fetched when the server starts and every ten minutes. A request waits for a fetch in two cases only: there are
no keys yet, or its token is signed with a key that nobody here knows, as after a rotation: it names another, or none
and no key here fits its signature. The second happens at most once a minute, however many made-up tokens come.

Rule: where keys come from is what the operator configured, and what the issuer found there says of itself; never what
a token says. A fetch that fails, or brings no usable key, changes nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from apcore_a2a.auth.fetching import TIMEOUT, Fetch, FetchError, check_address, fetch_json
from apcore_a2a.auth.keys import VerificationKeys, import_published_keys
from apcore_a2a.auth.repeating import Repeating

logger = logging.getLogger(__name__)

REFRESH: Final = 600.0  # seconds between two fetches
LOOK_AGAIN: Final = 60.0  # seconds, at least, between two fetches that tokens with unknown keys bring about
TRY_AGAIN: Final = 5.0  # the same, while there are no keys at all
MAX_BACKOFF: Final = 60.0
DISCOVERY_PATH: Final = "/.well-known/openid-configuration"


class IssuerKeys:
    """The keys at `jwks_url`, or where the discovery document of `issuer` says they are."""

    def __init__(
        self,
        *,
        jwks_url: str = "",
        issuer: str = "",
        fetch: Fetch = fetch_json,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if jwks_url:
            check_address(jwks_url, "jwks_url")
        else:
            check_address(issuer, "issuer")
        self.current: VerificationKeys | None = None
        self.generation = 0
        """Counts the sets of keys there have been: what was checked with an older one must be checked again."""
        self._jwks_url = jwks_url
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._document: Any = None  # the last one, to see whether the next differs; Any: JSON
        self._looked_again = -LOOK_AGAIN  # when a token last brought about a fetch
        self._failures = 0
        self._turn = asyncio.Lock()
        self._refreshing = Repeating(self._refresh, name="keys of the issuer", pause=MAX_BACKOFF)

    @property
    def discovery_url(self) -> str:
        return self._issuer.rstrip("/") + DISCOVERY_PATH

    def open(self) -> None:
        """Fetch the keys now and from now on, beside the requests."""
        self._refreshing.start()

    async def close(self) -> None:
        await self._refreshing.stop()

    async def look_again(self) -> None:
        """Fetch the keys because a token needs one that is not here, unless that was done a moment ago.

        Those who come while somebody fetches wait for what that brings.
        """
        asked = self.generation
        async with self._turn:
            if self.generation != asked:
                return
            pause = TRY_AGAIN if self.current is None else LOOK_AGAIN
            if self._clock() - self._looked_again < pause:
                return
            self._looked_again = self._clock()
            await self._try_to_fetch()
            # Counted from its end, too: a fetch may take as long as the pause, and each who waited would begin another.
            self._looked_again = self._clock()

    async def _refresh(self) -> float:
        """Fetch the keys; after how many seconds to do so again."""
        async with self._turn:
            await self._try_to_fetch()
        if self._failures:
            return float(min(2 ** (self._failures - 1), MAX_BACKOFF))
        return REFRESH

    async def _try_to_fetch(self) -> None:
        try:
            async with asyncio.timeout(2 * TIMEOUT):  # two documents, where there is discovery
                document = await self._fetch(self._jwks_url or await self._discover())
            keys = import_published_keys(document)
        except (FetchError, ValueError, TimeoutError) as error:
            self._failures += 1
            kept = 0 if self.current is None else len(self.current)
            details = {"source": self._jwks_url or self._issuer, "reason": str(error), "keys_kept": kept}
            logger.warning("keys of the issuer not fetched", extra=details)
            return
        self._failures = 0
        if document != self._document:
            self._document = document
            self.current = keys
            self.generation += 1

    async def _discover(self) -> str:
        """Where the issuer keeps its keys (OpenID Connect Discovery 1.0 §4)."""
        document = await self._fetch(self.discovery_url)
        if not isinstance(document, Mapping):
            raise FetchError(f"{self.discovery_url} answered with something that is no discovery document")
        named = document.get("issuer")
        if named != self._issuer:  # §4.3: MUST be exactly the same, a slash at the end included
            raise FetchError(
                f"{self.discovery_url} is the document of the issuer {named!r}: set issuer to exactly that"
            )
        url = document.get("jwks_uri")
        if not isinstance(url, str):
            raise FetchError(f"{self.discovery_url} names no jwks_uri")
        if urlsplit(self._issuer).scheme == "https" and urlsplit(url).scheme != "https":
            raise FetchError(f"{self.discovery_url} names a jwks_uri that is not https")
        return check_address(url, "jwks_uri")
