"""One task that somebody runs or watches: the only writer of that task.

Rule: fold, save, publish, in this order. No reader sees what a restart would forget.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from apcore_a2a.agent import AgentEvent, Remember
from apcore_a2a.errors import A2AError, InvalidAgentResponseError, TaskNotFoundError
from apcore_a2a.loop.waiting import Turn
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, copy, fold, skips_working
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    Document,
    Event,
    Message,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    encode,
)
from apcore_a2a.server.event_log import Entry, EventLog
from apcore_a2a.server.keeping import Kept, complete, keep, own, says_nothing, status, taken
from apcore_a2a.server.stamps import new_id, utc_now
from apcore_a2a.storage.task_store import Change, Store

MAX_UNSAVED: Final = 64  # writes an agent may be ahead of a durable store
_BODY: Final = attrgetter("body")


class LiveTask:
    """A task in memory with its log. `version` counts what is folded, `log.version` what is saved and published."""

    def __init__(self, task: Task, *, owner: str, store: Store, version: int = 0, running: bool = False) -> None:
        self.task, self.owner = task, owner
        self.version = version
        self.log = EventLog(version)
        self.turn = Turn(is_taken=running)  # the run's; the next message waits for it
        self._store = store
        self._unsaved: deque[asyncio.Future[None]] = deque()

    epoch = 1
    memo = b""
    run = b""
    rested = False  # whether this run has brought the task to rest, if only for a moment
    users = 0  # runs, streams, messages and requests that need it kept; see `Runs.hold`
    queued = canceling = 0
    unwatched: asyncio.TimerHandle | None = None
    _broken = False
    _document: Document | None = None

    @property
    def state(self) -> TaskState:
        return self.task.status.state

    def has_ended(self) -> bool:
        """Whether the task is over, as a restart would find it, too."""
        return self.version == self.log.version and self.task.status.state in TERMINAL

    def snapshot(self) -> Document:
        """The task as of now; encoded once if it is at rest."""
        return self._document or Document(encode(self.task), copy(self.task))

    async def latest(self) -> tuple[Document, int]:
        """The task as a restart would find it, with its version."""
        if self.version == self.log.version:
            return self.snapshot(), self.version
        record = await self._store.load(self.task.id, self.owner)
        if record is None:
            raise TaskNotFoundError(self.task.id)
        return record.document, record.version

    async def kept(self, after: int) -> Sequence[bytes] | None:
        """The events above a sequence number that the store has kept, if it keeps any."""
        return await self._store.events(self.task.id, self.owner, after)

    async def create(self, *, key: str = "", working: bool = False) -> str | None:
        """Store a new task, and that it is worked on if it is; the id of the earlier one if `key` was used before."""
        self.task, body = own(self.task)
        self.version, entries, records = 1, [Entry(1, self.task.status.state, body)], [body]
        if working:
            event, body = status(TaskState.WORKING, self.task)
            fold(self.task, event)
            self.version = 2
            entries.append(Entry(2, TaskState.WORKING, body))
            records.append(body)
        change = self._change(records)
        self._broken = True  # until the store says that it is not
        earlier = await self._store.create(change, key=key)
        self._broken = False
        if earlier is None:
            self._publish(entries, change)
        return earlier

    async def hear(self, said: Message) -> None:
        """Take the user's next message, with which the task works again."""
        task = self.task
        said = replace(said, task_id=task.id, context_id=task.context_id, message_id=said.message_id or new_id())
        await self.save([status(TaskState.WORKING, task)], said=said)
        await self.flush()

    async def start_anew(self) -> None:
        """Forget what an earlier attempt has made."""
        working = TaskStatus(state=TaskState.WORKING, timestamp=utc_now())
        await self.write(replace(self.task, artifacts=[], status=working))
        await self.flush()

    async def write(self, event: Event) -> None:
        """Fold one event of our own, have it saved, publish it."""
        await self.save([keep(event, self.task)])

    async def save(self, events: list[Kept], *, said: Message | None = None) -> None:
        """Take kept events: fold them, have them saved, publish them; together, for one save costs what many would.

        Raises:
            A2AError: an event may not follow (those before it are taken), or the store could not take them.
        """
        if (saving := self.save_now(events, said=said)) is not None:
            await saving

    def save_now(self, events: list[Kept], *, said: Message | None = None) -> Coroutine[Any, Any, None] | None:
        """The same, done when this returns, unless it answers what to await."""
        entries, change, failure = self._fold(events, said)
        if entries:
            try:
                saved = self._store.append(change)
            except Exception:
                self._broken = True
                raise
            if saved is not None:
                return self._save_later(saved, entries, change, failure)
            self._publish(entries, change)
        if failure is not None:
            raise failure
        return None

    async def _save_later(
        self, saved: "asyncio.Future[None]", entries: list[Entry], change: Change, failure: A2AError | None
    ) -> None:
        def publish(done: "asyncio.Future[None]") -> None:
            if not done.cancelled() and done.exception() is None:
                self._publish(entries, change)

        # The agent goes on while a durable store commits; saves finish in the order they were begun.
        saved.add_done_callback(publish)
        self._unsaved.append(saved)
        try:
            if change.document is not None:
                await self.flush()
            elif len(self._unsaved) > MAX_UNSAVED:
                await self._settle()
            else:
                while self._unsaved and self._unsaved[0].done():
                    self._unsaved.popleft().result()
        except Exception:
            self._broken = True
            raise
        if failure is not None:
            raise failure

    async def _settle(self) -> None:
        await asyncio.wait({self._unsaved[0]})  # not for the future itself: cancelling this must not cancel the save
        self._unsaved.popleft().result()

    async def flush(self) -> None:
        """Wait until all that was folded is saved."""
        try:
            while self._unsaved:
                await self._settle()
        except Exception:
            self._broken = True
            raise

    def _fold(self, events: Iterable[Kept], said: Message | None) -> tuple[list[Entry], Change, A2AError | None]:
        """Fold events up to one that may not follow, which changes nothing; that is answered, too."""
        entries: list[Entry] = []
        failure = None
        try:
            for event, body in events:
                self._fold_one(event, body, entries, heard=said is not None)
        except A2AError as error:
            failure = error
        records = list(map(_BODY, entries))
        if said is not None and entries:
            records[0] = v1.encode_heard(said, records[0])
            fold(self.task, said)
        return entries, self._change(records), failure

    def _fold_one(self, event: AgentEvent, body: bytes, entries: list[Entry], *, heard: bool = False) -> None:
        """One event: with the step to WORKING that agents leave out, and not at all if it says nothing."""
        task = self.task
        if isinstance(event, Remember):
            self.memo = event.memo
            return
        if not isinstance(event, ArtifactUpdate):
            state = task.status.state
            if isinstance(event, Message):  # within a task, a message is what the agent says while it works
                event, body = taken(complete(StatusUpdate(status=TaskStatus(state=state, message=event)), task))
            new = event.status.state
            if new is state is TaskState.WORKING and not heard and says_nothing(event):
                return
            if state is not TaskState.WORKING and skips_working(state, new):
                self._fold_one(*status(TaskState.WORKING, task), entries)
        if (applied := fold(task, event)) is not event:
            body = v1.encode_event(applied)
        self.version += 1
        state = task.status.state
        self.rested = self.rested or state in AT_REST
        entries.append(Entry(self.version, state, body))

    def _change(self, records: list[bytes]) -> Change:
        """All that was folded, to be stored; a task at rest goes with its document."""
        task, document = self.task, None
        state = task.status.state
        if state in AT_REST:  # one that waits for its user will change again, so its document keeps no hold of it
            document = Document(encode(task), task if state in TERMINAL else None)
        self._document = document
        return Change(
            task=task,
            owner=self.owner,
            version=self.version,
            epoch=self.epoch,
            events=records,
            document=document,
            memo=self.memo,
            run=self.run if document is None or state is TaskState.AUTH_REQUIRED else b"",
        )

    def _publish(self, entries: list[Entry], change: Change) -> None:
        if entries[0].seq != self.log.version + 1:
            return  # a save before this one failed, or only seemed to; `mend` finds out, and nobody sees a gap
        self.log.append(entries, sum(map(len, change.events)))
        if entries[-1].state in TERMINAL:
            self.log.close()

    async def park(self) -> None:
        """Its agent has returned at AUTH_REQUIRED, instead of waiting for the login: a restart has nothing to run."""
        _, change, _ = self._fold((), None)
        change.run = b""
        if (saved := self._store.append(change)) is not None:
            await saved
        self.run = b""

    async def mend(self) -> None:
        """After a failed save: go back to what the store has."""
        if not self._broken:
            return
        if self._unsaved:
            await asyncio.wait(self._unsaved)
        record = await self._store.load(self.task.id, self.owner)
        if record is None:
            raise TaskNotFoundError(self.task.id)
        self.task, self.version, self._document = record.document.task(), record.version, None
        self._unsaved.clear()
        self._broken = False
        if record.version != self.log.version:
            self.log.restart(record.version)

    def adopt(self, task: Task) -> None:
        """Take an agent's own idea of its new task, before it is stored."""
        if (task.id, task.context_id) != (self.task.id, self.task.context_id):
            raise InvalidAgentResponseError("The agent published a task that is not its own")
        timestamp = task.status.timestamp or utc_now()
        self.task = copy(replace(task, status=replace(task.status, timestamp=timestamp)))

    def address(self, reply: Message) -> Message:
        """A reply that makes no task belongs to the conversation only."""
        reply = replace(reply, context_id=self.task.context_id, task_id="", message_id=reply.message_id or new_id())
        return taken(reply)[0]
