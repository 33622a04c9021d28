"""Sanitizes text from other programs for a terminal, a log line, an error or a description.

Invariant: text of a remote agent or a client is shown, logged or forwarded only after these functions.
"""

import re
from typing import Final

# ANSI escape sequences: CSI, OSC and the other strings, two-character escapes.
_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# Control characters except tab and line feed, characters that change the text direction or are invisible, and lone
# surrogates, which cannot be encoded. Zero-width joiners stay, because names and emoji need them.
CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def clean_text(text: str, limit: int | None = None) -> str:
    """Return the text without escape sequences, control and direction characters. Line ends and tabs stay.

    The result has at most `limit` characters. The text is truncated to twice the limit first, so that the costs of a
    very long text are limited, too.
    """
    if limit is not None:
        text = text[: 2 * limit]
    cleaned = CONTROL.sub("", _SEQUENCE.sub("", text))
    if limit is not None:
        cleaned = cleaned[:limit]
    return cleaned


def clean_line(text: str, limit: int | None = None) -> str:
    """Return the text as one line with single spaces, of at most `limit` characters."""
    if limit is not None:
        text = text[: 2 * limit]
    # Any line end separates words, so it becomes a space.
    words = clean_text(re.sub(r"[\s\u2028\u2029]+", " ", text)).split()
    return " ".join(words)[:limit]
