"""Test helpers: an application without a socket, a scripted agent, and a webhook receiver."""

from apcore_a2a.testing.app_client import AppTransport, app_client
from apcore_a2a.testing.scripted_agent import Gate, ScriptedAgent, chunk, says, status
from apcore_a2a.testing.webhook import Delivery, WebhookReceiver

__all__ = [
    "AppTransport",
    "Delivery",
    "Gate",
    "ScriptedAgent",
    "WebhookReceiver",
    "app_client",
    "chunk",
    "says",
    "status",
]
