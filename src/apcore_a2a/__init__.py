"""apcore-a2a: serve an apcore Registry as an A2A agent, and call any A2A agent.

The public names load on first use, so importing one half (the client, say) never pays for the other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from apcore_a2a.errors import A2AError as A2AError
    from apcore_a2a.storage.memory import InMemoryTaskStore as InMemoryTaskStore
    from apcore_a2a.storage.task_store import TaskStore as TaskStore

__version__ = "0.9.0"

# The public API: name → module that defines it. A line here, its twin under TYPE_CHECKING, and nothing else.
_EXPORTS: Final = {
    "A2AError": "apcore_a2a.errors",
    "InMemoryTaskStore": "apcore_a2a.storage.memory",
    "TaskStore": "apcore_a2a.storage.task_store",
}

__all__ = ["A2AError", "InMemoryTaskStore", "TaskStore", "__version__"]


def __getattr__(name: str) -> Any:  # Any: mypy reads the real types from the TYPE_CHECKING imports
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
