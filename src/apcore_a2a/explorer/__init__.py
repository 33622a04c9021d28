"""The Explorer: one page that shows an agent's skills and lets a person try them. It asks nobody but the agent."""

import secrets
from importlib.resources import files
from typing import Final

from starlette.types import Receive, Scope, Send

from apcore_a2a.safe_headers import NO_STORE, SAFE

# What the page may do, whatever is put into it: card and answers are other people's text. Only the script and the style
# that carry this answer's nonce run, they call nobody but this server, and nobody may frame the page to steal a click.
POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class ExplorerPage:
    """Serves the page at `<prefix>/`; `<prefix>` leads there.

    The page is open, like the card it shows; what it sends goes through the same door as everybody's requests.
    """

    def __init__(self) -> None:
        self._page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].endswith("/"):
            # The page calls the agent relative to where it is, which without the slash would be one level too high.
            await _answer(send, 307, b"", [(b"location", (scope["path"] + "/").encode())])
            return
        # A new one for each answer: one that could be guessed would let injected scripts run.
        nonce = secrets.token_urlsafe(16)
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", POLICY.format(nonce=nonce).encode()),
            *NO_STORE,
        ]
        await _answer(send, 200, self._page.replace("{{nonce}}", nonce).encode(), headers)


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    start = [*headers, *SAFE, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
