"""The engine: one method for each A2A operation, over one agent and one store.

Rule: it knows one model and no protocol. What can be refused is refused before a task exists; what belongs to another
caller is answered like what does not exist.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from apcore_a2a import errors
from apcore_a2a.agent import Agent, Caller
from apcore_a2a.engine.call_context import Interceptor, Origin
from apcore_a2a.engine.crew import Crew
from apcore_a2a.engine.event_log import Entry
from apcore_a2a.engine.intake import Intake
from apcore_a2a.engine.observer import Observer, Silent
from apcore_a2a.engine.options import DEFAULTS, Options
from apcore_a2a.engine.run import CANCEL_GRACE, RESTED, Execution
from apcore_a2a.engine.runs import Runs
from apcore_a2a.engine.streams import UNTIL_ENDED, UNTIL_USER_IS_ASKED, Stream, Streams, replay, reply, snapshot
from apcore_a2a.errors import InvalidParamsError, UnsupportedOperationError, Violation
from apcore_a2a.protocol import model
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.model import Document, Message, SendMessage, Task, TaskState, Value
from apcore_a2a.protocol.operations import SHAPES, Operation
from apcore_a2a.storage.task_store import Query, Store

Perform = Callable[[Any, Origin], Awaitable[Any]]


class Engine:
    """Serves one agent. Open it before use, close it at the end.

    `extended_card` answers the card for a caller who has proved who they are; None when there is no such card.
    """

    def __init__(
        self,
        agent: Agent,
        store: Store,
        *,
        options: Options = DEFAULTS,
        observer: Observer | None = None,
        interceptors: tuple[Interceptor, ...] = (),
        extended_card: Callable[[Caller], AgentCard] | None = None,
    ) -> None:
        self.options, self.store = options, store
        self._interceptors, self._extended_card = interceptors, extended_card
        observer = observer or Silent()
        self._runs = Runs(agent, store, observer=observer, options=options)
        self._intake = Intake(agent, store, self._runs, options)
        self._streams = Streams(self._runs, observer=observer, options=options)
        self._closing = Crew()
        self._operations: dict[Operation, Perform] = {
            Operation.SEND: self.send_message,
            Operation.STREAM: self.stream_message,
            Operation.GET: self.get_task,
            Operation.LIST: self.list_tasks,
            Operation.CANCEL: self.cancel_task,
            Operation.SUBSCRIBE: self.subscribe,
            Operation.EXTENDED_CARD: self.get_extended_card,
        }

    @property
    def active_tasks(self) -> int:
        """Tasks that run now."""
        return self._runs.active

    @property
    def live_tasks(self) -> int:
        """Tasks kept in memory because somebody runs or watches them; the others are in the store alone."""
        return self._runs.live

    @property
    def draining(self) -> bool:
        return self._runs.draining

    async def open(self) -> None:
        await self.store.open()
        await self._intake.recover()

    def begin_drain(self) -> None:
        """Take no more work, and let what runs end; `close` waits for that."""
        if not self._runs.draining:
            self._runs.draining = True
            self._closing.start(self._runs.drain(self.options.shutdown_timeout), name="drain")

    async def close(self) -> None:
        """End every run and stream, in bounded time, then close the store."""
        self.begin_drain()
        await self._closing.join(self.options.shutdown_timeout + 15)
        await self.store.close()

    def handle(self, operation: Operation, request: Value, origin: Origin) -> Awaitable[Any]:
        """Any operation by name, through the interceptors: what the bindings await."""
        if missing := self.options.required_extensions - origin.extensions:
            raise errors.ExtensionSupportRequiredError(min(missing))
        if SHAPES[operation].streams and not self.options.streaming:
            raise UnsupportedOperationError("This agent does not stream")
        if self._interceptors:
            return self._intercepted(operation, request, origin)
        return self._operations.get(operation, _no_push)(request, origin)

    async def _intercepted(self, operation: Operation, request: Value, origin: Origin) -> Any:
        for interceptor in self._interceptors:
            await interceptor.before(operation, request, origin)
        result = await self._operations.get(operation, _no_push)(request, origin)
        try:
            for interceptor in self._interceptors:
                await interceptor.after(operation, request, origin, result)
        except BaseException:
            if isinstance(result, Stream):  # nobody will read it
                result.close()
            raise
        return result

    # ---- messages -------------------------------------------------------------------------------------------------

    async def send_message(self, request: SendMessage, origin: Origin) -> Task | Document | Message:
        wait = not request.configuration.return_immediately
        begun = await self._intake.begin(request, origin, wait=wait)
        if not isinstance(begun, Execution):
            return _trim(begun[0], request.configuration.history_length)
        if begun.reply is not None:
            return begun.reply
        if wait:
            if begun.progress.stage < RESTED:
                with begun.live.held():
                    await begun.progress.until(RESTED)
            if begun.error is not None:
                raise begun.error
        document, _ = await begun.live.latest()
        return _trim(document, request.configuration.history_length)

    async def stream_message(self, request: SendMessage, origin: Origin) -> Stream:
        with self._streams.seat(origin) as seat:
            begun = await self._intake.begin(request, origin, wait=True)
            if not isinstance(begun, Execution):
                return Stream([snapshot(*begun)])
            if begun.reply is not None:
                return reply(begun.reply)
            start: Entry | int | None = 0
            if begun.call.resumed:  # its events before this turn are in the task
                start = snapshot(Document(model.encode(begun.call.task)), begun.began) if begun.began else None
            return await self._streams.follow(begun.live, origin, seat, until=UNTIL_USER_IS_ASKED, start=start)

    # ---- tasks ----------------------------------------------------------------------------------------------------

    async def get_task(self, request: model.GetTask, origin: Origin) -> Task | Document:
        live = self._runs.find(request.id, origin.owner)
        if live is not None:
            return _trim((await live.latest())[0], request.history_length)
        return _trim((await self._intake.load(request.id, origin)).document, request.history_length)

    async def list_tasks(self, request: model.ListTasks, origin: Origin) -> model.TaskPage:
        query = Query(
            owner=origin.owner,
            limit=request.page_size,
            cursor=request.page_token,
            context_id=request.context_id,
            state=None if request.status is TaskState.UNSPECIFIED else request.status,
            changed_since=_timestamp(request.status_timestamp_after),
            by_creation=origin.rules.list_by_creation,
        )
        page = await self.store.page(query)
        tasks = tuple(_listed(record.document.task(), request) for record in page.records)
        return model.TaskPage(
            tasks=tasks, next_page_token=page.next_cursor, page_size=request.page_size, total_size=page.total
        )

    async def cancel_task(self, request: model.CancelTask, origin: Origin) -> Document:
        async with self._intake.live(request.id, origin) as live:
            if not live.has_ended():
                await asyncio.wait({self._runs.cancel(live, origin.caller)}, timeout=CANCEL_GRACE + 1)
                if not live.has_ended():
                    raise errors.StoreUnavailableError
                if live.state is TaskState.CANCELED:
                    return live.snapshot()
            raise errors.TaskNotCancelableError(request.id, live.state.removeprefix("TASK_STATE_").lower())

    async def subscribe(self, request: model.SubscribeToTask, origin: Origin) -> Stream:
        with self._streams.seat(origin) as seat:
            async with self._intake.live(request.id, origin) as live:
                if not live.has_ended():
                    after = origin.last_event_id if origin.rules.replay else None
                    return await self._streams.follow(live, origin, seat, until=UNTIL_ENDED, start=after)
                if origin.rules.subscribe_when_ended:
                    return await replay(live, origin)
            raise UnsupportedOperationError(f"Task {request.id} has ended: there is nothing to subscribe to")

    # ---- the rest -------------------------------------------------------------------------------------------------

    async def get_extended_card(self, request: Value, origin: Origin) -> AgentCard:
        if self._extended_card is None:
            raise origin.rules.without_extended_card
        return self._extended_card(origin.caller)


def _no_push(request: Any, origin: Origin) -> Awaitable[Any]:
    raise errors.PushNotificationNotSupportedError


def _trim(document: Document, history_length: int | None) -> Task | Document:
    """historyLength: unset is everything, 0 is none, n the latest n (1.0 §3.2.4)."""
    if history_length is None:
        return document
    task = document.task()
    return replace(task, history=task.history[-history_length:] if history_length else [])


def _listed(task: Task, request: model.ListTasks) -> Task:
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
