"""What one replica asks of the one that runs a task, by way of the store: to queue a message, or to cancel the task.

Rule: whoever asks learns what came of it, or, in bounded time, that nobody answers; then it was not done, or may have
been, and the caller is told to try again.
"""

from typing import Final

from msgspec import Struct, json

from apcore_a2a.agent import Caller
from apcore_a2a.engine.followers import Followers
from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.errors import OverloadedError, StaleWriteError, StoreUnavailableError
from apcore_a2a.protocol.model import SendMessage, encode

ANSWER_TIME: Final = 6.0  # seconds for a replica to do as it is asked
LOOK_AGAIN: Final = 0.5  # seconds between looks whether it has: its wake-up may get lost
NOT_TAKEN: Final = "The replica that runs this task does not answer; try again later"


class Errand(Struct, frozen=True, omit_defaults=True):
    """To take a message of a caller's, or, without one, to cancel the task for them."""

    caller: Caller
    request: SendMessage | None = None


_ERRAND: Final = json.Decoder(Errand)


def decode_errand(body: bytes) -> Errand:
    """Raises: ValueError: another version wrote it."""
    return _ERRAND.decode(body)


async def send_on(followers: Followers, live: LiveTask, request: SendMessage, caller: Caller) -> None:
    """Have a message wait for its turn where its task runs.

    Raises:
        StaleWriteError: it runs there no longer: look again.
        OverloadedError: it is not taken, or nobody answers.
    """
    replicas = followers.replicas
    await followers.look(live.task.id, live.owner, follow=True)
    if not await followers.until(live, _has_a_runner, ANSWER_TIME):
        raise OverloadedError("The task waits for a replica with room; try again later")
    if live.runner is None:
        raise StaleWriteError
    number = await replicas.post(live.task.id, live.owner, live.runner, encode(Errand(caller, request)))
    if number is None:
        raise StaleWriteError
    for _ in range(int(ANSWER_TIME / LOOK_AGAIN)):
        answer = await replicas.answer(number)
        if answer is not None:
            if answer:
                raise OverloadedError(answer)
            return
        await followers.until_told(LOOK_AGAIN)
    if await replicas.withdraw(number):
        raise StoreUnavailableError(NOT_TAKEN)
    raise StoreUnavailableError


async def ask_to_cancel(followers: Followers, live: LiveTask, caller: Caller, *, seconds: float) -> bool:
    """Have a task canceled where it runs; whether it came to rest in that time."""
    assert live.runner  # somebody runs it
    await followers.replicas.post(live.task.id, live.owner, live.runner, encode(Errand(caller)))
    return await followers.until(live, _is_over_or_free, seconds)


def _has_a_runner(live: LiveTask) -> bool:
    """Whether it does not wait for one."""
    return live.runner != ""


def _is_over_or_free(live: LiveTask) -> bool:
    return live.has_ended() or live.runner is None
