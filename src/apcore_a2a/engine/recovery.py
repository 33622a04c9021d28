"""Recovery of the tasks of processes that ended: run again if the agent allows it, otherwise failed.

Invariant: only the process that has claimed a task from the store continues it.
"""

from typing import Final

from msgspec.structs import replace

from apcore_a2a.agent import Call
from apcore_a2a.engine import runs as runs_module
from apcore_a2a.engine.agent_output import failed_status
from apcore_a2a.engine.context import CallContext
from apcore_a2a.engine.intake import Intake, new_call
from apcore_a2a.engine.run import FromQueue, Rerun, Start
from apcore_a2a.engine.runs import Runs
from apcore_a2a.engine.stored_run import StoredRun, decode_stored_run
from apcore_a2a.engine.task import NO_RUNNER, LiveTask, hand_on
from apcore_a2a.engine.webhooks.operations import Webhooks
from apcore_a2a.errors import AgentError, StaleWriteError, TaskNotFoundError
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import SendMessage
from apcore_a2a.storage.contract import Record, Store

LOST: Final = "Worker lost: the process running this task ended"


class Recovery:
    """Continues tasks that were claimed from processes that ended."""

    def __init__(self, store: Store, runs: Runs, intake: Intake, webhooks: Webhooks | None) -> None:
        self._store = store
        self._runs = runs
        self._intake = intake
        self._webhooks = webhooks

    async def recover(self) -> None:
        """Claim the tasks of ended processes. Run them again if allowed, run queued messages, and fail the rest."""
        for record in await self._store.orphans():
            await self.take_over(record)

    async def take_over(self, record: Record) -> None:
        """Continue a task that was claimed from another process, unless a third process has claimed it meanwhile."""
        live = self._runs.revive(record)
        with live.held():
            await live.turn.take()  # first, because a message may wait here until the task is claimed
            runs_again = False
            try:
                runs_again = await self._go_on(live, record)
            except (StaleWriteError, TaskNotFoundError):
                runs_module.log_recovered(live.task, "left to another replica")
            finally:
                if not runs_again:
                    live.turn.give()

    async def _go_on(self, live: LiveTask, record: Record) -> bool:
        """Run the task again, fail it or leave it as it is. Return whether it runs again, and so keeps the turn."""
        stored = decode_stored_run(record.run)
        runs_again = False
        if live.is_shared:
            live.follow(record)
            live.runner = NO_RUNNER
        if self._webhooks is not None:
            await self._webhooks.resume(live)
        if stored is not None:
            live.set_queue(stored.queue)
        request = stored.request if stored is not None else None
        if stored is not None and request is not None and stored.may_run_again():
            call = await self._prepare_rerun(live, stored, request)
            if self._runs.draining and live.is_shared:  # the shutdown began after the claim
                live.set_run(stored)
                await hand_on(live)
                return False
            self._rerun(live, stored, call)
            runs_module.log_recovered(live.task, "run again")
            runs_again = True
        elif request is not None or live.state not in AT_REST:
            await live.write(failed_status(AgentError(LOST, kind="WorkerLostError")))
            runs_module.log_recovered(live.task, "failed: its worker is lost")
        elif not live.queue:
            await live.save_run()  # the claim was for a cancel, and the task waits for its user: give the claim up
        # The queued messages wait again. If the task has just ended, they were rejected, and the queue is empty.
        for queued in live.queue:
            self._intake.resume_queued(live, queued)
        return runs_again

    async def _prepare_rerun(self, live: LiveTask, stored: StoredRun, request: SendMessage) -> Call:
        """Return the call for an agent that starts again with the request of a process that ended."""
        context = CallContext(caller=stored.caller)
        call = new_call(request, live.task, context)
        await self._intake.conversations.add_history(call, context)
        # The stored task contains the message of this run and the artifacts so far. Neither belongs to the history.
        of_this_run = {call.message.message_id, *(artifact.artifact_id for artifact in live.task.artifacts)}
        call.history = tuple(said for said in call.history if said.message_id not in of_this_run)
        call.resumed = stored.resumed
        call.memo = stored.memo
        return call

    def _rerun(self, live: LiveTask, stored: StoredRun, call: Call) -> None:
        """Start the run from the beginning, with the turn that the caller has."""
        live.set_run(replace(stored, attempt=stored.attempt + 1))
        start: Start = Rerun()
        if stored.attempt == 0:
            start = FromQueue()
        self._runs.launch(live, call, start, quota_key=CallContext(caller=stored.caller).quota_key)
