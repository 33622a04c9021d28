"""The engine: one method for each A2A operation, over one agent and one store.

Rule: it knows one model and no protocol. What can be refused is refused before a task exists; what belongs to another
caller is answered like what does not exist.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import uuid4

from msgspec import Struct, json
from msgspec.structs import replace

from apcore_a2a.agent import Agent, Call, Caller
from apcore_a2a.errors import (
    ExtensionSupportRequiredError,
    InvalidParamsError,
    OverloadedError,
    PushNotificationNotSupportedError,
    StoreUnavailableError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
    Violation,
)
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import (
    CancelTask,
    Document,
    GetTask,
    ListTasks,
    Message,
    Role,
    SendMessage,
    StatusUpdate,
    SubscribeToTask,
    Task,
    TaskPage,
    TaskState,
    TaskStatus,
    Value,
)
from apcore_a2a.protocol.operations import Operation, Rules
from apcore_a2a.server.execution import Execution, Stop
from apcore_a2a.server.live_task import LiveTask, says
from apcore_a2a.server.observer import Observer, Silent
from apcore_a2a.server.runs import Runs
from apcore_a2a.server.stream import UNTIL_ENDED, UNTIL_USER_IS_ASKED, Stream, entry, snapshot
from apcore_a2a.storage.task_store import Query, Record, Store

DISCONNECT_GRACE: Final = 5.0


class Origin(Struct, frozen=True, kw_only=True):
    """What comes with a request besides the request."""

    caller: Caller = Caller()
    rules: Rules = Rules()
    headers: Mapping[str, str] = {}
    extensions: frozenset[str] = frozenset()
    idempotency_key: str = ""
    last_event_id: int | None = None


class Options(Struct, frozen=True, kw_only=True):
    """The engine's limits and habits."""

    execution_timeout: float | None = 300
    shutdown_timeout: float = 30
    max_active_tasks: int = 10_000
    max_streams: int = 10_000
    max_streams_per_caller: int = 1_000
    context_messages: int = 100
    cancel_on_disconnect: bool = True
    same_message_same_task: bool = False
    required_extensions: frozenset[str] = frozenset()


class Interceptor(Protocol):
    """Sees every operation before and after. Raise an A2AError in `before` to refuse, in `after` to replace the answer."""

    async def before(self, operation: Operation, request: Value, origin: Origin) -> None: ...

    async def after(self, operation: Operation, request: Value, origin: Origin, result: Any) -> None: ...


