"""Client for any A2A agent: `A2AClient`, its synchronous form `Client`, authentication, and their errors."""

from apcore_a2a.client.auth import ApiKeyAuth, BearerAuth, OAuth2ClientCredentials
from apcore_a2a.client.client import A2AClient
from apcore_a2a.client.options import Retry
from apcore_a2a.client.sync import Client
from apcore_a2a.errors import (
    A2AConnectionError,
    A2ADiscoveryError,
    A2AError,
    A2AServerError,
    AgentError,
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    ExtensionSupportRequiredError,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    OverloadedError,
    ParseError,
    PushNotificationNotSupportedError,
    SkillNotFoundError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)

__all__ = [
    "A2AClient",
    "A2AConnectionError",
    "A2ADiscoveryError",
    "A2AError",
    "A2AServerError",
    "AgentError",
    "ApiKeyAuth",
    "BearerAuth",
    "Client",
    "ContentTypeNotSupportedError",
    "ExtendedAgentCardNotConfiguredError",
    "ExtensionSupportRequiredError",
    "InvalidAgentResponseError",
    "InvalidParamsError",
    "InvalidRequestError",
    "MethodNotFoundError",
    "OAuth2ClientCredentials",
    "OverloadedError",
    "ParseError",
    "PushNotificationNotSupportedError",
    "Retry",
    "SkillNotFoundError",
    "TaskNotCancelableError",
    "TaskNotFoundError",
    "UnauthenticatedError",
    "UnsupportedOperationError",
    "VersionNotSupportedError",
]
