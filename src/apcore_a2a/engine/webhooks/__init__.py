"""Webhooks: the operations on them, and the delivery of events."""
