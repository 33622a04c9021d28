"""The interface of a protocol version, and the choice of the version for a request.

Invariant: a dialect is a module of pure functions. A new version needs a module, a row in `DIALECTS`, and a column in
the tests.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec import Raw

from apcore_a2a.errors import A2AError, VersionNotSupportedError, Violation
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.jsonrpc import ErrorObject
from apcore_a2a.protocol.model import Event, Operation, Rules, Task, Value
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v03 import rest as v03_rest
from apcore_a2a.protocol.v1 import Result


class Dialect(Protocol):
    """The interface of a protocol version: names, rules, and the functions that decode and encode its JSON."""

    # ---- names and rules ----

    @property
    def VERSION(self) -> str: ...

    # Every accepted method name. A version may have several for one operation.
    @property
    def METHODS(self) -> Mapping[str, Operation]: ...

    # The name by which this package's client calls an operation.
    @property
    def NAMES(self) -> Mapping[Operation, str]: ...

    # The prefix of the path of every REST resource. Empty if they are at the root.
    @property
    def REST_PREFIX(self) -> str: ...

    @property
    def EXTENSIONS_HEADER(self) -> str: ...

    @property
    def RULES(self) -> Rules: ...

    # Whether `encode_event` writes the bytes that event logs and stores keep. These are then sent unchanged, without
    # decoding or encoding them again for any number of streams.
    @property
    def SENDS_EVENTS_AS_STORED(self) -> bool: ...

    # ---- for the server ----

    def decode_request(self, operation: Operation, params: bytes | Raw) -> Value: ...
    def convert_request(self, operation: Operation, params: dict[str, Any]) -> Value: ...
    def encode_result(self, operation: Operation, result: Result) -> bytes: ...
    def encode_event(self, event: Event) -> bytes: ...

    # An event for a webhook. The task is a parameter because 0.3 sends the whole task.
    def encode_push(self, event: Event, task: Task) -> bytes: ...
    def encode_card(self, card: AgentCard) -> bytes: ...

    # `typed`: the client reads the details of 1.0, a list of typed objects. 0.3 does not specify their form.
    def encode_error(self, error: A2AError, *, typed: bool = False) -> ErrorObject: ...
    def encode_rest_error(self, error: A2AError, status: int, *, typed: bool = False) -> bytes: ...

    # ---- for the client ----

    def encode_request(self, operation: Operation, request: Value) -> bytes: ...
    # `left_out`: unreadable optional values are omitted and named in this list. Without the list they are rejected.
    def decode_result(self, operation: Operation, data: bytes | Raw, left_out: list[str] | None = None) -> Any: ...
    def decode_event(self, data: bytes | Raw, left_out: list[str] | None = None) -> Event: ...
    def decode_card(self, data: bytes) -> AgentCard: ...
    def decode_violations(self, data: object) -> list[Violation]: ...


DIALECTS: Final[Mapping[str, Dialect]] = {"1.0": v1, "0.3": v03}
# For the REST binding. 1.0 has one JSON for all bindings. In 0.3, REST has another (ProtoJSON).
REST_DIALECTS: Final[Mapping[str, Dialect]] = {"1.0": v1, "0.3": v03_rest}
VERSION_HEADER: Final = "A2A-Version"
_VERSION: Final = re.compile(r"(\d{1,3}\.\d{1,3})(?:\.\d{1,3})?")


def choose(version: str) -> Dialect:
    """Return the dialect of an A2A-Version header. An empty one means 0.3. The patch number is ignored (1.0 §3.6)."""
    known = DIALECTS.get(version or "0.3")
    if known is not None:
        return known
    match = _VERSION.fullmatch(version)
    if match is None or match[1] not in DIALECTS:
        raise VersionNotSupportedError(version[:64], DIALECTS)  # the header may be of any length
    return DIALECTS[match[1]]
