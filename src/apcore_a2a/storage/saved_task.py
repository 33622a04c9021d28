"""A task as a `TaskStore` of yours keeps it, and what the engine needs to know of it beside.

Rule: that travels in the task's metadata under one reserved name, and is taken out on every read.
"""

from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, TypeVarTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import Document, Task, TaskState, encode
from apcore_a2a.storage.cursor import Place
from apcore_a2a.storage.task_store import EVERYBODY, Query, Record

RESERVED: Final = "apcore-a2a"

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Bookkeeping(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What travels in the metadata."""

    owner: str
    created: int
    """Nanoseconds since 1970, made to differ: the order of creation."""
    version: int
    epoch: int
    key: str = ""
    memo: str = ""
    run: str = ""


class SavedTask(Struct, frozen=True):
    """A task as the engine knows it, and what travels with it."""

    task: Task
    bookkeeping: Bookkeeping

    @property
    def state(self) -> TaskState:
        return self.task.status.state

    def matches(self, query: Query) -> bool:
        status = self.task.status
        return (
            query.owner in (self.bookkeeping.owner, EVERYBODY)
            and query.context_id in ("", self.task.context_id)
            and query.state in (None, status.state)
            and status.timestamp >= query.changed_since
        )

    def place(self, query: Query) -> Place:
        if query.by_creation:
            return "", self.bookkeeping.created
        return self.task.status.timestamp, self.bookkeeping.created

    def pack(self) -> Task:
        """The task as your store keeps it."""
        metadata = {**(self.task.metadata or {}), RESERVED: msgspec.to_builtins(self.bookkeeping)}
        return replace(self.task, metadata=metadata)

    def to_record(self) -> Record:
        return Record(
            document=Document(encode(self.task)),
            owner=self.bookkeeping.owner,
            state=self.state,
            version=self.bookkeeping.version,
            epoch=self.bookkeeping.epoch,
            memo=b64decode(self.bookkeeping.memo),
            run=b64decode(self.bookkeeping.run),
        )


def unpack(task: Task | None) -> SavedTask | None:
    """A task and what travelled with it; None for one that the engine did not save, and that so has no owner.

    Raises:
        StoreUnavailableError: your store has answered with something else.
    """
    if task is not None and not isinstance(task, Task):
        raise StoreUnavailableError from TypeError(f"a TaskStore gave a {type(task).__name__} for a Task")
    if task is None or not task.metadata or RESERVED not in task.metadata:
        return None
    metadata = dict(task.metadata)  # the task is yours: nothing is taken out of the original
    try:
        bookkeeping = msgspec.convert(metadata.pop(RESERVED), Bookkeeping)
    except msgspec.ValidationError:
        return None
    return SavedTask(replace(task, metadata=metadata or None), bookkeeping)


async def ask(method: Callable[[*Arguments], Awaitable[T]], *arguments: *Arguments) -> T:
    """Call a method of a store of yours: whatever goes wrong in it, the engine sees a store that is not available."""
    try:
        return await method(*arguments)
    except Exception as error:  # foreign code
        raise StoreUnavailableError from error
