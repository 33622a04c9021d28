"""What the engine receives: the context of each request, the observer, the interceptors, options and time constants."""

from collections.abc import Awaitable, Callable, Mapping
from ipaddress import IPv6Address
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.agent import ANONYMOUS, Call, Caller
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.lifecycle import StreamFinal
from apcore_a2a.protocol.model import Operation, Rules, TaskState, Value
from apcore_a2a.quota import ANONYMOUS_PREFIX

# ---- requests -------------------------------------------------------------------------------------------------------


class CallContext(Struct, frozen=True, kw_only=True):
    """The context of a request: its caller, the rules of its protocol version, and what its headers contain."""

    caller: Caller = Caller()
    rules: Rules = Rules()
    peer: tuple[str, int] | None = None
    """The address and the port of the client, if it has any."""
    headers: Mapping[str, str] = {}
    """The trace of the request: traceparent, tracestate and baggage, if they are well-formed."""
    raw_headers: Mapping[bytes, bytes] = {}
    """All headers as they were received. Only agents read them."""
    binding: str = ""
    """The binding of the request as the card names it: JSONRPC, HTTP+JSON or GRPC. Empty within the process."""
    request_id: bytes = b""
    """The id of a JSON-RPC request, as JSON."""
    extensions: frozenset[str] = frozenset()
    idempotency_key: str = ""
    last_event_id: int | None = None
    on_behalf_of: str = ""
    """The owner on whose behalf an administrator acts. Empty if the caller acts for itself."""

    @property
    def owner(self) -> str:
        """Return the owner whose tasks this request may read. Every store query contains it."""
        return self.on_behalf_of or self.caller.owner

    @property
    def quota_key(self) -> str:
        """Return the quota key of the request. It has no tenant, because a client may invent any number of them."""
        return live_quota_key(self.caller, self.peer)


def live_quota_key(caller: Caller, peer: tuple[str, int] | None) -> str:
    """Return the quota key for runs, streams and rates: the caller's account, or its address if it is anonymous."""
    # Anonymous callers share their tasks, but not a quota key.
    if caller.type == ANONYMOUS:
        return ANONYMOUS_PREFIX + (network_of(peer[0]) if peer else "")
    if caller.tenant:
        caller = replace(caller, tenant="")
    return caller.owner


