"""Tests of an agent's answers on one interface, clause by clause.

Invariant: the agent has no work to do unless the caller passes a message. `probe` sends invalid requests and asks for
things that do not exist. `converse` sends the caller's message.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.cli.connection import RecordingTransport
from apcore_a2a.cli.validate.card_checks import Finding, Rule
from apcore_a2a.client import A2AClient
from apcore_a2a.client.transport import HttpRequest
from apcore_a2a.errors import (
    A2AError,
    InvalidAgentResponseError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.card import AgentCapabilities
from apcore_a2a.protocol.grpc import CODES, ReceivedStatus, read_status
from apcore_a2a.protocol.grpc import MEDIA_TYPE as MEDIA_TYPE_OF_GRPC
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import Event, Message, Role, StatusUpdate, Task

MAX_ANSWER: Final = 1024 * 1024
ANSWER_WAIT: Final = 5.0  # seconds, for a request that is rejected at once
MAX_EVENTS: Final = 10_000  # of one stream; no test message needs more
MAX_QUOTED: Final = 60  # characters of an agent's text that a message quotes
UNKNOWN_VERSION: Final = "99.0"


# ---- without a message ----------------------------------------------------------------------------------------------


def _never_offered(_: AgentCapabilities) -> bool:
    return False


class Expectation(NamedTuple):
    """A call that must fail, and the error that it must fail with."""

    rule: Rule
    attempt: Callable[[A2AClient], Awaitable[object]]
    error: type[A2AError]
    is_offered: Callable[[AgentCapabilities], bool | None] = _never_offered
    """Whether the card declares the capability. Then the call would succeed, and is not sent."""


def _send_no_parts(client: A2AClient) -> Awaitable[object]:
    return client.send_message(Message(message_id=new_id(), role=Role.USER, parts=()))


EXPECTATIONS: Final = (
    Expectation(
        Rule("errors.unknown-task", "3.1.3", "GetTask of an unknown id answers TaskNotFoundError"),
        lambda client: client.get_task(new_id()),
        TaskNotFoundError,
    ),
    Expectation(
        Rule("errors.cancel-unknown-task", "3.1.5", "CancelTask of an unknown id answers TaskNotFoundError"),
        lambda client: client.cancel_task(new_id()),
        TaskNotFoundError,
    ),
    Expectation(
        Rule("errors.version", "3.6.2", "An unsupported version answers VersionNotSupportedError"),
        lambda client: client.get_task(new_id(), headers={"A2A-Version": UNKNOWN_VERSION}),
        VersionNotSupportedError,
    ),
    Expectation(
        Rule("errors.no-parts", "3.3.2", "A message without parts answers a validation error"),
        _send_no_parts,
        InvalidParamsError,
    ),
    Expectation(
        Rule("capabilities.push", "3.3.4", "Without pushNotifications it answers PushNotificationNotSupportedError"),
        lambda client: client.list_push_configs(new_id()),
        PushNotificationNotSupportedError,
        lambda capabilities: capabilities.push_notifications,
    ),
    Expectation(
        Rule("capabilities.extended-card", "3.3.4", "Without extendedAgentCard it answers UnsupportedOperationError"),
        lambda client: client.extended_card(),
        UnsupportedOperationError,
        lambda capabilities: capabilities.extended_agent_card,
    ),
)
LIST: Final = Rule("list.fields", "3.1.4", "ListTasks answers with tasks, nextPageToken, pageSize and totalSize")
# All four are required, even an empty token and a zero, which ProtoJSON would omit.
LIST_FIELDS: Final = {"tasks": list, "nextPageToken": str, "pageSize": int, "totalSize": int}


async def probe(client: A2AClient, recorder: RecordingTransport) -> AsyncGenerator[Finding]:
    """Run the tests that give the agent no work."""
    capabilities = (await client.agent_card).capabilities
    for expected in EXPECTATIONS:
        if expected.is_offered(capabilities):
            yield expected.rule.skip("the agent supports it")
            continue
        for finding in expected.rule.judge(await _expect_error(expected.attempt(client), expected.error)):
            yield finding
    check = CHECKS[(await client.interface).protocol_binding]
    for finding in await check(client, recorder):
        yield finding
    for finding in LIST.judge(await _check_list(client, recorder)):
        yield finding


async def _expect_error(attempt: Awaitable[object], expected: type[A2AError]) -> list[str]:
    """Return the problems with the error of a call, or none if it failed as expected."""
    try:
        await attempt
    except expected:
        return []
    except UnauthenticatedError:  # it breaks no rule, but nothing can be tested
        raise
    except A2AError as error:
        return [f"expected {expected.__name__}, got {type(error).__name__}: {error}"]
    return [f"expected {expected.__name__}, but it was accepted"]


async def _check_list(client: A2AClient, recorder: RecordingTransport) -> list[str]:
    try:
        await client.list_tasks(page_size=1)
    except A2AError as error:
        return [f"{type(error).__name__}: {error}"]
    if recorder.last_request.needs_trailers:
        return []  # protocol buffers omit default values, so no field can be missing
    # The client fills in missing fields, so the recorded JSON is checked.
    page = _result(recorder.last_json()) or {}
    problems = []
    for name, kind in LIST_FIELDS.items():
        if not isinstance(page.get(name), kind):
            problems.append(f"{name} is missing or wrong")
    return problems


def _result(answer: object) -> dict[str, Any] | None:
    """Return the result of an operation: over JSON-RPC a field of the response, over REST the whole body."""
    match answer:
        case {"result": dict(result)}:
            return result
        case dict():
            return answer
    return None


# ---- the bindings ---------------------------------------------------------------------------------------------------


class BrokenRequest(NamedTuple):
    """An invalid JSON-RPC request, and the expected response."""

    rule: Rule
    body: bytes
    code: int
    id: str | None
    """The id of the response. None if the request has no readable id."""


MEDIA_TYPE: Final = Rule("binding.media-type", "9.1", "JSON-RPC answers are application/json")
GRPC_MEDIA: Final = MEDIA_TYPE_OF_GRPC.decode()
GRPC_MEDIA_TYPE: Final = Rule("binding.media-type", "10.1", "gRPC answers are application/grpc")
GRPC_ERRORS: Final = Rule("binding.errors", "10.6", "gRPC errors are a status with a google.rpc.ErrorInfo")
REST_ERRORS: Final = Rule("binding.errors", "11.6", "REST errors are a google.rpc.Status with an ErrorInfo")
BROKEN_REQUESTS: Final = (
    BrokenRequest(
        Rule("binding.parse-error", "9.5", "Invalid JSON answers -32700"),
        body=b'{"jsonrpc": ',
        code=-32700,
        id=None,
    ),
    BrokenRequest(
        Rule("binding.unknown-method", "9.5", "An unknown method answers -32601, with the request's id"),
        body=b'{"jsonrpc": "2.0", "id": "probe", "method": "NoSuchMethod", "params": {}}',
        code=-32601,
        id="probe",
    ),
)


async def _check_jsonrpc(client: A2AClient, recorder: RecordingTransport) -> list[Finding]:
    # Send a valid request first: the invalid ones reuse its address, headers and credentials.
    await _expect_error(client.get_task(new_id()), TaskNotFoundError)
    proper = recorder.last_request
    problems = []
    media_type = _last_media_type(recorder)
    if media_type != "application/json":
        problems.append(f"Content-Type is {media_type[:MAX_QUOTED] or 'missing'}")
    findings = MEDIA_TYPE.judge(problems)
    for broken in BROKEN_REQUESTS:
        findings += broken.rule.judge(await _send_broken(broken, proper, recorder))
    return findings


async def _send_broken(broken: BrokenRequest, proper: HttpRequest, recorder: RecordingTransport) -> list[str]:
    try:
        async with asyncio.timeout(ANSWER_WAIT):
            # Not through the client, which only sends valid requests.
            await recorder.request(replace(proper, body=broken.body), MAX_ANSWER)
    except A2AError as error:
        return [f"{type(error).__name__}: {error}"]
    except TimeoutError:
        return [f"no answer within {ANSWER_WAIT:g} seconds"]
    return list(_check_jsonrpc_error(recorder.last_json(), broken))


def _check_jsonrpc_error(answer: object, broken: BrokenRequest) -> Iterator[str]:
    match answer:
        case {"jsonrpc": "2.0", "error": {"code": int(code), "message": str()}, **rest}:
            if code != broken.code:
                yield f"the error's code is {code}, not {broken.code}"
            if broken.id is not None and rest.get("id") != broken.id:
                yield "the answer does not have the id of the request"
        case _:
            yield "the answer is not a JSON-RPC error"


async def _check_rest(client: A2AClient, recorder: RecordingTransport) -> list[Finding]:
    await _expect_error(client.get_task(new_id()), TaskNotFoundError)
    problems = []
    match recorder.last_json():
        case {"error": {"code": int(), "message": str(), "details": list(details)}}:
            if not _has_error_info(details):
                problems.append("error.details has no google.rpc.ErrorInfo with a reason")
        case _:
            problems.append("the body has no error with code, message and details")
    if recorder.last_response.status != 404:
        problems.append(f"the status is {recorder.last_response.status}, not 404")
    return REST_ERRORS.judge(problems)


async def _check_grpc(client: A2AClient, recorder: RecordingTransport) -> list[Finding]:
    await _expect_error(client.get_task(new_id()), TaskNotFoundError)
    problems = []
    media_type = _last_media_type(recorder)
    if not media_type.startswith(GRPC_MEDIA):
        problems.append(f"content-type is {media_type[:MAX_QUOTED] or 'missing'}")
    findings = GRPC_MEDIA_TYPE.judge(problems)
    problems = []
    status = _last_status(recorder)
    if status is None:
        problems.append("the answer has no grpc-status")
    else:
        if status.code != CODES["NOT_FOUND"]:
            problems.append(f"the status is {status.code}, not {CODES['NOT_FOUND']} (NOT_FOUND)")
        if not _has_error_info(status.details):
            problems.append("grpc-status-details-bin has no google.rpc.ErrorInfo with a reason")
    return findings + GRPC_ERRORS.judge(problems)


def _last_status(recorder: RecordingTransport) -> ReceivedStatus | None:
    response = recorder.last_response
    return read_status(response.trailers or response.headers)


CHECKS: Final = {"JSONRPC": _check_jsonrpc, "HTTP+JSON": _check_rest, "GRPC": _check_grpc}


def _has_error_info(details: list[Any]) -> bool:
    # Several errors share a status, and only the reason distinguishes them (A2A 1.0 §11.6).
    for detail in details:
        if isinstance(detail, dict) and detail.get("reason") and detail.get("@type"):
            return True
    return False


def _last_media_type(recorder: RecordingTransport) -> str:
    """Return the Content-Type of the last response, without its parameters."""
    return recorder.last_response.headers.get("content-type", "").partition(";")[0].strip()


# ---- with a message -------------------------------------------------------------------------------------------------

SEND: Final = Rule("send.answer", "3.1.1", "SendMessage answers with a task or a message")
GET: Final = Rule("get.same-task", "3.1.3", "GetTask answers with the task that SendMessage created")
CANCEL: Final = Rule("cancel.ended-task", "3.1.5", "A task that has ended answers TaskNotCancelableError")
FIRST: Final = Rule("stream.first-event", "3.1.2", "A stream begins with a task, or is one message")
LAST: Final = Rule("stream.last-event", "3.1.2", "A stream ends with a task at rest")
SSE: Final = Rule("stream.media-type", "9.4.2", "A stream is text/event-stream, and over gRPC application/grpc")
SUBSCRIBE: Final = Rule("subscribe.ended-task", "3.1.6", "A task that has ended answers UnsupportedOperationError")


class ProbeMessage(NamedTuple):
    """The message to send, and the time to wait for its answer."""

    text: str
    skill: str | None
    patience: float


async def converse(client: A2AClient, recorder: RecordingTransport, given: ProbeMessage) -> AsyncGenerator[Finding]:
    """Send the caller's message with and without streaming, and check the answers."""
    try:
        answer = await client.send_message(given.text, wait=False, skill=given.skill, timeout=given.patience)
    except A2AError as error:
        for finding in SEND.judge([f"{type(error).__name__}: {error}"]):
            yield finding
        return
    for finding in SEND.judge(_check_answer(recorder.last_json())):
        yield finding
    if isinstance(answer, Task):
        for finding in await _check_task(client, answer):
            yield finding
    if not (await client.agent_card).capabilities.streaming:
        yield FIRST.skip("the agent does not stream")
        return
    for finding in await _check_stream(client, recorder, given):
        yield finding


