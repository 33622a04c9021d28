"""Webhook notifications: posting with protection against SSRF (server-side request forgery), and signatures.

`verify_webhook` is for receivers. It needs only the standard library.
"""

from apcore_a2a.webhooks.signatures import WebhookVerificationError, verify_webhook

__all__ = ["WebhookVerificationError", "verify_webhook"]
