"""The page, and the headers that keep it harmless whatever an agent puts into it.

Rule: card and answers are other people's text. Only the script and the style that we built run, they call nobody but
the server they came from, and nobody may frame the page to steal a click.
"""

import base64
import hashlib
import html
import re
from importlib.resources import files
from typing import Final

from starlette.types import Receive, Scope, Send

from apcore_a2a.safe_headers import NO_STORE, SAFE

POLICY: Final = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data: blob:; "
    "media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ELEMENT: Final = "<{tag}>(.*?)</{tag}>"
Headers = list[tuple[bytes, bytes]]


class Page:
    """The built page as bytes, and its headers.

    Args:
        root: The agent's address as seen from the page: relative, so that it holds behind any proxy and mount.
        agent: Where the agent really is, if the page only shows it through a proxy.
        options: What else the server offers to the page.
    """

    def __init__(self, *, root: str, agent: str = "", options: tuple[str, ...] = ()) -> None:
        source = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        policy = POLICY.format(script=_hash_of(source, "script"), style=_hash_of(source, "style"))
        for name, content in (("root", root), ("agent", agent), ("options", " ".join(options))):
            source = _set_meta(source, f"a2a-{name}", content)
        self.body = source.encode()
        self.headers: Headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", policy.encode()),
            (b"cross-origin-opener-policy", b"same-origin"),
            *NO_STORE,
        ]


def _hash_of(source: str, tag: str) -> str:
    """What a policy calls the only element of this name."""
    (content,) = re.findall(_ELEMENT.format(tag=tag), source, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _set_meta(source: str, name: str, content: str) -> str:
    escaped = html.escape(content)
    # Not a replacement text: in one, a backslash of an address would mean something.
    return re.sub(rf'(<meta name="{name}" content=")[^"]*', lambda found: found[1] + escaped, source, count=1)


class ExplorerPage:
    """Serves the page at `<prefix>/`; `<prefix>` leads there.

    The page is open, like the card it shows; what it sends goes through the same door as everybody's requests.
    """

    def __init__(self, prefix: str, *, options: tuple[str, ...] = ()) -> None:
        # Up as many levels as the prefix has: /tools/explorer/ is two below the agent.
        self._page = Page(root="../" * prefix.count("/"), options=options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.endswith("/"):
            await answer(send, 200, self._page.body, self._page.headers)
            return
        # Relative: a proxy may have taken off a prefix that we do not know, but the browser does.
        last = path.rpartition("/")[2]
        await answer(send, 307, b"", [(b"location", f"{last}/".encode())])


async def answer(send: Send, status: int, body: bytes, headers: Headers) -> None:
    start = [*headers, *SAFE, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
