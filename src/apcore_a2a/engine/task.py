"""A live task: its turn, its events on their way to the store and to readers, and what a restart needs to go on.

Invariants: only this module writes a task, on behalf of the holder of its turn. Events are folded, saved, and then
published, in this order. No reader sees an event that a restart would lose.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from apcore_a2a.agent import AgentEvent, Remember
from apcore_a2a.engine.agent_output import (
    CheckedEvent,
    address_message,
    bare_status,
    begin_task,
    check_event,
    complete_status,
    detach,
    with_unanswered,
)
from apcore_a2a.engine.context import DEFAULTS, EngineOptions, Observer
from apcore_a2a.engine.conversation import ConversationTurns, RunMemory
from apcore_a2a.engine.event_log import EventLog, Folded, LogEntry, Snapshot, StoredEvents, fold_records, snapshot_entry
from apcore_a2a.engine.stored_run import (
    NO_RUNNER,
    MessageQueue,
    StoredRun,
    decode_stored_run,
    encode_stored_run,
)
from apcore_a2a.engine.waiting import Place, Turn
from apcore_a2a.errors import (
    A2AError,
    InvalidAgentResponseError,
    OverloadedError,
    TaskNotFoundError,
)
from apcore_a2a.ids_and_time import utc_now
from apcore_a2a.protocol import lifecycle, v1
from apcore_a2a.protocol.lifecycle import AT_REST, AUTH_REQUIRED, TERMINAL, WORKING, copy, fold
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    Document,
    Message,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
)
from apcore_a2a.storage.contract import Change, Record, Store, Webhook, as_deferring, as_shared
from apcore_a2a.trace_context import NO_TRACE, Trace

MAX_QUEUED: Final = 32  # messages that may wait for one running task
MAX_UNSAVED: Final = 64  # writes by which an agent may be ahead of a durable store

Saving = asyncio.Future[None] | None
"""A write to the store. None means that it is saved. Code that may be cancelled must not await it directly: that would
cancel the write."""


class TaskRegistry:
    """The live tasks of an engine, and what they share: the store, the observer and the options."""

    def __init__(self, store: Store, observer: Observer, options: EngineOptions = DEFAULTS) -> None:
        self.tasks: dict[str, LiveTask] = {}  # by id; each LiveTask adds and removes itself
        self.store = store
        self.deferring = as_deferring(store)
        self.observer = observer
        self.options = options
        self.conversation_turns: ConversationTurns = {}


class LiveTask:
    """A task in memory, with its log, its holders and its turn. Only its methods change these four.

    Task: `task` contains all events folded so far, and `version` is the number of the last one. Folding an event
    changes the task in memory at once.

    Log: readers follow it. An event is published in the log when the store has it, so `log.version` is the number of
    the last event that is saved and published. A durable store commits while the agent continues, so up to MAX_UNSAVED
    writes lie between the two versions. After a failed save the task is *out of step*: the store may or may not have
    the folded events. Nothing more is written until `resync` has read the task from the store again.

    Holders: runs, streams, requests and queued messages. The registry has the task as long as there is a holder, so
    there is never a second LiveTask of it, which would be a second writer. When the last holder releases the task, it
    leaves the registry.

    Turn: one run has it at a time. Messages wait for it in the order of their arrival, and so does a cancel. A message
    whose sender does not wait is stored until its turn comes (`queue`). If the task ends before, it records the message
    as rejected.
    """

    def __init__(self, task: Task, owner: str, registry: TaskRegistry, record: Record | None = None) -> None:
        self.task = task
        self.owner = owner
        self.version = record.version if record else 0
        self.log = EventLog(self.version, registry.options)
        self.turn = Turn(is_taken=record is None)  # the first run of a new task has its turn
        self.memo = record.memo if record else b""  # the agent's memo, as JSON
        self.stored_run: StoredRun | None = None  # what another process would need to run it again
        self.queue = MessageQueue()
        self.has_webhook = False  # then the task is not canceled when its last subscriber leaves
        self._new_webhook: Webhook | None = None  # stored with a new task
        self._run_body = b""  # `stored_run` and `queue` as a durable store keeps them
        self._queue_body = b""  # the same without the run
        self._beginning: Folded | None = None  # the first events of a new task, until they are passed to the store
        self.is_stored = record is not None  # if not, there is no task yet, or the store has not confirmed it
        self.rested = False  # whether the task has rested during the present run, even if it has continued since
        self._trace: Trace = NO_TRACE  # of the present run
        self._traced_state: TaskState | None = None  # the last state of the run that was stored with its trace
        self.runner = NO_RUNNER  # as of the last read from the store
        self.unsaved: deque[asyncio.Future[None]] = deque()  # writes on their way, in order
        self._epoch = record.epoch if record else 1  # of the lease; a durable store rejects writes with an older one
        self._registry = registry
        self._memory: RunMemory | None = None  # of the conversation, if the agent uses it
        self._holders = 0
        self._cancels = 0  # the number of cancels in progress
        self._unwatched_timer: asyncio.TimerHandle | None = None
        self._out_of_step = False
        self.save_error: BaseException | None = None  # the first since the last `resync`: later ones follow from it
        self._failed_saves: list[tuple[int, list[CheckedEvent]]] = []  # each with the number of its first event
        self._document: Document | None = None  # the task as of `version`, encoded on the first request
        self._snapshot_entry: LogEntry | None = None  # the same as an event, for streams
        registry.tasks[task.id] = self

    # ---- the task as it is ----------------------------------------------------------------------------------------

    @property
    def state(self) -> TaskState:
        return self.task.status.state

    @property
    def is_shared(self) -> bool:
        """Return whether other replicas may write the task, too."""
        return as_shared(self._registry.store) is not None

    @property
    def is_deferred(self) -> bool:
        """Return whether the task has begun, and its first events have not been passed to the store."""
        return self._beginning is not None

    @property
    def is_being_created(self) -> bool:
        """Return whether the store got this new task with the first events of its agent, and has not confirmed it."""
        return not self.is_stored and (bool(self.unsaved) or self.save_error is not None)

    @property
    def is_in_step(self) -> bool:
        """Return whether all folded events are stored and published."""
        return not self._out_of_step and self.version == self.log.version

    def has_ended(self) -> bool:
        """Return whether the task has ended, and its end is stored."""
        return self.version == self.log.version and self.task.status.state in TERMINAL

    def snapshot(self) -> Document:
        """Return the present task. It is encoded once until it changes: many readers may ask for a large task."""
        if self._document is None:
            self._document = lifecycle.document_of(self.task, parsed=copy(self.task))
        return self._document

    async def latest(self) -> Snapshot:
        """Return the task as it is stored, with its version."""
        if self.version == self.log.version:
            return Snapshot(self.snapshot(), self.version)
        record = await self._registry.store.load(self.task.id, self.owner)
        if record is None:
            raise TaskNotFoundError(self.task.id)
        return Snapshot(record.document, record.version)

    async def latest_entry(self) -> LogEntry:
        """Return the task as an event with the sequence number of its last event. All readers share one entry."""
        snapshot = await self.latest()
        shared = self._snapshot_entry
        if shared is None or shared.seq != snapshot.version:
            shared = snapshot_entry(snapshot)
            self._snapshot_entry = shared
        return shared

    def stored_events(self) -> StoredEvents:
        """Return a reader of the stored events, if there are any. It does not keep the task in memory."""
        return partial(self._registry.store.events, self.task.id, self.owner)

    # ---- the trace ------------------------------------------------------------------------------------------------

    def belong_to(self, trace: Trace) -> None:
        """Store the changes of the task's state during the present run as parts of this trace, for the webhooks."""
        self._trace = trace
        self._traced_state = None

    def _traced(self, record: bytes, state: TaskState) -> bytes:
        """Return the record of an event, with the trace if the event has changed the state of the task to this one."""
        # Only for webhooks: a replica of an earlier version would send the trace to the streams of the task as well.
        if not self._trace or not self.has_webhook or state is self._traced_state:
            return record
        self._traced_state = state
        return v1.encode_traced(self._trace, record)

    # ---- holders --------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        self._holders += 1
        self._set_unwatched_timer(None)

    def release(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self._set_unwatched_timer(None)
            if self._registry.tasks.get(self.task.id) is self:
                del self._registry.tasks[self.task.id]

    def end_run(self) -> None:
        """Pass the turn on to the next message, and release the task."""
        if self._memory is not None:
            self._memory.release()
            self._memory = None
        self._trace = NO_TRACE
        self.turn.give()
        self.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.hold()
        try:
            yield
        finally:
            self.release()

    def when_unwatched(self, seconds: float, stop: Callable[[], object]) -> None:
        """Call `stop` after a delay, unless the task gets a subscriber or another holder before."""
        if self._holders == 1 and not self.has_webhook:  # the only holder is the run
            self._set_unwatched_timer(asyncio.get_running_loop().call_later(seconds, stop))

    def _set_unwatched_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._unwatched_timer is not None:
            self._unwatched_timer.cancel()
        self._unwatched_timer = timer

    # ---- the turn -------------------------------------------------------------------------------------------------

    def join_queue(self, *, acknowledged: bool = False) -> Place:
        """Return a place for a message, to wait for with `turn.wait`. Acknowledged messages are never rejected."""
        if self.turn.waiting >= MAX_QUEUED and not acknowledged:
            raise OverloadedError("Too many messages wait for this task; try again later")
        return self.turn.join()

    @contextmanager
    def canceling(self) -> Iterator[None]:
        """Reject messages whose turn comes within this block, so that the turn of the cancel comes soon."""
        self._cancels += 1
        try:
            yield
        finally:
            self._cancels -= 1

    def takes_messages(self) -> bool:
        return self.state not in TERMINAL and self._cancels == 0

    # ---- what a restart or another replica needs ------------------------------------------------------------------

    def set_run(self, run: StoredRun | None) -> None:
        """Set what is stored of the task's run from the next write on."""
        self.stored_run = run
        self.queue_changed()

    def load_queue(self, run: StoredRun | None) -> None:
        """Continue with the queue of a stored run."""
        self.queue.load(run.queue if run is not None else (), self.task.history)
        self.queue_changed()

    def expect_webhook(self, webhook: Webhook | None) -> None:
        """Note that the task has a webhook. If one is given, it is stored together with the task, which is new."""
        self.has_webhook = True
        self._new_webhook = webhook

    def queue_changed(self) -> None:
        """Store the run and the queue as they are now from the next write on."""
        if self._registry.store.durable:  # otherwise nothing outlives the process
            self._run_body = encode_stored_run(self.stored_run, self.queue.waiting)
            self._queue_body = encode_stored_run(None, self.queue.waiting)

    def _run_to_store(self) -> bytes:
        """Return what to store of the run and the queue with the task in its present state."""
        state = self.task.status.state
        if state in TERMINAL:
            return b""
        if state in AT_REST and state is not AUTH_REQUIRED:
            return self._queue_body  # after a crash only the messages that wait are run
        return self._run_body  # an agent that waits for a login is run again, too

    def lose(self) -> None:
        """Give the task up, because another process writes it now. Its readers read the store again."""
        self._out_of_step = True
        if not self.is_shared:  # a shared task is followed from now on
            self.log.close()

    async def save_run(self, *, hand_on: bool = False) -> None:
        """Store the run and the queue, without an event."""
        change = self._change([])
        change.hand_on = hand_on
        saving = self._registry.store.append(change)
        if saving is not None:
            await asyncio.wait({saving})  # `wait`, because cancelling it does not cancel the write
            saving.result()

    # ---- how a run begins -----------------------------------------------------------------------------------------

    def adopt(self, task: Task) -> None:
        """Use the task that the agent yielded as the new task, before it is stored."""
        if task.id != self.task.id or task.context_id != self.task.context_id:
            raise InvalidAgentResponseError("The agent published a task that is not its own")
        timestamp = task.status.timestamp or utc_now()
        self.task = lifecycle.keep_transitions(
            self.task, copy(replace(task, status=replace(task.status, timestamp=timestamp)))
        )

    async def create(self, *, key: str = "", working: bool = False, hand_on: bool = False) -> str | None:
        """Store a new task, with the step to WORKING if `working`. Return the id of the earlier task with this key."""
        self.begin(working=working)
        folded = self._take_beginning()
        change = self._change(folded.records)
        change.hand_on = hand_on
        change.webhook = self._new_webhook
        self._out_of_step = True  # until the store confirms the write
        began = time.monotonic()
        earlier = await self._registry.store.create(change, key=key)
        self._out_of_step = False
        if self._registry.store.durable:
            self._registry.observer.write_confirmed(time.monotonic() - began)
        if earlier is None:
            self.is_stored = True
            self._publish(folded.entries, change)
        return earlier

    def begin(self, *, working: bool) -> None:
        """Fold the first events of a new task, which `create` stores.

        They are saved in one write, because they always come together and two writes cost twice as much.
        """
        self.task, self._beginning = begin_task(self.task, working=working)
        self.version = len(self._beginning.entries)
        if self._trace:
            records = zip(self._beginning.entries, self._beginning.records, strict=True)
            self._beginning.records = [self._traced(record, entry.state) for entry, record in records]

    def take_over(self, beginning: Folded) -> None:
        """Continue with the first events of a new task, and of its agent. `begin_save` stores them.

        Only for a store that `as_deferring` accepts.
        """
        self._beginning = beginning
        self.version = len(beginning.entries)
        self.rested = self.state in AT_REST

    def _take_beginning(self) -> Folded:
        """Return the first events of a new task, to be passed to the store, or no events."""
        folded = self._beginning or Folded([], [])
        self._beginning = None
        return folded

    # ---- what another replica writes --------------------------------------------------------------------------------

    def follow(self, record: Record) -> None:
        """Continue from the stored record, which another replica wrote, or this one under an earlier epoch."""
        if record.version < self.version and not self._out_of_step:
            return  # the record was read before the latest change
        self.memo = record.memo
        self._epoch = record.epoch
        self._in_step()
        if record.version != self.version or record.version != self.log.version:
            self._restart(record)
        self.load_queue(decode_stored_run(record.run))

    def _restart(self, record: Record) -> None:
        """Continue with the task of a record. Its readers start again from a snapshot."""
        self.task = copy(record.document.task())
        self.version = record.version
        self.is_stored = True
        self._document = None
        self._snapshot_entry = None
        self.log.restart(record.version)
        if self.state in TERMINAL:
            self.log.close()

    def follow_events(self, records: Sequence[bytes], *, epoch: int, memo: bytes) -> None:
        """Fold and publish events that another replica has saved. The first one follows `version`."""
        self.memo = memo
        self._epoch = epoch
        entries = fold_records(self.task, records, after=self.version)
        self.version += len(entries)
        if entries:
            self._document = None
            self._snapshot_entry = None
            self.log.append(entries, sum(map(len, records)))

    # ---- what the agent remembers ---------------------------------------------------------------------------------

    def remember(self, checked: Remember) -> None:
        """Store a memo, which `check_event` has encoded, with the next write."""
        if checked.scope == "task":
            self.memo = checked.memo
        else:
            self._conversation_memory().remember(checked.memo)

    async def recall(self) -> Any:  # Any: the agent's memo
        """Return the agent's memory of the conversation. It waits for other runs of this context that have it."""
        return await self._conversation_memory().recall()

    def _conversation_memory(self) -> RunMemory:
        if self._memory is None:  # made here, because few agents have one
            self._memory = RunMemory(
                self._registry.store, self._registry.conversation_turns, self.owner, self.task.context_id
            )
        return self._memory

    # ---- fold, save, publish --------------------------------------------------------------------------------------

    async def write(self, event: AgentEvent) -> None:
        """Fold one event, and wait until all folded events are saved.

        Raises:
            A2AError: the event is not allowed in this state, or the store failed.
        """
        self.begin_save([check_event(event, self.task)])
        await self.flush()

    def begin_save(self, events: list[CheckedEvent], *, said: Message | None = None) -> Saving:
        """Fold events and pass them to the store in one write, which costs as much as the write of a single event.

        `said` is the user's message that caused the first event. It is stored with that event.

        Raises:
            A2AError: an event is not allowed in its state. The events before it are written.
        """
        folded = self._take_beginning()
        failure = None
        try:
            for event, body in events:
                if type(event) is ArtifactUpdate:
                    parts = event.artifact.parts
                    # Checked without a call, because this runs for each chunk, and nearly all have content.
                    if (not parts or parts[0].text == "") and lifecycle.adds_nothing(event, self.task):
                        continue
                self._fold(event, body, folded, said)
                said = None
        except A2AError as error:
            failure = error
        saving = None
        if folded.entries:  # a memo without events is saved with the next event
            saving = self._hand_over(folded, events)
        if failure is not None:
            raise failure
        return saving

    def _fold(self, event: AgentEvent, body: bytes, folded: Folded, said: Message | None = None) -> None:
        """Fold one event. Add the step to WORKING if the agent left it out. Skip an event that repeats the state.

        `said` is the user's message that caused the event.
        """
        task = self.task
        if type(event) is Remember:
            self.remember(event)
            return
        if type(event) is not ArtifactUpdate:
            state = task.status.state
            if type(event) is Message:  # within a task, a message is a status message
                update = StatusUpdate(status=TaskStatus(state=state, message=event))
                event, body = detach(complete_status(update, task))
            if state is WORKING:
                if said is None and lifecycle.repeats_state(event, state):
                    return
            elif lifecycle.skips_working(state, event.status.state):
                self._fold(*bare_status(WORKING, task), folded)
            if self.queue.waiting and event.status.state in TERMINAL:
                event, body = self._reject_queue(event, folded)
        applied = fold(task, event)
        if applied is not event:
            body = v1.encode_event(applied)
        self.version += 1
        self._snapshot_entry = None  # frees its memory
        state = task.status.state
        self.rested = self.rested or state in AT_REST
        folded.entries.append(LogEntry(self.version, state, body))
        if said is not None or self._trace:
            body = self._add_private_parts(body, said)
        folded.records.append(body)

    def _add_private_parts(self, body: bytes, said: Message | None) -> bytes:
        """Return the record of the latest event, with the message that caused it and with its trace, if any."""
        if said is not None:
            body = v1.encode_caused(said, body)
            self._add_to_history(said)
        return self._traced(body, self.state)

    def _add_to_history(self, said: Message) -> None:
        """Add the user's message that caused the latest event. If it was in the queue, it leaves the queue."""
        fold(self.task, said)
        if self.queue.leave(said.message_id, self.version):
            self.queue_changed()

    def _reject_queue(self, end: StatusUpdate | Task, folded: Folded) -> tuple[StatusUpdate | Task, bytes]:
        """Reject the queued messages of a task that ends: add them to its history, and name them in its last status."""
        rejected = [address_message(queued.request.message, self.task) for queued in self.queue.waiting]
        message_ids = [said.message_id for said in rejected]
        if isinstance(end, Task):  # it has a history of its own
            end = replace(end, history=[*end.history, *rejected])
            for message_id in message_ids:
                self.queue.leave(message_id, self.version + 1)
            self.queue_changed()
        else:
            for said in rejected:
                self._fold(*bare_status(WORKING, self.task), folded, said)
        return detach(with_unanswered(end, message_ids, self.task))

    def _hand_over(self, folded: Folded, events: list[CheckedEvent]) -> Saving:
        """Pass folded events to the store, and publish them when they are saved."""
        entries = folded.entries
        change = self._change(folded.records)
        try:
            deferring = self._registry.deferring
            if entries[0].seq == 1 and deferring is not None:
                saving = deferring.begin_create(change)
            else:
                saving = self._registry.store.append(change)
        except Exception as error:
            self._failed_saves.append((entries[0].seq, events))
            self._out_of_step = True
            if not self.is_stored and self.save_error is None:
                self.save_error = error
            raise
        if saving is None:
            self.is_stored = True
            self._publish(entries, change)
        else:
            self.unsaved.append(saving)
            saving.add_done_callback(partial(self._saved, entries, change, events, time.monotonic()))
        return saving

    def _change(self, records: list[bytes]) -> Change:
        """Return the change to store. The change of a task at rest contains its document."""
        task = self.task
        state = task.status.state
        document = None
        if state in AT_REST:
            # A task that waits for its user will change again, so its document has no reference to it.
            document = lifecycle.document_of(task, parsed=task if state in TERMINAL else None)
        self._document = document
        piece = None
        if self._memory is not None:
            piece = self._memory.next_write()
        return Change(
            task=task,
            owner=self.owner,
            version=self.version,
            epoch=self._epoch,
            events=records,
            document=document,
            memo=self.memo,
            run=self._run_to_store(),
            conversation=piece,
        )

    def _saved(
        self,
        entries: list[LogEntry],
        change: Change,
        events: list[CheckedEvent],
        began: float,
        done: "asyncio.Future[None]",
    ) -> None:
        self.unsaved.remove(done)
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            self.is_stored = True
            self._registry.observer.write_confirmed(time.monotonic() - began)
            self._publish(entries, change)
        else:
            self._failed_saves.append((entries[0].seq, events))
            self._out_of_step = True
            if self.save_error is None:
                self.save_error = error

    def _publish(self, entries: list[LogEntry], change: Change) -> None:
        if entries[0].seq != self.log.version + 1:
            return  # an earlier save failed, or seemed to fail. `resync` finds out, and no reader sees a gap.
        self.log.append(entries, sum(map(len, change.events)))
        if self.queue.left:
            self.queue.confirm(self.log.version)
        if entries[-1].state in TERMINAL:
            self._registry.observer.task_ended(self.task.id, self.owner, entries[-1].state)

    # ---- waiting for the store ------------------------------------------------------------------------------------

    def must_catch_up(self) -> bool:
        """Return whether the agent has to wait: its task rests or is not stored yet, or too many writes are pending."""
        return self.rested or not self.is_stored or len(self.unsaved) > MAX_UNSAVED

    async def catch_up(self) -> None:
        """Wait for the store: for all writes of a task at rest or a new one, else until MAX_UNSAVED are pending."""
        limit = 0 if self.rested or not self.is_stored else MAX_UNSAVED
        while len(self.unsaved) > limit:
            await asyncio.wait({self.unsaved[0]})  # `wait`, because cancelling it does not cancel the write

    async def creation_error(self) -> BaseException | None:
        """Wait until the store has confirmed or rejected this new task. Return its error, or None."""
        while self.unsaved:
            await asyncio.wait({self.unsaved[-1]})
        return None if self.is_stored else self.save_error

    async def flush(self) -> None:
        """Wait until all folded events are saved.

        Raises:
            Exception: the error of the first write that failed.
        """
        while self.unsaved:
            await asyncio.wait({self.unsaved[-1]})
        if self.save_error is not None:
            raise self.save_error

    async def resync(self) -> list[CheckedEvent]:
        """Read the task from the store again after a failed save. Return the events that are not in the store."""
        if not self._out_of_step:
            return []
        while self.unsaved:
            await asyncio.wait(set(self.unsaved))
        record = await self._registry.store.load(self.task.id, self.owner)
        if record is None:
            raise TaskNotFoundError(self.task.id)
        self.task = record.document.task()
        self.version = record.version
        self.is_stored = True
        self._document = None
        if self.queue.restore(record.version):
            self.queue_changed()
        lost = [event for seq, events in self._failed_saves if seq > record.version for event in events]
        self._in_step()
        if self._memory is not None:
            self._memory.write_again()
        if record.version != self.log.version:
            self.log.restart(record.version)
        if self.state in TERMINAL:
            self.log.close()
        return lost

    def _in_step(self) -> None:
        """Note that the task is as the store has it."""
        self.save_error = None
        self._failed_saves.clear()
        self._out_of_step = False