def network_of(host: str) -> str:
    """Return the address to count by. For IPv6 it is the /64 network, because one client usually has all of a /64."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> 64:x}::/64"


class Interceptor(Protocol):
    """Hooks called before and after every operation. If a hook raises an A2AError, the client receives that error."""

    async def before(self, operation: Operation, request: Value, context: CallContext) -> None: ...

    async def after(self, operation: Operation, request: Value, context: CallContext, result: Any) -> None:
        """`result` is the result of the operation, or the exception that it raised."""


Perform = Callable[[Any, CallContext], Awaitable[Any]]
"""Performs one operation: its request and its context to its result."""


class Tracer(Protocol):
    """Performs operations inside the spans of a trace. It has no other effect on them."""

    is_active: bool
    """Whether there are spans to make."""

    async def perform(self, perform: Perform, operation: Operation, request: Value, context: CallContext) -> Any: ...


# ---- observers ------------------------------------------------------------------------------------------------------
# The engine reports events to metrics, audit, tracing and tests. Invariant: an observer has no influence on the engine.


class RunTimes(Struct, frozen=True, gc=False):
    """How long a run took, in seconds since the agent was called."""

    seconds: float
    """Until its end."""
    first_event: float | None
    """Until its first event was handed to the store. None: the agent yielded no event."""
    last_event: float | None


class Observer:
    """Hooks called on the event loop. Each does nothing: an observer overrides those it needs.

    They must be quick and must not raise.
    """

    def request_ended(
        self, operation: Operation, context: CallContext, seconds: float, error: BaseException | None
    ) -> None:
        """An operation has returned its result, or has raised an error. A stream is open then, and not at its end."""

    def message_waits(self) -> None:
        """A message to a running task has joined the queue of the task."""

    def message_waited(self, seconds: float) -> None:
        """A message has left the queue, to run or because it is not wanted any more."""

    def write_confirmed(self, seconds: float) -> None:
        """A store that keeps tasks on disk has confirmed a write."""

    def run_started(self, task_id: str, call: Call) -> None:
        """The agent is called, in the current asyncio task. `call.headers` may be replaced: the trace it continues."""

    def run_ended(self, task_id: str, call: Call, state: TaskState, times: RunTimes) -> None:
        """A run has ended. `state` is the state of its task."""

    def run_abandoned(self, task_id: str) -> None:
        """An agent ignored its cancellation, or work that it started continues. Its task has ended without it."""

    def run_lost(self, task_id: str) -> None:
        """The process of a run has ended, and the recovery has set the task to FAILED."""

    def task_ended(self, task_id: str, owner: str, state: TaskState) -> None:
        """A terminal state of a task was stored: by a run, by a cancel, or by the recovery after its process ended."""

    def stream_opened(self, task_id: str) -> None:
        """A client subscribed to the task's events."""

    def stream_closed(self, task_id: str) -> None:
        """A stream of the task's events was closed."""

    def notification_sent(self, task_id: str, delay: float | None) -> None:
        """A webhook received an event, so many seconds after its time. None: the event has no time."""

    def notification_failed(self, task_id: str) -> None:
        """An attempt to post an event to a webhook failed."""

    def notification_retried(self, task_id: str) -> None:
        """An event will be posted again."""

    def webhook_given_up(self, task_id: str) -> None:
        """A webhook was given up. Its undelivered events are dead letters now."""

    def storage_refused(self, quota_key: str) -> None:
        """A message was rejected because too much is stored: for that quota key, or for ALL_OWNERS."""


class Hooks(Struct, frozen=True, kw_only=True):
    """The observer, the tracer, the interceptors and the extended card of an engine."""

    observer: Observer = Observer()
    tracer: Tracer | None = None
    interceptors: tuple[Interceptor, ...] = ()
    extended_card: Callable[[Caller], AgentCard] | None = None
    """Returns the card for an authenticated caller; None if the agent has no extended card."""


# ---- times, limits and settings -------------------------------------------------------------------------------------


class Timing(Struct, frozen=True, kw_only=True):
    """The engine's time constants, in seconds. Tests pass shorter ones."""

    cancel_grace: float = 5.0
    """How long a stopped agent may take before its task is ended without it."""
    cancel_margin: float = 1.0
    """Added to `cancel_grace` where a request or the shutdown waits for a run to be stopped: time to store its end."""
    peer_cancel: float = 5.0
    """How long another replica may take to cancel a task that it runs. Then this replica claims the task."""
    cancel_hook: float = 4.0
    """How long the agent's `cancel` hook may run for a canceled task that waits for its user."""
    save_retries: tuple[float, ...] = (0.05, 0.2, 1.0, 4.0)
    """Pauses between attempts to write to the store. The last one repeats."""
    max_resync_attempts: int = 100
    """Attempts to read a task again after a failed cancel. With the default pauses they take six and a half minutes."""
    race_pause: float = 0.005
    """The pause after a lost race for the turn of a task: this, times the number of lost races, times a random factor.
    All pauses together take at most 25 seconds."""
    disconnect_grace: float = 5.0
    """How long a 0.3 task without subscribers runs on before it is canceled."""
    webhook_grace: float = 5.0
    """How long webhooks may take to receive the last events of a server that shuts down."""
    wake_interval: float = 0.001
    """The shortest time between two wake-ups of the readers of one event log."""
    max_wake_interval: float = 0.02
    """The longest time by which the number of readers delays a wake-up."""

    def retry_pause(self, attempt: int) -> float:
        """Return the pause after an attempt to reach the store, the first of which has the number 0."""
        return self.save_retries[min(attempt, len(self.save_retries) - 1)]


