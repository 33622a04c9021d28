"""A durable store in memory whose disk the test is master of: which write fails, and when each is committed.

It keeps what a real one keeps (event records as bytes), checks what a real one checks (version, epoch, owner, key), and
rebuilds tasks by folding. `FakeDisk.reopen` is what the next process finds.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from apcore_a2a.errors import A2AError, StaleWriteError, StoreUnavailableError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import TERMINAL, document_of, join_texts
from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.storage.contract import NO_MEMORY, Change, ConversationMemory, ConversationWrite, Page, Query, Record

RUNNING = (TaskState.SUBMITTED, TaskState.WORKING)


class Row(Struct):
    number: int
    owner: str
    key: str
    state: TaskState
    events: list[bytes]
    epoch: int = 1
    memo: bytes = b""
    run: bytes = b""

    def task(self) -> Task:
        task, _ = v1.decode_record(self.events[0])
        assert isinstance(task, Task)
        v1.replay(task, self.events[1:])
        return join_texts(task)

    def record(self) -> Record:
        task = self.task()
        return Record(
            document=document_of(task),
            owner=self.owner,
            state=task.status.state,
            version=len(self.events),
            epoch=self.epoch,
            memo=self.memo,
            run=self.run,
        )


class FakeDisk:
    """A store. `fault(n)` says what goes wrong with the n-th write: nothing, an error before, or an error after it."""

    durable = True

    def __init__(self, rows: dict[str, Row] | None = None) -> None:
        self.rows: dict[str, Row] = {} if rows is None else rows
        self.fault: Callable[[int], str] = lambda n: ""  # "before": not written; "after": written, but not told
        self.memories: dict[tuple[str, str], ConversationMemory] = {}
        self.held = False
        self.writes = 0
        self.is_open = False
        self._waiting: deque[Callable[[], None]] = deque()

    def reopen(self) -> "FakeDisk":
        """The same disk as the next process finds it; this one can write to it no more."""
        rows, self.rows = self.rows, {}
        self.let_go()
        disk = FakeDisk(rows)
        disk.memories = self.memories
        return disk

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.let_go()
        self.is_open = False

    async def check(self) -> None: ...

    # ---- writes -----------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Commit nothing until told."""
        self.held = True

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def commit(self, number: int = 1) -> None:
        """Commit the next of the writes that wait."""
        for _ in range(number):
            self._waiting.popleft()()

    def let_go(self) -> None:
        """Commit all that waits, and what comes from now on at once."""
        self.held = False
        while self._waiting:
            self._waiting.popleft()()

    def _submit(self, apply: Callable[[], str | None]) -> "asyncio.Future[str | None]":
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.writes += 1
        fault = self.fault(self.writes)

        def write() -> None:
            result: str | None = None
            error: A2AError | None = None
            try:
                result = None if fault == "before" else apply()
                error = StoreUnavailableError() if fault else None
            except StaleWriteError as stale:
                error = stale
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        if self.held:
            self._waiting.append(write)
        else:
            asyncio.get_running_loop().call_soon(write)
        return future

    async def create(self, change: Change, *, key: str = "") -> str | None:
        return await self._submit_new(change, key)

    def check_room(self, owner: str, size: int) -> None: ...

    def begin_create(self, change: Change) -> "asyncio.Future[None]":
        return self._submit_new(change, "")  # type: ignore[return-value]  # without a key the result is None

    def _submit_new(self, change: Change, key: str) -> "asyncio.Future[str | None]":
        events, task_id, state = list(change.events), change.task.id, change.task.status.state
        piece, context_id = change.conversation, change.task.context_id

        def apply() -> str | None:
            for other, row in self.rows.items():
                if key and (row.owner, row.key) == (change.owner, key):
                    return other
            if task_id in self.rows:
                raise StaleWriteError
            self.rows[task_id] = Row(
                len(self.rows), change.owner, key, state, events, change.epoch, change.memo, change.run
            )
            self._remember(change.owner, context_id, piece)
            return None

        return self._submit(apply)

    async def find_key(self, key: str, owner: str) -> str | None:
        for task_id, row in self.rows.items():
            if (row.owner, row.key) == (owner, key):
                return task_id
        return None

    def append(self, change: Change) -> "asyncio.Future[None]":
        events, task_id, expected = tuple(change.events), change.task.id, change.expected
        piece, context_id = change.conversation, change.task.context_id
        epoch, memo, run, owner, state = change.epoch, change.memo, change.run, change.owner, change.task.status.state

        def apply() -> None:
            row = self.rows.get(task_id)
            if row is None or row.owner != owner or len(row.events) != expected:
                raise StaleWriteError
            if epoch < row.epoch or row.state in TERMINAL:
                raise StaleWriteError
            row.events += events
            self._remember(owner, context_id, piece)
            row.epoch, row.memo, row.run, row.state = epoch, memo, run, state

        return self._submit(apply)  # type: ignore[return-value]  # of an append the result is None

    def _remember(self, owner: str, context_id: str, piece: ConversationWrite | None) -> None:
        if piece is not None:
            before = self.memories.get((owner, context_id), NO_MEMORY)
            self.memories[owner, context_id] = before.after(piece) or before

    # ---- reads ------------------------------------------------------------------------------------------------------

    async def load(self, task_id: str, owner: str) -> Record | None:
        row = self.rows.get(task_id)
        return None if row is None or row.owner != owner else row.record()

    async def events(self, task_id: str, owner: str, after: int, limit: int = 1_000_000) -> Sequence[bytes] | None:
        row = self.rows.get(task_id)
        return None if row is None or row.owner != owner else row.events[max(after, 0) :][:limit]

    async def conversation(self, owner: str, context_id: str) -> ConversationMemory:
        return self.memories.get((owner, context_id), NO_MEMORY)

    async def page(self, query: Query) -> Page:
        rows = sorted(self.rows.values(), key=lambda row: -row.number)
        found = [row.record() for row in rows if row.owner == query.owner]
        matching = [
            record
            for record in found
            if query.context_id in ("", record.document.task().context_id) and query.state in (None, record.state)
        ]
        return Page(matching[: query.limit], "", len(matching))

    async def orphans(self) -> list[Record]:
        found = [row for row in self.rows.values() if row.state in RUNNING or (row.state not in TERMINAL and row.run)]
        for row in found:
            row.epoch += 1
        return [row.record() for row in found]

    async def remove(self, task_id: str, owner: str) -> bool:
        return self.rows.pop(task_id, None) is not None
