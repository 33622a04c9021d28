"""What comes with a request besides the request, and who may have a say before and after it."""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from apcore_a2a.agent import Caller
from apcore_a2a.protocol.model import Value
from apcore_a2a.protocol.operations import Operation, Rules


class CallContext(Struct, frozen=True, kw_only=True):
    """Who asks, by which version's rules, and the headers that matter to the engine."""

    caller: Caller = Caller()
    rules: Rules = Rules()
    headers: Mapping[str, str] = {}
    extensions: frozenset[str] = frozenset()
    idempotency_key: str = ""
    last_event_id: int | None = None

    @property
    def owner(self) -> str:
        """Whose tasks this call may see; part of every question to the store."""
        return self.caller.owner


class Interceptor(Protocol):
    """Sees every operation before and after. An A2AError raised in either is the answer instead."""

    async def before(self, operation: Operation, request: Value, context: CallContext) -> None: ...

    async def after(self, operation: Operation, request: Value, context: CallContext, result: Any) -> None: ...
