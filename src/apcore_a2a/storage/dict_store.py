"""A store of yours whose methods take and give dictionaries, as a `TaskStore`.

Rule: a task becomes the JSON that A2A 1.0 writes, but for its state, which is one of 0.3's short words ("working"):
those are what such stores look for. Nothing is lost on the way there and back.
"""

import inspect
from typing import Any, Final, Protocol

import msgspec

from apcore_a2a.protocol.decoding import inverted
from apcore_a2a.protocol.model import Document, PushConfig, Task, encode
from apcore_a2a.protocol.v03.values import STATES
from apcore_a2a.storage.contract import SavedPushConfig, TaskListResult

Json = dict[str, Any]  # Any: what the protocol leaves free is in it

_WORDS: Final = inverted(STATES)


class DictStore(Protocol):
    """The methods that are called; a store may have more, such as `update_status` and `save_context`."""

    async def save(self, task: Json) -> None: ...

    async def get(self, task_id: str) -> Json | None: ...

    async def list(self, context_id: str | None, cursor: str | None, limit: int) -> Json:
        """A page: `{"tasks": […], "nextCursor": …}`."""

    async def delete(self, task_id: str) -> bool: ...

    async def save_push_config(self, task_id: str, config: Json) -> None: ...

    async def get_push_config(self, task_id: str) -> Json | None: ...

    async def delete_push_config(self, task_id: str) -> bool: ...


def takes_dicts(store: Any) -> bool:  # Any: whatever the user handed in
    """Whether `store.save` wants a dictionary: its parameter says so, or the store has what only such stores have."""
    if callable(getattr(store, "update_status", None)):
        return True
    for parameter in inspect.signature(store.save).parameters.values():
        declared = parameter.annotation  # text, where annotations are not evaluated
        name = str(getattr(declared, "__name__", declared))
        return name.lower().startswith("dict")
    return False


class DictTaskStore:
    """Turns tasks into dictionaries and back."""

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
    """A task as JSON that is the store's to keep and to change."""
    made: Json = msgspec.json.decode(encode(task))
    status = made["status"]
    status["state"] = _WORDS[status["state"]]
    return made


def from_dict(task: Json) -> Task:
    """The task again; the dictionary, which is the store's, stays as it is."""
    status = task["status"]
    state = STATES[status["state"]]
    return Document(encode({**task, "status": {**status, "state": state}})).task()
