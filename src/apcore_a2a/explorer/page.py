"""The Explorer page, its security headers, and the webhook inbox for development.

Invariant: cards and answers are untrusted. Only the built script and style run. They send requests only to the server
that the page came from, and for a sign-in to the issuers on the card. No other page may frame it (clickjacking).
"""

import base64
import hashlib
import html
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import Receive, Scope, Send

from apcore_a2a.errors import A2AError
from apcore_a2a.http.asgi import HTTPError, inbound, read_body, refuse, respond
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import encode
from apcore_a2a.web import NO_STORE, SAFE, is_loopback

POLICY: Final = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'{issuers}; img-src data: blob:; "
    "media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ELEMENT: Final = "<{tag}>(.*?)</{tag}>"
Headers = list[tuple[bytes, bytes]]


class BuiltPage:
    """The built page as bytes, and its headers.

    Args:
        root: The agent's address relative to the page. A relative address is valid behind any proxy and mount.
        agent: The agent's real address, if the page reaches it through a proxy.
        options: Features of the server that the page may use.
        texts: What the page reads from its other meta elements, by their names.
    """

    def __init__(self, *, root: str, agent: str = "", options: tuple[str, ...] = (), **texts: str) -> None:
        source = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        self._script = _hash_of(source, "script")
        self._style = _hash_of(source, "style")
        metas = {"root": root, "agent": agent, "options": " ".join(options), **texts}
        for name, content in metas.items():
            source = _set_meta(source, f"a2a-{name.replace('_', '-')}", content)
        self.body = source.encode()

    def headers(self, issuers: Iterable[str] = ()) -> Headers:
        """Return the headers of the page. `issuers` are the origins that may receive the requests of a sign-in."""
        listed = "".join(f" {issuer}" for issuer in issuers)
        policy = POLICY.format(script=self._script, style=self._style, issuers=listed)
        return [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", policy.encode()),
            (b"cross-origin-opener-policy", b"same-origin"),
            *NO_STORE,
        ]


def _hash_of(source: str, tag: str) -> str:
    """Return the hash of the element with this tag for the Content-Security-Policy. There is exactly one."""
    (content,) = re.findall(_ELEMENT.format(tag=tag), source, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _set_meta(source: str, name: str, content: str) -> str:
    escaped = html.escape(content)
    # A function, because a replacement string would interpret a backslash in an address.
    return re.sub(rf'(<meta name="{name}" content=")[^"]*', lambda found: found[1] + escaped, source, count=1)


_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:\d+)?|https?://\[[0-9a-f:]+\](:\d+)?")


