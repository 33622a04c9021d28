"""The first step of an agent with a new task: from its call until it waits, ends its task, or fails.

Most agents that compute an answer have ended their task by then. The event loop runs no other code during this step,
so nothing can read, cancel or stop the task. It needs no `LiveTask`, no `EventLog` and no `Run`: its events are folded
into the task one by one, and stored with one write.

In all other cases a `Run` takes over: the agent, the events so far, and the step that it awaits next. These are the
cases: the agent waits, fails, asks its user, keeps a memo, yields anything else than artifacts and statuses, or yields
more than MAX_EVENTS.

Invariant: a task ends here only with a terminal status of its agent that the store has taken. All other ends of a task
are in `run`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

from apcore_a2a.agent import Agent, AgentEvent, Call
from apcore_a2a.engine.agent_output import RunOutput, begin_task
from apcore_a2a.engine.context import RunTimes
from apcore_a2a.engine.event_log import Folded, LogEntry, Snapshot
from apcore_a2a.engine.run import AfterFirstStep, Run
from apcore_a2a.engine.stored_run import StoredRun
from apcore_a2a.engine.task import LiveTask, Saving, TaskRegistry
from apcore_a2a.engine.waiting import Begun, notice_wait
from apcore_a2a.errors import A2AError, InternalError
from apcore_a2a.protocol import lifecycle, v1
from apcore_a2a.protocol.lifecycle import TERMINAL, WORKING, document_of, fold
from apcore_a2a.protocol.model import ArtifactUpdate, Document, StatusUpdate, Task, TaskState, TaskStatus
from apcore_a2a.storage.contract import Change, DeferringStore
from apcore_a2a.trace_context import continue_trace

logger = logging.getLogger(__name__)

MAX_EVENTS: Final = 16
"""How many events the first step may have. A longer output is saved and published in batches by a run."""
FIRST_EVENTS: Final = 2  # of a new task: the task itself, and the step to WORKING
_FOLDED_HERE: Final = TERMINAL | {WORKING}

Answer = asyncio.Future[Run | Snapshot]
"""What the sender of the message waits for: the ended task, or the run that has taken over."""


class FirstStep:
    """The first step of an agent with a new task, which the store takes with the events of this step."""

    __slots__ = (
        "_agent",
        "_document",
        "_live",
        "_registry",
        "_stored_run",
        "answer",
        "call",
        "folded",
        "is_stored",
        "output",
        "owner",
        "saving",
        "started",
        "task",
    )

    def __init__(
        self, call: Call, owner: str, *, agent: Agent, registry: TaskRegistry, stored_run: StoredRun | None
    ) -> None:
        """`stored_run` is what a durable store needs to run the task again."""
        self.call = call
        self.owner = owner
        self.task: Task = call.task
        self.folded = Folded([], [])
        self.output = RunOutput(call, registry.options)
        self.answer: Answer = asyncio.get_running_loop().create_future()
        self.started = 0.0  # when the agent was called, by the monotonic clock
        self.saving: Saving = None  # the write of the ended task to a durable store
        self.is_stored = False  # whether the task has ended here, and the store has it
        self._agent = agent
        self._registry = registry
        self._stored_run = stored_run
        self._document: Document | None = None  # the ended task
        self._live: LiveTask | None = None  # made before its time if the agent asks for its memory

    def execute(self) -> AfterFirstStep | None:
        """Execute the step. Return what a run has to do after it, or None if the task has ended.

        Then the store has the task, or `until_saved` waits for it.

        Raises:
            Exception: the store does not take the task. If it has no room, the agent has not been called.
        """
        store = self._registry.deferring
        assert store is not None
        self.task, self.folded = begin_task(self.call.task, working=True)
        store.check_room(self.owner, sum(map(len, self.folded.records)))
        events = self._call_agent()
        try:
            step = self._take_events(events)
        except BaseException as error:  # also SystemExit: an agent must not end the server
            step = _fail(error)
        if step is None:
            self._store(store)
            return None
        return AfterFirstStep(
            events=events,
            step=step,
            started=self.started,
            output=self.output,
            has_events=len(self.folded.entries) > FIRST_EVENTS,
        )

    def _call_agent(self) -> AsyncGenerator[AgentEvent, None]:
        call = self.call
        self.started = time.monotonic()
        self._registry.observer.run_started(self.task.id, call)
        if call.headers:
            continue_trace(call.headers)
        # The task of this step is a copy, so only the call refers to the object that the agent gets.
        call.task.status = self.task.status
        call.read_conversation = self._recall
        try:
            return self._agent.run(call)
        except BaseException as error:  # as in `execute`
            return _fail_first(error)

    def _take_events(self, events: AsyncGenerator[AgentEvent, None]) -> Any:  # Any: an awaitable of an event
        """Take events until the task has ended and the agent has cleaned up. Else return what a run awaits next."""
        for _ in range(MAX_EVENTS):
            step: Any = anext(events)  # Any: it has the methods of a coroutine
            try:
                awaited = step.send(None)
            except StopIteration as done:
                event = done.value
            else:
                return Begun(step, awaited)
            if self._live is not None or not (type(event) is ArtifactUpdate or self._is_folded_status(event)):
                return _yield(event)
            if self._fold(event):
                return _close(events)
        return anext(events)

    def _is_folded_status(self, event: AgentEvent) -> bool:
        if type(event) is not StatusUpdate or type(event.status) is not TaskStatus:
            return False
        state = event.status.state
        if type(state) is not TaskState or state not in _FOLDED_HERE:
            return False
        return (self.call.stream_final or self._registry.options.stream_final) == "append"

    def _fold(self, event: AgentEvent) -> bool:
        """Fold an event. Return whether it has ended the task."""
        task = self.task
        folded = self.folded
        checked, body = self.output.check(event, task)
        # Most chunks have content, and most statuses end the task. Neither needs a call.
        if type(checked) is ArtifactUpdate:
            parts = checked.artifact.parts
            if (not parts or parts[0].text == "") and lifecycle.adds_nothing(checked, task):
                return False
        elif type(checked) is not StatusUpdate or (
            checked.status.state is WORKING and lifecycle.repeats_state(checked, WORKING)
        ):
            return False
        applied = fold(task, checked)
        if applied is not checked:
            body = v1.encode_event(applied)
        state = task.status.state
        folded.entries.append(LogEntry(len(folded.entries) + 1, state, body))
        folded.records.append(body)
        return state in TERMINAL

    def _store(self, store: DeferringStore) -> None:
        """Pass the ended task to the store. If it has the task at once, answer the sender."""
        task = self.task
        records = self.folded.records
        self.call.read_conversation = None
        self._document = document_of(task, parsed=task)
        self.saving = store.begin_create(
            Change(task=task, owner=self.owner, version=len(records), events=records, document=self._document)
        )
        if self.saving is None:
            self._answer(self._document)

    async def until_saved(self, saving: "asyncio.Future[None]") -> None:
        """Wait until a durable store has the ended task, and answer its sender.

        One write has the whole task with its end. So if it fails, no part of the task is left to be brought to an end.

        Raises:
            Exception: the store has not confirmed the write.
        """
        began = time.monotonic()
        await asyncio.wait({saving})  # `wait`, because cancelling it does not cancel the write
        saving.result()
        self._registry.observer.write_confirmed(time.monotonic() - began)
        assert self._document is not None
        self._answer(self._document)

    def _answer(self, document: Document) -> None:
        """Answer the sender with the ended task, which the store has."""
        task = self.task
        self.is_stored = True
        self._registry.observer.task_ended(task.id, self.owner, task.status.state)
        self._end_run()
        entries = self.folded.entries
        self.settle(Snapshot(document, len(entries), entries))

    def _end_run(self) -> None:
        """Report the end of the agent's work on this task, as a run does."""
        observer = self._registry.observer
        if self.call.cancel.was_ignored:
            observer.run_abandoned(self.task.id)
        seconds = time.monotonic() - self.started
        observer.run_ended(self.task.id, self.call, self.task.status.state, RunTimes(seconds, seconds, seconds))

    def settle(self, outcome: Run | Snapshot) -> None:
        """Let the sender continue with the ended task, or with the run that has taken over."""
        if not self.answer.done():  # the sender may have left
            self.answer.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """Answer the sender with an error of the store: there is no task."""
        if not isinstance(error, A2AError):
            logger.error("task not stored", exc_info=error, extra={"task_id": self.task.id})
            error = InternalError()
        if self.started:
            self._end_run()
        if not self.answer.done():
            self.answer.set_exception(error)

    # ---- what a run needs -----------------------------------------------------------------------------------------

    def make_live(self) -> LiveTask:
        """Return the live task, which contains the events of this step."""
        if self._live is None:
            self._live = LiveTask(self.task, self.owner, self._registry)
            self._live.take_over(self.folded)
            if self._stored_run is not None:
                self._live.set_run(self._stored_run)
            self.call.read_conversation = self._live.recall
        return self._live

    async def _recall(self) -> Any:  # Any: the agent's memo
        return await self.make_live().recall()


# ---- what a run awaits first ----------------------------------------------------------------------------------------


def _close(events: AsyncGenerator[AgentEvent, None]) -> Any:  # Any: as in `_take_events`
    """Let the agent clean up. If it waits, return what a run awaits."""
    closing: Any = events.aclose()  # Any: it has the methods of a coroutine
    try:
        awaited = closing.send(None)
    except StopIteration:
        return None
    return _finish(Begun(closing, awaited))


async def _finish(closing: Begun) -> AgentEvent:
    await notice_wait(closing, lambda: None)
    raise StopAsyncIteration


async def _yield(event: AgentEvent) -> AgentEvent:
    return event


async def _fail(error: BaseException) -> AgentEvent:
    raise error


async def _fail_first(error: BaseException) -> AsyncGenerator[AgentEvent, None]:
    """The events of an agent whose `run` has raised an error."""
    yield await _fail(error)
