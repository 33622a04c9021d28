"""Writes docs/errors.md from the error tree and its wire table: `python -m scripts.error_table`."""

from collections.abc import Iterator
from pathlib import Path

from apcore_a2a import errors
from apcore_a2a.errors import A2AConnectionError, A2AError, A2AServerError, Wire

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
CLIENT_SIDE = (A2AServerError, A2AConnectionError)

HEAD = """# Errors

<!-- Written by `python -m scripts.error_table` from src/apcore_a2a/errors.py; a test compares the two. -->

Every error that this package raises on purpose is an `A2AError`. It has attributes (`task_id`, `violations`,
`retry_after`), and a text for its reader: no text reveals code, paths or libraries to a client. Agents raise
`AgentError` to fail a task with their own text. Any other exception ends the task with "Internal error".

```python
from apcore_a2a.errors import A2AError, TaskNotFoundError

try:
    raise TaskNotFoundError("t-1")
except A2AError as error:
    assert str(error) == "Task not found: t-1"
```

## On the wire

An error without its own code has the code of its base class (errors are indented under their base class). HTTP
statuses are those of A2A 1.0.1. If 1.0.0 differs, its status is in parentheses.

| error | JSON-RPC | HTTP | gRPC | reason | meaning |
|---|---|---|---|---|---|
"""

DETAILS = """
In 1.0 the details of an error are a list: a `google.rpc.ErrorInfo` with the reason above and the domain
`a2a-protocol.org`, and for invalid fields a `google.rpc.BadRequest` that names each of them. In 0.3 `data` is an
object with the `type` of the error and, for invalid fields, a list `errors` of `field`, `code` and `message`. A
client that sends `A2A-Version: 0.3` receives the list of 1.0, and REST responses contain both
([why](decisions/0043-choose-the-jsonrpc-error-format-by-header.md)). 0.3 defines codes up to -32007. An unknown skill
is -32601 there, as its requirements ask.

## In a failed task

Once a task exists, a failure is not an error of the request: the task ends as failed. Its status message has the text
of the error, and its metadata the details, in both versions:

| key | value |
|---|---|
| `type` | the name of the error, or its `kind`: `ModuleTimeoutError`, `InternalError` … |
| `code` | the code of the table above |
| `reference` | the reference of the exception in the log, if the text is only "Internal error" |
| `exception` | during development only (`show_exceptions`): the exception, with the file and the line |
| `errors` | a list of `field`, `code` and `message`, for invalid fields |

Other keywords of an agent's error (`AgentError("No such city", city="Atlantis")`) are in the metadata as well.

## In the client

These errors are never sent. An error of a remote agent is raised as the class above with its code, or as an
`A2AServerError` if there is none.

| error | meaning |
|---|---|
"""


def family(cls: type[A2AError], depth: int = 0) -> Iterator[tuple[type[A2AError], int]]:
    """Yield a class and its subclasses in errors.py, parents first, in the order of the file."""
    yield cls, depth
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from family(child, depth + 1)


def meaning(cls: type[A2AError]) -> str:
    """Return the first sentence of the docstring, else the default text."""
    doc = vars(cls).get("__doc__")
    return doc.partition("\n")[0] if doc else cls.text


def row_of(cls: type[A2AError]) -> Wire:
    return next(errors.WIRE[parent] for parent in cls.__mro__ if parent in errors.WIRE)


def render() -> str:
    wire_rows, client_rows = [], []
    for cls, depth in list(family(A2AError))[1:]:
        name = f"{'· ' * (depth - 1)}`{cls.__name__}`"
        if issubclass(cls, CLIENT_SIDE):
            client_rows.append(f"| {name} | {meaning(cls)} |\n")
            continue
        wire = row_of(cls)
        http = f"{wire.http} ({wire.http_v1_0_0})" if wire.http_v1_0_0 else str(wire.http)
        wire_rows.append(f"| {name} | {wire.code} | {http} | {wire.grpc} | {wire.reason} | {meaning(cls)} |\n")
    return HEAD + "".join(wire_rows) + DETAILS + "".join(client_rows)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
