"""What the specification asks of an agent's answers, tried out on one interface, clause by clause.

Rule: nothing is sent that an agent would work on, unless the caller gave a message to send.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Final, NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from apcore_a2a.cli.conformance.card_checks import Finding, Rule
from apcore_a2a.cli.transports import RecordingTransport
from apcore_a2a.client import A2AClient
from apcore_a2a.errors import (
    A2AError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from apcore_a2a.protocol.card import AgentCapabilities
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import Event, Message, Role, StatusUpdate, Task

LIMIT: Final = 1024 * 1024
UNKNOWN_VERSION: Final = "99.0"


class Expectation(NamedTuple):
    """A call that has to fail in a certain way."""

    rule: Rule
    attempt: Callable[[A2AClient], Awaitable[object]]
    error: type[A2AError]
    unless: Callable[[AgentCapabilities], bool | None] = lambda _: False
    """Not to be tried with agents that offer the thing."""


def _nothing(client: A2AClient) -> Awaitable[object]:
    return client.send_message(Message(message_id=uuid4().hex, role=Role.USER, parts=()))


EXPECTED: Final = (
    Expectation(
        Rule("errors.unknown-task", "3.1.3", "GetTask of an unknown id answers TaskNotFoundError"),
        lambda client: client.get_task(str(uuid4())),
        TaskNotFoundError,
    ),
    Expectation(
        Rule("errors.cancel-unknown-task", "3.1.5", "CancelTask of an unknown id answers TaskNotFoundError"),
        lambda client: client.cancel_task(str(uuid4())),
        TaskNotFoundError,
    ),
    Expectation(
        Rule("errors.version", "3.6.2", "A version that it does not speak answers VersionNotSupportedError"),
        lambda client: client.get_task(str(uuid4()), headers={"A2A-Version": UNKNOWN_VERSION}),
        VersionNotSupportedError,
    ),
    Expectation(
        Rule("errors.no-parts", "3.3.2", "A message without parts answers a validation error"),
        _nothing,
        InvalidParamsError,
    ),
    Expectation(
        Rule("capabilities.push", "3.3.4", "Without pushNotifications it answers PushNotificationNotSupportedError"),
        lambda client: client.list_push_configs(str(uuid4())),
        PushNotificationNotSupportedError,
        lambda has: has.push_notifications,
    ),
    Expectation(
        Rule("capabilities.extended-card", "3.3.4", "Without extendedAgentCard it answers UnsupportedOperationError"),
        lambda client: client.extended_card(),
        UnsupportedOperationError,
        lambda has: has.extended_agent_card,
    ),
)
LIST: Final = Rule("list.fields", "3.1.4", "ListTasks answers with tasks, nextPageToken, pageSize and totalSize")
MEDIA: Final = Rule("binding.media-type", "9.1", "JSON-RPC answers are application/json")
REST_ERRORS: Final = Rule("binding.errors", "11.6", "REST errors are a google.rpc.Status with an ErrorInfo")
RPC_ERRORS: Final = (  # what is sent, and the code that has to come back
    (Rule("binding.parse-error", "9.5", "What is not JSON answers -32700"), b'{"jsonrpc": ', -32700, None),
    (
        Rule("binding.unknown-method", "9.5", "An unknown method answers -32601, with the request's id"),
        b'{"jsonrpc": "2.0", "id": "probe", "method": "NoSuchMethod", "params": {}}',
        -32601,
        "probe",
    ),
)


async def probe(client: A2AClient, recorder: RecordingTransport) -> AsyncIterator[Finding]:
    """Try what costs the agent nothing."""
    capabilities = (await client.agent_card).capabilities
    for expected in EXPECTED:
        if expected.unless(capabilities):
            yield expected.rule.skip("the agent offers it")
            continue
        for finding in expected.rule.judge(*await _fails(expected.attempt(client), expected.error)):
            yield finding
    binding = (await client.interface).protocol_binding
    for finding in await _try_rpc(client, recorder) if binding == "JSONRPC" else await _try_rest(client, recorder):
        yield finding
    for finding in LIST.judge(*await _list(client, recorder)):
        yield finding


async def _fails(attempt: Awaitable[object], wanted: type[A2AError]) -> list[str]:
    try:
        await attempt
    except wanted:
        return []
    except A2AError as error:
        return [f"expected {wanted.__name__}, got {type(error).__name__}: {error}"]
    return [f"expected {wanted.__name__}, but it was accepted"]


async def _try_rpc(client: A2AClient, recorder: RecordingTransport) -> list[Finding]:
    findings: list[Finding] = []
    await _fails(client.get_task(str(uuid4())), TaskNotFoundError)
    proper = recorder.last_request
    media = recorder.last_response.headers.get("content-type", "").partition(";")[0].strip()
    findings += MEDIA.judge(*([] if media == "application/json" else [f"Content-Type is {media[:60] or 'missing'}"]))
    for rule, body, code, id in RPC_ERRORS:
        await recorder.request(replace(proper, body=body), LIMIT)
        findings += rule.judge(*_wrong_answer(recorder.last_json(), code, id))
    return findings


def _wrong_answer(answer: object, code: int, id: str | None) -> Iterator[str]:
    match answer:
        case {"jsonrpc": "2.0", "error": {"code": int(got), "message": str()}, **rest}:
            if got != code:
                yield f"the error's code is {got}, not {code}"
            if id is not None and rest.get("id") != id:
                yield "the answer does not have the request's id"
        case _:
            yield "the answer is not a JSON-RPC error"


async def _try_rest(client: A2AClient, recorder: RecordingTransport) -> list[Finding]:
    await _fails(client.get_task(str(uuid4())), TaskNotFoundError)
    problems = []
    match recorder.last_json():
        case {"error": {"code": int(), "message": str(), "details": list(details)}}:
            if not any(isinstance(each, dict) and each.get("reason") and each.get("@type") for each in details):
                problems.append("error.details has no google.rpc.ErrorInfo with a reason")
        case _:
            problems.append("the body has no error with code, message and details")
    if recorder.last_response.status != 404:
        problems.append(f"the status is {recorder.last_response.status}, not 404")
    return list(REST_ERRORS.judge(*problems))


async def _list(client: A2AClient, recorder: RecordingTransport) -> list[str]:
    try:
        await client.list_tasks(page_size=1)
    except A2AError as error:
        return [f"{type(error).__name__}: {error}"]
    answer = recorder.last_json()
    page = answer.get("result", answer) if isinstance(answer, dict) else {}
    fields = {"tasks": list, "nextPageToken": str, "pageSize": int, "totalSize": int}
    return [f"{name} is missing or wrong" for name, kind in fields.items() if not isinstance(page.get(name), kind)]


SEND: Final = Rule("send.answer", "3.1.1", "SendMessage answers with a task or a message")
GET: Final = Rule("get.same-task", "3.1.3", "GetTask answers with the task that SendMessage made")
CANCEL: Final = Rule("cancel.ended-task", "3.1.5", "A task that has ended answers TaskNotCancelableError")
FIRST: Final = Rule("stream.first-event", "3.1.2", "A stream begins with a task, or is one message")
CLOSE: Final = Rule("stream.last-event", "3.1.2", "A stream ends with a task at rest")
SSE: Final = Rule("stream.media-type", "9.4.2", "A stream is text/event-stream")
SUBSCRIBE: Final = Rule("subscribe.ended-task", "3.1.6", "A task that has ended answers UnsupportedOperationError")


async def converse(
    client: A2AClient, recorder: RecordingTransport, text: str, skill: str | None
) -> AsyncIterator[Finding]:
    """Send the caller's message, plainly and over a stream, and look at what comes back."""
    try:
        answer = await client.send_message(text, skill=skill)
    except A2AError as error:
        for finding in SEND.judge(f"{type(error).__name__}: {error}"):
            yield finding
        return
    for finding in SEND.judge(*_shape(recorder.last_json())):
        yield finding
    if isinstance(answer, Task):
        same = await client.get_task(answer.id)
        for finding in GET.judge(*([] if same.id == answer.id else [f"the id is {same.id[:60]!r}"])):
            yield finding
        if answer.status.state in TERMINAL:
            for finding in CANCEL.judge(*await _fails(client.cancel_task(answer.id), TaskNotCancelableError)):
                yield finding
    if (await client.agent_card).capabilities.streaming:
        for finding in await _try_stream(client, recorder, text, skill):
            yield finding
    else:
        yield FIRST.skip("the agent does not stream")


