"""Delivery of events to webhooks: claimed from the store, posted in order, retried, given up.

Invariant: only the worker that posts to a webhook waits for it. Runs and streams do not know that webhooks exist.

A webhook is a reader with a cursor that the store keeps (`storage/contract.py`), so this module has no queue whose loss
would lose an event. The *dispatcher* claims webhooks that have undelivered events. A *worker* takes one of them, posts
its events, oldest first, and stores the cursor after each. If it is killed in between, it repeats at most one event,
which the receiver recognizes by its id.

Callers share the workers (`max_workers`). The webhooks of one account (*share*) have a quarter of the workers and of
the claims, and the accounts take turns. So the receivers of one caller never delay those of another for long.

A *target* is a host and a port that one account posts to. If several posts in a row get no HTTP response, the *circuit*
of the target opens: the events of further webhooks wait, then one is a trial, and if it is answered, all continue. Any
HTTP response, an error too, shows that the target is up. A circuit delays only first attempts: an event that failed is
retried on time, and no webhook is given up without posts. After a minute the circuit delays nothing any more, so that
the webhooks of a target that stays down are given up.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from apcore_a2a.engine.context import Observer
from apcore_a2a.engine.event_log import EventLog
from apcore_a2a.engine.runs import BackgroundWork
from apcore_a2a.errors import A2AError
from apcore_a2a.ids_and_time import seconds_since
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import PushConfig
from apcore_a2a.storage.contract import Backlog, Claim, DeliveryReport, WebhookStore, stored_quota_key
from apcore_a2a.trace_context import NO_TRACE, Trace

logger = logging.getLogger(__name__)

# ---- targets and their circuits -------------------------------------------------------------------------------------

POSTPONED: Final = 1.0  # seconds until a claim is due again if there was no place in the queue of its target
OPENS_AFTER: Final = 5  # failures in a row that open the circuit
OPEN_FOR: Final = (1.0, 30.0)  # seconds that a circuit stays open: the first time, and at most. Doubled each time.
LONG_DOWN: Final = 60.0  # seconds for which waiting for a target that is down is not counted as an attempt


class Target:
    """A host and a port of one account: its circuit, its workers, and the claims that wait for one of them."""

    def __init__(self, name: str, share: "Share", *, max_workers: int) -> None:
        self.name = name
        self.share = share
        self.workers = 0
        self._max_workers = max_workers
        self.queue: deque[tuple[Claim, float]] = deque()  # with the time of the claim
        self.is_ready = False  # whether it is in the list of targets that have work for a worker
        self._failures = 0  # in a row
        self._opened_for = 0.0
        self._open_until = 0.0
        self._down_since = 0.0
        self._in_trial = False

    def is_idle(self) -> bool:
        return not self.workers and not self.queue and not self._failures

    def is_long_idle(self, now: float) -> bool:
        """Return whether the target has no work, and the open time of its circuit has passed."""
        return not self.workers and not self.queue and now > self._open_until

    def open_seconds(self, now: float) -> float:
        """Return for how long the circuit stays open. Then one post is a trial, and the others wait for its result."""
        if self._failures < OPENS_AFTER or now - self._down_since > LONG_DOWN:
            return 0.0
        if self._in_trial:
            return max(self._open_until - now, POSTPONED)
        return max(self._open_until - now, 0.0)

    def must_wait(self, claim: Claim, now: float) -> bool:
        """Return whether a claim waits for the circuit. Only a first attempt does."""
        return not claim.webhook.attempts and self.open_seconds(now) > 0

    def has_room(self) -> bool:
        return self.workers < self._max_workers

    def begin(self) -> None:
        self.workers += 1
        self._in_trial = self._failures >= OPENS_AFTER

    def end(self) -> None:
        self.workers -= 1
        self._in_trial = False

    def is_up(self) -> None:
        """Close the circuit: the target sent an HTTP response."""
        self._failures = 0
        self._opened_for = 0.0
        self._in_trial = False

    def is_down(self, now: float) -> None:
        """Count a post without an HTTP response, and open the circuit after several in a row."""
        if not self._failures:
            self._down_since = now
        self._failures += 1
        self._in_trial = False
        if self._failures >= OPENS_AFTER and self._open_until <= now <= self._down_since + LONG_DOWN:
            first, longest = OPEN_FOR
            self._opened_for = min(max(2 * self._opened_for, first), longest)
            self._open_until = now + self._opened_for
            logger.warning("webhook circuit opened", extra={"target": self.name, "seconds": self._opened_for})


class _ByteBudget:
    """A limit of bytes in use. A sender waits until its bytes fit, or until no other bytes are in use."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def held(self, size: int) -> AsyncIterator[None]:
        async with self._freed:
            await self._freed.wait_for(lambda: not self._used or self._used + size <= self._limit)
            self._used += size
        try:
            yield
        finally:
            self._used -= size
            async with self._freed:
                self._freed.notify_all()


