"""The options of a client and of a call, among them how often it tries again. Rule: each is read here, once."""

import asyncio
import random
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
# What may be tried again, how often, and how soon.
#
# Rule: a request that may have done something is not repeated unless the caller asked for it (`Retry(sends=True)`).

T = TypeVar("T")

# CANCEL, CREATE_PUSH and DELETE_PUSH are in neither set: they change something, and carry no key to be known again by.
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
BUSY: Final = frozenset({429, 502, 503, 504})  # HTTP: too much, or a proxy whose agent is away


class Retry(Struct, frozen=True, kw_only=True):
    """How a client deals with failures that pass.

    Example:
        >>> Retry(attempts=1) == Retry()
        False
    """

    attempts: int = 3
    """How often one call is tried in all, within its timeout."""
    reconnects: int = 10
    """How often in a row a broken stream is tried again before it is given up."""
    base: float = 0.2
    """The first pause, in seconds; each further one is twice as long."""
    cap: float = 5.0
    patience: float = 60.0
    """The longest pause that an agent may ask for with `Retry-After`; with a longer one its refusal is raised."""
    sends: bool = False
    """Repeat a message that may have arrived, with an Idempotency-Key. Only for agents that honour that header."""

    def may_repeat(self, operation: Operation, error: A2AError) -> bool:
        """Whether the operation may be tried again after this error."""
        # The order matters: A2ADiscoveryError is an A2AConnectionError, too.
        match error:
            case OverloadedError():
                return error.retry_after <= self.patience  # refused, not begun
            case A2ADiscoveryError():
                # The card was repeated already, where it was fetched; a stream that lost its agent waits on.
                return operation in READS and error.status in BUSY
            case A2AConnectionError(sent=False):
                return True  # it never left
            case A2AServerError() if error.code not in BUSY:
                return False
            case A2AConnectionError() | A2AServerError():
                return operation in READS or (self.sends and operation in SENDS)
        return False

    def pause(self, failures: int, error: A2AError) -> float:
        """Seconds to wait after so many failures in a row: what the agent asked for, or longer and longer."""
        doublings = min(failures - 1, 32)  # a number of any size, after a long outage, would be no float any more
        longest = min(self.cap, self.base * 2**doublings)
        # Many clients lose one agent at the same moment: they must not all come back at the same moment.
        pause = longest * random.uniform(0.5, 1)
        if isinstance(error, OverloadedError):
            pause = max(pause, error.retry_after)
        return float(pause)


async def repeat(retry: Retry, operation: Operation, once: Callable[[], Awaitable[T]], deadline: float | None) -> T:
    """Do `once`, and again while that is allowed, useful, and before `deadline` on the loop's clock."""
    failures = 0
    while True:
        try:
            return await once()
        except A2AError as error:
            failures += 1
            pause = retry.pause(failures, error)
            # Too late after the pause: then this error now, and not "did not answer in time" later.
            is_late = deadline is not None and asyncio.get_running_loop().time() + pause >= deadline
            if failures >= retry.attempts or is_late or not retry.may_repeat(operation, error):
                raise
        await asyncio.sleep(pause)


# ---- options --------------------------------------------------------------------------------------------------------
# The options of a client and of a single call. Rule: each is read here, once; an unknown name is a TypeError.

BindingName = Literal["JSONRPC", "HTTP+JSON"]
Version = Literal["1.0", "0.3"]
SignaturePolicy = Literal["require", "if-present", "off"]
AuthLike = str | TokenProvider | Auth

# Beside the types above: a Literal is checked by type checkers, these while running.
BINDING_NAMES: Final = ("JSONRPC", "HTTP+JSON")
POLICIES: Final = ("require", "if-present", "off")


class CallOptions(TypedDict, total=False):
    """What every call takes."""

    auth: AuthLike | None
    """Credentials for this call, instead of the client's; None for none."""
    timeout: float | None
    """Seconds for this call, instead of the client's; for a stream, until its first byte."""
    headers: Mapping[str, str]
    """Further HTTP headers, `traceparent` say."""


_CALL_OPTIONS: Final = CallOptions.__annotations__.keys()


class SendOptions(CallOptions, total=False):
    """What a message may be sent with."""

    skill: str | None
    """The skill that is to answer; the same as `skillId` in the message's metadata."""
    metadata: Metadata | None
    context_id: str | None
    """The conversation that the message belongs to."""
    task_id: str | None
    """The task that the message continues."""
    configuration: SendConfiguration


class ListOptions(CallOptions, total=False):
    """Which tasks to list, and how much of each."""

    status: TaskState
    page_size: int
    page_token: str
    history_length: int
    status_timestamp_after: str
    include_artifacts: bool


LIST_FILTERS: Final = ListOptions.__annotations__.keys() - _CALL_OPTIONS


class ResolvedOptions(Struct, frozen=True):
    """`CallOptions` of one call, with the client's own where none were given."""

    timeout: float | None
    auth: Auth | None
    headers: Mapping[str, str] = {}


def resolve_options(given: CallOptions, defaults: ResolvedOptions) -> ResolvedOptions:
    """What holds for one call.

    Raises:
        TypeError: an option that no call has. `**options` takes any name, so it is checked here.
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
    """What a client takes beside its address, credentials and timeouts."""

    binding: BindingName | None
    """Use this binding only; otherwise the card's order decides."""
    version: Version | None
    """Speak this protocol version only; otherwise the card's order decides."""
    allow_origins: Iterable[str]
    """Further origins that the card may point to. They are trusted like the agent's own: they get the credentials."""
    extensions: Iterable[str]
    """URIs of the protocol extensions that the caller supports."""
    retry: Retry
    keys: Mapping[str, Any] | None
    """Public keys (a JSON Web Key Set) that sign the card. With keys, signatures are required unless told otherwise."""
    signatures: SignaturePolicy | None
    idle_timeout: float
    """Seconds of silence after which a stream counts as broken, and is reconnected."""
    poll_interval: float
    """Seconds between two looks at a task whose stream cannot be had, to begin with."""
    max_response: int
    """The largest answer, and the largest event of a stream, in bytes."""


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

    def __post_init__(self) -> None:
        # Types are for whoever runs a type checker. The others are told here, and not at the first call.
        _check("binding", self.binding, BINDING_NAMES)
        _check("version", self.version, DIALECTS)
        _check("signatures", self.signatures, POLICIES)
        for name in ("allow_origins", "extensions"):
            given = getattr(self, name)
            if isinstance(given, str):  # which is an iterable of letters
                raise ValueError(f"{name} must be a list, not the text {given!r}")
            force_setattr(self, name, tuple(given))  # of any iterable: an iterator would be empty the second time
        for name in ("idle_timeout", "max_response"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.poll_interval >= 0:
            raise ValueError(f"poll_interval must not be negative, not {self.poll_interval}")
        if self.keys is None and self.signatures in ("require", "if-present"):
            raise ValueError(f"signatures={self.signatures!r} needs keys=: the public keys to check with")

    def verifier(self) -> "CardVerifier | None":
        """What checks the card's signatures; None if nothing does."""
        if self.keys is None or self.signatures == "off":
            return None
        # Imported here, because it loads a cryptography library: only those who pin keys pay for it.
        from apcore_a2a.client.signatures import CardVerifier

        return CardVerifier(self.keys, required=self.signatures != "if-present")


def _check(name: str, value: str | None, allowed: Iterable[str]) -> None:
    if value is not None and value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
