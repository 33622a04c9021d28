"""Ids that nobody else has: of messages, requests and idempotency keys."""

import os


def new_id() -> str:
    """128 random bits. Not the uuid module: it costs an import, and twice the time per id."""
    return os.urandom(16).hex()