class Share:
    """What the webhooks of one account use: workers, claims and bytes. Its targets with work take turns."""

    def __init__(self, account: str, *, max_workers: int, max_claimed: int, max_bytes: int) -> None:
        self.account = account
        self.targets = 0
        self.workers = 0
        self.claimed = 0
        self.bytes = _ByteBudget(max_bytes)
        self.is_ready = False  # whether it is in the list of accounts that have work for a worker
        self.ready: deque[Target] = deque()  # targets with room for a worker and a claim in the queue
        self._max_workers = max_workers
        self._max_claimed = max_claimed
        self._postponed = 0  # since it last had room for a claim

    def is_idle(self) -> bool:
        return not self.targets and not self.workers and not self.claimed

    def can_start(self) -> bool:
        return bool(self.ready) and self.workers < self._max_workers

    def takes_claim(self) -> bool:
        if self.claimed < self._max_claimed:
            self._postponed = 0
            return True
        self._postponed += 1
        return False

    def postpone_seconds(self) -> float:
        """Return the pause of a claim beyond the share. It grows with their number: each pause is a write."""
        return min(POSTPONED * (1 + self._postponed // self._max_claimed), LEASE)


# ---- delivery -------------------------------------------------------------------------------------------------------

LEASE: Final = 45.0  # seconds for which a claim holds: longer than the delivery of one event, or the wait for a worker
RENEW_AFTER: Final = 15.0  # seconds in the queue after which a claim is renewed
AT_A_TIME: Final = 16  # events that a worker delivers before it takes another webhook


class DeliveryLimits(Struct, frozen=True, kw_only=True):
    """The pauses (in seconds) and the limits of a delivery."""

    retry_delays: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Pauses before the retries of an event (FR-PSH-003)."""
    max_workers: int = 128
    max_workers_per_account: int = 32
    max_workers_per_target: int = 16
    max_queued_per_target: int = 64
    max_claimed: int = 512
    """Claims held by workers and queues together."""
    max_claimed_per_account: int = 128
    max_targets: int = 1_000
    """Targets whose failures are remembered, unless more of them are in use."""
    max_bytes: int = 256 * 1024 * 1024
    """Bytes of the notifications that are posted at the same time, unless a single one is larger."""
    max_bytes_per_account: int = 64 * 1024 * 1024
    large: int = 64 * 1024
    """Size of an event, in bytes, above which a thread encodes it."""
    poll: float = 1.0
    """Polling interval, for events that another process stored."""
    pace: float = 0.005
    """Pause between two claims. Without it, a task that streams would cause one claim for each event."""


DEFAULT_LIMITS: Final = DeliveryLimits()


class Notification(Struct, frozen=True, kw_only=True):
    """One event, as it is posted to a webhook."""

    config: PushConfig
    event_id: str
    """The same for each attempt to post the event, so that receivers recognize repeats."""
    body: bytes
    media_type: str
    trace: Trace = NO_TRACE
    """The trace of the run, if the event changed the state of the task."""
    time: str = ""
    """The time of the status, if the event is one."""


class PostFailure(Struct, frozen=True):
    """Why a post failed."""

    reason: str
    """Without secrets."""
    was_answered: bool = False
    """Whether the target is up: it sent an HTTP response, or the sender did not try to connect."""


class Sender(Protocol):
    """Posts notifications to webhooks."""

    def check(self, config: PushConfig) -> None:
        """Reject a webhook to which this sender would not post.

        Raises:
            InvalidParamsError: The text says why.
        """

    async def send(self, notification: Notification) -> PostFailure | None:
        """Post a notification in bounded time. Return the failure, or None on success."""

    async def close(self) -> None: ...


class NotificationFormat(Protocol):
    """What the webhooks of one protocol version receive, encoded from events and tasks in their stored form."""

    @property
    def media_type(self) -> str: ...

    @property
    def posts_tasks(self) -> bool:
        """Whether a webhook receives the whole task as it was after an event, instead of the event."""

    def is_posted(self, event: bytes) -> bool:
        """Return whether a webhook is notified of this event."""

    def encode(self, stored: bytes) -> bytes:
        """Return the body of the notification for a stored event, or for a stored task if it `posts_tasks`."""


class Posting(Struct, frozen=True, kw_only=True):
    """How an engine posts to webhooks. `app/` supplies it, because the engine knows no protocol version."""

    sender: Sender
    formats: Mapping[str, NotificationFormat]
    """By protocol version."""
    limits: DeliveryLimits | None = None
    """None means `DEFAULT_LIMITS`."""


class WebhookDelivery:
    """Delivers events to webhooks, from `start` to `drain`."""

    def __init__(
        self,
        store: WebhookStore,
        posting: Posting,
        *,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._sender = posting.sender
        self._formats = posting.formats
        self._limits = posting.limits or DEFAULT_LIMITS
        self._observer = observer
        self._clock = clock
        self._targets: dict[tuple[str, str], Target] = {}  # by account, and host and port
        self._shares: dict[str, Share] = {}
        self._ready: deque[Share] = deque()  # accounts that can start a further worker
        self._workers = 0
        self._claimed = 0
        self._unfinished: list[Claim] = []  # claims of workers that the shutdown has stopped
        self._bytes = _ByteBudget(self._limits.max_bytes)
        self._wake = asyncio.Event()
        self._work = BackgroundWork()
        self._draining = False

    def start(self) -> None:
        self._work.start(self._dispatch(), name="webhooks")

    def wake(self) -> None:
        """Let the dispatcher look for undelivered events."""
        self._wake.set()

    def follow(self, log: EventLog) -> None:
        """Wake the dispatcher at each event of a task that has webhooks, as a reader of its log."""
        if log.closed:
            self.wake()
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda _: self._on_event(log))
        log.wait(waiter)

    def _on_event(self, log: EventLog) -> None:
        self.wake()
        if not log.closed and not self._draining:
            self.follow(log)

    async def backlog(self) -> Backlog:
        return await self._store.backlog()

    async def drain(self, seconds: float) -> None:
        """Deliver what can be delivered in this time. A durable store keeps the rest for the next process."""
        self._draining = True
        self.wake()
        await self._work.join(seconds)
        self._ready.clear()  # no further worker starts
        for target in self._targets.values():
            self._unfinished += [claim for claim, _ in target.queue]
            target.queue.clear()
        await self._work.cancel_all(1)
        await self._release_claims()
        await self._sender.close()

    async def _release_claims(self) -> None:
        """Release the remaining claims, so that another replica need not wait for their leases to expire."""
        try:
            async with asyncio.timeout(1):
                for claim in self._unfinished:
                    await self._release(claim)
        except Exception as error:  # a custom store, or a timeout: the leases expire instead
            logger.warning("webhook claims not released", extra={"reason": type(error).__name__})

    async def _release(self, claim: Claim) -> None:
        config = claim.webhook.config
        # Read the webhook again: its worker may have been stopped while it stored the cursor.
        for webhook in await self._store.of_task(config.task_id, claim.owner) or ():
            if webhook.config.id == config.id:
                report = DeliveryReport(
                    delivered=webhook.delivered,
                    attempts=webhook.attempts,
                    failed=webhook.failed,
                    reason=webhook.reason,
                )
                await self._store.settle(claim, report)

    # ---- the dispatcher -------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        """Claim due webhooks and give them to workers. While draining, end when none are left."""
        while True:
            self._wake.clear()
            room = self._limits.max_claimed - self._claimed
            claims = await self._claim(room)
            for claim in claims:
                self._enqueue(claim)
            self._start_workers()
            if claims and len(claims) == room:
                continue
            if self._draining and not claims and not self._claimed:
                return
            await self._wait()

    async def _claim(self, room: int) -> Sequence[Claim]:
        if room == 0:
            return ()
        try:
            return await self._store.claim(room, LEASE)
        except A2AError as error:
            logger.warning("webhooks not claimed", extra={"reason": error.message})
        except Exception:  # a custom store: the next poll tries again
            logger.exception("webhooks not claimed")
        return ()

    async def _wait(self) -> None:
        if self._limits.pace:
            await asyncio.sleep(self._limits.pace)
        try:
            async with asyncio.timeout(self._limits.poll):
                await self._wake.wait()
        except TimeoutError:
            return

    def _wake_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake)

    def _enqueue(self, claim: Claim) -> None:
        """Put a claim into the queue of its target, or postpone it if the queue is full or the circuit is open."""
        now = self._clock()
        target = self._target(claim)
        if target.must_wait(claim, now):
            self._settle_in_background(self._postpone(claim, target.open_seconds(now)))
        elif not target.share.takes_claim():
            self._settle_in_background(self._postpone(claim, target.share.postpone_seconds()))
        elif len(target.queue) >= self._limits.max_queued_per_target:
            self._settle_in_background(self._postpone(claim, POSTPONED))
        else:
            target.queue.append((claim, now))
            self._claimed += 1
            target.share.claimed += 1
            self._mark_ready(target)

    def _settle_in_background(self, settling: Coroutine[Any, Any, None]) -> None:
        self._claimed += 1

        async def settle() -> None:
            try:
                await settling
            except A2AError as error:
                logger.warning("webhook not settled", extra={"reason": error.message})
            finally:
                self._claimed -= 1

        self._work.start(settle(), name="webhook settled")

    async def _postpone(self, claim: Claim, seconds: float) -> None:
        webhook = claim.webhook
        report = DeliveryReport(
            delivered=webhook.delivered, attempts=webhook.attempts, reason=webhook.reason, pause=seconds
        )
        await self._store.settle(claim, report)
        self._wake_after(seconds)

    def _target(self, claim: Claim) -> Target:
        account = stored_quota_key(claim.owner)
        name = urlsplit(claim.webhook.config.url).netloc.lower()
        target = self._targets.get((account, name))
        if target is None:
            if len(self._targets) >= self._limits.max_targets:
                self._remove_idle_targets()
            target = Target(name, self._share(account), max_workers=self._limits.max_workers_per_target)
            target.share.targets += 1
            self._targets[account, name] = target
        return target

    def _share(self, account: str) -> Share:
        share = self._shares.get(account)
        if share is None:
            share = Share(
                account,
                max_workers=self._limits.max_workers_per_account,
                max_claimed=self._limits.max_claimed_per_account,
                max_bytes=self._limits.max_bytes_per_account,
            )
            self._shares[account] = share
        return share

    def _remove_target(self, target: Target) -> None:
        share = target.share
        del self._targets[share.account, target.name]
        share.targets -= 1
        if share.is_idle():
            self._shares.pop(share.account, None)

    def _remove_idle_targets(self) -> None:
        """Remove idle targets, and those that failed long ago: they are tried again like new ones."""
        now = self._clock()
        for target in list(self._targets.values()):
            if target.is_idle() or target.is_long_idle(now):
                self._remove_target(target)

    def _mark_ready(self, target: Target) -> None:
        share = target.share
        if target.queue and not target.is_ready and target.has_room():
            target.is_ready = True
            share.ready.append(target)
        if share.can_start() and not share.is_ready:
            share.is_ready = True
            self._ready.append(share)

    def _start_workers(self) -> None:
        """Start workers for queued claims. The accounts take turns, and the targets of an account."""
        while self._ready and self._workers < self._limits.max_workers:
            share = self._ready.popleft()
            share.is_ready = False
            target = share.ready.popleft()
            target.is_ready = False
            if target.queue and target.has_room():
                self._start_worker(target)
            self._mark_ready(target)

    def _start_worker(self, target: Target) -> None:
        claim, since = target.queue.popleft()
        if target.must_wait(claim, self._clock()):
            self._release_place(target)
            self._enqueue(claim)
            return
        self._workers += 1
        target.share.workers += 1
        target.begin()
        self._work.start(self._run_worker(target, claim, since), name=f"webhook {target.name}")

    def _release_place(self, target: Target) -> None:
        self._claimed -= 1
        target.share.claimed -= 1

    # ---- a worker -------------------------------------------------------------------------------------------------

    async def _run_worker(self, target: Target, claim: Claim, since: float) -> None:
        """Deliver the events of one webhook. Log all errors: an unsettled claim is due again when its lease expires."""
        try:
            if await self._renew(claim, since):
                await self._deliver(target, claim)
        except asyncio.CancelledError:
            self._unfinished.append(claim)
            raise
        except A2AError as error:
            logger.warning("webhook not settled", extra={"target": target.name, "reason": error.message})
        except Exception:  # a custom store or sender: the other webhooks are not affected
            logger.exception("webhook failed", extra={"target": target.name})
        finally:
            self._workers -= 1
            target.share.workers -= 1
            self._release_place(target)
            target.end()
            self._postpone_queue(target)
            self._mark_ready(target)
            if target.is_idle():
                self._remove_target(target)
            self._start_workers()
            self.wake()

    async def _renew(self, claim: Claim, since: float) -> bool:
        """Renew a claim that has waited for a worker. Return whether it still holds."""
        if self._clock() - since < RENEW_AFTER:
            return True
        webhook = claim.webhook
        report = DeliveryReport(
            delivered=webhook.delivered, attempts=webhook.attempts, reason=webhook.reason, pause=LEASE
        )
        return await self._store.settle(claim, report)

    def _postpone_queue(self, target: Target) -> None:
        """Postpone the first attempts of a target whose circuit has just opened."""
        if target.open_seconds(self._clock()):
            waiting = list(target.queue)
            target.queue.clear()
            for claim, _ in waiting:
                self._release_place(target)
                self._enqueue(claim)

    async def _deliver(self, target: Target, claim: Claim) -> None:
        """Deliver the next events of one webhook. It is claimed again for the rest, since others wait for workers."""
        webhook = claim.webhook
        delivered = webhook.delivered
        attempts = webhook.attempts
        last = min(webhook.latest, delivered + AT_A_TIME)
        while delivered < last:
            # One at a time: each event may have the maximum size.
            records = await self._store.events(webhook.config.task_id, claim.owner, delivered, 1)
            if not records:  # the task or its events have been deleted
                await self._store.settle(claim, DeliveryReport(delivered=webhook.latest))
                return
            notification = await self._encode(claim, records[0], delivered + 1)
            if notification is not None:
                failure = await self._send(target, notification)
                if failure is not None:
                    await self._record_failure(claim, delivered, attempts, failure.reason)
                    return
                attempts = 0
            delivered += 1
            if notification is None and delivered < last:
                continue
            pause = LEASE if delivered < last else 0.0
            if not await self._store.settle(claim, DeliveryReport(delivered=delivered, attempts=attempts, pause=pause)):
                return

    async def _encode(self, claim: Claim, record: bytes, number: int) -> Notification | None:
        """Return the notification of an event, or None if the webhook's protocol version posts nothing for it."""
        config = claim.webhook.config
        encoding = self._formats[claim.webhook.a2a_version]
        if not encoding.is_posted(record):
            return None
        stored = record
        if encoding.posts_tasks:
            document = await self._store.task_at(config.task_id, claim.owner, number)
            if document is None:
                return None
            stored = document.body
        if len(stored) > self._limits.large:
            body = await asyncio.to_thread(encoding.encode, stored)
        else:
            body = encoding.encode(stored)
        event_id = f"{config.task_id}/{number}"
        return Notification(
            config=config,
            event_id=event_id,
            body=body,
            media_type=encoding.media_type,
            trace=v1.trace_of(record),
            time=v1.time_of(record),
        )

    async def _send(self, target: Target, notification: Notification) -> PostFailure | None:
        size = len(notification.body)
        async with target.share.bytes.held(size), self._bytes.held(size):
            failure = await self._sender.send(notification)
        if failure is None or failure.was_answered:
            target.is_up()
        else:
            target.is_down(self._clock())
        if failure is not None:
            self._observer.notification_failed(notification.config.task_id)
        else:
            self._observer.notification_sent(notification.config.task_id, seconds_since(notification.time))
        return failure

    async def _record_failure(self, claim: Claim, delivered: int, attempts: int, reason: str) -> None:
        """Schedule a retry, or give the webhook up after the last one."""
        config = claim.webhook.config
        details = {"task_id": config.task_id, "config_id": config.id, "reason": reason, "attempts": attempts + 1}
        if attempts < len(self._limits.retry_delays):
            pause = self._limits.retry_delays[attempts]
            report = DeliveryReport(delivered=delivered, attempts=attempts + 1, reason=reason, pause=pause)
            if await self._store.settle(claim, report):
                logger.warning("webhook will be retried", extra=details)
                self._observer.notification_retried(config.task_id)
                self._wake_after(pause)
        else:
            report = DeliveryReport(delivered=delivered, attempts=attempts + 1, reason=reason, failed=True)
            if await self._store.settle(claim, report):
                logger.warning("webhook given up", extra=details)
                self._observer.webhook_given_up(config.task_id)