def _shape(answer: object) -> Iterator[str]:
    match answer:
        case {"result": dict(result)}:
            pass
        case dict(result):
            pass
        case _:
            yield "the answer is not an object"
            return
    task = result.get("task")
    if ("task" in result) + ("message" in result) != 1:
        yield "the answer has not exactly one of task and message"
    elif isinstance(task, dict):
        status = task.get("status")
        if not task.get("id"):
            yield "task.id is missing"
        if not isinstance(status, dict) or not str(status.get("state", "")).startswith("TASK_STATE_"):
            yield "task.status.state is not a TASK_STATE_ (4.1.3)"


async def _try_stream(client: A2AClient, recorder: RecordingTransport, text: str, skill: str | None) -> list[Finding]:
    events: list[Event] = []
    try:
        async with aclosing(client.stream_message(text, skill=skill)) as stream:
            events += [event async for event in stream]
    except A2AError as error:
        return list(FIRST.judge(f"{type(error).__name__}: {error}"))
    media = recorder.last_response.headers.get("content-type", "").partition(";")[0].strip()
    first, last = events[0], events[-1]
    begins = isinstance(first, Task) or (isinstance(first, Message) and len(events) == 1)
    rests = isinstance(last, Message) or (isinstance(last, Task | StatusUpdate) and last.status.state in AT_REST)
    findings = [
        *FIRST.judge(*([] if begins else [f"the first event is a {type(first).__name__}"])),
        *CLOSE.judge(*([] if rests else [f"the last event is a {type(last).__name__}"])),
    ]
    if len(events) > 1 and isinstance(last, StatusUpdate) and last.status.state in TERMINAL:
        ended = await _fails(_drain(client, last.task_id), UnsupportedOperationError)
        findings += SUBSCRIBE.judge(*ended)
    return [*SSE.judge(*([] if media == "text/event-stream" else [f"it is {media[:60]}"])), *findings]


async def _drain(client: A2AClient, task_id: str) -> None:
    async with aclosing(client.resubscribe(task_id)) as events:
        async for _ in events:
            pass
