"""Signatures of notifications by the Standard Webhooks specification: sender, content and time.

The signed text is `{webhook-id}.{webhook-timestamp}.{body}`, with HMAC-SHA256. The receiver needs the same secret.
Libraries for Standard Webhooks in other languages verify these signatures.
"""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Final

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"
PREFIX: Final = "whsec_"
TOLERANCE: Final = 300.0  # seconds
MIN_SECRET: Final = 24  # bytes, required by Standard Webhooks
MAX_SIGNATURES: Final = 16  # signatures that are compared: a sender that rotates its secret sends two


class WebhookVerificationError(ValueError):
    """The notification is not signed with this secret, or its timestamp is outside the tolerance."""


def parse_secret(text: str) -> bytes:
    """Return the key of a secret: `whsec_` and the base64 of at least 24 bytes.

    Raises:
        ValueError: The secret is invalid. The text does not repeat it.
    """
    encoded = text.removeprefix(PREFIX)
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"a webhook secret is {PREFIX} and base64") from error
    if len(key) < MIN_SECRET:
        raise ValueError(f"a webhook secret must hold at least {MIN_SECRET} bytes, not {len(key)}")
    return key


def sign(key: bytes, event_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature in the form of the header."""
    content = f"{event_id}.{timestamp}.".encode() + body
    digest = hmac.new(key, content, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def verify_webhook(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> str:
    """Verify the signature and the age of a notification, and return its id.

    The sender repeats a delivery whose response was lost. A receiver that has seen the id before answers 200 and does
    nothing.

    Args:
        secret: The sender's `webhook_secret`.
        headers: The headers of the request, with names in any case.
        body: The body of the request, byte for byte.
        tolerance: Maximum difference in seconds between the timestamp and the receiver's clock, either way. Older
            notifications may be replays.
        now: The current time, for tests.

    Raises:
        WebhookVerificationError: The signature is invalid or too old. Answer 401 and ignore the notification.

    Example:
        >>> from apcore_a2a.webhooks import verify_webhook
        >>> headers = {
        ...     "webhook-id": "a7f3/2",
        ...     "webhook-timestamp": "1700000000",
        ...     "webhook-signature": "v1,OuUfWdpRFwuEjORlH0fZ4NXd119FKRZ4HezW2tDXHbE=",
        ... }
        >>> verify_webhook("whsec_" + "c2VjcmV0" * 4, headers, b'{"task":{}}', now=1700000010)
        'a7f3/2'
    """
    given = {name.lower(): value for name, value in headers.items()}
    event_id = given.get(ID_HEADER, "")
    signatures = given.get(SIGNATURE_HEADER, "")
    if not event_id or not signatures:
        raise WebhookVerificationError("the notification is not signed")
    try:
        timestamp = int(given.get(TIMESTAMP_HEADER, ""))
    except ValueError as error:
        raise WebhookVerificationError(f"{TIMESTAMP_HEADER} is not a time") from error
    if now is None:
        now = time.time()
    expected = sign(parse_secret(secret), event_id, timestamp, body).encode()
    # All signatures are compared, in constant time, so that the duration reveals nothing about a partial match.
    matches = False
    for signature in signatures.split(" ")[:MAX_SIGNATURES]:
        matches |= hmac.compare_digest(expected, signature.encode())
    if not matches:
        raise WebhookVerificationError("the signature does not match this secret and this body")
    if abs(now - timestamp) > tolerance:
        raise WebhookVerificationError("the notification is too old, or a clock is wrong")
    return event_id
