"""One task that somebody runs or watches: the only writer of that task.

Rule: fold, save, publish, in this order. No reader sees what a restart would forget.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from apcore_a2a.agent import AgentEvent, Remember
from apcore_a2a.engine.agent_output import Kept, complete, keep, own, says_nothing, status, taken
from apcore_a2a.engine.event_log import Entry, EventLog
from apcore_a2a.engine.waiting import Turn
from apcore_a2a.errors import A2AError, InvalidAgentResponseError, OverloadedError, TaskNotFoundError
from apcore_a2a.ids_and_time import new_id, utc_now
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
from apcore_a2a.storage.task_store import Change, Store

MAX_QUEUED: Final = 32  # messages that may wait for one running task
MAX_UNSAVED: Final = 64  # writes an agent may be ahead of a durable store
_BODY: Final = attrgetter("body")


class LiveTask:
    """A task in memory with its log. `version` counts what is folded, `log.version` what is saved and published."""

    def __init__(
        self, task: Task, registry: "dict[str, LiveTask]", *, owner: str, store: Store, version: int = 0, epoch: int = 1
    ) -> None:
        self.task = task
        self.owner = owner
        self.version = version
        self.epoch = epoch
        self.memo = b""
        self.run = b""  # what another process needs to run it again
        self.log = EventLog(version)
        self.turn = Turn()  # the run's; the next message waits for it
        self.unsaved: deque[asyncio.Future[None]] = deque()  # writes on their way
        self.is_stored = version > 0  # else there is no task yet, or the store has not said so
        self.rested = False  # whether this run has brought the task to rest, if only for a moment
        self._store = store
        self._registry = registry
        self._users = 0  # runs, streams, messages and requests that need it kept
        self._queued = 0
        self._cancels = 0
        self._unwatched: asyncio.TimerHandle | None = None
        self._broken = False
        self._error: BaseException | None = None
        self._document: Document | None = None
        registry[task.id] = self

    # ---- who needs it ---------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Keep it. Two live objects for one task would be two writers, so none is forgotten while anybody has it."""
        self._users += 1
        self._watch(None)

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self._watch(None)
            if self._registry.get(self.task.id) is self:
                del self._registry[self.task.id]

    @contextmanager
    def held(self) -> Iterator[None]:
        self.hold()
        try:
            yield
        finally:
            self.release()

    def when_unwatched(self, seconds: float, stop: Callable[[], object]) -> None:
        """Call `stop` after a while, unless somebody takes an interest in the task again; the run itself has one."""
        if self._users == 1:
            self._watch(asyncio.get_running_loop().call_later(seconds, stop))

    def _watch(self, timer: asyncio.TimerHandle | None) -> None:
        if self._unwatched is not None:
            self._unwatched.cancel()
        self._unwatched = timer

    # ---- whose turn it is -----------------------------------------------------------------------------------------

    def join_queue(self) -> "asyncio.Future[None] | None":
        if self._queued >= MAX_QUEUED:
            raise OverloadedError("Too many messages wait for this task; try again later")
        self._queued += 1
        return self.turn.join()

    async def wait_turn(self, place: "asyncio.Future[None] | None") -> None:
        """For who has joined the queue."""
        try:
            await self.turn.wait(place)
        finally:
            self._queued -= 1

    @contextmanager
    def canceling(self) -> Iterator[None]:
        """Meanwhile a message whose turn it is is refused, so the turn of the cancel comes soon."""
        self._cancels += 1
        try:
            yield
        finally:
            self._cancels -= 1

    def is_closed(self) -> bool:
        """Whether no message may follow."""
        return self.state in TERMINAL or self._cancels > 0

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
            self.is_stored = True
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
        """Take kept events: fold them, have them saved, publish them; done when all that was folded is saved.

        Raises:
            A2AError: an event may not follow (those before it are taken), or the store could not take them.
        """
        self.save_now(events, said=said)
        await self.flush()

    def save_now(self, events: list[Kept], *, said: Message | None = None) -> "asyncio.Future[None] | None":
        """Fold events and hand them to the store, together; None when they are saved, else a future for that.

        The future is not to be awaited by whoever may be cancelled: that would cancel the save.
        """
        entries, change, failure = self._fold(events, said)
        saved = None
        if entries:
            try:
                saved = self._store.append(change)
            except Exception:
                self._broken = True
                raise
            if saved is None:
                self._publish(entries, change)
            else:
                self.unsaved.append(saved)
                saved.add_done_callback(partial(self._saved, entries, change))
        if failure is not None:
            raise failure
        return saved

    def _saved(self, entries: list[Entry], change: Change, done: "asyncio.Future[None]") -> None:
        self.unsaved.remove(done)
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            self._publish(entries, change)
        else:
            self._broken = True
            self._error = self._error or error  # the first one: those after it are stale because of it

    @property
    def must_catch_up(self) -> bool:
        """Whether the agent has to wait for the store: its task rests, or too many writes are on their way."""
        return bool(self.unsaved) and (self.rested or len(self.unsaved) > MAX_UNSAVED)

    async def catch_up(self) -> None:
        """Wait for the store: for all of a task at rest, else until the agent is not too far ahead."""
        limit = 0 if self.rested else MAX_UNSAVED
        while len(self.unsaved) > limit:
            await asyncio.wait({self.unsaved[0]})  # not for the future itself: cancelling this must not cancel the save

    async def flush(self) -> None:
        """Wait until all that was folded is saved."""
        while self.unsaved:
            await asyncio.wait({self.unsaved[-1]})
        if self._error is not None:
            raise self._error

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
        while self.unsaved:
            await asyncio.wait(set(self.unsaved))
        record = await self._store.load(self.task.id, self.owner)
        if record is None:
            raise TaskNotFoundError(self.task.id)
        self.task, self.version, self._document = record.document.task(), record.version, None
        self.is_stored = True
        self._broken = False
        self._error = None
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
