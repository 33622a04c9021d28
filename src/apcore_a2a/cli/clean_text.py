"""Remote text, made harmless. Rule: nothing that an agent wrote reaches a terminal but through here."""

import re
from typing import Final

import msgspec

INDENT: Final = "  "
_SEQUENCE: Final = re.compile(  # of ANSI: CSI, OSC and the other strings, two-character escapes
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def clean(text: str) -> str:
    """The text without escape sequences, control and direction characters; line ends and tabs stay."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text))


def line(text: str) -> str:
    """The text as one line."""
    return " ".join(clean(text).split())


def block(text: str) -> str:
    """The text as lines of its own, set in so that none can be taken for a field of ours."""
    return "\n".join(INDENT + each for each in clean(text).rstrip("\n").split("\n"))


def json_line(data: bytes) -> str:
    """JSON that a terminal shows and does not obey: what JSON lets stand unescaped is escaped."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode())


def json_document(data: bytes) -> str:
    """The same, over as many lines as it takes to be read by people."""
    return "\n".join(json_line(each) for each in msgspec.json.format(data, indent=2).split(b"\n"))
