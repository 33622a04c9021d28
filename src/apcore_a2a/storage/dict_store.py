"""An adapter that makes a `TaskStore` of a user's store whose methods accept and return dictionaries.

Invariant: a task is converted to the JSON of A2A 1.0 and back without loss. Only its state is written as in 0.3
("working"), because such stores expect those values.
"""

import inspect
from typing import Any, Final, Protocol

import msgspec

from apcore_a2a.protocol.decoding import inverted
from apcore_a2a.protocol.model import Document, PushConfig, Task, encode
from apcore_a2a.protocol.v03.values import STATES
from apcore_a2a.storage.contract import SavedPushConfig, TaskListResult

Json = dict[str, Any]  # Any: contains JSON values that the protocol does not define

_NAMES: Final = inverted(STATES)  # the name of each state in 0.3


class DictStore(Protocol):
    """The methods that the adapter calls. A store may have others, such as `update_status` and `save_context`."""

    async def save(self, task: Json) -> None: ...

    async def get(self, task_id: str) -> Json | None: ...

    async def list(self, context_id: str | None, cursor: str | None, limit: int) -> Json:
        """Return a page: `{"tasks": […], "nextCursor": …}`."""

    async def delete(self, task_id: str) -> bool: ...

    async def save_push_config(self, task_id: str, config: Json) -> None: ...

    async def get_push_config(self, task_id: str) -> Json | None: ...

    async def delete_push_config(self, task_id: str) -> bool: ...


def takes_dicts(store: Any) -> bool:  # Any: an object of the user
    """Return whether `store.save` expects a dictionary.

    It does if its parameter is annotated as one, or if the store has `update_status`, which only such stores have.
    """
    if callable(getattr(store, "update_status", None)):
        return True
    for parameter in inspect.signature(store.save).parameters.values():
        declared = parameter.annotation  # a str if annotations are not evaluated
        name = str(getattr(declared, "__name__", declared))
        return name.lower().startswith("dict")
    return False


class DictTaskStore:
    """A `TaskStore` over a `DictStore`."""

    def __init__(self, store: DictStore) -> None:
        self._store = store

    async def save(self, task: Task) -> None:
        await self._store.save(to_dict(task))

    async def get(self, task_id: str) -> Task | None:
        found = await self._store.get(task_id)
        if found is None:
            return None
        return from_dict(found)

    async def list(self, context_id: str | None, cursor: str | None, limit: int) -> TaskListResult:
        page = await self._store.list(context_id, cursor, limit)
        return TaskListResult([from_dict(task) for task in page["tasks"]], page.get("nextCursor"))

    async def delete(self, task_id: str) -> bool:
        return await self._store.delete(task_id)

    async def save_push_config(self, task_id: str, config: PushConfig) -> None:
        await self._store.save_push_config(task_id, msgspec.json.decode(encode(config)))

    async def get_push_config(self, task_id: str) -> PushConfig | None:
        found = await self._store.get_push_config(task_id)
        if found is None:
            return None
        return msgspec.convert(found, SavedPushConfig)

    async def delete_push_config(self, task_id: str) -> bool:
        return await self._store.delete_push_config(task_id)


def to_dict(task: Task) -> Json:
    """Return a task as JSON, in new objects that the store may keep and change."""
    fields: Json = msgspec.json.decode(encode(task))
    status = fields["status"]
    status["state"] = _NAMES[status["state"]]
    return fields


def from_dict(task: Json) -> Task:
    """Return the task in a dictionary of the store, without changing the dictionary."""
    status = task["status"]
    state = STATES[status["state"]]
    return Document(encode({**task, "status": {**status, "state": state}})).task()
