"""apcore-a2a: serve an apcore Registry as an A2A agent, and call any A2A agent.

The public names load on first use, so importing one half (the client, say) never pays for the other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from apcore_a2a.agent import Agent as Agent
    from apcore_a2a.agents.as_agent import as_agent as as_agent
    from apcore_a2a.agents.executors import AgentExecutor as AgentExecutor
    from apcore_a2a.app.serve import async_serve as async_serve
    from apcore_a2a.app.serve import serve as serve
    from apcore_a2a.auth.api_keys import APIKeyAuthenticator as APIKeyAuthenticator
    from apcore_a2a.auth.authenticator import Authenticator as Authenticator
    from apcore_a2a.auth.claims import ClaimMapping as ClaimMapping
    from apcore_a2a.auth.client_certificates import ClientCertificateAuthenticator as ClientCertificateAuthenticator
    from apcore_a2a.auth.jwt import JWTAuthenticator as JWTAuthenticator
    from apcore_a2a.client.client import A2AClient as A2AClient
    from apcore_a2a.client.sync import Client as Client
    from apcore_a2a.errors import A2AError as A2AError
    from apcore_a2a.remote.mount import RemoteAgent as RemoteAgent
    from apcore_a2a.remote.mount import mount_remote as mount_remote
    from apcore_a2a.settings import Settings as Settings
    from apcore_a2a.storage.memory import InMemoryTaskStore as InMemoryTaskStore
    from apcore_a2a.storage.sqlite.store import SQLiteStore as SQLiteStore
    from apcore_a2a.storage.task_store import TaskStore as TaskStore

__version__ = "0.9.0"

# The public API: name → module that defines it. A line here, its twin under TYPE_CHECKING, and nothing else.
_EXPORTS: Final = {
    "A2AClient": "apcore_a2a.client.client",
    "A2AError": "apcore_a2a.errors",
    "APIKeyAuthenticator": "apcore_a2a.auth.api_keys",
    "Agent": "apcore_a2a.agent",
    "AgentExecutor": "apcore_a2a.agents.executors",
    "Authenticator": "apcore_a2a.auth.authenticator",
    "ClaimMapping": "apcore_a2a.auth.claims",
    "Client": "apcore_a2a.client.sync",
    "ClientCertificateAuthenticator": "apcore_a2a.auth.client_certificates",
    "InMemoryTaskStore": "apcore_a2a.storage.memory",
    "JWTAuthenticator": "apcore_a2a.auth.jwt",
    "RemoteAgent": "apcore_a2a.remote.mount",
    "SQLiteStore": "apcore_a2a.storage.sqlite.store",
    "Settings": "apcore_a2a.settings",
    "TaskStore": "apcore_a2a.storage.task_store",
    "as_agent": "apcore_a2a.agents.as_agent",
    "async_serve": "apcore_a2a.app.serve",
    "mount_remote": "apcore_a2a.remote.mount",
    "serve": "apcore_a2a.app.serve",
}

__all__ = [
    "A2AClient",
    "A2AError",
    "APIKeyAuthenticator",
    "Agent",
    "AgentExecutor",
    "Authenticator",
    "ClaimMapping",
    "Client",
    "ClientCertificateAuthenticator",
    "InMemoryTaskStore",
    "JWTAuthenticator",
    "RemoteAgent",
    "SQLiteStore",
    "Settings",
    "TaskStore",
    "__version__",
    "as_agent",
    "async_serve",
    "mount_remote",
    "serve",
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
