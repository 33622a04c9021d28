"""Requests that other replicas send to this one, for tasks that it runs.

Invariant: each request that was taken is answered, with a rejection if it failed.
"""

import asyncio
import logging
import time

from apcore_a2a.engine.context import CallContext, ReplicaTiming
from apcore_a2a.engine.intake import Intake
from apcore_a2a.engine.replica.lease import Authority
from apcore_a2a.engine.replica.requests import NOT_UNDERSTOOD, decode_request, encode_rejection
from apcore_a2a.engine.runs import BackgroundWork, Runs
from apcore_a2a.errors import A2AError, InternalError, OverloadedError, StaleWriteError
from apcore_a2a.storage.contract import ReplicaRequest, RequestMailbox

logger = logging.getLogger(__name__)


class RequestInbox:
    """Takes the requests of other replicas, executes and answers them."""

    def __init__(
        self, mailbox: RequestMailbox, authority: Authority, runs: Runs, intake: Intake, timing: ReplicaTiming
    ) -> None:
        self._mailbox = mailbox
        self._authority = authority
        self._runs = runs
        self._intake = intake
        self._timing = timing
        self._background = BackgroundWork()

    async def close(self) -> None:
        """Execute nothing more."""
        await self._background.cancel_all(1)

    async def take_all(self) -> None:
        """Take all requests, and start to execute them."""
        has_more = True
        while has_more:
            started = time.monotonic()
            requests = await self._mailbox.take()
            self._authority.requests_read(started, [request.task_id for request in requests])
            for request in requests:
                self._background.start(self._answer(request), name=f"replica request for {request.task_id}")
            has_more = len(requests) > 0

    async def _answer(self, request: ReplicaRequest) -> None:
        """Execute a request, and post the answer."""
        rejection = ""
        try:
            await self._execute(request)
        except A2AError as error:
            rejection = encode_rejection(error)
        except Exception:  # an agent's `admit` may raise anything, and the sender waits for an answer
            logger.exception("a replica request failed", extra={"task_id": request.task_id})
            rejection = encode_rejection(InternalError())
        finally:
            self._authority.request_finished(request.task_id)
        await self._mailbox.finish(request.number, rejection)

    async def _execute(self, request: ReplicaRequest) -> None:
        try:
            body = decode_request(request.body)
        except ValueError as error:
            raise OverloadedError(NOT_UNDERSTOOD) from error
        live = self._runs.find(request.task_id, request.owner)
        if live is None:
            raise StaleWriteError
        if body.request is not None:
            await self._intake.queue_here(live, body.request, CallContext(caller=body.caller))
            return
        with live.held():
            await asyncio.wait({self._runs.cancel(live, body.caller)}, timeout=self._timing.answer)
