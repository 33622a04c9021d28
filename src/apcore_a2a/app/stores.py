"""Chooses the store of an agent: by a URL, a given object, or in memory. Explains why a store cannot be opened."""

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from msgspec import Struct

from apcore_a2a.errors import A2AError
from apcore_a2a.storage.contract import Store, missing_methods
from apcore_a2a.storage.custom import TaskStoreAdapter
from apcore_a2a.storage.memory import MAX_CAPACITY, TTL, InMemoryTaskStore
from apcore_a2a.storage.sqlite.store import SQLiteStore
from apcore_a2a.web import hide_password


class Retention(Struct, frozen=True):
    """How long finished tasks are kept, and the maximum number of tasks. None is the default of the store."""

    ttl: float | None = None
    max_tasks: int | None = None
    # A store in memory enforces these itself. For any other store the engine does (`engine/stored_limits.py`).
    max_bytes: int | None = None
    max_bytes_per_owner: int | None = None
    max_tasks_per_owner: int | None = None

    def given(self) -> dict[str, float | int]:
        options: dict[str, float | int] = {}
        if self.ttl is not None:
            options["ttl"] = self.ttl
        if self.max_tasks is not None:
            options["max_tasks"] = self.max_tasks
        return options

    def limits(self) -> dict[str, int]:
        """Return the limits of a store in memory, by the names of its parameters."""
        limits: dict[str, int] = {}
        for name in ("max_bytes", "max_bytes_per_owner", "max_tasks_per_owner"):
            limit = getattr(self, name)
            if limit is not None:
                limits[name] = limit
        return limits


def _open_memory(url: str, retention: Retention) -> InMemoryTaskStore:
    if urlsplit(url).query:
        raise ValueError(f"a store in memory has no options in its URL; got {url!r}")
    ttl = retention.ttl if retention.ttl is not None else TTL
    capacity = retention.max_tasks if retention.max_tasks is not None else MAX_CAPACITY
    given: dict[str, Any] = dict(retention.limits())  # Any: as the constructor takes them
    return InMemoryTaskStore(ttl_seconds=ttl, max_capacity=capacity, **given)


def _open_sqlite(url: str, retention: Retention) -> SQLiteStore:
    return SQLiteStore.from_url(_with_retention(url, retention))


def _open_postgres(url: str, retention: Retention) -> Store:
    try:
        from apcore_a2a.storage.postgres.store import PostgresStore
    except ImportError as error:
        raise ValueError(f"a PostgreSQL store needs asyncpg: pip install 'apcore-a2a[postgres]' ({error})") from error
    return PostgresStore.from_url(_with_retention(url, retention))


def _with_retention(url: str, retention: Retention) -> str:
    options = retention.given()
    twice = sorted(options.keys() & parse_qs(urlsplit(url).query).keys())
    if twice:
        raise ValueError(f"{', '.join(twice)} is set in the store's URL and by task_store_ttl or task_store_max")
    return _with_options(url, options)


def _with_options(url: str, options: Mapping[str, object]) -> str:
    if not options:
        return url
    separator = "&" if urlsplit(url).query else "?"
    return f"{url}{separator}{urlencode(options)}"


def with_listen_url(url: str | None, listen_url: str | None) -> str | None:
    """Return the URL of a store with the address for notifications as an option.

    Raises:
        ValueError: the store is not in PostgreSQL, or its URL has this option, too.
    """
    if listen_url is None:
        return url
    parts = urlsplit(url or "")
    if url is None or parts.scheme not in ("postgresql", "postgres"):
        raise ValueError(
            "store_listen_url is for a PostgreSQL store: set store to a URL postgresql://user@host/database"
        )
    if "listen_url" in parse_qs(parts.query):
        raise ValueError("listen_url is set in the store's URL and by store_listen_url")
    return _with_options(url, {"listen_url": listen_url})


SCHEMES: Final[dict[str, Callable[[str, Retention], Store]]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
}
_ENGINE_METHODS: Final = ("create", "append", "load", "events", "page", "orphans", "remove", "check", "open", "close")


def choose_store(url: str | None, store: Any, retention: Retention) -> Store:  # Any: the object of the user
    """Return the store that `store="sqlite:///tasks.db"` or `task_store=MyStore()` selects.

    Raises:
        ValueError: both are given, or the scheme of the URL is unknown, or an object is given with a retention.
        TypeError: the object lacks methods of `TaskStore`. The text names them.
    """
    if url is not None and store is not None:
        raise ValueError("give either store= (a URL) or task_store= (an object), not both")
    if url is not None:
        scheme = urlsplit(url).scheme
        if scheme not in SCHEMES:
            known = ", ".join(f"{name}://" for name in sorted(SCHEMES))
            raise ValueError(f"store must be a URL that begins with one of {known}; got {hide_password(url)!r}")
        return SCHEMES[scheme](url, retention)
    if store is None:
        return _open_memory("", retention)
    if retention.given():
        raise ValueError(
            "task_store_ttl and task_store_max are for stores that are named by a URL; "
            f"set them on the {type(store).__name__} that you give as task_store"
        )
    if isinstance(store, InMemoryTaskStore) and retention.limits():
        names = ", ".join(retention.limits())
        raise ValueError(f"a store in memory enforces its own limits: give {names} to your InMemoryTaskStore")
    if all(callable(getattr(store, name, None)) for name in _ENGINE_METHODS):
        engine_store: Store = store  # it has all methods of the engine's contract, so it needs no adapter
        return engine_store
    missing = missing_methods(store)
    if missing:
        raise TypeError(f"task_store {type(store).__name__} lacks the methods: {', '.join(missing)}")
    return TaskStoreAdapter(store)


OTHER_STORE: Final = "name another with --store (in Python: store=)"
_REMEDIES: Final = {
    sqlite3.SQLITE_CANTOPEN: f"check that this user may write the file and its directory, or {OTHER_STORE}",
    sqlite3.SQLITE_READONLY: f"check that this user may write the file and its directory, or {OTHER_STORE}",
    sqlite3.SQLITE_PERM: f"check that this user may write the file and its directory, or {OTHER_STORE}",
    sqlite3.SQLITE_NOTADB: f"the file is not changed: {OTHER_STORE}",
    sqlite3.SQLITE_CORRUPT: f"restore it from a copy, or {OTHER_STORE}",
    sqlite3.SQLITE_FULL: "make room on the disk",
}


def why_not_open(error: A2AError) -> str:
    """Return one line for the operator: why the store does not open, and what to do."""
    text = " ".join(error.message.split())
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the primary code, without the extended one
        if code in _REMEDIES:
            return f"{text}; {_REMEDIES[code]}"
    if ";" in text:  # the text already says what to do
        return text
    return f"{text}; {OTHER_STORE}"
