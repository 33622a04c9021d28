"""apcore-a2a: serve an apcore Registry as an A2A agent, and call any A2A agent.

The public names load on first use, so importing one half (for example the client) does not load the other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from apcore_a2a.agent import About as About
    from apcore_a2a.agent import Admission as Admission
    from apcore_a2a.agent import Agent as Agent
    from apcore_a2a.agent import AgentEvent as AgentEvent
    from apcore_a2a.agent import Call as Call
    from apcore_a2a.agent import Caller as Caller
    from apcore_a2a.agent import ModelUsage as ModelUsage
    from apcore_a2a.agent import Remember as Remember
    from apcore_a2a.agent import ToolCalled as ToolCalled
    from apcore_a2a.agent import ToolDone as ToolDone
    from apcore_a2a.agents.as_agent import as_agent as as_agent
    from apcore_a2a.agents.executors import AgentExecutor as AgentExecutor
    from apcore_a2a.agents.functions.agent import ask as ask
    from apcore_a2a.agents.functions.skill import skill as skill
    from apcore_a2a.app.serve import async_serve as async_serve
    from apcore_a2a.app.serve import create_app as create_app
    from apcore_a2a.app.serve import create_site as create_site
    from apcore_a2a.app.serve import serve as serve
    from apcore_a2a.auth.api_keys import APIKeyAuthenticator as APIKeyAuthenticator
    from apcore_a2a.auth.authenticator import Authenticator as Authenticator
    from apcore_a2a.auth.client_certificates import ClientCertificateAuthenticator as ClientCertificateAuthenticator
    from apcore_a2a.auth.jwt import ClaimMapping as ClaimMapping
    from apcore_a2a.auth.jwt import JWTAuthenticator as JWTAuthenticator
    from apcore_a2a.client.client import A2AClient as A2AClient
    from apcore_a2a.client.sync import Client as Client
    from apcore_a2a.errors import A2AConnectionError as A2AConnectionError
    from apcore_a2a.errors import A2ADiscoveryError as A2ADiscoveryError
    from apcore_a2a.errors import A2AError as A2AError
    from apcore_a2a.errors import A2AServerError as A2AServerError
    from apcore_a2a.errors import AgentError as AgentError
    from apcore_a2a.errors import CardRewrittenError as CardRewrittenError
    from apcore_a2a.errors import ContentTypeNotSupportedError as ContentTypeNotSupportedError
    from apcore_a2a.errors import ExtendedAgentCardNotConfiguredError as ExtendedAgentCardNotConfiguredError
    from apcore_a2a.errors import ExtensionSupportRequiredError as ExtensionSupportRequiredError
    from apcore_a2a.errors import InvalidAgentResponseError as InvalidAgentResponseError
    from apcore_a2a.errors import InvalidParamsError as InvalidParamsError
    from apcore_a2a.errors import InvalidRequestError as InvalidRequestError
    from apcore_a2a.errors import MethodNotFoundError as MethodNotFoundError
    from apcore_a2a.errors import OverloadedError as OverloadedError
    from apcore_a2a.errors import ParseError as ParseError
    from apcore_a2a.errors import PushNotificationNotSupportedError as PushNotificationNotSupportedError
    from apcore_a2a.errors import SkillNotFoundError as SkillNotFoundError
    from apcore_a2a.errors import TaskNotCancelableError as TaskNotCancelableError
    from apcore_a2a.errors import TaskNotFoundError as TaskNotFoundError
    from apcore_a2a.errors import UnauthenticatedError as UnauthenticatedError
    from apcore_a2a.errors import UnsupportedOperationError as UnsupportedOperationError
    from apcore_a2a.errors import VersionNotSupportedError as VersionNotSupportedError
    from apcore_a2a.protocol.card import AgentCapabilities as AgentCapabilities
    from apcore_a2a.protocol.card import AgentCard as AgentCard
    from apcore_a2a.protocol.card import AgentExtension as AgentExtension
    from apcore_a2a.protocol.card import AgentInterface as AgentInterface
    from apcore_a2a.protocol.card import AgentSkill as AgentSkill
    from apcore_a2a.protocol.model import Artifact as Artifact
    from apcore_a2a.protocol.model import ArtifactUpdate as ArtifactUpdate
    from apcore_a2a.protocol.model import Message as Message
    from apcore_a2a.protocol.model import Operation as Operation
    from apcore_a2a.protocol.model import Part as Part
    from apcore_a2a.protocol.model import PushConfig as PushConfig
    from apcore_a2a.protocol.model import Role as Role
    from apcore_a2a.protocol.model import SendConfiguration as SendConfiguration
    from apcore_a2a.protocol.model import StatusUpdate as StatusUpdate
    from apcore_a2a.protocol.model import Task as Task
    from apcore_a2a.protocol.model import TaskState as TaskState
    from apcore_a2a.protocol.model import TaskStatus as TaskStatus
    from apcore_a2a.protocol.questions import Question as Question
    from apcore_a2a.remote.mount import RemoteAgent as RemoteAgent
    from apcore_a2a.remote.mount import mount_remote as mount_remote
    from apcore_a2a.settings import TLS as TLS
    from apcore_a2a.settings import Limits as Limits
    from apcore_a2a.settings import Settings as Settings
    from apcore_a2a.storage.contract import TaskStore as TaskStore
    from apcore_a2a.storage.memory import InMemoryTaskStore as InMemoryTaskStore
    from apcore_a2a.storage.sqlite.store import SQLiteStore as SQLiteStore

__version__ = "0.9.0"

# The public API: name → module that defines it. A public name needs a line here and one under TYPE_CHECKING.
_EXPORTS: Final = {
    "A2AClient": "apcore_a2a.client.client",
    "A2AConnectionError": "apcore_a2a.errors",
    "A2ADiscoveryError": "apcore_a2a.errors",
    "A2AError": "apcore_a2a.errors",
    "A2AServerError": "apcore_a2a.errors",
    "APIKeyAuthenticator": "apcore_a2a.auth.api_keys",
    "About": "apcore_a2a.agent",
    "Admission": "apcore_a2a.agent",
    "Agent": "apcore_a2a.agent",
    "AgentCapabilities": "apcore_a2a.protocol.card",
    "AgentCard": "apcore_a2a.protocol.card",
    "AgentError": "apcore_a2a.errors",
    "AgentEvent": "apcore_a2a.agent",
    "AgentExecutor": "apcore_a2a.agents.executors",
    "AgentExtension": "apcore_a2a.protocol.card",
    "AgentInterface": "apcore_a2a.protocol.card",
    "AgentSkill": "apcore_a2a.protocol.card",
    "Artifact": "apcore_a2a.protocol.model",
    "ArtifactUpdate": "apcore_a2a.protocol.model",
    "Authenticator": "apcore_a2a.auth.authenticator",
    "Call": "apcore_a2a.agent",
    "Caller": "apcore_a2a.agent",
    "CardRewrittenError": "apcore_a2a.errors",
    "ClaimMapping": "apcore_a2a.auth.jwt",
    "Client": "apcore_a2a.client.sync",
    "ClientCertificateAuthenticator": "apcore_a2a.auth.client_certificates",
    "ContentTypeNotSupportedError": "apcore_a2a.errors",
    "ExtendedAgentCardNotConfiguredError": "apcore_a2a.errors",
    "ExtensionSupportRequiredError": "apcore_a2a.errors",
    "InMemoryTaskStore": "apcore_a2a.storage.memory",
    "InvalidAgentResponseError": "apcore_a2a.errors",
    "InvalidParamsError": "apcore_a2a.errors",
    "InvalidRequestError": "apcore_a2a.errors",
    "JWTAuthenticator": "apcore_a2a.auth.jwt",
    "Limits": "apcore_a2a.settings",
    "Message": "apcore_a2a.protocol.model",
    "MethodNotFoundError": "apcore_a2a.errors",
    "ModelUsage": "apcore_a2a.agent",
    "Operation": "apcore_a2a.protocol.model",
    "OverloadedError": "apcore_a2a.errors",
    "ParseError": "apcore_a2a.errors",
    "Part": "apcore_a2a.protocol.model",
    "PushConfig": "apcore_a2a.protocol.model",
    "PushNotificationNotSupportedError": "apcore_a2a.errors",
    "Question": "apcore_a2a.protocol.questions",
    "Remember": "apcore_a2a.agent",
    "RemoteAgent": "apcore_a2a.remote.mount",
    "Role": "apcore_a2a.protocol.model",
    "SQLiteStore": "apcore_a2a.storage.sqlite.store",
    "SendConfiguration": "apcore_a2a.protocol.model",
    "Settings": "apcore_a2a.settings",
    "SkillNotFoundError": "apcore_a2a.errors",
    "StatusUpdate": "apcore_a2a.protocol.model",
    "TLS": "apcore_a2a.settings",
    "Task": "apcore_a2a.protocol.model",
    "TaskNotCancelableError": "apcore_a2a.errors",
    "TaskNotFoundError": "apcore_a2a.errors",
    "TaskState": "apcore_a2a.protocol.model",
    "TaskStatus": "apcore_a2a.protocol.model",
    "TaskStore": "apcore_a2a.storage.contract",
    "ToolCalled": "apcore_a2a.agent",
    "ToolDone": "apcore_a2a.agent",
    "UnauthenticatedError": "apcore_a2a.errors",
    "UnsupportedOperationError": "apcore_a2a.errors",
    "VersionNotSupportedError": "apcore_a2a.errors",
    "as_agent": "apcore_a2a.agents.as_agent",
    "ask": "apcore_a2a.agents.functions.agent",
    "async_serve": "apcore_a2a.app.serve",
    "create_app": "apcore_a2a.app.serve",
    "create_site": "apcore_a2a.app.serve",
    "mount_remote": "apcore_a2a.remote.mount",
    "serve": "apcore_a2a.app.serve",
    "skill": "apcore_a2a.agents.functions.skill",
}

__all__ = [  # noqa: RUF022  # in the order of sorted(), where ruff would put TLS first as a constant
    "A2AClient",
    "A2AConnectionError",
    "A2ADiscoveryError",
    "A2AError",
    "A2AServerError",
    "APIKeyAuthenticator",
    "About",
    "Admission",
    "Agent",
    "AgentCapabilities",
    "AgentCard",
    "AgentError",
    "AgentEvent",
    "AgentExecutor",
    "AgentExtension",
    "AgentInterface",
    "AgentSkill",
    "Artifact",
    "ArtifactUpdate",
    "Authenticator",
    "Call",
    "Caller",
    "CardRewrittenError",
    "ClaimMapping",
    "Client",
    "ClientCertificateAuthenticator",
    "ContentTypeNotSupportedError",
    "ExtendedAgentCardNotConfiguredError",
    "ExtensionSupportRequiredError",
    "InMemoryTaskStore",
    "InvalidAgentResponseError",
    "InvalidParamsError",
    "InvalidRequestError",
    "JWTAuthenticator",
    "Limits",
    "Message",
    "MethodNotFoundError",
    "ModelUsage",
    "Operation",
    "OverloadedError",
    "ParseError",
    "Part",
    "PushConfig",
    "PushNotificationNotSupportedError",
    "Question",
    "Remember",
    "RemoteAgent",
    "Role",
    "SQLiteStore",
    "SendConfiguration",
    "Settings",
    "SkillNotFoundError",
    "StatusUpdate",
    "TLS",
    "Task",
    "TaskNotCancelableError",
    "TaskNotFoundError",
    "TaskState",
    "TaskStatus",
    "TaskStore",
    "ToolCalled",
    "ToolDone",
    "UnauthenticatedError",
    "UnsupportedOperationError",
    "VersionNotSupportedError",
    "__version__",
    "as_agent",
    "ask",
    "async_serve",
    "create_app",
    "create_site",
    "mount_remote",
    "serve",
    "skill",
]


def __getattr__(name: str) -> Any:  # Any: mypy reads the real types from the TYPE_CHECKING imports
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
