"""The attacks of this folder, one at a time: the server responds, its memory stays small, its event loop responsive.

The server itself measures the longest block of its event loop, in CPU time, so that the load of other processes does
not count (`loop_lag_cpu_seconds_max` of /metrics).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import httpx
import pytest

from apcore_a2a import A2AClient
from tests.hostile.test_readers import LIMIT, MEGABYTE, SERVER, large_task, peak_memory, subscribe
from tests.processes import COVERAGE, PATIENCE, Process, running

Attack = Callable[[str], Awaitable[None]]
BLOCKED: Final = 0.25  # seconds for which one request may delay others
EMPTY_OBJECTS = b"[" + b",".join([b"{}"] * 3_000_000) + b"]"


@asynccontextmanager
async def server() -> AsyncIterator[tuple[Process, str]]:
    async with running("-c", SERVER) as process:
        yield process, (await process.says(r"running on (http://[\d.]+:\d+)"))[1]


def message(metadata: bytes = b"{}", text: str = "count 1") -> bytes:
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said, "metadata": "@"}}
    return json.dumps(body).encode().replace(b'"@"', metadata)


async def post(url: str, body: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.post(url, content=body, headers=headers)


async def many_values(url: str) -> None:
    """Send ten megabytes that would be a quarter of a gigabyte of objects when decoded."""
    for _ in range(5):
        answer = await post(url, message(b'{"x":' + EMPTY_OBJECTS + b"}"))
        assert "error" in answer.json()


async def deep_nesting(url: str) -> None:
    answer = await post(url, message(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
    assert "error" in answer.json()


async def large_messages(url: str) -> None:
    """Send permitted messages: nine megabytes of text, ten times, and a listing of all of it."""
    text = "count 1 " + "x" * (9 * MEGABYTE)
    for _ in range(10):
        assert (await post(url, message(text=text))).status_code == 200
    async with A2AClient(url) as client:
        page = await client.list_tasks()
        assert page.tasks


async def dead_readers(url: str) -> None:
    port = int(url.rpartition(":")[2])
    async with A2AClient(url) as client:
        task = await large_task(client, "hold 20", 20 * MEGABYTE)
    for version in ("1.0", "0.3"):
        crowd = [await subscribe(port, task.id, version) for _ in range(40)]
        for writer in crowd:
            writer.transport.abort()


async def unfinished_bodies(url: str) -> None:
    """Send bodies without their last byte."""
    port = int(url.rpartition(":")[2])
    writers: list[asyncio.StreamWriter] = []
    for _ in range(40):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {9 * MEGABYTE}\r\n\r\n".encode() + b" " * (9 * MEGABYTE - 1))
        writers.append(writer)
    async with asyncio.timeout(PATIENCE):
        while await figure(url, "body_bytes_in_flight") < 100 * MEGABYTE:
            pass
    for writer in writers:
        writer.transport.abort()


async def figure(url: str, name: str) -> float:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return float((await client.get(f"{url}/metrics")).json()[name])


@pytest.mark.timeout(150)
@pytest.mark.parametrize("attack", [many_values, deep_nesting, large_messages, dead_readers, unfinished_bodies])
async def test_the_event_loop_and_memory_stay_within_limits(attack: Attack) -> None:
    async with server() as (process, url):
        done = asyncio.Event()

        async def probe() -> int:
            """Request /health all the time, and return the number of responses."""
            answers = 0
            async with httpx.AsyncClient(timeout=PATIENCE) as client:
                while not done.is_set():
                    assert (await client.get(f"{url}/health")).status_code == 200
                    answers += 1
                    await asyncio.sleep(0.01)
            return answers

        probing = asyncio.create_task(probe())
        try:
            await attack(url)
        finally:
            done.set()
        assert await probing > 0
        assert await figure(url, "loop_lag_cpu_seconds_max") < BLOCKED
        assert peak_memory(process) < LIMIT


# ---- inputs whose check takes long -----------------------------------------------------------------------------------

SKILLS = """
import sys
from dataclasses import dataclass
from typing import Annotated, Literal, Union

import apcore
import msgspec
from pydantic import BaseModel, create_model

from apcore_a2a import serve

@dataclass
class Row:
    number: int = 1
    below: "Row | None" = None

def total(numbers: set[int]) -> int:
    return len(numbers)

def keys(numbers: dict[int, int]) -> int:
    return len(numbers)

def letters(text: Annotated[str, msgspec.Meta(pattern="^(a+)+$")], count: int = 1) -> str:
    return text

def rows(rows: list[Row]) -> int:
    return len(rows)

class Sum(BaseModel):
    kind: Literal["sum"]
    left: "Tree"
    right: "Tree"

class Product(BaseModel):
    kind: Literal["product"]
    left: "Tree"
    right: "Tree"

Tree = Union[Sum, Product, int]
Sum.model_rebuild()
Product.model_rebuild()

