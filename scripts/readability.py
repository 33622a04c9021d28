"""Counts of what makes code hard to read, for this package and for installed packages that are easy to read.

`python -m scripts.readability` counts what makes a reader run a line twice: several assignments in one, conditions in
expressions, assignments in conditions, comprehensions; and comments, which do the opposite. It also follows one
SendMessage through this package and through a2a-sdk: how many calls, how deep, in how many files, and how often the
next line is in another file. A number shows where to look. It is not a goal.
"""

import ast
import asyncio
import importlib.util
import io
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from scripts.code_lines import count_code_lines

PACKAGE: Final = Path(__file__).parents[1] / "src" / "apcore_a2a"
MODELS: Final = ("h11", "starlette", "httpx", "mcp", "a2a")


class Counted(NamedTuple):
    """What was counted in some files."""

    lines: int
    tuples: int
    conditions: int
    walruses: int
    comprehensions: int
    comments: int


def count(source: str) -> Counted:
    """Count one file."""
    nodes = list(ast.walk(ast.parse(source)))
    return Counted(
        lines=count_code_lines(source),
        tuples=sum(1 for node in nodes if _is_tuple_assignment(node)),
        conditions=sum(1 for node in nodes if isinstance(node, ast.IfExp)),
        walruses=sum(1 for node in nodes if isinstance(node, ast.NamedExpr)),
        comprehensions=sum(1 for node in nodes if isinstance(node, ast.comprehension)),
        comments=_count_comments(source),
    )


def _is_tuple_assignment(node: ast.AST) -> bool:
    """Whether the node is `a, b = x, y`. Unpacking one value (`a, b = f()`) is not counted."""
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def _count_comments(source: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(1 for token in tokens if token.type == tokenize.COMMENT)


def count_files(paths: Iterable[Path]) -> Counted:
    """Count files together, without generated protobuf code."""
    counted = [count(path.read_text(encoding="utf-8")) for path in paths if not path.name.endswith("_pb2.py")]
    return Counted(*(sum(column) for column in zip(*counted, strict=True)))


def row(name: str, counted: Counted) -> str:
    """Format a line of the table: rates per 1,000 lines of code, comments per 100."""
    thousands = counted.lines / 1_000
    rates = [counted.tuples, counted.conditions, counted.walruses, counted.comprehensions]
    cells = " ".join(f"{rate / thousands:>9.1f}" for rate in rates)
    return f"{name:<28}{counted.lines:>7} {cells} {counted.comments / counted.lines * 100:>9.1f}"


# ---- one message ----------------------------------------------------------------------------------------------------

MESSAGE: Final = b'{"messageId":"m","role":"ROLE_USER","parts":[{"text":"echo hello"}]}'
BODY: Final = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":' + MESSAGE + b"}}"
SCOPE: Final = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/",
    "query_string": b"",
    "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"a2a-version", b"1.0")],
}


class Walk(NamedTuple):
    """How one SendMessage goes through a package."""

    calls: int
    depth: int
    files: int
    switches: int

    def __str__(self) -> str:
        return f"{self.calls} calls, {self.depth} deep, in {self.files} files, {self.switches} times to another file"


class _Follower:
    """A profile function that records each call of a function of one package."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package}/"
        self._calls = 0
        self._depth = 0
        self._switches = 0
        self._file = ""
        self._files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self._is_inside(frame):
            self._calls += 1
            self._depth = max(self._depth, self._depth_of(frame))
        if event in ("call", "return"):
            self._go_to(frame if event == "call" else frame.f_back)

    def walk(self) -> Walk:
        return Walk(self._calls, self._depth, len(self._files), self._switches)

    def _go_to(self, frame: FrameType | None) -> None:
        if frame is not None and self._is_inside(frame) and frame.f_code.co_filename != self._file:
            self._file = frame.f_code.co_filename
            self._files.add(self._file)
            self._switches += 1

    def _is_inside(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._package)

    def _depth_of(self, frame: FrameType | None) -> int:
        """Return how many functions of the package are on the stack."""
        depth = 0
        while frame is not None:
            depth += self._is_inside(frame)
            frame = frame.f_back
        return depth


async def follow_send() -> Walk:
    """Follow one message to an agent of this package."""
    from apcore_a2a import async_serve

    async def echo(text: str) -> str:
        return text

    app = await async_serve(echo)
    walk = await _follow(app, PACKAGE)
    await app.close()
    return walk


async def follow_send_of_sdk() -> Walk | None:
    """Follow the same message to an agent of a2a-sdk. None if a2a-sdk is not installed."""
    package = find_package("a2a")
    if package is None:
        return None
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.routes import create_jsonrpc_routes
    from a2a.server.tasks import InMemoryTaskStore
    from starlette.applications import Starlette

    from tests.client.peers.sdk1 import Agent, card

    handler = DefaultRequestHandler(Agent(), InMemoryTaskStore(), card("http://localhost", name="sdk1"))
    return await _follow(Starlette(routes=create_jsonrpc_routes(handler, "/")), package)


async def _follow(app: Any, package: Path) -> Walk:  # Any: an ASGI application
    """Follow one message without a socket, after three that fill the caches."""
    for _ in range(3):
        await _send(app)
    follower = _Follower(package)
    sys.setprofile(follower)
    try:
        await _send(app)
    finally:
        sys.setprofile(None)
    return follower.walk()


async def _send(app: Any) -> None:  # Any: the same
    answer = b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY}

    async def send(sent: dict[str, Any]) -> None:
        nonlocal answer
        answer += sent.get("body", b"")

    await app(dict(SCOPE), receive, send)
    assert b"TASK_STATE_COMPLETED" in answer, answer


def find_package(name: str) -> Path | None:
    """Return the directory of an installed package, or None."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def main() -> None:
    columns = ("lines", "a, b = x, y", "x if c", ":=", "for in []", "comments")
    print(f"{'per 1,000 lines of code':<28}{columns[0]:>7} " + " ".join(f"{name:>9.9}" for name in columns[1:]))
    print(row("apcore_a2a", count_files(PACKAGE.rglob("*.py"))))
    for folder in sorted(path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"):
        print(row(f"  {folder.name}/", count_files(folder.rglob("*.py"))))
    for name in MODELS:
        package = find_package(name)
        if package is not None:
            print(row(name, count_files(package.rglob("*.py"))))
    print(f"\none SendMessage: {asyncio.run(follow_send())}")
    of_sdk = asyncio.run(follow_send_of_sdk())
    if of_sdk is not None:
        print(f"in a2a-sdk: {of_sdk}")


if __name__ == "__main__":
    main()
