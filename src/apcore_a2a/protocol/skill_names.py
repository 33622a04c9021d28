"""Which skill was meant: what to say to whoever named none, or one that is not there."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

MAX_NAMES: Final = 20  # that are told
MAX_COMPARED: Final = 100  # names that a wrong one is compared with: to compare takes some 20 µs each
MAX_LENGTH: Final = 64


def advise(known: Iterable[str], asked: str = "") -> str:
    """The skill that was probably meant, and those there are; nothing if there are none.

    Example:
        >>> advise(["text.stats", "text.story"], "text.stat")
        'did you mean text.stats? The skills are: text.stats, text.story'
        >>> advise(["text.stats", "text.story"])
        'the skills are: text.stats, text.story'
    """
    names = [name[:MAX_LENGTH] for name in islice(known, MAX_COMPARED)]
    if not names:
        return ""
    listed = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        listed += ", …"
    near = get_close_matches(asked[:MAX_LENGTH], names, n=1)
    if near:
        return f"did you mean {near[0]}? The skills are: {listed}"
    return f"the skills are: {listed}"
