"""Replica requests: requests that one replica sends, through the store, to the replica that runs a task.

A replica asks another to queue a message or to cancel a task. It also queues new tasks for any replica with room.

Invariant: the sender learns the outcome of a request, or after a bounded time that there is no answer. Then the request
was not executed, or it is unknown whether it was.
"""

from typing import Final, NamedTuple

from msgspec import Struct, json

from apcore_a2a.agent import Call, Caller
from apcore_a2a.engine.context import CallContext, ReplicaTiming
from apcore_a2a.engine.replica.followers import Followers
from apcore_a2a.engine.stored_run import ANY_RUNNER, StoredRun
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    LimitExceededError,
    OverloadedError,
    StaleWriteError,
    StoreUnavailableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.model import SendMessage, encode
from apcore_a2a.storage.contract import RequestMailbox, TaskClaims
from apcore_a2a.trace_context import NO_TRACE, Trace

NO_ANSWER: Final = "The replica that runs this task does not answer; try again later"
MOVED: Final = "The task has just left the replica that ran it; try again"
NOT_UNDERSTOOD: Final = "The replicas of this agent have incompatible versions; upgrade them to the same version"
# The errors that a rejection can carry to the sender of a request: the first one that matches. A StaleWriteError is not
# shown to a client: the replica that received the message looks for the task again.
REJECTIONS: Final[tuple[type[A2AError], ...]] = (
    StaleWriteError,
    InvalidParamsError,
    ContentTypeNotSupportedError,
    UnsupportedOperationError,
    LimitExceededError,
    StoreUnavailableError,
    OverloadedError,
    A2AError,
)


class RequestBody(Struct, frozen=True, omit_defaults=True):
    """A request to queue a caller's message, or without a message to cancel the task for the caller."""

    caller: Caller
    request: SendMessage | None = None
    id: str = ""
    """Unique, so that a store can tell a repeated post of a request from another request."""
    trace: Trace = NO_TRACE
    key: str = ""
    """The idempotency key of the message."""


class Rejection(Struct, frozen=True):
    """Why a request was rejected, as the sender of the message sees it."""

    kind: str
    text: str


_BODY: Final = json.Decoder(RequestBody)
_REJECTION: Final = json.Decoder(Rejection)


def decode_request(body: bytes) -> RequestBody:
    """Return a decoded request.

    Raises:
        ValueError: another version of the package encoded it.
    """
    return _BODY.decode(body)


def encode_rejection(error: A2AError) -> str:
    """Return the answer to a request that failed with this error."""
    if isinstance(error, StaleWriteError | TaskNotFoundError):  # true here, but the sender may find the task elsewhere
        error = StaleWriteError(MOVED)  # with a text for replicas of the previous version, which show it to the client
    kind = next(rejection for rejection in REJECTIONS if isinstance(error, rejection))
    return encode(Rejection(kind.__name__, error.message)).decode()


def decode_rejection(answer: str) -> A2AError:
    """Return the error to raise at the replica that received the message."""
    try:
        rejection = _REJECTION.decode(answer)
    except ValueError:
        return OverloadedError(NOT_UNDERSTOOD)
    for kind in REJECTIONS:
        if kind.__name__ == rejection.kind:
            return kind(rejection.text)
    return OverloadedError(rejection.text)


class TaskElsewhere(NamedTuple):
    """A task that another replica runs or will run. It is held for the receiver of this value, which releases it."""

    live: LiveTask
    earlier: str | None
    """The id of the task that was created before with the same key, if there is one: then no new task was created."""


class ReplicaRequests:
    """Sends requests to other replicas, and queues new tasks for any of them."""

    def __init__(
        self, followers: Followers, mailbox: RequestMailbox, claims: TaskClaims, timing: ReplicaTiming
    ) -> None:
        self.followers = followers
        self._mailbox = mailbox
        self._claims = claims
        self.timing = timing

    async def queue_message(self, live: LiveTask, request: SendMessage, context: CallContext) -> None:
        """Queue a message at the replica that runs its task.

        Raises:
            StaleWriteError: that replica runs the task no longer. Look for the task again.
            A2AError: the other replica rejects the message for this reason.
            OverloadedError: the task waits for a replica, and none has started it in time.
            StoreUnavailableError: that replica does not answer.
        """
        await self.followers.load(live.task.id, live.owner, follow=True)
        if not await self.followers.wait_until(live, _has_a_runner, self.timing.answer):
            raise OverloadedError("The task waits for a replica with room; try again later")
        if live.runner.is_none:
            raise StaleWriteError
        body = RequestBody(context.caller, request, new_id(), context.headers, context.idempotency_key)
        number = await self._mailbox.post(live.task.id, live.owner, live.runner.name, encode(body))
        if number is None:
            raise StaleWriteError
        for _ in range(int(self.timing.answer / self.timing.answer_poll)):
            answer = await self._mailbox.answer(number)
            if answer is not None:
                if answer:
                    raise decode_rejection(answer)
                return
            await self.followers.wait_for_change(self.timing.answer_poll)
        if await self._mailbox.withdraw(number):
            raise StoreUnavailableError(NO_ANSWER)
        raise StoreUnavailableError

    async def cancel(self, live: LiveTask, caller: Caller, *, seconds: float) -> None:
        """Ask the replica that runs a task to cancel it.

        Return when the task has ended or has no runner any more, at the latest after `seconds`.
        """
        assert live.runner.name  # a replica runs it
        body = RequestBody(caller, id=new_id())
        await self._mailbox.post(live.task.id, live.owner, live.runner.name, encode(body))
        await self.followers.wait_until(live, _has_ended_or_has_no_runner, seconds)

    async def queue_task(self, live: LiveTask, call: Call, *, key: str, retry_safe: bool) -> TaskElsewhere:
        """Store a new task, which nothing holds yet, for the first replica with room.

        Raises:
            OverloadedError: too many tasks wait already.
        """
        live.hold()
        try:
            limit = self.timing.max_queued
            if await self._claims.count_queued(limit) >= limit:
                raise OverloadedError("The agents are at their limit of waiting tasks; try again later", retry_after=5)
            run = StoredRun(
                request=call.request, caller=call.caller, retry_safe=retry_safe, attempt=0, trace=call.headers
            )
            live.set_run(run)
            earlier = await live.create(key=key, hand_on=True)
            live.runner = ANY_RUNNER
            if earlier is None:
                self.followers.follow(live)  # the store has stored this replica as a follower with the task
        except BaseException:
            live.release()
            raise
        return TaskElsewhere(live, earlier)


def _has_a_runner(live: LiveTask) -> bool:
    """Return whether the task does not wait for a replica with room."""
    return not live.runner.is_any


def _has_ended_or_has_no_runner(live: LiveTask) -> bool:
    return live.has_ended() or live.runner.is_none
