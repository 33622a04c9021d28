"""The options of a client and of a call, including retries. Invariant: an option is defined and checked only here."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

from apcore_a2a.client.auth import Auth, TokenProvider, to_auth
from apcore_a2a.errors import A2AConnectionError, A2ADiscoveryError, A2AError, A2AServerError, OverloadedError
from apcore_a2a.protocol.dialect import DIALECTS
from apcore_a2a.protocol.model import Metadata, Operation, SendConfiguration, TaskState

if TYPE_CHECKING:
    from apcore_a2a.client.signatures import CardVerifier


# ---- retry ----------------------------------------------------------------------------------------------------------
# Which requests are retried, how often, and after which pause.
#
# Invariant: a request that may have had an effect is not repeated unless the caller allows it (`Retry(sends=True)`).

T = TypeVar("T")

# CANCEL, CREATE_PUSH and DELETE_PUSH are in neither set: they change state, and carry no idempotency key.
SENDS: Final = frozenset({Operation.SEND, Operation.STREAM})
READS: Final = frozenset(
    {
        Operation.GET,
        Operation.LIST,
        Operation.SUBSCRIBE,
        Operation.GET_PUSH,
        Operation.LIST_PUSH,
        Operation.EXTENDED_CARD,
    }
)
# HTTP statuses: rate limited or overloaded, or a proxy that cannot reach the agent.
BUSY: Final = frozenset({429, 502, 503, 504})


class Retry(Struct, frozen=True, kw_only=True):
    """The retry policy of a client.

    Example:
        >>> Retry(attempts=1) == Retry()
        False
    """

    attempts: int = 3
    """Maximum number of attempts for one call, within its timeout."""
    reconnects: int = 10
    """Maximum number of consecutive reconnects of a broken stream."""
    base: float = 0.2
    """The first pause, in seconds. Each further pause is twice as long."""
    cap: float = 5.0
    """The longest pause, in seconds. A `Retry-After` may exceed it."""
    patience: float = 60.0
    """The longest `Retry-After` that is honoured, in seconds. With a longer one the error is raised at once."""
    sends: bool = False
    """Retry a message that may have arrived, with an Idempotency-Key. Only for agents that support that header."""

    def may_repeat(self, operation: Operation, error: A2AError) -> bool:
        """Return whether the operation may be retried after this error."""
        # The order matters: A2ADiscoveryError is an A2AConnectionError too.
        match error:
            case OverloadedError():
                return error.retry_after <= self.patience  # rejected, so not executed
            case A2ADiscoveryError():
                # Fetching the card has already been retried. Only reads retry it again: a stream reconnects.
                return operation in READS and error.status in BUSY
            case A2AConnectionError(sent=False):
                return True  # the request was never sent
            case A2AServerError() if error.code not in BUSY:
                return False
            case A2AConnectionError() | A2AServerError():
                return operation in READS or (self.sends and operation in SENDS)
        return False

    def pause(self, failures: int, error: A2AError) -> float:
        """Return the pause in seconds after `failures` consecutive failures.

        The backoff is exponential, with jitter, and at least `Retry-After`.
        """
        doublings = min(failures - 1, 32)  # bounded: after a long outage the result would overflow a float
        longest = min(self.cap, self.base * 2**doublings)
        # Jitter: clients that lost the same agent at the same moment must not all reconnect together.
        # os.urandom, because the import of `random` takes 0.15 MB of the 25 MB that the client may take.
        jitter = int.from_bytes(os.urandom(4)) / 2**32  # 0 to 1
        pause = longest * (1 + jitter) / 2
        if isinstance(error, OverloadedError):
            pause = max(pause, error.retry_after)
        return float(pause)


async def repeat(retry: Retry, operation: Operation, once: Callable[[], Awaitable[T]], deadline: float | None) -> T:
    """Await `once`, and retry while the policy allows it and `deadline` on the loop's clock has not passed."""
    failures = 0
    while True:
        try:
            return await once()
        except A2AError as error:
            failures += 1
            pause = retry.pause(failures, error)
            # The pause would pass the deadline. Raise this error now, which says more than a timeout later.
            is_late = deadline is not None and asyncio.get_running_loop().time() + pause >= deadline
            if failures >= retry.attempts or is_late or not retry.may_repeat(operation, error):
                raise
            # Within the `except` block: if the call's deadline passes during this pause, the error is the context of
            # the cancellation, where `call_deadline` finds it.
            await asyncio.sleep(pause)


# ---- options --------------------------------------------------------------------------------------------------------
# The options of a client and of a single call. An unknown name is a TypeError.

BindingName = Literal["JSONRPC", "HTTP+JSON", "GRPC"]
Version = Literal["1.0", "0.3"]
SignaturePolicy = Literal["require", "if-present", "allow-rewritten", "off"]
AuthLike = str | TokenProvider | Auth

# For checks at run time: type checkers use the Literals above.
BINDING_NAMES: Final = ("JSONRPC", "HTTP+JSON", "GRPC")
POLICIES: Final = ("require", "if-present", "allow-rewritten", "off")


