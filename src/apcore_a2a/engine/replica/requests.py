"""What one replica asks of another, by way of the store: to queue a message, to cancel a task, to run a new one.

Rule: whoever asks learns what came of it, or, in bounded time, that nobody answers; then it was not done, or may have
been.
"""

from typing import Final, NamedTuple

from msgspec import Struct, json

from apcore_a2a.agent import Call, Caller
from apcore_a2a.engine.replica.followers import Followers
from apcore_a2a.engine.stored_run import StoredRun
from apcore_a2a.engine.task import ANY_RUNNER, LiveTask
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

# What one replica asks of the one that runs a task, by way of the store: to queue a message, or to cancel the task.
#
# Rule: whoever asks learns what came of it, or, in bounded time, that nobody answers; then it was not done, or may have
# been, and the caller is told to try again.

ANSWER_TIME: Final = 6.0  # seconds for a replica to do as it is asked
LOOK_AGAIN: Final = 0.5  # seconds between looks whether it has: its wake-up may get lost
NOT_TAKEN: Final = "The replica that runs this task does not answer; try again later"
MOVED: Final = "The task has just left the replica that ran it; try again"
NOT_UNDERSTOOD: Final = "The replicas do not understand each other: are their versions too far apart?"
# What the sender of a message may be told that another replica refused: the first of these that the error is. Nobody is
# told of a stale write: whoever sent the message looks for the task again.
REFUSALS: Final[tuple[type[A2AError], ...]] = (
    StaleWriteError,
    InvalidParamsError,
    ContentTypeNotSupportedError,
    UnsupportedOperationError,
    LimitExceededError,
    StoreUnavailableError,
    OverloadedError,
    A2AError,
)


class Errand(Struct, frozen=True, omit_defaults=True):
    """To take a message of a caller's, or, without one, to cancel the task for them."""

    caller: Caller
    request: SendMessage | None = None
    id: str = ""
    """Its own: a store may have to tell an errand that is posted again from another one."""


class Refusal(Struct, frozen=True):
    """Why an errand was not done, as the sender of the message is to be told."""

    kind: str
    text: str


_ERRAND: Final = json.Decoder(Errand)
_REFUSAL: Final = json.Decoder(Refusal)


def decode_errand(body: bytes) -> Errand:
    """Raises: ValueError: another version wrote it."""
    return _ERRAND.decode(body)


def encode_refusal(error: A2AError) -> str:
    """What the other replica is answered when this is raised here."""
    if isinstance(error, StaleWriteError | TaskNotFoundError):  # where the message was sent, neither need be true
        error = StaleWriteError(MOVED)  # as one of the version before tells its sender
    kind = next(refusal for refusal in REFUSALS if isinstance(error, refusal))
    return encode(Refusal(kind.__name__, error.message)).decode()


def decode_refusal(answer: str) -> A2AError:
    """The error to raise where the message was sent."""
    try:
        refusal = _REFUSAL.decode(answer)
    except ValueError:
        return OverloadedError(NOT_UNDERSTOOD)
    for kind in REFUSALS:
        if kind.__name__ == refusal.kind:
            return kind(refusal.text)
    return OverloadedError(refusal.text)


async def send_on(followers: Followers, live: LiveTask, request: SendMessage, caller: Caller) -> None:
    """Have a message wait for its turn where its task runs.

    Raises:
        StaleWriteError: it runs there no longer: look again.
        A2AError: it is not taken, for the reason that the other replica gives.
        OverloadedError: nobody answers.
    """
    replicas = followers.replicas
    await followers.look(live.task.id, live.owner, follow=True)
    if not await followers.until(live, _has_a_runner, ANSWER_TIME):
        raise OverloadedError("The task waits for a replica with room; try again later")
    if live.runner.is_none:
        raise StaleWriteError
    number = await replicas.mailbox.post(
        live.task.id, live.owner, live.runner.name, encode(Errand(caller, request, new_id()))
    )
    if number is None:
        raise StaleWriteError
    for _ in range(int(ANSWER_TIME / LOOK_AGAIN)):
        answer = await replicas.mailbox.answer(number)
        if answer is not None:
            if answer:
                raise decode_refusal(answer)
            return
        await followers.until_told(LOOK_AGAIN)
    if await replicas.mailbox.withdraw(number):
        raise StoreUnavailableError(NOT_TAKEN)
    raise StoreUnavailableError


async def ask_to_cancel(followers: Followers, live: LiveTask, caller: Caller, *, seconds: float) -> None:
    """Have a task canceled where it runs; done when it has ended, or nobody runs it, or after that time."""
    assert live.runner.name  # a replica runs it
    await followers.replicas.mailbox.post(
        live.task.id, live.owner, live.runner.name, encode(Errand(caller, id=new_id()))
    )
    await followers.until(live, _is_over_or_free, seconds)


def _has_a_runner(live: LiveTask) -> bool:
    """Whether it does not wait for one."""
    return not live.runner.is_any


def _is_over_or_free(live: LiveTask) -> bool:
    return live.has_ended() or live.runner.is_none


# ---- new tasks ------------------------------------------------------------------------------------------------------
# New tasks that this replica has no room for: stored for whichever replica has, and followed for their senders.

MAX_QUEUED_TASKS: Final = 10_000  # that wait for a replica with room


class Elsewhere(NamedTuple):
    """A task that another replica runs, or is to run; it is held for whoever gets this, and who has to release it."""

    live: LiveTask
    earlier: str | None
    """The id of a task that was made with the same key, if there is one: then there is no new one."""


async def queue_task(followers: Followers, live: LiveTask, call: Call, *, key: str, retry_safe: bool) -> Elsewhere:
    """Store a new task, which nobody holds yet, for whichever replica has room first.

    Raises:
        OverloadedError: too many wait already.
    """
    live.hold()
    try:
        if await followers.replicas.claims.count_queued(MAX_QUEUED_TASKS) >= MAX_QUEUED_TASKS:
            raise OverloadedError("The agents are at their limit of waiting tasks; try again later", retry_after=5)
        live.set_run(StoredRun(request=call.request, caller=call.caller, retry_safe=retry_safe, attempt=0))
        earlier = await live.create(key=key, hand_on=True)
        live.runner = ANY_RUNNER
        if earlier is None:
            followers.watch(live)  # the store has noted the interest with the task
    except BaseException:
        live.release()
        raise
    return Elsewhere(live, earlier)
