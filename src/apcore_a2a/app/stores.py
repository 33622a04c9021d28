"""Which store an agent gets: by one word, by an object of yours, or the one in memory."""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.storage.simple import SimpleStore
from apcore_a2a.storage.sqlite.store import SQLiteStore
from apcore_a2a.storage.task_store import Store, TaskStore, missing_methods

SCHEMES: Final[dict[str, Callable[[str], Store]]] = {
    "memory": lambda url: InMemoryTaskStore(),
    "sqlite": SQLiteStore.from_url,
}
_ENGINE_METHODS: Final = ("create", "append", "load", "events", "page", "orphans", "remove", "check", "open", "close")


def choose_store(url: str | None, store: Any) -> Store:  # Any: whatever the user handed in
    """The store that `store="sqlite:///tasks.db"` or `task_store=MyStore()` asks for.

    Raises:
        ValueError: both are given, or the URL names no store we know.
        TypeError: the object lacks methods of `TaskStore`; the text names them.
    """
    if url is not None and store is not None:
        raise ValueError("give either store= (a URL) or task_store= (an object), not both")
    if url is not None:
        scheme = urlsplit(url).scheme
        if scheme not in SCHEMES:
            known = ", ".join(f"{name}://" for name in sorted(SCHEMES))
            raise ValueError(f"store must be a URL that begins with one of {known}; got {url!r}")
        return SCHEMES[scheme](url)
    if store is None:
        return InMemoryTaskStore()
    if all(callable(getattr(store, name, None)) for name in _ENGINE_METHODS):
        engine_store: Store = store  # it has all that the engine asks for, so nothing need stand in between
        return engine_store
    missing = missing_methods(store)
    if missing:
        raise TypeError(f"task_store {type(store).__name__} lacks the methods: {', '.join(missing)}")
    simple: TaskStore = store
    return SimpleStore(simple)