def _check_answer(answer: object) -> Iterator[str]:
    result = _result(answer)
    if result is None:
        yield "the answer is not an object"
        return
    # A `oneof` of the protocol: exactly one member is allowed.
    if ("task" in result) == ("message" in result):
        yield "the answer does not have exactly one of task and message"
        return
    task = result.get("task")
    if not isinstance(task, dict):
        return
    if not task.get("id"):
        yield "task.id is missing"
    status = task.get("status")
    if not isinstance(status, dict) or not str(status.get("state", "")).startswith("TASK_STATE_"):
        yield "task.status.state is not a TASK_STATE_ (4.1.3)"


async def _check_task(client: A2AClient, task: Task) -> list[Finding]:
    """Check that the new task can be fetched and, once it has ended, not be canceled."""
    problems = []
    try:
        same = await client.get_task(task.id)
        if same.id != task.id:
            problems.append(f"the id is {same.id[:MAX_QUOTED]!r}")
    except A2AError as error:
        problems.append(f"{type(error).__name__}: {error}")
    findings = GET.judge(problems)
    # A task that waits for input may be canceled, so there is no rule to test.
    if task.status.state in TERMINAL:
        findings += CANCEL.judge(await _expect_error(client.cancel_task(task.id), TaskNotCancelableError))
    return findings


