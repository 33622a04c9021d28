"""How hard our code is to read, in numbers, beside packages that are known to be easy to read.

`python -m scripts.readability` counts what makes a reader run a line twice: several assignments in one, conditions in
expressions, assignments in conditions, comprehensions; and comments, which do the opposite. Packages that are
installed stand beside ours. It also follows one SendMessage: how deep it calls, and how often it goes to another file.
A number is a place to look, not a goal.
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
    """Whether it is `a, b = x, y`; taking one value apart (`a, b = f()`) is none."""
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def _count_comments(source: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(1 for token in tokens if token.type == tokenize.COMMENT)


def count_files(paths: Iterable[Path]) -> Counted:
    """Count files together; generated protobuf code is nobody's writing."""
    counted = [count(path.read_text(encoding="utf-8")) for path in paths if not path.name.endswith("_pb2.py")]
    return Counted(*(sum(column) for column in zip(*counted, strict=True)))


def row(name: str, counted: Counted) -> str:
    """A line of the table: per 1,000 lines of code, comments per 100."""
    thousands = counted.lines / 1_000
    rates = [counted.tuples, counted.conditions, counted.walruses, counted.comprehensions]
    cells = " ".join(f"{rate / thousands:>9.1f}" for rate in rates)
    return f"{name:<28}{counted.lines:>7} {cells} {counted.comments / counted.lines * 100:>9.1f}"


# ---- one message ----------------------------------------------------------------------------------------------------


class Walk(NamedTuple):
    """How one SendMessage goes through the package."""

    calls: int
    depth: int
    switches: int


class _Follower:
    """Sees every call of a function of ours while it is set as the profile function."""

    def __init__(self) -> None:
        self.calls = 0
        self.depth = 0
        self.switches = 0
        self._file = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and _is_ours(frame):
            self.calls += 1
            self.depth = max(self.depth, _depth(frame))
        if event in ("call", "return"):
            self._go_to(frame if event == "call" else frame.f_back)

    def _go_to(self, frame: FrameType | None) -> None:
        if frame is not None and _is_ours(frame) and frame.f_code.co_filename != self._file:
            self._file = frame.f_code.co_filename
            self.switches += 1


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(str(PACKAGE))


def _depth(frame: FrameType | None) -> int:
    """How many of our functions are on the stack."""
    depth = 0
    while frame is not None:
        depth += _is_ours(frame)
        frame = frame.f_back
    return depth


async def follow_send() -> Walk:
    """Send one message to a function agent, without a socket, after a few that warm everything up."""
    from apcore_a2a import async_serve

    async def echo(text: str) -> str:
        return text

    app = await async_serve(echo)
    for _ in range(3):
        await _send(app)
    follower = _Follower()
    sys.setprofile(follower)
    try:
        await _send(app)
    finally:
        sys.setprofile(None)
    await app.close()
    return Walk(follower.calls, follower.depth, follower.switches)


async def _send(app: Any) -> None:  # Any: an ASGI application
    message = b'{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hello"}]}'
    body = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":' + message + b"}}"
    headers = [(b"content-type", b"application/json"), (b"a2a-version", b"1.0")]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    answer = b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(sent: dict[str, Any]) -> None:
        nonlocal answer
        answer += sent.get("body", b"")

    await app(scope, receive, send)
    assert b"TASK_STATE_COMPLETED" in answer


def main() -> None:
    columns = ("lines", "a, b = x, y", "x if c", ":=", "for in []", "comments")
    print(f"{'per 1,000 lines of code':<28}{columns[0]:>7} " + " ".join(f"{name:>9.9}" for name in columns[1:]))
    print(row("apcore_a2a", count_files(PACKAGE.rglob("*.py"))))
    for folder in sorted(path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"):
        print(row(f"  {folder.name}/", count_files(folder.rglob("*.py"))))
    for name in MODELS:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            print(row(name, count_files(Path(spec.submodule_search_locations[0]).rglob("*.py"))))
    walk = asyncio.run(follow_send())
    print(f"\none SendMessage: {walk.calls} calls, {walk.depth} deep, {walk.switches} times to another file")


if __name__ == "__main__":
    main()