def issuers_of(schemes: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the origins of each sign-in that the security schemes of a card describe: where it begins, and the tokens.

    They are equal for OpenID Connect, whose endpoints are published by the issuer. An address that is neither https nor
    on this machine is left out.

    Example:
        >>> flow = {"authorizationUrl": "https://id.example/login", "tokenUrl": "https://id.example/token"}
        >>> issuers_of({"oauth": {"oauth2SecurityScheme": {"flows": {"authorizationCode": flow}}}})
        [('https://id.example', 'https://id.example')]
    """
    found: list[tuple[str, str]] = []
    for scheme in (schemes or {}).values():
        match scheme:
            case {"openIdConnectSecurityScheme": {"openIdConnectUrl": str(url)}}:
                pair = (_origin_of(url), _origin_of(url))
            case {
                "oauth2SecurityScheme": {
                    "flows": {"authorizationCode": {"authorizationUrl": str(url), "tokenUrl": str(token)}}
                }
            }:
                pair = (_origin_of(url), _origin_of(token))
            case _:
                continue
        if all(pair):
            found.append(pair)
    return found


def _origin_of(url: str) -> str:
    """Return the origin, or an empty string if a page must not send a sign-in there."""
    try:
        parts = urlsplit(url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        found = f"{parts.scheme}://{parts.netloc}"
    except ValueError:  # for example an unclosed bracket
        return ""
    if not is_safe or not _ORIGIN.fullmatch(found):  # it becomes a part of a header
        return ""
    return found


class ExplorerPage:
    """Serves the page at `<prefix>/`. `<prefix>` redirects there.

    The page needs no authentication, like the card that it shows. Its requests are authenticated like all others.

    Args:
        prefix: The path of the page, without the slash at the end.
        schemes: Returns the security schemes of the agent's card.
        options: Features of the server that the page may use.
        client_id: The OAuth client that the page offers for a sign-in.
        trace_url: The address of a trace with {trace_id}, to which the page links.

    Raises:
        ValueError: The address of a trace is not one, or does not contain {trace_id}.
    """

    def __init__(
        self,
        prefix: str,
        *,
        schemes: Callable[[], Mapping[str, Any] | None] = dict,
        options: tuple[str, ...] = (),
        client_id: str = "",
        trace_url: str = "",
    ) -> None:
        if trace_url and (not trace_url.startswith(("http://", "https://")) or "{trace_id}" not in trace_url):
            raise ValueError(
                f"explorer_trace_url must be an http or https address with {{trace_id}}, not {trace_url!r}"
            )
        # One "../" for each level of the prefix: /tools/explorer/ is two levels below the agent.
        self._page = BuiltPage(
            root="../" * prefix.count("/"), options=options, client_id=client_id, trace_url=trace_url
        )
        self._schemes = schemes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.endswith("/"):
            # The card is the operator's own, so the two addresses of a flow may have different origins.
            issuers = {origin: None for pair in issuers_of(self._schemes()) for origin in pair}
            await answer(send, 200, self._page.body, self._page.headers(issuers))
            return
        # Relative: a proxy may have removed a prefix that only the browser knows.
        last = path.rpartition("/")[2]
        await answer(send, 307, b"", [(b"location", f"{last}/".encode())])


async def answer(send: Send, status: int, body: bytes, headers: Headers) -> None:
    start = [*headers, *SAFE, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


# ---- inbox ----------------------------------------------------------------------------------------------------------
# A receiver of webhooks for development. The Explorer shows what the agent posts to it.
#
# It exists only with the Explorer, webhooks, and `allow_insecure_webhooks`, which marks a development server. It
# requires the same authentication as the agent. With authentication, the page passes its own token to the webhook, so
# the sender of a notification is the caller that owns the inbox.
#
# Invariant: kept in memory, bounded in bytes and counts. The oldest delivery is removed first.

MAX_OWNERS: Final = 100
MAX_DELIVERIES: Final = 100  # for each owner
MAX_BODY: Final = 64 * 1024
# The Explorer shows the values of these headers, and only the names of the sender's credentials (`PROOFS`), because
# other people may see the screen.
SHOWN_HEADERS: Final = (b"content-type", b"webhook-id", b"webhook-timestamp", b"user-agent")
PROOFS: Final = (b"authorization", b"x-a2a-notification-token", b"webhook-signature")


class Inbox:
    """POST stores a notification, GET returns those of the caller, newest first, DELETE removes them."""

    def __init__(self) -> None:
        self._deliveries: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()  # Any: JSON, by owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = inbound(scope).caller.owner
        try:
            match scope["method"]:
                case "POST":
                    await self._store(owner, scope, receive)
                case "DELETE":
                    self._deliveries.pop(owner, None)
        except HTTPError as refused:
            await refuse(refused, v1.encode_rest_error(refused.error, refused.status), receive, send)
        except A2AError as error:
            await respond(send, 400, v1.encode_rest_error(error, 400))
        else:
            shown = list(self._deliveries.get(owner, ()))
            await respond(send, 200, encode({"deliveries": shown}))

    async def _store(self, owner: str, scope: Scope, receive: Receive) -> None:
        request = inbound(scope)
        body = await read_body(request, receive, limit=MAX_BODY)
        headers = {name.decode(): request.text(name) for name in SHOWN_HEADERS if name in request.headers}
        proofs = [name.decode() for name in PROOFS if name in request.headers]
        if owner not in self._deliveries:
            self._deliveries[owner] = deque(maxlen=MAX_DELIVERIES)
        self._deliveries.move_to_end(owner)
        while len(self._deliveries) > MAX_OWNERS:
            self._deliveries.popitem(last=False)
        text = body.decode("utf-8", "replace")
        self._deliveries[owner].appendleft({"at": time.time(), "headers": headers, "proofs": proofs, "body": text})