class Streamed(Struct):
    """The summary of a stream, of constant size."""

    first: Event | None = None
    last: Event | None = None
    count: int = 0

    def add(self, event: Event) -> None:
        if self.first is None:
            self.first = event
        self.last = event
        self.count += 1


async def _check_stream(client: A2AClient, recorder: RecordingTransport, given: ProbeMessage) -> list[Finding]:
    seen = Streamed()
    problems = []
    try:
        async with asyncio.timeout(given.patience):
            await _read_stream(client, given, seen)
    except TimeoutError:
        problems.append(f"it has not ended after {given.patience:g} seconds and {seen.count} events")
    except A2AError as error:
        problems.append(f"{type(error).__name__}: {error}")
    if seen.first is None or seen.last is None:
        return FIRST.judge(problems or ["the stream has no events"])
    findings = SSE.judge(_check_media_type(recorder))
    findings += FIRST.judge(_check_first_event(seen.first, seen.count))
    findings += LAST.judge(problems or _check_last_event(seen.last))
    last = seen.last
    if seen.count > 1 and isinstance(last, StatusUpdate) and last.status.state in TERMINAL:
        findings += SUBSCRIBE.judge(await _expect_error(_subscribe(client, last.task_id), UnsupportedOperationError))
    return findings


async def _read_stream(client: A2AClient, given: ProbeMessage, seen: Streamed) -> None:
    async with aclosing(client.stream_message(given.text, skill=given.skill)) as stream:
        async for event in stream:
            seen.add(event)
            if seen.count == MAX_EVENTS:
                raise InvalidAgentResponseError(f"the stream has more than {MAX_EVENTS} events")