class CallOptions(TypedDict, total=False):
    """The options of every call."""

    auth: AuthLike | None
    """Credentials for this call instead of the client's. None sends none."""
    timeout: float | None
    """Timeout of this call in seconds, instead of the client's. For a stream: until its first byte."""
    headers: Mapping[str, str]
    """Additional HTTP headers, for example `traceparent`."""


_CALL_OPTIONS: Final = CallOptions.__annotations__.keys()


class SendOptions(CallOptions, total=False):
    """The options of a call that sends a message."""

    skill: str | None
    """The skill to invoke: the same as `skillId` in the metadata of the message."""
    metadata: Metadata | None
    context_id: str | None
    """The conversation of the message."""
    task_id: str | None
    """The task that the message continues."""
    configuration: SendConfiguration


class ListOptions(CallOptions, total=False):
    """Filters for a list of tasks, and how much of each task to return."""

    status: TaskState
    page_size: int
    page_token: str
    history_length: int
    status_timestamp_after: str
    include_artifacts: bool


LIST_FILTERS: Final = ListOptions.__annotations__.keys() - _CALL_OPTIONS


class ResolvedOptions(Struct, frozen=True):
    """The `CallOptions` of one call, with the client's defaults filled in."""

    timeout: float | None
    auth: Auth | None
    headers: Mapping[str, str] = {}


def resolve_options(given: CallOptions, defaults: ResolvedOptions) -> ResolvedOptions:
    """Merge the options of one call with the client's defaults.

    Raises:
        TypeError: an unknown option. `**options` accepts any name, so it is checked here.
    """
    if not given:
        return defaults
    unknown = given.keys() - _CALL_OPTIONS
    if unknown:
        raise TypeError(f"unexpected keyword argument: {', '.join(sorted(unknown))}")
    auth = defaults.auth
    if "auth" in given:  # not get(): auth=None means "without credentials", not "with the client's"
        auth = to_auth(given["auth"])
    timeout = given.get("timeout", defaults.timeout)
    return ResolvedOptions(timeout, auth, given.get("headers", {}))


class ClientOptions(TypedDict, total=False):
    """The options of a client besides its address, credentials and timeouts."""

    binding: BindingName | None
    """Use only this binding. By default the card's order decides. "GRPC" needs the extra `grpc`."""
    version: Version | None
    """Use only this protocol version. By default the card's order decides."""
    allow_origins: Iterable[str]
    """Further origins that the card may point to. They are trusted like the agent's own and get the credentials."""
    extensions: Iterable[str]
    """URIs of the protocol extensions that the caller supports."""
    retry: Retry
    keys: Mapping[str, Any] | None
    """Public keys (a JSON Web Key Set) that verify the card. With keys, signatures are required by default."""
    signatures: SignaturePolicy | None
    idle_timeout: float
    """Seconds of silence after which a stream counts as broken and is reconnected."""
    poll_interval: float
    """Initial interval in seconds for polling a task whose stream is not available."""
    max_response: int
    """Maximum size in bytes of a response, and of one event of a stream."""
    propagate_trace: bool
    """Whether requests that an agent makes continue the trace and the baggage of its caller. By default they do."""


class ClientSettings(Struct, frozen=True, kw_only=True):
    """`ClientOptions` with every default filled in."""

    binding: str | None = None
    version: str | None = None
    allow_origins: Iterable[str] = ()
    extensions: Iterable[str] = ()
    retry: Retry = Retry()
    keys: Mapping[str, Any] | None = None
    signatures: str | None = None
    idle_timeout: float = 60.0
    poll_interval: float = 0.5
    max_response: int = 32 * 1024 * 1024
    propagate_trace: bool = True

    def __post_init__(self) -> None:
        # Values are checked here for callers without a type checker, so that a wrong one fails before the first call.
        _check("binding", self.binding, BINDING_NAMES)
        _check("version", self.version, DIALECTS)
        _check("signatures", self.signatures, POLICIES)
        for name in ("allow_origins", "extensions"):
            given = getattr(self, name)
            if isinstance(given, str):  # a string would be an iterable of letters
                raise ValueError(f"{name} must be a list, not the string {given!r}")
            force_setattr(self, name, tuple(given))  # a copy: an iterator would be empty at the second use
        for name in ("idle_timeout", "max_response"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.poll_interval >= 0:
            raise ValueError(f"poll_interval must not be negative, not {self.poll_interval}")
        if self.keys is None and self.signatures not in (None, "off"):
            raise ValueError(f"signatures={self.signatures!r} needs keys=, the public keys that verify the card")

    def verifier(self) -> "CardVerifier | None":
        """Return the verifier of the card's signatures, or None if they are not checked."""
        if self.keys is None or self.signatures == "off":
            return None
        # Imported here because it loads a cryptography library, which only clients with pinned keys need.
        from apcore_a2a.client.signatures import CardVerifier

        return CardVerifier(
            self.keys,
            required=self.signatures != "if-present",
            allows_rewritten=self.signatures == "allow-rewritten",
        )


def _check(name: str, value: str | None, allowed: Iterable[str]) -> None:
    if value is not None and value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
