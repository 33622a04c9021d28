"""Webhooks: how a notification is posted without opening the network behind the server, and how it is signed.

`verify_webhook` is for receivers; it needs nothing but the standard library.
"""

from apcore_a2a.webhooks.signatures import WebhookVerificationError, verify_webhook

__all__ = ["WebhookVerificationError", "verify_webhook"]