def tree(tree: Sum) -> str:
    return tree.kind

class Place(BaseModel):
    name: str

class Places(BaseModel):
    value: list[int | bool | Place | list[int] | dict[str, int]]

class Count(BaseModel):
    count: int

def places(places: Places) -> int:
    return len(places.value)

class Module:
    description = "Counts"
    output_schema = {"type": "object"}

    def __init__(self, schema):
        self.input_schema = {"type": "object", "properties": {"value": schema}}
        if isinstance(schema, type):
            self.input_schema = schema
            self.output_schema = Count

    async def execute(self, inputs, context):
        return {"count": len(inputs["value"])}

node = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}}
branches = [{**node, "properties": {**node["properties"], "kind": {"const": kind}}} for kind in ("sum", "product")]
recursive = Module({"$ref": "#/$defs/tree"})
recursive.input_schema["$defs"] = {"tree": {"oneOf": [*branches, {"type": "integer"}]}}

registry = apcore.Registry()
registry.register("unique", Module({"type": "array", "uniqueItems": True}))
registry.register("pattern", Module({"type": "string", "pattern": "^(a+)+$"}))
count = {"allOf": [{"minimum": 0}] * 10}
registry.register("many", Module({"type": "array", "items": {"type": "object", "properties": {"a": count}}}))
registry.register("recursive", recursive)
registry.register("short", Module({"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}, {"type": "array"}]}))
registry.register("places", Module(Places))
functions = [total, keys, letters, rows, tree, places]
served = {"functions": functions, "modules": registry, "executor": apcore.Executor(registry)}[sys.argv[1]]
serve(served, host="127.0.0.1", port=0, metrics=True)
"""
MODULUS = 2**61 - 1


def nested(levels: int, leaf: object = 1) -> object:
    value = leaf
    for _ in range(levels):
        value = {"kind": "sum", "left": value, "right": 1}
    return value


SLOW = "takes too long"
COMPLEX = "too "
OBJECTS = [{"n": number} for number in range(12_000)]
# What is served, the skill, its inputs, and a part of the error. Empty if the inputs are valid.
SLOW_INPUTS = {
    "set": ("functions", "total", {"numbers": [MODULUS * n for n in range(30_000)]}, COMPLEX),
    "dict": ("functions", "keys", {"numbers": {str(MODULUS * n): n for n in range(30_000)}}, COMPLEX),
    "pattern": ("functions", "letters", {"text": "a" * 28 + "!"}, SLOW),
    "dataclasses": ("functions", "rows", {"rows": [{"below": {"number": n}} for n in range(24_000)]}, ""),
    "pydantic": ("functions", "tree", {"tree": nested(40)}, COMPLEX),
    "unique objects": ("modules", "unique", {"value": OBJECTS}, ""),
    "repeated objects": ("modules", "unique", {"value": [*OBJECTS, OBJECTS[0]]}, "non-unique"),
    "pattern of a module": ("modules", "pattern", {"value": "a" * 28 + "!"}, SLOW),
    "many objects": ("modules", "many", {"value": [{"a": n} for n in range(7_000)]}, ""),
    "recursive schema": ("modules", "recursive", {"value": nested(40)}, SLOW),
    "long text": ("modules", "short", {"value": "\x7f" * 9 * MEGABYTE}, "x7f"),  # an error shows each as 4 characters
    "wrong places": ("modules", "places", {"value": ["x"] * 20_000}, "100000 errors"),
    "wrong places of a function": ("functions", "places", {"places": {"value": ["x"] * 20_000}}, "100000 errors"),
    "long text, own executor": ("executor", "short", {"value": "\x7f" * 9 * MEGABYTE}, "value"),
    "wrong places, own executor": ("executor", "places", {"value": ["x"] * 20_000}, "100000 errors"),
    "unique objects, own executor": ("executor", "unique", {"value": OBJECTS}, SLOW),
    "pattern, own executor": ("executor", "pattern", {"value": "a" * 28 + "!"}, SLOW),
}


def ask(skill: str, inputs: object) -> bytes:
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": inputs}], "metadata": {"skillId": skill}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}}
    return json.dumps(body, ensure_ascii=False).encode()


@pytest.mark.timeout(150)
@pytest.mark.parametrize("name", SLOW_INPUTS)
async def test_an_input_that_takes_long_to_check_delays_no_other_request(name: str) -> None:
    served, skill, inputs, code = SLOW_INPUTS[name]
    environment = {}
    if not code:  # coverage makes apcore's handling of valid inputs several times slower
        environment[COVERAGE] = ""
    async with running("-c", SKILLS, served, **environment) as process:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        answer = (await post(url, ask(skill, inputs))).json()
        if code:
            assert answer["error"]["code"] == -32602, answer
            assert code in json.dumps(answer["error"]["data"])
        else:
            assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED", answer
        assert await figure(url, "loop_lag_cpu_seconds_max") < BLOCKED
