"""The engine: one method for each A2A operation, over one agent and one store.

Invariant: the engine knows one model and no protocol version. Requests are rejected before a task exists, and tasks of
other owners are answered like unknown tasks.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from apcore_a2a import errors
from apcore_a2a.agent import Agent
from apcore_a2a.engine import runs
from apcore_a2a.engine.context import (
    DEFAULTS,
    NO_HOOKS,
    CallContext,
    EngineOptions,
    Hooks,
    Interceptor,
    Observer,
    Perform,
)
from apcore_a2a.engine.event_log import LogEntry, Snapshot, snapshot_entry
from apcore_a2a.engine.intake import Intake
from apcore_a2a.engine.recovery import Recovery
from apcore_a2a.engine.replica.followers import is_at_rest
from apcore_a2a.engine.replica.replica import Replica, make_requests
from apcore_a2a.engine.replica.requests import TaskElsewhere
from apcore_a2a.engine.run import RESTED, Run
from apcore_a2a.engine.runs import BackgroundWork, Runs
from apcore_a2a.engine.stored_limits import stored_limits_of
from apcore_a2a.engine.streams import (
    UNTIL_ENDED,
    UNTIL_USER_IS_ASKED,
    Events,
    Stream,
    Streams,
    event_stream,
)
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.engine.webhooks.delivery import Posting, WebhookDelivery
from apcore_a2a.engine.webhooks.operations import Webhooks
from apcore_a2a.errors import InvalidParamsError, UnsupportedOperationError, Violation
from apcore_a2a.protocol import model
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.model import SHAPES, Document, Message, Operation, SendMessage, Task, TaskState, Value
from apcore_a2a.storage.contract import ALL_OWNERS, Backlog, Query, Record, Store, as_shared, trouble_of, webhooks_of

logger = logging.getLogger(__name__)

LARGE_PAGE: Final = 256 * 1024  # bytes of a page of tasks above which a thread decodes it
OWNER: Final = "apcore.owner"  # the metadata key of the owner, in tasks that an administrator lists


class Engine:
    """Serves one agent. Call `open` before use, then `recover`, and `close` at the end."""

    def __init__(
        self,
        agent: Agent,
        store: Store,
        *,
        options: EngineOptions = DEFAULTS,
        hooks: Hooks = NO_HOOKS,
        posting: Posting | None = None,
    ) -> None:
        """Without `posting` the engine has no webhooks.

        Raises:
            TypeError: The store does not support the webhooks or the limits that the arguments ask for.
        """
        self.options = options
        self.store = store
        self._agent = agent
        self._observer = hooks.observer
        self._tracer = hooks.tracer
        self._interceptors = hooks.interceptors
        self._extended_card = hooks.extended_card
        self.stored = stored_limits_of(store, options, hooks.observer)
        self._runs = Runs(agent, store, observer=hooks.observer, options=options, stored=self.stored)
        self.webhooks = None
        if posting is not None:
            self.webhooks = _make_webhooks(store, posting, self._runs, hooks.observer)
        shared = as_shared(store)
        requests = None
        if shared is not None:
            requests = make_requests(shared, self._runs, options.replica)
        self._intake = Intake(agent, store, self._runs, options, requests, self.webhooks)
        self._recovery = Recovery(store, self._runs, self._intake, self.webhooks)
        self.replica = None
        if shared is not None and requests is not None:
            self.replica = Replica(shared, requests, self._runs, self._intake, self._recovery)
        self._streams = Streams(self._runs, observer=hooks.observer, options=options)
        self._drain = BackgroundWork()
        self._operations = self._list_operations()

    def _list_operations(self) -> dict[Operation, Perform]:
        operations: dict[Operation, Perform] = {
            Operation.SEND: self.send_message,
            Operation.STREAM: self.stream_message,
            Operation.GET: self.get_task,
            Operation.LIST: self.list_tasks,
            Operation.CANCEL: self.cancel_task,
            Operation.SUBSCRIBE: self.subscribe,
            Operation.EXTENDED_CARD: self.get_extended_card,
        }
        if self.webhooks is not None:
            operations[Operation.CREATE_PUSH] = self.webhooks.create
            operations[Operation.GET_PUSH] = self.webhooks.get
            operations[Operation.LIST_PUSH] = self.webhooks.list
            operations[Operation.DELETE_PUSH] = self.webhooks.delete
        return operations

    @property
    def lease_age(self) -> float | None:
        """Seconds since this replica renewed its lease. None: no other replica shares its store."""
        if self.replica is None:
            return None
        return self.replica.followers.authority.lease_age

    @property
    def active_tasks(self) -> int:
        """The number of tasks that run now."""
        return self._runs.active

    @property
    def live_tasks(self) -> int:
        """The number of tasks kept in memory for a run, a subscriber or a request. All others are only in the store."""
        return self._runs.live

    @property
    def stuck_threads(self) -> int:
        """The number of the agent's threads whose functions continue although their runs have ended."""
        return int(getattr(self._agent, "stuck_threads", 0))

    @property
    def out_of_threads(self) -> bool:
        """Whether the agent rejects every message because it has no thread left to run it on."""
        return getattr(self._agent, "thread_capacity", 1) == 0

    @property
    def store_trouble(self) -> str:
        """The problem that the store reports, in a text without secrets. Empty if there is none."""
        return trouble_of(self.store)

    @property
    def draining(self) -> bool:
        return self._runs.draining

    async def backlog(self) -> Backlog:
        """Return what waits for delivery to webhooks. Empty if the engine has no webhooks."""
        if self.webhooks is None:
            return Backlog()
        return await self.webhooks.delivery.backlog()

    async def open(self) -> None:
        """Open the store. Call `recover` next, when the agent is ready."""
        await self.store.open()

    async def recover(self) -> None:
        """Recover the tasks of ended processes, and start background work. The recovered runs have begun on return."""
        await self._recovery.recover()
        if self.replica is not None:
            self.replica.start()
        if self.webhooks is not None:
            self.webhooks.delivery.start()

    def begin_drain(self) -> None:
        """Reject new work from now on, and let the current runs end. `close` waits for them."""
        if not self._runs.draining:
            self._runs.draining = True
            self._drain.start(self._end_runs(), name="drain")

    async def _end_runs(self) -> None:
        await self._runs.drain(self.options.shutdown_timeout)
        if self.replica is not None:
            self.replica.followers.close()

    async def close(self) -> None:
        """End every run and stream, in bounded time, then close the store."""
        self.begin_drain()
        await self._drain.join(self.options.shutdown_timeout + 15)
        if self.replica is not None:  # not earlier: other replicas would take over the runs that are still ending here
            await self.replica.close()
        if self.webhooks is not None:
            await self.webhooks.delivery.drain(min(self.options.shutdown_timeout, self.options.timing.webhook_grace))
        await self.store.close()

    async def handle(self, operation: Operation, request: Value, context: CallContext) -> Any:
        """Perform an operation, through the interceptors. All bindings call this."""
        began = time.monotonic()
        try:
            perform = self._find(operation, context)
            if self._interceptors:
                perform = partial(self._intercepted, perform, operation)
            if self._tracer is not None and self._tracer.is_active:
                result = await self._tracer.perform(perform, operation, request, context)
            else:
                result = await perform(request, context)
        except BaseException as error:  # whatever it is, it is raised again. CancelledError: the client has left
            self._observer.request_ended(operation, context, time.monotonic() - began, error)
            raise
        self._observer.request_ended(operation, context, time.monotonic() - began, None)
        return result

    def _find(self, operation: Operation, context: CallContext) -> Perform:
        """Return the method of an operation. Raise an error if the card says that the request is not supported."""
        missing = self.options.required_extensions - context.extensions
        if missing:
            raise errors.ExtensionSupportRequiredError(min(missing))
        if SHAPES[operation].streams and not self.options.streaming:
            raise UnsupportedOperationError("This agent does not stream")
        if logger.isEnabledFor(logging.DEBUG):
            extra = {"operation": operation.value, "caller": runs.name_of(context.caller)}
            logger.debug("request dispatched", extra=extra)
        return self._operations.get(operation, _no_push)

    async def _intercepted(self, perform: Perform, operation: Operation, request: Value, context: CallContext) -> Any:
        """Perform an operation between the interceptors.

        For each interceptor whose `before` was called, `after` is called with the result or with the error.
        """
        entered: list[Interceptor] = []
        try:
            for interceptor in self._interceptors:
                entered.append(interceptor)
                await interceptor.before(operation, request, context)
            result = await perform(request, context)
        except Exception as error:  # an operation may fail in any way. The error is raised again.
            for interceptor in entered:
                await interceptor.after(operation, request, context, error)
            raise
        try:
            for interceptor in entered:
                await interceptor.after(operation, request, context, result)
        except BaseException:
            if SHAPES[operation].streams:  # the stream will have no reader
                result.close()
            raise
        return result

    # ---- messages -------------------------------------------------------------------------------------------------

    async def send_message(self, request: SendMessage, context: CallContext) -> Task | Document | Message:
        history_length = request.configuration.history_length
        wait = not request.configuration.return_immediately
        begun = await self._intake.begin(request, context, wait=wait)
        if not isinstance(begun, Run):
            if isinstance(begun, Snapshot):
                return _trim_history(begun.document, history_length)
            return await self._answer_elsewhere(begun.live, history_length, wait=wait)
        if begun.reply is not None:
            return begun.reply
        if wait:
            await self._wait_for_rest(begun)
        snapshot = await begun.live.latest()
        return _trim_history(snapshot.document, history_length)

    async def stream_message(self, request: SendMessage, context: CallContext) -> Stream:
        with self._streams.reserve(context) as place:
            begun = await self._intake.begin(request, context, wait=True)
            if isinstance(begun, Snapshot):
                if begun.events is not None:
                    return self._streams.of_ended(begun.document.task().id, begun.events, place)
                return Stream([snapshot_entry(begun)])
            if isinstance(begun, TaskElsewhere):
                with _released(begun.live) as live:
                    return await self._streams.follow(live, context, place, until=UNTIL_USER_IS_ASKED, start=0)
            if begun.reply is not None:
                return event_stream(begun.reply)
            start: LogEntry | int | None = 0
            if begun.call.resumed:
                # The stream begins with the task, which contains all that happened before this turn.
                start = _start_of_turn(begun)
            return await self._streams.follow(begun.live, context, place, until=UNTIL_USER_IS_ASKED, start=start)

    async def _wait_for_rest(self, run: Run) -> None:
        """Wait until the task rests. Hold it meanwhile, so that it is not canceled for having no subscriber."""
        if run.stage >= RESTED and run.error is None and not run.is_elsewhere:
            return
        with run.live.held():
            await run.until(RESTED)
            if self.replica is not None and run.is_elsewhere:
                self._runs.check_draining()  # a retry reaches another replica, which continues the task
                await self.replica.followers.follow_until(run.live, is_at_rest)
                return
        if run.error is not None:
            raise run.error

    async def _answer_elsewhere(self, live: LiveTask, history_length: int | None, *, wait: bool) -> Task | Document:
        """Return a task that another replica runs, or that waits for a replica with room."""
        with _released(live):
            if wait and self.replica is not None:
                await self.replica.followers.follow_until(live, is_at_rest)
            snapshot = await live.latest()
        return _trim_history(snapshot.document, history_length)

    # ---- tasks ----------------------------------------------------------------------------------------------------

    async def get_task(self, request: model.GetTask, context: CallContext) -> Task | Document:
        live = self._runs.find(request.id, context.owner)
        if live is not None and (self.replica is None or self.replica.followers.can_answer_from_memory(live)):
            snapshot = await live.latest()
            return _trim_history(snapshot.document, request.history_length)
        record = await self._intake.load(request.id, context)
        return _trim_history(record.document, request.history_length)

    async def list_tasks(self, request: model.ListTasks, context: CallContext) -> model.TaskPage:
        query = Query(
            owner=ALL_OWNERS if self._is_admin(context) else context.owner,
            limit=request.page_size,
            cursor=request.page_token,
            context_id=request.context_id,
            state=None if request.status is TaskState.UNSPECIFIED else request.status,
            changed_since=_read_timestamp(request.status_timestamp_after),
            by_creation=context.rules.list_by_creation,
        )
        page = await self.store.page(query)
        size = sum(len(record.document.body) for record in page.records)
        if size > LARGE_PAGE:
            tasks = await asyncio.to_thread(_list_records, page.records, request, reader=context.owner)
        else:
            tasks = _list_records(page.records, request, reader=context.owner)
        return model.TaskPage(
            tasks=tasks, next_page_token=page.next_cursor, page_size=request.page_size, total_size=page.total
        )

    async def cancel_task(self, request: model.CancelTask, context: CallContext) -> Document:
        if self._is_admin(context):
            context = await self._for_owner(request.id, context)
        async with self._intake.live(request.id, context, follow=True) as live:
            if not live.has_ended():
                if self.replica is not None and not live.runner.is_none:
                    await self.replica.cancel(live, context.caller)
                else:
                    timing = self.options.timing
                    seconds = timing.cancel_grace + timing.cancel_margin
                    await asyncio.wait({self._runs.cancel(live, context.caller)}, timeout=seconds)
                if not live.has_ended():
                    raise errors.StoreUnavailableError
                if live.state is TaskState.CANCELED and context.on_behalf_of:
                    return Document(model.encode(_outline(live.snapshot().task(), context.on_behalf_of)))
                if live.state is TaskState.CANCELED:
                    return live.snapshot()
            raise errors.TaskNotCancelableError(request.id, live.state.removeprefix("TASK_STATE_").lower())

    def _is_admin(self, context: CallContext) -> bool:
        role = self.options.admin_role
        return role is not None and context.caller.is_authenticated and role in context.caller.roles

    async def _for_owner(self, task_id: str, context: CallContext) -> CallContext:
        """Return an administrator's context on behalf of the owner of a task, unchanged for an own or unknown task."""
        record = await self.store.load(task_id, ALL_OWNERS)
        if record is None or record.owner == context.owner:
            return context
        return replace(context, on_behalf_of=record.owner)

    async def subscribe(self, request: model.SubscribeToTask, context: CallContext) -> Events:
        with self._streams.reserve(context) as place:
            async with self._intake.live(request.id, context, follow=True) as live:
                if not live.has_ended():
                    start = context.last_event_id if context.rules.replay else None
                    return await self._streams.follow(live, context, place, until=UNTIL_ENDED, start=start)
                if context.rules.subscribe_when_ended:
                    return await self._streams.replay(live, context, place)
            raise UnsupportedOperationError(f"Task {request.id} has ended: there is nothing to subscribe to")

    # ---- the extended card ----------------------------------------------------------------------------------------

    async def get_extended_card(self, request: Value, context: CallContext) -> AgentCard:
        if self._extended_card is None:
            raise context.rules.without_extended_card
        return self._extended_card(context.caller)


