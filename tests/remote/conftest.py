"""Remote agents on sockets in threads of their own, and the registries that mount them."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import apcore
import pytest
from pydantic import BaseModel

from apcore_a2a.client import Client
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.remote.mount import RemoteAgent, mount_remote
from tests.cli.conftest import hosted
from tests.fakes import PATIENCE

T = TypeVar("T")

PLAY = "partner.play"


class Pair(BaseModel):
    a: int
    b: int


class Total(BaseModel):
    total: int


class Add:
    description = "Add two integers"
    input_schema, output_schema = Pair, Total
    tags = ("math",)

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"total": inputs["a"] + inputs["b"]}


class Count:
    description = "Count, one after the other"
    input_schema = Pair

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        return {}

    async def stream(self, inputs: dict[str, Any], context: Any) -> Any:
        for n in range(inputs["a"], inputs["b"]):
            yield {f"n{n}": n}


def registry_of(**modules: Any) -> Any:
    registry = apcore.Registry()
    for name, module in modules.items():
        registry.register(name.replace("__", "."), module)
    return registry


@pytest.fixture
def host() -> Iterator[Callable[..., str]]:
    """Serve agents and registries."""
    with ExitStack() as stack:

        def start(target: Any, **options: Any) -> str:
            return stack.enter_context(hosted(target, **options))

        yield start


@pytest.fixture
def mount() -> Iterator[Callable[..., tuple[Any, RemoteAgent]]]:
    """Mount a remote agent in a new registry, and return an executor of that registry."""
    with ExitStack() as stack:

        def start(url: str, **options: Any) -> tuple[Any, RemoteAgent]:
            registry = options.pop("registry", None) or apcore.Registry()
            options = {"prefix": "partner", "refresh": None} | options
            agent = stack.enter_context(mount_remote(registry, url, **options))
            return apcore.Executor(registry), agent

        yield start


Host = Callable[..., str]
Mount = Callable[..., tuple[Any, RemoteAgent]]


def context_of(**data: Any) -> Any:
    return apcore.Context.create(data=data)


def said(error: BaseException) -> str:
    """Return the error text that the local agent would use. apcore may wrap the exceptions of modules."""
    cause = getattr(error, "cause", None)
    return str(cause if isinstance(cause, A2AError) else error)


async def fails(work: Any) -> BaseException:
    with pytest.raises(Exception) as failed:
        await work
    return failed.value


def only_task(url: str, state: TaskState) -> str:
    """Return the id of the only remote task as soon as it exists."""
    with Client(url) as client:
        return until(lambda: client.list_tasks(status=state).tasks)[0].id


def until(look: Callable[[], T]) -> T:
    """Poll until the function returns a value, and return it."""
    last = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < last
    return found


def ends(url: str, task_id: str) -> TaskState:
    with Client(url) as client:
        return client.wait(task_id, within=5).status.state


def cancel(url: str) -> None:
    with Client(url) as client:
        client.cancel_task(only_task(url, TaskState.WORKING))
