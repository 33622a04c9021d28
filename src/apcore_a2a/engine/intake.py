"""Admission of messages: validation, repeated messages, the agent's decision, the task's queue, the start of a run.

Invariant: a message that is rejected on arrival leaves nothing in the store.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct, json
from msgspec.structs import replace

from apcore_a2a.agent import Admission, Agent, Call, Caller, CancelToken
from apcore_a2a.engine.context import CallContext, EngineOptions
from apcore_a2a.engine.conversation import Conversations
from apcore_a2a.engine.event_log import Snapshot
from apcore_a2a.engine.replica.followers import Followers
from apcore_a2a.engine.replica.requests import ReplicaRequests, TaskElsewhere
from apcore_a2a.engine.run import OPENED, AgentDecides, NewTask, NextMessage, Run, Start
from apcore_a2a.engine.runs import Runs
from apcore_a2a.engine.stored_run import QueuedMessage, StoredRun
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.engine.turn_writes import enqueue, is_settled, reject_message, remove_settled, until_queued
from apcore_a2a.engine.waiting import Place
from apcore_a2a.engine.webhooks.operations import Webhooks, check_inline
from apcore_a2a.errors import (
    A2AError,
    InvalidParamsError,
    KeyReusedError,
    OverloadedError,
    StaleWriteError,
    StoreUnavailableError,
    TaskNotFoundError,
    UnsupportedOperationError,
    Violation,
)
from apcore_a2a.ids_and_time import new_id, utc_now
from apcore_a2a.protocol.lifecycle import AT_REST, CALLER, STATE_TRANSITIONS, SUBMITTED
from apcore_a2a.protocol.model import Message, Metadata, Role, SendMessage, Task, TaskState, TaskStatus
from apcore_a2a.storage.contract import Query, Record, Store, Webhook, as_deferring

# A message is rejected after so many lost races with messages at other replicas. Each race is won by one of them, so a
# few lost races do not mean overload: of nine concurrent messages at three replicas, one may lose six races.
MAX_RACES: Final = 100
USER: Final = Role.USER


class Admitted(Struct, frozen=True):
    """A message that its agent has accepted."""

    call: Call
    retry_safe: bool
    version: int
    """The version of the task on which the agent's decision is based."""


