"""Somebody else's text, made harmless: for a terminal, a log line, an error, a description.

Rule: whatever a remote agent or a client wrote is shown, logged or passed on only through here.
"""

import re
from typing import Final

# ANSI escape sequences: CSI, OSC and the other strings, two-character escapes.
_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# Control characters but tab and line feed, those that change the direction of what follows or hide in it, and halves
# of characters, which cannot be sent. Zero-width joiners stay: names and emoji are written with them.
CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def clean_text(text: str, limit: int | None = None) -> str:
    """The text without escape sequences, control and direction characters; line ends and tabs stay.

    A text longer than `limit` is cut, before any work is done on the rest of it.
    """
    if limit is not None:
        text = text[: 2 * limit]
    cleaned = CONTROL.sub("", _SEQUENCE.sub("", text))
    if limit is not None:
        cleaned = cleaned[:limit]
    return cleaned


def clean_line(text: str, limit: int | None = None) -> str:
    """The text as one line, with single spaces."""
    if limit is not None:
        text = text[: 2 * limit]
    # A line end of any kind parts words: it becomes a space, not nothing.
    words = clean_text(re.sub(r"[\s\u2028\u2029]+", " ", text)).split()
    return " ".join(words)[:limit]