def _check_media_type(recorder: RecordingTransport) -> Iterator[str]:
    media_type = _last_media_type(recorder)
    if recorder.last_request.needs_trailers:
        if not media_type.startswith(GRPC_MEDIA):
            yield f"it is {media_type[:MAX_QUOTED]}, not {GRPC_MEDIA}"
    elif media_type != "text/event-stream":
        yield f"it is {media_type[:MAX_QUOTED]}"


def _check_first_event(first: Event, count: int) -> Iterator[str]:
    is_reply = isinstance(first, Message) and count == 1
    if not isinstance(first, Task) and not is_reply:
        yield f"the first event is a {type(first).__name__}"


def _check_last_event(last: Event) -> Iterator[str]:
    # A terminal state ends a stream (3.1.2). After INPUT_REQUIRED an agent may close it too, so there is nothing to
    # check.
    if isinstance(last, Message):
        return
    if not isinstance(last, Task | StatusUpdate) or last.status.state not in AT_REST:
        yield f"the last event is a {type(last).__name__}"


async def _subscribe(client: A2AClient, task_id: str) -> None:
    # A stream fails when it is read, not when it is created.
    async with aclosing(client.resubscribe(task_id)) as events:
        async for _ in events:
            return  # accepted: the rest does not matter, and may be endless
