"""Webhooks: the operations on them, and how an event gets to one."""