def utc_now() -> str:
    """The time as A2A writes it: UTC, milliseconds, Z (1.0 §5.6.1)."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Engine:
    """Serves one agent. Open it before use, drain it at the end.

    `extended_card` answers the card for a caller who has proved who they are; None when there is no such card.
    """

    def __init__(
        self,
        agent: Agent,
        store: Store,
        *,
        options: Options = Options(),
        observer: Observer | None = None,
        interceptors: tuple[Interceptor, ...] = (),
        extended_card: Callable[[Caller], AgentCard] | None = None,
    ) -> None:
        self.options, self.store = options, store
        self._agent, self._interceptors, self._extended_card = agent, interceptors, extended_card
        self._observer = observer or Silent()
        self._runs = Runs(
            agent,
            store,
            observer=self._observer,
            now=utc_now,
            timeout=options.execution_timeout,
            limit=options.max_active_tasks,
        )
        self._streams: Counter[str] = Counter()
        self._operations: dict[Operation, Callable[[Any, Origin], Awaitable[Any]]] = {
            Operation.SEND: self.send_message,
            Operation.STREAM: self.stream_message,
            Operation.GET: self.get_task,
            Operation.LIST: self.list_tasks,
            Operation.CANCEL: self.cancel_task,
            Operation.SUBSCRIBE: self.subscribe,
            Operation.CREATE_PUSH: self._push,
            Operation.GET_PUSH: self._push,
            Operation.LIST_PUSH: self._push,
            Operation.DELETE_PUSH: self._push,
            Operation.EXTENDED_CARD: self.get_extended_card,
        }

    @property
    def active_tasks(self) -> int:
        return len(self._runs)

    @property
    def draining(self) -> bool:
        return self._runs.draining

    async def open(self) -> None:
        await self.store.open()
        await self._runs.recover()

    async def drain(self) -> None:
        """End every run and stream, in bounded time; the store stays open for reads."""
        await self._runs.drain(self.options.shutdown_timeout)

    async def close(self) -> None:
        await self.drain()
        await self.store.close()

    async def handle(self, operation: Operation, request: Value, origin: Origin) -> Any:
        """Any operation by name, through the interceptors: what the bindings call."""
        if missing := self.options.required_extensions - origin.extensions:
            raise ExtensionSupportRequiredError(min(missing))
        for interceptor in self._interceptors:
            await interceptor.before(operation, request, origin)
        result = await self._operations[operation](request, origin)
        for interceptor in self._interceptors:
            await interceptor.after(operation, request, origin, result)
        return result

    # ---- messages -------------------------------------------------------------------------------------------------

    async def send_message(self, request: SendMessage, origin: Origin) -> Task | Document | Message:
        begun = await self._begin(request, origin)
        if isinstance(begun, Execution):
            await begun.opened.wait()
            if begun.error is not None:
                raise begun.error
            if begun.reply is not None:
                return begun.reply
            if not request.configuration.return_immediately:
                await begun.rested.wait()
                if begun.live.state not in AT_REST:
                    raise StoreUnavailableError
            document = (await self._latest(begun.live))[0]
        else:
            document = begun
        return _trim(document, request.configuration.history_length)

    async def stream_message(self, request: SendMessage, origin: Origin) -> Stream:
        self._check_streams(origin)
        begun = await self._begin(request, origin, stream=True)
        if isinstance(begun, Document):
            return Stream([snapshot(begun, 1)])
        await begun.opened.wait()
        if begun.error is not None:
            raise begun.error
        if begun.reply is not None:
            return Stream([entry(1, begun.reply, TaskState.COMPLETED)])
        return await self._watch(begun.live, origin, resumed=begun.call.resumed)

    async def _begin(self, request: SendMessage, origin: Origin, *, stream: bool = False) -> Execution | Document:
        """Start the run a message asks for. A Document when there is no run to wait for."""
        message = request.message
        if message.role is not Role.USER:
            raise InvalidParamsError("Invalid message role", [Violation("message.role", "must be the user's")])
        if request.configuration.task_push_notification_config is not None:
            raise PushNotificationNotSupportedError
        self._runs.check_room()
        live = await self._continued(message, origin)
        if live is not None:
            try:
                wait = stream or not request.configuration.return_immediately
                return await self._resume(live, request, origin, wait=wait)
            except BaseException:
                self._runs.release(live)
                raise
        task = Task(
            id=str(uuid4()),
            context_id=message.context_id or str(uuid4()),
            status=TaskStatus(state=TaskState.SUBMITTED, timestamp=utc_now()),
            metadata=request.metadata,
        )
        message = replace(
            message, message_id=message.message_id or str(uuid4()), task_id=task.id, context_id=task.context_id
        )
        task.history = [message]
        call = await self._call(
            replace(request, message=message), task, origin, new_context=not request.message.context_id
        )
        admission = await self._agent.admit(call)
        key = origin.idempotency_key or (message.message_id if self.options.same_message_same_task else "")
        begun = await self._runs.begin(call, retry_safe=admission.retry_safe, key=key)
        return begun if isinstance(begun, Execution) else await self._same(begun, origin)

    async def _same(self, task_id: str, origin: Origin) -> Execution | Document:
        """The run, or the outcome, of an earlier send with the same key."""
        running = self._runs.running(task_id)
        return running or (await self._load(task_id, origin)).document

    async def _continued(self, message: Message, origin: Origin) -> LiveTask | None:
        """The task that a message goes on with, if any."""
        owner = origin.caller.owner
        if message.task_id:
            return await self._live(message.task_id, origin)
        if not (origin.rules.resume_by_context and message.context_id):
            return None
        query = Query(owner=owner, limit=2, context_id=message.context_id, state=TaskState.INPUT_REQUIRED)
        waiting = (await self.store.page(query)).records
        return self._runs.revive(waiting[0]) if len(waiting) == 1 else None

    async def _resume(
        self, live: LiveTask, request: SendMessage, origin: Origin, *, wait: bool
    ) -> Execution | Document:
        context_id = request.message.context_id
        if context_id and context_id != live.task.context_id:
            wrong = Violation("message.contextId", "is not the context of message.taskId")
            raise InvalidParamsError("contextId does not match the task", [wrong])
        if live.state in TERMINAL:
            raise UnsupportedOperationError(f"Task {live.task.id} has ended; send a new message without taskId")
        call = await self._call(request, live.task, origin, new_context=False)
        call.resumed, call.memo = True, json.decode(live.memo) if live.memo else None
        admission = await self._agent.admit(call)
        if wait:
            return await self._runs.resume(live, call, retry_safe=admission.retry_safe)
        self._runs.later(live, call, retry_safe=admission.retry_safe)
        return (await self._latest(live))[0]

    async def _call(self, request: SendMessage, task: Task, origin: Origin, *, new_context: bool) -> Call:
        call = self._runs.call(request, task, origin.caller)
        call.headers = origin.headers
        if not new_context:
            call.history = await self._conversation(task.context_id, origin)
        if request.message.reference_task_ids:
            found = [await self.store.load(id, origin.caller.owner) for id in request.message.reference_task_ids[:10]]
            call.references = tuple(record.document.task() for record in found if record is not None)
        return call

    async def _conversation(self, context_id: str, origin: Origin) -> tuple[Message, ...]:
        """The latest messages of the caller's tasks in a context: what was said, and what the agent last answered."""
        limit = self.options.context_messages
        query = Query(owner=origin.caller.owner, limit=limit, context_id=context_id, by_creation=True)
        said: list[Message] = []
        for record in (await self.store.page(query)).records:
            task = record.document.task()
            answer = [task.status.message] if task.status.message else []
            said = [*task.history, *answer, *said]
            if len(said) >= limit:
                break
        return tuple(said[-limit:]) if limit else ()

    # ---- tasks ----------------------------------------------------------------------------------------------------

    async def get_task(self, request: GetTask, origin: Origin) -> Task | Document:
        live = self._runs.find(request.id, origin.caller.owner)
        if live is not None:
            return _trim((await self._latest(live))[0], request.history_length)
        return _trim((await self._load(request.id, origin)).document, request.history_length)

    async def list_tasks(self, request: ListTasks, origin: Origin) -> TaskPage:
        query = Query(
            owner=origin.caller.owner,
            limit=request.page_size,
            cursor=request.page_token,
            context_id=request.context_id,
            state=None if request.status is TaskState.UNSPECIFIED else request.status,
            changed_since=_timestamp(request.status_timestamp_after),
            by_creation=origin.rules.list_by_creation,
        )
        page = await self.store.page(query)
        tasks = tuple(_listed(record.document.task(), request) for record in page.records)
        return TaskPage(
            tasks=tasks, next_page_token=page.next_cursor, page_size=request.page_size, total_size=page.total
        )

    async def cancel_task(self, request: CancelTask, origin: Origin) -> Document:
        live = await self._live(request.id, origin)
        try:
            running = self._runs.running(request.id)
            before = live.state
            if running is not None:
                await asyncio.wait({self._runs.stop(running, Stop.CANCEL)})
            elif before not in TERMINAL:
                await self._cancel_parked(live)
            if before in TERMINAL or live.state is not TaskState.CANCELED:
                raise TaskNotCancelableError(request.id, live.state.removeprefix("TASK_STATE_").lower())
            return (await self._latest(live))[0]
        finally:
            self._runs.release(live)

    async def _cancel_parked(self, live: LiveTask) -> None:
        async with live.turn:
            await live.mend()
            if live.state not in TERMINAL:
                state, text = Stop.CANCEL.value
                await live.write(StatusUpdate(status=TaskStatus(state=state, message=says(text))))
                await live.flush()

    async def subscribe(self, request: SubscribeToTask, origin: Origin) -> Stream:
        self._check_streams(origin)
        live = await self._live(request.id, origin)
        if live.state not in TERMINAL:
            return await self._watch(live, origin, resumed=True, until=UNTIL_ENDED)
        self._runs.release(live)
        if not origin.rules.subscribe_when_ended:
            raise UnsupportedOperationError(f"Task {request.id} has ended: there is nothing to subscribe to")
        return Stream(await self._missed(live, origin))

    async def _missed(self, live: LiveTask, origin: Origin) -> list[Any]:
        """What a subscriber to an ended task gets: the events it missed, or the last status."""
        version, task = live.version, live.task
        if origin.last_event_id is not None and origin.rules.replay:
            kept = await self.store.events(task.id, live.owner, origin.last_event_id)
            if kept:
                first = version - len(kept) + 1
                return [entry(first + i, v1.decode_record(body)[0], TaskState.WORKING) for i, body in enumerate(kept)]
            if kept is None and origin.last_event_id < version:
                return [snapshot(live.snapshot(), version)]
        status = StatusUpdate(status=task.status, task_id=task.id, context_id=task.context_id)
        return [entry(version, status, task.status.state)]

    # ---- the rest -------------------------------------------------------------------------------------------------

    async def _push(self, request: Value, origin: Origin) -> None:
        raise PushNotificationNotSupportedError

    async def get_extended_card(self, request: Value, origin: Origin) -> AgentCard:
        if self._extended_card is None:
            raise origin.rules.without_extended_card
        return self._extended_card(origin.caller)

    async def _load(self, task_id: str, origin: Origin) -> Record:
        record = await self.store.load(task_id, origin.caller.owner)
        if record is None:
            raise TaskNotFoundError(task_id)
        return record

    async def _live(self, task_id: str, origin: Origin) -> LiveTask:
        live = self._runs.find(task_id, origin.caller.owner)
        return live or self._runs.revive(await self._load(task_id, origin))

    async def _latest(self, live: LiveTask) -> tuple[Document, int]:
        """The task as a restart would find it, with its version."""
        if live.version == live.log.version:
            return live.snapshot(), live.version
        record = await self.store.load(live.task.id, live.owner)
        if record is None:
            raise TaskNotFoundError(live.task.id)
        return record.document, record.version

    def _check_streams(self, origin: Origin) -> None:
        if self._streams.total() >= self.options.max_streams:
            raise OverloadedError("The agent is at its limit of open streams; try again later")
        if self._streams[origin.caller.owner] >= self.options.max_streams_per_caller:
            raise OverloadedError("You are at your limit of open streams; close one or try again later")

    async def _watch(
        self, live: LiveTask, origin: Origin, *, resumed: bool, until: frozenset[TaskState] = UNTIL_USER_IS_ASKED
    ) -> Stream:
        live.readers += 1  # before any await: a watched task is not forgotten
        owner = origin.caller.owner
        self._streams[owner] += 1
        self._observer.stream_opened(live.task.id)

        def close() -> None:
            live.readers -= 1
            self._streams[owner] -= 1
            self._observer.stream_closed(live.task.id)
            if origin.rules.stream_keeps_task and self.options.cancel_on_disconnect and not live.readers:
                asyncio.get_running_loop().call_later(DISCONNECT_GRACE, self._cancel_unwatched, live)
            self._runs.release(live)

        first, after = [], 0
        if origin.rules.replay and origin.last_event_id is not None:
            after = min(origin.last_event_id, live.log.version)
        elif resumed:
            document, after = await self._latest(live)
            first = [snapshot(document, after)]
        return Stream(
            first,
            live.log,
            after=after,
            until=until,
            again=lambda: snapshot(live.snapshot(), live.log.version),
            on_close=close,
        )

    def _cancel_unwatched(self, live: LiveTask) -> None:
        running = self._runs.running(live.task.id)
        if running is not None and running.live is live and not live.readers:
            self._runs.stop(running, Stop.DISCONNECT)


def _trim(document: Document, history_length: int | None) -> Task | Document:
    """historyLength: unset is everything, 0 is none, n the latest n (1.0 §3.2.4)."""
    if history_length is None:
        return document
    task = document.task()
    return replace(task, history=task.history[-history_length:] if history_length else [])


def _listed(task: Task, request: ListTasks) -> Task:
    if not request.include_artifacts:
        task.artifacts = []
    if request.history_length is not None:
        task.history = task.history[-request.history_length :] if request.history_length else []
    return task


def _timestamp(text: str) -> str:
    if not text:
        return ""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        wrong = Violation("statusTimestampAfter", "must be an ISO 8601 time")
        raise InvalidParamsError("Invalid parameter statusTimestampAfter", [wrong]) from error
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