class Intake:
    """Admits the messages of an engine, and starts their runs."""

    def __init__(
        self,
        agent: Agent,
        store: Store,
        runs: Runs,
        options: EngineOptions,
        replica_requests: ReplicaRequests | None,
        webhooks: Webhooks | None,
    ) -> None:
        self._agent = agent
        self._store = store
        self._runs = runs
        self._options = options
        self.conversations = Conversations(store, options.context_messages)
        self._replica_requests = replica_requests  # None unless several replicas share the store
        self._followers = None if replica_requests is None else replica_requests.followers
        self._stored = runs.stored
        self._repeats = Repeats(store, runs, self._followers, by_message_id=options.same_message_same_task)
        self._webhooks = webhooks
        self._is_deferring = as_deferring(store) is not None

    async def begin(self, request: SendMessage, context: CallContext, *, wait: bool) -> Run | Snapshot | TaskElsewhere:
        """Start the run that a message asks for, and return it as soon as its sender can be answered.

        Return a Snapshot if there is no run to wait for: the run has ended already, or the message waits in the task's
        queue and `wait` is false. Return TaskElsewhere if another replica will run the task.
        """
        webhook = None
        if request.configuration.task_push_notification_config is not None:
            config = request.configuration.task_push_notification_config
            webhook = check_inline(self._webhooks, config, context)
        try:
            if self._followers is None:
                return await self._begin(request, context, webhook, wait=wait)
            return await self._begin_on_shared_store(request, context, webhook, wait=wait)
        except StoreUnavailableError:
            raise  # the store cannot be asked for an earlier message, either
        except OverloadedError:  # this message may be a repeat of one that was accepted just before the limit
            earlier = await self._find_repeated(request.message, context, wait=wait)
            if earlier is None:
                raise
            return earlier

    async def _find_repeated(
        self, message: Message, context: CallContext, *, wait: bool
    ) -> Run | Snapshot | TaskElsewhere | None:
        """Return the result of the message that this one repeats, or None if it repeats none."""
        if not message.task_id:
            return await self._repeats.find(message, context, wait=wait)
        async with self.live(message.task_id, context) as live:
            return await self._result_of_repeat(live, message, context, wait=wait)

    async def _begin_on_shared_store(
        self, request: SendMessage, context: CallContext, webhook: Webhook | None, *, wait: bool
    ) -> Run | Snapshot | TaskElsewhere:
        for lost in range(MAX_RACES):
            try:
                return await self._begin(request, context, webhook, wait=wait)
            except StaleWriteError:  # another replica wrote the task between this replica's read and write
                await asyncio.sleep(self._options.timing.race_pause * lost * random.random())
        raise OverloadedError("Too many messages to this task at once; try again later")

    async def _begin(
        self, request: SendMessage, context: CallContext, webhook: Webhook | None, *, wait: bool
    ) -> Run | Snapshot | TaskElsewhere:
        message = request.message
        if message.role is not USER:
            raise InvalidParamsError("Invalid message role", [Violation("message.role", "must be the user's")])
        quota_key = context.quota_key
        if self._followers is None or message.task_id:  # otherwise a new task may wait for a replica with room
            self._runs.check_room(quota_key)
        task_id = message.task_id
        if self._stored is not None or (not task_id and message.context_id):
            task_id = await self._find_task(message, context)
        if task_id:
            async with self.live(task_id, context) as live:
                begun = await self._continue(live, request, context, webhook, wait=wait)
        else:
            begun = await self._begin_task(request, context, webhook, quota_key, wait=wait)
        if not isinstance(begun, Run):
            return begun
        if begun.stage < OPENED:
            await begun.until(OPENED)
        if begun.error is not None:
            raise begun.error
        if begun.earlier is not None:
            return await self._earlier_result(begun.earlier, request, context, wait=wait)
        return begun

    # ---- a new task -----------------------------------------------------------------------------------------------

    async def _begin_task(
        self, request: SendMessage, context: CallContext, webhook: Webhook | None, quota_key: str, *, wait: bool
    ) -> Run | Snapshot | TaskElsewhere:
        message = request.message
        call = self._new_task(request, context)
        call.quota_key = quota_key
        if message.context_id or message.reference_task_ids:
            await self.conversations.add_history(call, context)
        admission = await ask_agent(self._agent, call)
        key = self._repeats.key_of(call.request.message, context)
        if self._stored is not None:
            self._stored.take(context.owner, request, is_new=True)
        if self._replica_requests is not None and self._runs.room <= 0:
            live = self._runs.add_queued(call.task, context.owner)
            self._attach(webhook, live)
            queued = await self._replica_requests.queue_task(live, call, key=key, retry_safe=admission.retry_safe)
            if queued.earlier is None:
                return queued
            live.release()
            return await self._earlier_result(queued.earlier, request, context, wait=wait)
        if webhook is None and not key and self._may_defer(admission):
            stored_run = self._run_to_store(call, 0, retry_safe=admission.retry_safe)
            return await self._runs.launch_first_step(call, context.owner, stored_run).answer
        live = self._runs.add(call.task, context.owner, quota_key)
        self._keep_for_restart(live, call, retry_safe=admission.retry_safe)
        self._attach(webhook, live)
        start: Start = NewTask(key)
        if self._agent.may_reply and not key:
            start = AgentDecides()
        return self._runs.launch(live, call, start, quota_key=quota_key)

    def _may_defer(self, admission: Admission) -> bool:
        """Return whether a new task may be stored together with the first events of its agent (docs/lifecycle.md).

        A crash before that leaves no task in a durable store, so the agent must be safe to repeat.
        """
        if self._agent.may_reply or not self._is_deferring:
            return False
        return admission.retry_safe or not self._store.durable

    def _new_task(self, request: SendMessage, context: CallContext) -> Call:
        message = request.message
        metadata = request.metadata
        if metadata is not None or self._options.state_history:
            metadata = self._first_metadata(metadata or {}, context.caller)
        task = Task(
            id=new_id(),
            context_id=message.context_id or new_id(),
            status=TaskStatus(state=SUBMITTED, timestamp=utc_now()),
            metadata=metadata,
        )
        message_id = message.message_id or new_id()
        said = replace(message, message_id=message_id, task_id=task.id, context_id=task.context_id)
        task.history = [said]
        return new_call(replace(request, message=said), task, context)

    def _first_metadata(self, given: Metadata, caller: Caller) -> Metadata:
        """Return the metadata of the request without the keys of the recorded history, which clients may not write."""
        metadata = dict(given)
        metadata.pop(STATE_TRANSITIONS, None)
        metadata.pop(CALLER, None)
        if self._options.state_history:
            metadata[STATE_TRANSITIONS] = []
            if caller.is_authenticated:
                metadata[CALLER] = caller.id
        return metadata

    async def _earlier_result(
        self, task_id: str, request: SendMessage, context: CallContext, *, wait: bool
    ) -> Run | Snapshot | TaskElsewhere:
        """Return the result of an earlier message with the same key, found when this one was about to be stored."""
        if self._stored is not None:
            self._stored.give_back(context.owner, request)
        return await self._repeats.first_outcome(task_id, request.message, context, wait=wait)

    def _keep_for_restart(self, live: LiveTask, call: Call, *, retry_safe: bool) -> None:
        run = self._run_to_store(call, live.version, retry_safe=retry_safe)
        if run is not None:
            live.set_run(run)

    def _run_to_store(self, call: Call, version: int, *, retry_safe: bool) -> StoredRun | None:
        """Return what a durable store needs to run a message again on the task of this version."""
        if not self._store.durable:
            return None
        return StoredRun(
            request=call.request,
            caller=call.caller,
            retry_safe=retry_safe,
            resumed=call.resumed,
            memo=call.memo,
            start=version,
            trace=call.headers,
        )

    def _attach(self, webhook: Webhook | None, live: LiveTask) -> None:
        """Store a new task together with the webhook of its message."""
        if webhook is not None and self._webhooks is not None:
            self._webhooks.attach(webhook, live)

    # ---- a task's next message ------------------------------------------------------------------------------------

    async def _find_task(self, message: Message, context: CallContext) -> str:
        """Return the id of the task that a message continues, or "" for a new task. Check the limits of stored data."""
        task_id = message.task_id
        if not task_id and message.context_id and context.rules.resume_by_context:
            task_id = await self._find_waiting(message.context_id, context)
        if self._stored is not None:
            await self._stored.check(context.owner, is_new=not task_id)
        return task_id

    async def _find_waiting(self, context_id: str, context: CallContext) -> str:
        """Return the id of the only task of a context that waits for input, or "" if there are none or several."""
        query = Query(owner=context.owner, limit=2, context_id=context_id, state=TaskState.INPUT_REQUIRED)
        page = await self._store.page(query)
        if page.total != 1:  # not the number of records: a page ends early if they are large
            return ""
        return page.records[0].document.task().id

    async def _continue(
        self, live: LiveTask, request: SendMessage, context: CallContext, webhook: Webhook | None, *, wait: bool
    ) -> Run | Snapshot | TaskElsewhere:
        context_id = request.message.context_id
        if context_id and context_id != live.task.context_id:
            wrong = Violation("message.contextId", "is not the context of message.taskId")
            raise InvalidParamsError("contextId does not match the task", [wrong])
        repeated = await self._result_of_repeat(live, request.message, context, wait=wait)
        if repeated is not None:
            return repeated
        if not request.message.message_id:  # its place in the queue and in the history is found by this id
            request = replace(request, message=replace(request.message, message_id=new_id()))
        if live.has_ended():
            raise _task_ended(live)
        admitted = await self._admit(live, request, context)
        if self._stored is not None:
            self._stored.take(context.owner, request, is_new=False)
        if self._webhooks is not None:
            await self._webhooks.resume(live, webhook)
        if self._replica_requests is not None and not live.runner.is_none:
            if not wait:
                await self._replica_requests.queue_message(live, request, context)
                record = await self.load(live.task.id, context)
                return Snapshot(record.document, record.version)
            await self._replica_requests.followers.wait_until_free(live)
        repeated = await self._result_of_repeat(live, request.message, context, wait=wait)  # accepted since the check
        if repeated is not None:
            return repeated
        return await self._wait_or_queue(live, request, context, admitted, wait=wait)

    async def _wait_or_queue(
        self, live: LiveTask, request: SendMessage, context: CallContext, admitted: Admitted, *, wait: bool
    ) -> Run | Snapshot:
        """Run a message when its turn comes. If its sender does not wait, store it in the queue until then."""
        self._runs.reserve_place(live, context.quota_key)
        place = live.join_queue()
        if wait or place is None:
            return await self._take_turn(live, place, admitted, context)
        queued = QueuedMessage(request, context.caller, context.headers)
        # The context for the later run: the caller and the trace, which are all that is stored for a restart, and the
        # peer, because the quota key depends on it.
        later = CallContext(caller=context.caller, headers=context.headers, peer=context.peer)
        self._runs.in_background(self._run_queued(live, place, queued, admitted, later), live)
        await enqueue(live, queued)
        return await live.latest()

    async def _result_of_repeat(
        self, live: LiveTask, message: Message, context: CallContext, *, wait: bool
    ) -> Run | Snapshot | TaskElsewhere | None:
        """Return the result of an earlier copy of this message to the task, or None if there is no such copy."""
        if self._repeats.is_in(live, message, context):
            return await self._repeats.outcome(live.task.id, context, wait=wait)
        if not self._repeats.is_queued(live, message, context):
            return None
        if wait and self._followers is not None and not live.runner.is_none:
            await self._followers.wait_until_free(live)
        elif wait:
            await live.turn.wait(live.join_queue(acknowledged=True))  # a place behind the message
            live.turn.give()
            if live.state not in AT_REST:  # another replica continues the task
                return await self._repeats.outcome(live.task.id, context, wait=wait)
        else:
            await until_queued(live, message.message_id)
        return await live.latest()

    async def queue_here(self, live: LiveTask, request: SendMessage, context: CallContext) -> None:
        """Queue a message that another replica received for a task that runs here. Return when it is stored."""
        with live.held():
            begun = await self._continue(live, request, context, None, wait=False)
            if isinstance(begun, Run):  # the task was idle
                await begun.until(OPENED)
                if begun.error is not None:
                    raise begun.error

    async def _admit(self, live: LiveTask, request: SendMessage, context: CallContext) -> Admitted:
        version = live.version
        call = new_call(request, live.task, context)
        call.quota_key = context.quota_key
        await self.conversations.add_history(call, context)
        call.resumed = True
        if live.memo:
            call.memo = json.decode(live.memo)
        admission = await ask_agent(self._agent, call)
        return Admitted(call, admission.retry_safe, version)

    async def _take_turn(
        self,
        live: LiveTask,
        place: Place,
        admitted: Admitted,
        context: CallContext,
        queued: QueuedMessage | None = None,
    ) -> Run | Snapshot:
        """Wait for the turn, then run the message if the task still accepts it."""
        if place is not None:
            await self._wait_in_queue(live, place)
        run = None
        try:
            await live.resync()
            request = admitted.call.request
            if is_settled(live, queued):
                await remove_settled(live, queued)
            elif not self._repeats.is_in(live, request.message, context):
                self._check_takes_messages(live)
                if live.version != admitted.version:
                    # The task has changed while the message waited, so the agent decides again.
                    admitted = await self._admit_again(live, request, context, queued)
                    self._check_takes_messages(live)
                self._keep_for_restart(live, admitted.call, retry_safe=admitted.retry_safe)
                run = self._runs.launch(live, admitted.call, NextMessage(), quota_key=context.quota_key)
        finally:
            if run is None:
                live.turn.give()
        return run or await live.latest()

    async def _wait_in_queue(self, live: LiveTask, place: Place) -> None:
        began = time.monotonic()
        self._runs.observer.message_waits()
        try:
            await live.turn.wait(place)
        finally:
            self._runs.observer.message_waited(time.monotonic() - began)

    async def _admit_again(
        self, live: LiveTask, request: SendMessage, context: CallContext, queued: QueuedMessage | None
    ) -> Admitted:
        try:
            return await self._admit(live, request, context)
        except StoreUnavailableError:
            raise  # the agent has not decided about the message
        except A2AError as error:
            if queued is not None and live.takes_messages():
                await self._refuse_queued(live, queued, error)
            raise

    # ---- messages that were acknowledged before their turn ----------------------------------------------------------

    def resume_queued(self, live: LiveTask, queued: QueuedMessage) -> None:
        """Queue a message again that was in the queue when its process ended."""
        context = CallContext(caller=queued.caller, headers=queued.trace)
        call = new_call(queued.request, live.task, context)
        never_admitted = Admitted(call, retry_safe=False, version=-1)
        place = live.join_queue(acknowledged=True)
        self._runs.in_background(self._run_queued(live, place, queued, never_admitted, context), live)

    async def _run_queued(
        self, live: LiveTask, place: Place, queued: QueuedMessage, admitted: Admitted, context: CallContext
    ) -> None:
        """Run a message when its turn comes. If the store is unavailable then, retry until it is available.

        The message stays in the queue, and in the store, until the run that it begins is stored, the task ends without
        it, or the agent rejects it. Anything else that prevents the run (a cancel, a shutdown) ends the task or the
        process, and both handle the queue.
        """
        attempt = 0
        while not await self._try_queued(live, place, queued, admitted, context):
            await asyncio.sleep(self._options.timing.retry_pause(attempt))
            attempt += 1
            place = live.join_queue(acknowledged=True)

    async def _try_queued(
        self, live: LiveTask, place: Place, queued: QueuedMessage, admitted: Admitted, context: CallContext
    ) -> bool:
        """Return whether the message was run or rejected. False means that the store is unavailable."""
        try:
            begun = await self._take_turn(live, place, admitted, context, queued)
        except StoreUnavailableError:
            return False
        if not isinstance(begun, Run):
            return True
        await begun.until(OPENED)
        return not isinstance(begun.error, StoreUnavailableError)

    async def _refuse_queued(self, live: LiveTask, queued: QueuedMessage, error: A2AError) -> None:
        """Record in the task that the agent has rejected a queued message, because the task has changed meanwhile."""
        await reject_message(live, queued.request.message, f"The message was not taken: {error.message}")

    def _check_takes_messages(self, live: LiveTask) -> None:
        """Reject a message whose turn has come if the server drains or the task has ended."""
        self._runs.check_draining()
        if not live.takes_messages():
            raise _task_ended(live)

    # ---- tasks ----------------------------------------------------------------------------------------------------

    async def load(self, task_id: str, context: CallContext) -> Record:
        record = await self._store.load(task_id, context.owner)
        if record is None:
            raise TaskNotFoundError(task_id)
        return record

    @asynccontextmanager
    async def live(self, task_id: str, context: CallContext, *, follow: bool = False) -> AsyncIterator[LiveTask]:
        """Return a task of the caller as a LiveTask, held until the end of the `async with` block."""
        if self._followers is not None:
            live = await self._followers.load(task_id, context.owner, follow=follow)
        else:
            live = self._runs.find(task_id, context.owner) or self._runs.revive(await self.load(task_id, context))
        with live.held():
            yield live


