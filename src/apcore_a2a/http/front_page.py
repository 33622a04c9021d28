"""`/` in a browser: it leads to the Explorer, or says what this is. Whoever asks for no HTML is answered as before."""

import base64
import hashlib
from html import escape
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.http.asgi import inbound, respond
from apcore_a2a.http.discovery import CARD_PATH, CardEndpoint

HTML: Final = b"text/html"
MAX_SKILLS: Final = 50
STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:3rem auto;padding:0 1rem}"
    "code,pre{font:14px/1.5 ui-monospace,monospace}pre{overflow:auto}:root{color-scheme:light dark}"
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# Nothing runs on this page and nothing is loaded, whatever a card says; the style is the one above.
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>{style}</style></head><body>
<h1>{name}</h1>
<p>{description}</p>
<p>This is an <a href="https://a2a-protocol.org">A2A</a> agent: programs talk to it, not browsers.
Its card is at <a href="{card}">{card}</a>.</p>
<ul>{skills}</ul>
<p>From a terminal:</p>
<pre>apcore-a2a chat {url}
apcore-a2a send {url} "hello"</pre>
</body></html>
"""


class FrontPage:
    """Answers browsers at `/`; anybody else gets what `otherwise` answers.

    Args:
        cards: The public card, which is all that the page tells.
        explorer: The path of the Explorer; empty if it is off.
        otherwise: Whom a request goes to that does not ask for HTML.
    """

    def __init__(self, cards: CardEndpoint, *, explorer: str, otherwise: ASGIApp) -> None:
        self._cards = cards
        self._explorer = explorer
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not inbound(scope).accepts(HTML):
            await self._otherwise(scope, receive, send)
            return
        vary = (b"vary", b"Accept")
        # From here, whatever stands before the path: a mount, or a proxy that takes a prefix away.
        root = "."
        if not scope["path"].endswith("/"):
            root = f"./{scope['path'].rpartition('/')[2]}"
        if self._explorer:
            location = f"{root}{self._explorer}/".encode()
            await respond(send, 307, b"", headers=((b"location", location), vary))
            return
        headers = ((b"content-security-policy", POLICY.encode()), vary)
        await respond(send, 200, self._render(scope, root), media=b"text/html; charset=utf-8", headers=headers)

    def _render(self, scope: Scope, root: str) -> bytes:
        card = self._cards.at(self._cards.card, scope, "1.0")
        skills = [
            f"<li><code>{escape(skill.id)}</code> {escape(skill.description)}</li>"
            for skill in card.skills[:MAX_SKILLS]
        ]
        if len(card.skills) > MAX_SKILLS:
            skills.append("<li>…</li>")
        return PAGE.format(
            name=escape(card.name),
            description=escape(card.description),
            style=STYLE,
            card=escape(f"{root}{CARD_PATH}"),
            skills="".join(skills),
            url=escape(card.supported_interfaces[0].url),
        ).encode()
