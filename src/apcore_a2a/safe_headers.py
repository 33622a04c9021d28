"""What every answer says to browsers, whatever it holds: constant bytes, made once.

Nothing here is a page, so nothing may be taken for one, framed, or kept. The Explorer, which is one, has a policy of
its own besides.
"""

from typing import Final

SAFE: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
NO_STORE: Final = ((b"cache-control", b"no-store"),)
"""For what belongs to a caller: nobody between us keeps it."""
