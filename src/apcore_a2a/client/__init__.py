"""Call any A2A agent: `A2AClient`, its twin without await `Client`, and ways to authenticate."""

from apcore_a2a.client.auth import ApiKeyAuth, BearerAuth
from apcore_a2a.client.client import A2AClient
from apcore_a2a.client.oauth import OAuth2ClientCredentials
from apcore_a2a.client.retry import Retry
from apcore_a2a.client.sync import Client

__all__ = ["A2AClient", "ApiKeyAuth", "BearerAuth", "Client", "OAuth2ClientCredentials", "Retry"]
