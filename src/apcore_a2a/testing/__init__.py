"""For tests of agents and of what calls them: an app without a socket, an agent from a script, a webhook receiver."""

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