class ReplicaTiming(Struct, frozen=True, kw_only=True):
    """Times (in seconds) and batch sizes of a replica. Tests pass others."""

    renewals: float = 5
    """Renewals in the length of a lease. With five, the store may be unavailable for seven of the fifteen seconds,
    whenever that begins."""
    retry: float = 0.25
    """The pause after a failed renewal, and between claims of further orphans."""
    stop_after: float = 2 / 3
    """The part of the lease after which runs are stopped if it was not renewed. No other replica may claim them yet."""
    suspended: float = 1.0
    """If a timer fires later than this, the whole process was suspended."""
    longest_hold: float = 100.0
    """How long after a renewal runs may continue because the store reports that it is starting or shutting down."""
    poll: float = 1.0
    """The longest pause between two reads of the store while this replica follows or runs tasks. Wake-ups may get
    lost."""
    polls: float = 3
    """The number of reads of the store per lease while this replica neither follows nor runs a task."""
    queue_poll: float = 0.2
    """The pause between two attempts to claim queued tasks while more of them may wait for a replica with room."""
    requests_valid: float = 3.0
    """How long a read of the requests from other replicas is valid. It is shorter than `Timing.peer_cancel`, after
    which another replica cancels a task without this one."""
    answer: float = 6.0
    """How long another replica may take to answer a request."""
    longest_silence: float = 3600.0
    """How long a sender waits for a task of another replica that does not change, if runs have no timeout."""
    answer_poll: float = 0.5
    """The pause between two reads of the answer to a request, because wake-ups may get lost."""
    claim_batch: int = 100
    """Tasks claimed at once, so that other replicas get some, too."""
    read_batch: int = 500
    """Followed tasks read at once. One read returns more events than that, so it has room for one of each task."""
    max_queued: int = 10_000
    """New tasks that may wait for a replica with room."""


class LogWindow(Struct, frozen=True, kw_only=True):
    """How much of a task's event log stays in memory. A reader that falls behind it starts again from a snapshot."""

    events: int = 20_000
    bytes: int = 32 * 1024 * 1024
    readers_per_wake: int = 32
    """The number of readers to which the engine can write within about one `Timing.wake_interval`. Each such number of
    waiting readers delays their wake-up by one interval."""


class EngineOptions(Struct, frozen=True, kw_only=True):
    """The settings of an engine."""

    execution_timeout: float | None = 300
    shutdown_timeout: float = 30
    max_active_tasks: int = 10_000
    max_active_tasks_per_caller: int = 5_000
    max_streams: int = 10_000
    max_streams_per_caller: int = 1_000
    anonymous_divisor: int = 1
    """The divisor of the limits of runs and streams for anonymous callers: with 10 a tenth, but at least one."""
    max_stored_tasks_per_caller: int | None = None
    max_stored_bytes_per_caller: int | None = None
    max_stored_bytes: int | None = None
    max_event_bytes: int = 64 * 1024 * 1024
    max_output_bytes: int = 256 * 1024 * 1024
    context_messages: int = 100
    keep_alive_interval: float = 15
    cancel_on_disconnect: bool = True
    same_message_same_task: bool = False
    state_history: bool = False
    stream_final: StreamFinal = "append"
    data_as_text: bool = False
    show_exceptions: bool = False
    """Whether a failed task names the exception of its agent. During development only: a client must not see code."""
    admin_role: str | None = None
    """The role that may list and cancel the tasks of all owners. None if there is no such role."""
    streaming: bool = True
    extensions: frozenset[str] = frozenset()
    """The extensions that the card declares."""
    required_extensions: frozenset[str] = frozenset()
    timing: Timing = Timing()
    replica: ReplicaTiming = ReplicaTiming()
    log_window: LogWindow = LogWindow()


DEFAULTS: Final = EngineOptions()
NO_HOOKS: Final = Hooks()
