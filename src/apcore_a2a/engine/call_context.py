"""What comes with a request besides the request, and who may have a say before and after it."""

from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.agent import ANONYMOUS, Call, Caller, CancelToken
from apcore_a2a.protocol.model import SendMessage, Task, Value
from apcore_a2a.protocol.operations import Operation, Rules

_NAMELESS: Final = f"{ANONYMOUS}\n"  # how their allowances begin, and no other's: a name has no line break


class CallContext(Struct, frozen=True, kw_only=True):
    """Who asks, by which version's rules, and the headers that matter to the engine."""

    caller: Caller = Caller()
    rules: Rules = Rules()
    peer: tuple[str, int] | None = None
    """The address and the port that the request came from, where there are any."""
    headers: Mapping[str, str] = {}
    raw_headers: Mapping[bytes, bytes] = {}
    """All headers as they came; only for the agent to look at."""
    extensions: frozenset[str] = frozenset()
    idempotency_key: str = ""
    last_event_id: int | None = None
    on_behalf_of: str = ""
    """The owner for whom an administrator acts; empty for everybody else, who act for themselves."""

    @property
    def owner(self) -> str:
        """Whose tasks this call may see; part of every question to the store."""
        return self.on_behalf_of or self.caller.owner

    @property
    def allowance(self) -> str:
        """Whose share of what is limited this call takes: not the tenant's, for a client may make up any of those."""
        return allowance_of(self.caller, self.peer)


def allowance_of(caller: Caller, peer: tuple[str, int] | None) -> str:
    """Whose share of what is limited a caller takes; those without a name are told apart by their addresses."""
    # All who have no name share their tasks, but not one allowance.
    if caller.type == ANONYMOUS:
        return _NAMELESS + (network_of(peer[0]) if peer else "")
    if caller.tenant:
        caller = replace(caller, tenant="")
    return caller.owner


def share_of(allowance: str, limit: int, anonymous_part: int) -> int:
    """How much of a limit that each caller has this one has: those without a name may have only a part."""
    if anonymous_part == 1 or not allowance.startswith(_NAMELESS):
        return limit
    return max(1, limit // anonymous_part)


def network_of(host: str) -> str:
    """What is counted as one address: of IPv6 the network of 64 bits, for whoever has one address has all of it."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> 64:x}::/64"


def new_call(request: SendMessage, task: Task, context: CallContext) -> Call:
    """A call of the agent on behalf of whoever asks."""
    return Call(
        request=request,
        task=task,
        caller=context.caller,
        headers=context.headers,
        raw_headers=context.raw_headers,
        extensions=context.extensions,
        cancel=CancelToken(),
    )


class Interceptor(Protocol):
    """Sees every operation before and after. An A2AError raised in either is the answer instead."""

    async def before(self, operation: Operation, request: Value, context: CallContext) -> None: ...

    async def after(self, operation: Operation, request: Value, context: CallContext, result: Any) -> None:
        """`result` is what the operation answers with, or the exception that it ended with."""
