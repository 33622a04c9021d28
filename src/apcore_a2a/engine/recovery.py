"""What a dead process left: run again where the agent allows it, ended where it does not; and what waited, waits again.

Rule: a task is gone on with by whoever has claimed it from the store, and by nobody else.
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
    """Goes on with tasks that were claimed from dead processes."""

    def __init__(self, store: Store, runs: Runs, intake: Intake, webhooks: Webhooks | None) -> None:
        self._store = store
        self._runs = runs
        self._intake = intake
        self._webhooks = webhooks

    async def recover(self) -> None:
        """Run again what a dead process left, if its agent allows that, and what waited; end the rest."""
        for record in await self._store.orphans():
            await self.take_over(record)

    async def take_over(self, record: Record) -> None:
        """Go on with a task that was claimed from another process, unless a third one has it by now."""
        live = self._runs.revive(record)
        with live.held():
            await live.turn.take()  # first: a message may wait here until the task is nobody else's
            runs_again = False
            try:
                runs_again = await self._go_on(live, record)
            except (StaleWriteError, TaskNotFoundError):
                runs_module.log_recovered(live.task, "left to another replica")
            finally:
                if not runs_again:
                    live.turn.give()

    async def _go_on(self, live: LiveTask, record: Record) -> bool:
        """Whether the task runs again, and has taken the turn along."""
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
            if self._runs.draining and live.is_shared:  # it was claimed when the shutdown began
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
            await live.save_run()  # it was claimed to be canceled, and waits for its user: it is nobody's again
        # What waited waits again; if the task has just ended, it was refused, and nothing does.
        for queued in live.queue:
            self._intake.resume_queued(live, queued)
        return runs_again

    async def _prepare_rerun(self, live: LiveTask, stored: StoredRun, request: SendMessage) -> Call:
        """What the agent is told when it runs again, from the start, what a dead process left."""
        context = CallContext(caller=stored.caller)
        call = new_call(request, live.task, context)
        await self._intake.conversations.add_history(call, context)
        # The message that is being answered is in the stored task already, and so is what there was of the answer:
        # neither is part of what was said before.
        of_this_run = {call.message.message_id, *(artifact.artifact_id for artifact in live.task.artifacts)}
        call.history = tuple(said for said in call.history if said.message_id not in of_this_run)
        call.resumed = stored.resumed
        call.memo = stored.memo
        return call

    def _rerun(self, live: LiveTask, stored: StoredRun, call: Call) -> None:
        """Start it, with the turn that the caller has; what the dead process had made by then is made anew."""
        live.set_run(replace(stored, attempt=stored.attempt + 1))
        start: Start = Rerun()
        if stored.attempt == 0:
            start = FromQueue()
        self._runs.launch(live, call, start, quota_key=CallContext(caller=stored.caller).quota_key)
