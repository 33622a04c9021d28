"""Which requests are retried, when, and how often."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from apcore_a2a.client import Retry
from apcore_a2a.client.options import READS, SENDS
from apcore_a2a.errors import (
    A2AConnectionError,
    A2ADiscoveryError,
    A2AError,
    A2AServerError,
    InvalidParamsError,
    OverloadedError,
    TaskNotFoundError,
)
from apcore_a2a.protocol.model import Operation, Task
from tests.client.conftest import Connect
from tests.client.scripted import Request, ScriptedServer, error, hang, reset, respond, result, task

QUICK = Retry(base=0.0)


async def cut(request: Request, writer: asyncio.StreamWriter) -> None:
    reset(writer)


def busy(status: int, after: str = "0") -> bytes:
    return respond({}, status, {"Retry-After": after})


@pytest.mark.parametrize("status", [429, 503])
async def test_a_call_to_an_overloaded_agent_is_retried(server: ScriptedServer, connect: Connect, status: int) -> None:
    server.on("/", busy(status), busy(status), result({"task": task()}))

    await connect().send_message("hi")

    assert len(server.asked("/")) == 3


async def test_an_agent_that_stays_overloaded_is_given_up(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", busy(503))

    with pytest.raises(OverloadedError, match="HTTP 503"):
        await connect(retry=Retry(base=0.0, attempts=4)).send_message("hi")
    assert len(server.asked("/")) == 4


async def test_a_retry_after_the_timeout_is_not_waited_for(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", busy(429, "3600"))

    with pytest.raises(OverloadedError) as caught:
        await connect(timeout=60.0).send_message("hi")
    assert (caught.value.retry_after, len(server.asked("/"))) == (3600, 1)


@pytest.mark.parametrize("asked", ["999999999", "61"])
async def test_a_retry_after_longer_than_the_patience_is_not_waited_for(
    server: ScriptedServer, connect: Connect, asked: str
) -> None:
    server.on("/", busy(503, asked))

    with pytest.raises(OverloadedError) as caught:
        await asyncio.wait_for(connect(timeout=None).send_message("hi"), 5)
    assert (caught.value.retry_after, len(server.asked("/"))) == (int(asked), 1)


async def test_a_stream_does_not_wait_for_a_long_retry_after(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", busy(503, "999999999"))

    async with asyncio.timeout(5):
        with pytest.raises(OverloadedError):
            async for _ in connect(timeout=None).stream_message("hi"):
                pass
    assert len(server.asked("/")) == 1


async def test_an_overload_in_a_json_rpc_error_is_retried(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", error(-32603, "busy", [{"reason": "OVERLOADED"}]), result(task()))

    with pytest.raises(OverloadedError, match="busy"):
        await connect(timeout=0.5).get_task("t-1")  # Retry-After is one second, the timeout half a second


def test_the_pause_is_capped_after_a_long_outage() -> None:
    assert 2.5 <= Retry(reconnects=10**6).pause(100_000, A2AConnectionError()) <= 5.0


async def test_a_read_is_repeated_when_the_connection_breaks(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", cut, cut, result(task()))

    assert (await connect().get_task("t-1")).id == "t-1"


async def test_a_send_that_may_have_arrived_is_not_repeated(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", cut)

    with pytest.raises(A2AConnectionError, match="The agent may have received the request"):
        await connect().send_message("hi")
    assert len(server.asked("/")) == 1


async def test_a_send_is_repeated_with_one_key_if_the_caller_allows_it(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on("/", cut, cut, result({"task": task()}))
    client = connect(retry=Retry(base=0.0, sends=True))

    await client.send_message("one")
    await client.send_message("two")

    asked = server.asked("/")
    keys = [request.headers["idempotency-key"] for request in asked]
    assert (len(set(keys[:3])), len(set(keys))) == (1, 2)
    assert len({request.json["params"]["message"]["messageId"] for request in asked[:3]}) == 1


async def test_an_idempotency_key_of_the_caller_is_kept(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result({"task": task()}))

    await connect(retry=Retry(sends=True)).send_message("hi", headers={"Idempotency-Key": "mine"})

    assert server.asked("/")[0].headers["idempotency-key"] == "mine"


async def test_no_idempotency_key_is_sent_without_retries(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result({"task": task()}))

    await connect().send_message("hi")

    assert "idempotency-key" not in server.asked("/")[0].headers


async def test_an_agent_that_restarts_is_reached(server: ScriptedServer, connect: Connect) -> None:
    """The port is closed while the client retries. Then the agent is restarted."""
    server.on("/", result(task()))
    client = connect(retry=Retry(base=0.02, cap=0.02, attempts=200))
    await client.get_task("t-1")
    await server.__aexit__(None, None, None)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        call = group.create_task(client.send_message("hi"))
        await asyncio.sleep(0)
        async with ScriptedServer(server.port).on("/", result({"task": task()})):
            assert isinstance(await call, Task)


@pytest.mark.parametrize("first", [hang, cut])
async def test_the_timeout_bounds_all_attempts_together(
    server: ScriptedServer, connect: Connect, first: Callable[..., Awaitable[None]]
) -> None:
    server.on("/", first, hang)

    with pytest.raises(A2AConnectionError, match=r"within 0\.1 seconds"):
        await connect(timeout=0.1).get_task("t-1")


UNREACHED = A2AConnectionError(sent=False)
BROKEN = A2AConnectionError()


@pytest.mark.parametrize("operation", Operation, ids=lambda operation: str(operation.name))
@pytest.mark.parametrize("sends", [False, True])
def test_which_operations_may_be_repeated(operation: Operation, sends: bool) -> None:
    retry = Retry(sends=sends)
    may_repeat_broken = operation in READS or (sends and operation in SENDS)

    assert retry.may_repeat(operation, UNREACHED)
    assert retry.may_repeat(operation, OverloadedError())
    assert retry.may_repeat(operation, BROKEN) is may_repeat_broken
    assert retry.may_repeat(operation, A2AServerError(code=502)) is may_repeat_broken
    assert retry.may_repeat(operation, A2ADiscoveryError(status=502)) is (operation in READS)
    final_errors = (A2AServerError(), A2AServerError(code=500), TaskNotFoundError(), InvalidParamsError(), A2AError())
    for final in (*final_errors, A2ADiscoveryError(), A2ADiscoveryError(status=404)):
        assert not retry.may_repeat(operation, final)


def test_pauses_grow_up_to_a_limit_and_are_at_least_retry_after() -> None:
    retry = Retry(base=1.0, cap=4.0)
    for failures, longest in [(1, 1.0), (2, 2.0), (3, 4.0), (9, 4.0)]:
        assert longest / 2 <= retry.pause(failures, BROKEN) <= longest
    assert retry.pause(1, OverloadedError(retry_after=30)) == 30


def test_pauses_of_clients_that_failed_together_are_spread_over_their_range() -> None:
    retry = Retry(base=1.0, cap=4.0)
    quarters = {int(retry.pause(1, BROKEN) * 8) for _ in range(400)}  # of 0.5 to 1; one is missed once in 10**49 runs
    assert quarters == {4, 5, 6, 7}