def _make_webhooks(store: Store, posting: Posting, runs: Runs, observer: Observer) -> Webhooks:
    kept = webhooks_of(store)
    return Webhooks(kept, posting.sender, WebhookDelivery(kept, posting, observer=observer), runs)


async def _no_push(request: Any, context: CallContext) -> Any:
    raise errors.PushNotificationNotSupportedError


@contextmanager
def _released(live: LiveTask) -> Iterator[LiveTask]:
    """Release a live task at the end of the block. The function that returned it has held it for this one."""
    try:
        yield live
    finally:
        live.release()


def _start_of_turn(run: Run) -> LogEntry | None:
    """Return the task as it was when the agent was called, or None if it was not called."""
    if not run.start_version:
        return None
    return snapshot_entry(Snapshot(Document(model.encode(run.call.task)), run.start_version))


def _trim_history(document: Document, history_length: int | None) -> Task | Document:
    """Apply historyLength: all messages if unset, none for 0, otherwise the latest n (1.0 §3.2.4)."""
    if history_length is None:
        return document
    task = document.task()
    return replace(task, history=_last(task.history, history_length))


def _list_records(records: Sequence[Record], request: model.ListTasks, *, reader: str) -> tuple[Task, ...]:
    tasks: list[Task] = []
    for record in records:
        task = record.document.task()
        if record.owner == reader:
            tasks.append(_listed(task, request))
        else:
            tasks.append(_outline(task, record.owner))
    return tuple(tasks)


def _outline(task: Task, owner: str) -> Task:
    """Return what an administrator sees of another owner's task: the owner and the state, but no content."""
    return Task(
        id=task.id,
        context_id=task.context_id,
        status=replace(task.status, message=None),
        metadata={OWNER: owner},
    )


def _listed(task: Task, request: model.ListTasks) -> Task:
    if not request.include_artifacts:
        task.artifacts = []
    if request.history_length is not None:
        task.history = _last(task.history, request.history_length)
    return task


def _last(history: list[Message], length: int) -> list[Message]:
    if length == 0:  # [-0:] would be the whole list
        return []
    return history[-length:]


def _read_timestamp(text: str) -> str:
    """Return a time in the form in which times are stored, so that they compare as text."""
    if not text:
        return ""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:  # OverflowError: before the year 1 or after 9999, in UTC
        wrong = Violation("statusTimestampAfter", "must be an ISO 8601 time")
        raise InvalidParamsError("Invalid parameter statusTimestampAfter", [wrong]) from error
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