def new_call(request: SendMessage, task: Task, context: CallContext) -> Call:
    """Return a call of the agent on behalf of the caller."""
    return Call(
        request=request,
        task=task,
        caller=context.caller,
        headers=context.headers,
        raw_headers=context.raw_headers,
        extensions=context.extensions,
        cancel=CancelToken(),
    )


def _task_ended(live: LiveTask) -> UnsupportedOperationError:
    return UnsupportedOperationError(f"Task {live.task.id} has ended; send a new message without taskId")


# ---- repeated messages (idempotency) --------------------------------------------------------------------------------
# Invariant: a repeat creates nothing, and no limit rejects it. The write that creates a task also checks its key. So
# the store is asked for a key separately only after a limit has rejected the message.


class Repeats:
    """Detects repeated messages, and finds the result of the first."""

    def __init__(self, store: Store, runs: Runs, followers: Followers | None, *, by_message_id: bool) -> None:
        self._store = store
        self._runs = runs
        self._followers = followers
        self._by_message_id = by_message_id

    def key_of(self, message: Message, context: CallContext) -> str:
        """Return the idempotency key of a message, or "" if it has none."""
        if not context.idempotency_key and self._by_message_id:
            return message.message_id
        return context.idempotency_key

    def is_in(self, live: LiveTask, message: Message, context: CallContext) -> bool:
        """Return whether the history of the task already has this message."""
        if not self.key_of(message, context):
            return False
        return any(said.message_id == message.message_id for said in live.task.history)

    def is_queued(self, live: LiveTask, message: Message, context: CallContext) -> bool:
        """Return whether this message waits in the queue of the task."""
        return bool(self.key_of(message, context)) and message.message_id in live.queue

    async def find(
        self, message: Message, context: CallContext, *, wait: bool
    ) -> Run | Snapshot | TaskElsewhere | None:
        """Return the result of the message that a message without taskId repeats, or None if it repeats none."""
        key = self.key_of(message, context)
        if not key:
            return None
        task_id = await self._store.find_key(key, context.owner)
        if task_id is None:
            return None
        return await self.first_outcome(task_id, message, context, wait=wait)

    async def first_outcome(
        self, task_id: str, message: Message, context: CallContext, *, wait: bool
    ) -> Run | Snapshot | TaskElsewhere:
        """Return the result of the message that created this task, which this message repeats.

        Raises:
            KeyReusedError: The key of the request belongs to a task that another message created.
        """
        found = await self.outcome(task_id, context, wait=wait)
        if not context.idempotency_key:
            return found
        match found:
            case Snapshot():
                task = found.document.task()
            case _:
                task = found.live.task
        if not _is_repeat(message, task):
            if isinstance(found, TaskElsewhere):
                found.live.release()
            raise KeyReusedError
        return found

    async def outcome(self, task_id: str, context: CallContext, *, wait: bool) -> Run | Snapshot | TaskElsewhere:
        """Return the result of the message that created this task."""
        run = self._runs.running(task_id)
        if run is not None:
            return run
        if self._followers is not None and wait:
            live = await self._followers.load(task_id, context.owner, follow=True)
            live.hold()
            return TaskElsewhere(live, None)
        record = await self._store.load(task_id, context.owner)
        if record is None:
            raise TaskNotFoundError(task_id)
        return Snapshot(record.document, record.version)


_CANONICAL: Final = json.Encoder(order="sorted")


def _is_repeat(message: Message, task: Task) -> bool:
    """Return whether a message has the content of the first message of a task. A repeat may have another message id."""
    first = next((said for said in task.history or () if said.role is Role.USER), None)
    if first is None:  # the store keeps no history
        return True
    ours = _CANONICAL.encode((message.parts, message.metadata))
    return ours == _CANONICAL.encode((first.parts, first.metadata))


# ---- the agent's decision -------------------------------------------------------------------------------------------

EXITED: Final = "the agent's admit tried to exit"


async def ask_agent(agent: Agent, call: Call) -> Admission:
    """Return the agent's answer to a message. Its exceptions are raised. An attempt to exit becomes a RuntimeError."""
    try:
        return await agent.admit(call)
    except BaseException as error:
        if _is_exit(error):  # an agent must end neither the server nor the connection
            raise RuntimeError(EXITED) from error
        raise


def _is_exit(error: BaseException) -> bool:
    """Return whether the agent raised SystemExit or KeyboardInterrupt, or a CancelledError without being cancelled."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return not isinstance(error, Exception)
