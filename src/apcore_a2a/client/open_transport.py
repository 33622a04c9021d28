"""Which transport a client uses: the caller's own, one over the caller's HTTP client, or the default."""

import sys
from typing import TYPE_CHECKING, cast

from apcore_a2a.client.transport import Transport

if TYPE_CHECKING:
    import httpx


def open_transport(http: "httpx.AsyncClient | Transport | None") -> Transport:
    """The transport of a client: the caller's own, one over the caller's `httpx.AsyncClient`, or aiohttp.

    The libraries load here, at the first call: an import of the client must not cost what it may never use.
    """
    if http is None:
        from apcore_a2a.client.aiohttp_transport import AiohttpTransport

        return AiohttpTransport()
    library = sys.modules.get("httpx")  # whoever made an httpx client has loaded it
    if library is not None and isinstance(http, library.AsyncClient):
        from apcore_a2a.client.httpx_transport import HttpxTransport

        return HttpxTransport(http)
    return cast(Transport, http)  # it is no httpx client, so it is what is left
