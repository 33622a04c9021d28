"""What a protocol version has to say, and which one a request speaks.

Rule: a dialect is a module of pure functions. A new version is one new module, one row in `DIALECTS`, one test column.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec import Raw

from apcore_a2a.errors import A2AError, VersionNotSupportedError, Violation
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.jsonrpc import ErrorObject
from apcore_a2a.protocol.model import Event, Task, Value
from apcore_a2a.protocol.operations import Operation, Rules
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v1 import Result


class Dialect(Protocol):
    """One protocol version: names and shapes, both ways."""

    @property
    def VERSION(self) -> str: ...
    @property
    def METHODS(self) -> Mapping[str, Operation]: ...
    @property
    def NAMES(self) -> Mapping[Operation, str]: ...
    @property
    def REST_PREFIX(self) -> str: ...
    @property
    def EXTENSIONS_HEADER(self) -> str: ...
    @property
    def RULES(self) -> Rules: ...

    def decode_request(self, operation: Operation, params: bytes | Raw) -> Value: ...
    def convert_request(self, operation: Operation, params: dict[str, Any]) -> Value: ...
    def encode_result(self, operation: Operation, result: Result) -> bytes: ...
    def encode_event(self, event: Event) -> bytes: ...
    def encode_push(self, event: Event, task: Task) -> bytes: ...
    def encode_card(self, card: AgentCard) -> bytes: ...
    def encode_error(self, error: A2AError) -> ErrorObject: ...
    def encode_rest_error(self, error: A2AError, status: int) -> bytes: ...

    def encode_request(self, operation: Operation, request: Value) -> bytes: ...
    def decode_result(self, operation: Operation, data: bytes | Raw) -> Any: ...
    def decode_event(self, data: bytes | Raw) -> Event: ...
    def decode_card(self, data: bytes) -> AgentCard: ...
    def decode_violations(self, data: object) -> list[Violation]: ...


DIALECTS: Final[Mapping[str, Dialect]] = {"1.0": v1, "0.3": v03}
VERSION_HEADER: Final = "A2A-Version"
_VERSION: Final = re.compile(r"(\d{1,3}\.\d{1,3})(?:\.\d{1,3})?")


def choose(version: str) -> Dialect:
    """The dialect of an A2A-Version header; none at all means 0.3, and the patch number does not matter (1.0 §3.6)."""
    if (known := DIALECTS.get(version or "0.3")) is not None:
        return known
    match = _VERSION.fullmatch(version)
    if match is None or match[1] not in DIALECTS:
        raise VersionNotSupportedError(version[:64], DIALECTS)
    return DIALECTS[match[1]]
