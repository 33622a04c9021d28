"""Functions of apcore-a2a."""

import sys

from apcore_a2a import serve


def shout(text: str) -> str:
    """Return the text in upper case."""
    return text.upper()


serve(shout, host="127.0.0.1", port=int(sys.argv[1]))
