"""Spans of requests, runs, calls and webhooks: few, linked, with the names of the conventions and without contents."""

import asyncio
import json
import logging
import subprocess
import sys
from typing import Any

import httpx
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from apcore_a2a import A2AClient, Call
from apcore_a2a.app import application
from apcore_a2a.app.logs import JSONFormatter, TextFormatter
from apcore_a2a.app.serve import build_app
from apcore_a2a.telemetry import names
from apcore_a2a.testing.webhook import WebhookReceiver
from apcore_a2a.trace_context import continue_trace
from tests.fakes import ASKS, COMPLETED, PATIENCE, WORKING, Gate, ScriptedAgent, chunk
from tests.interaction.serving import serving
from tests.interaction.webhook_conditions import open_to, until
from tests.telemetry.recording import Recorder, attributes, id_of, parent_of, trace_of

SENDS = {"jsonrpc": "2.0", "id": "r-1", "method": "SendMessage"}
SAID = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "the secret of Ada"}]}
V1 = {"A2A-Version": "1.0"}
CALLER = "b" * 16
SAMPLED = {"traceparent": f"00-{'a' * 32}-{CALLER}-01", "tracestate": "a=1", "baggage": "user=ada"}
UNSAMPLED = {"traceparent": f"00-{'a' * 32}-{CALLER}-00"}


async def send(url: str, *, headers: dict[str, str] = SAMPLED, **more: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url) as client:
        params = {"message": SAID | more.pop("message", {}), **more}
        answer = await client.post("/", json={**SENDS, "params": params}, headers=V1 | headers)
    result: dict[str, Any] = answer.json().get("result", {})
    return result


async def until_spans(recorder: Recorder, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if len(recorder.spans) >= count:
                return
            await asyncio.sleep(0)


async def test_a_request_and_its_run_are_two_spans_of_the_callers_trace() -> None:
    recorder = Recorder()
    async with serving(ScriptedAgent(), **recorder.options) as url:
        result = await send(url)
    request = recorder.named("SendMessage")
    run = recorder.named("invoke_agent scripted")
    assert {trace_of(span) for span in recorder.spans} == {"a" * 32}
    assert (parent_of(request), parent_of(run)) == (CALLER, id_of(request))
    assert (request.kind, run.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    task = result["task"]
    assert attributes(request) == {
        "a2a.method.name": "SendMessage",
        "a2a.protocol.version": "1.0",
        "a2a.protocol.binding": "JSONRPC",
        "jsonrpc.request.id": "r-1",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "scripted",
        "gen_ai.request.stream": False,
        "gen_ai.conversation.id": task["contextId"],
        "a2a.task.id": task["id"],
        "a2a.task.state": "completed",
    }
    assert attributes(run) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "scripted",
        "gen_ai.conversation.id": task["contextId"],
        "a2a.task.id": task["id"],
        "a2a.task.state": "completed",
    }


async def test_a_stream_is_one_span_that_ends_with_it_however_many_chunks_it_has() -> None:
    recorder = Recorder()
    gate = Gate()
    chunks = [chunk("x", append=number > 0) for number in range(200)]
    agent = ScriptedAgent({SAID["parts"][0]["text"]: (WORKING, gate, *chunks, COMPLETED)})  # type: ignore[index]
    async with serving(agent, **recorder.options) as url, A2AClient(url) as client:
        stream = client.stream_message("the secret of Ada")
        await anext(stream)
        await gate.reached()
        assert recorder.names() == []
        gate.open()
        async for _ in stream:
            pass
        await until_spans(recorder, 2)
    assert recorder.names() == ["SendStreamingMessage", "invoke_agent scripted"]
    request = recorder.named("SendStreamingMessage")
    run = recorder.named("invoke_agent scripted")
    assert [event.name for event in request.events] == [names.FIRST_EVENT]
    assert [event.name for event in run.events] == [names.FIRST_EVENT, names.LAST_EVENT]
    assert attributes(request)["a2a.task.state"] == "completed"
    assert attributes(request)["a2a.task.id"] == attributes(run)["a2a.task.id"]
    assert attributes(request)["gen_ai.request.stream"] is True


@pytest.mark.parametrize(
    ("path", "body", "binding", "code"),
    [
        ("/", {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "unknown"}}, "JSONRPC", "-32001"),
        ("/tasks/unknown", None, "HTTP+JSON", "404"),
    ],
)
async def test_an_error_of_the_caller_is_named_and_no_fault_of_the_server(
    path: str, body: Any, binding: str, code: str
) -> None:
    recorder = Recorder()
    async with serving(ScriptedAgent(), **recorder.options) as url, httpx.AsyncClient(base_url=url) as client:
        if body is None:
            await client.get(path, headers=V1)
        else:
            await client.post(path, json=body, headers=V1)
    span = recorder.named("GetTask")
    assert attributes(span)["error.type"] == "TASK_NOT_FOUND"
    assert attributes(span)["rpc.response.status_code"] == code
    assert attributes(span)["a2a.protocol.binding"] == binding
    assert span.status.status_code is StatusCode.UNSET


async def test_a_failed_run_is_an_error_without_its_text() -> None:
    async def fail(text: str) -> str:
        raise ValueError(text)

    recorder = Recorder()
    async with serving(fail, card=None, **recorder.options) as url:
        await send(url)
    run = recorder.named("invoke_agent fail")
    assert run.status.status_code is StatusCode.ERROR
    assert attributes(run)["error.type"] == "failed"
    assert attributes(run)["apcore.skill.id"] == "fail"


@pytest.mark.parametrize("recorded", [False, True])
async def test_contents_are_recorded_only_if_asked_for(recorded: bool) -> None:
    recorder = Recorder(record_content=recorded)
    async with serving(ScriptedAgent(), **recorder.options) as url:
        await send(url)
    told = json.dumps([span.to_json() for span in recorder.spans])
    assert ("the secret of Ada" in told) is recorded
    assert (names.OUTPUT in told) is recorded


async def test_the_agent_and_the_agents_that_it_calls_continue_the_trace() -> None:
    recorder = Recorder()
    inner = ScriptedAgent()
    async with serving(inner, **recorder.options) as inner_url:

        async def outer(call: Call) -> str:
            async with A2AClient(inner_url) as client:
                await client.send_message("one")
                async for _ in client.stream_message("two"):
                    pass
            return call.headers["traceparent"]

        async with serving(outer, card=None, **recorder.options) as url:
            result = await send(url)
        await until_spans(recorder, 8)
    assert {trace_of(span) for span in recorder.spans} == {"a" * 32}
    ids = {id_of(span) for span in recorder.spans}
    assert {parent_of(span) for span in recorder.spans} - ids == {CALLER}  # one connected tree
    run = recorder.named("invoke_agent outer")
    assert result["task"]["artifacts"][0]["parts"][0]["text"] == f"00-{'a' * 32}-{id_of(run)}-01"
    calls = [span for span in recorder.spans if span.kind is SpanKind.CLIENT]
    assert {parent_of(span) for span in calls} == {id_of(run)}
    assert [call.headers["baggage"] for call in inner.calls] == ["user=ada", "user=ada"]


async def test_a_call_that_fails_is_one_span_with_the_reason() -> None:
    recorder = Recorder()

    async def outer(text: str) -> str:
        async with A2AClient("http://127.0.0.1:1") as client:
            await client.send_message(text)
        return "sent"

    async with serving(outer, card=None, **recorder.options) as url:
        await send(url)
    (span,) = [span for span in recorder.spans if span.kind is SpanKind.CLIENT]
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["server.port"] == 1


async def test_a_further_turn_is_linked_to_the_run_before() -> None:
    recorder = Recorder()
    agent = ScriptedAgent({"the secret of Ada": (ASKS,), "more": (COMPLETED,)})
    async with serving(agent, **recorder.options) as url:
        first = await send(url)
        more = {"messageId": "m-2", "taskId": first["task"]["id"], "parts": [{"text": "more"}]}
        await send(url, message=more, headers={"traceparent": f"00-{'c' * 32}-{CALLER}-01"})
    before, after = [span for span in recorder.spans if span.name == "invoke_agent scripted"]
    assert (trace_of(before), trace_of(after)) == ("a" * 32, "c" * 32)
    assert [format(link.context.span_id, "016x") for link in after.links] == [id_of(before)]


async def test_concurrent_requests_keep_their_traces_apart() -> None:
    recorder = Recorder()
    async with serving(ScriptedAgent(), **recorder.options) as url:
        traces = [f"{number:032x}" for number in range(1, 9)]
        await asyncio.gather(*(send(url, headers={"traceparent": f"00-{trace}-{CALLER}-01"}) for trace in traces))
    requests = {trace_of(span): id_of(span) for span in recorder.spans if span.kind is SpanKind.SERVER}
    runs = {trace_of(span): parent_of(span) for span in recorder.spans if span.kind is SpanKind.INTERNAL}
    assert requests == runs
    assert set(requests) == set(traces)


# ---- sampling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sampled", "headers"), [(True, UNSAMPLED), (False, {})])
async def test_a_trace_that_is_not_sampled_continues_without_spans(sampled: bool, headers: dict[str, str]) -> None:
    recorder = Recorder(sampled=sampled)
    agent = ScriptedAgent()
    async with serving(agent, **recorder.options) as url:
        await send(url, headers=headers)
    assert recorder.names() == []
    (call,) = agent.calls
    assert int(call.headers["traceparent"][-2:], 16) % 2 == 0  # the bit "sampled"
    if headers:
        assert call.headers["traceparent"][3:35] == "a" * 32


# ---- webhooks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [SAMPLED, {}])
async def test_a_webhook_is_posted_in_spans_of_the_same_trace_without_its_path(headers: dict[str, str]) -> None:
    recorder = Recorder()
    async with (
        WebhookReceiver() as receiver,
        serving(ScriptedAgent(), **recorder.options, **open_to()) as url,
    ):
        configuration = {"taskPushNotificationConfig": {"url": receiver.url}}
        await send(url, configuration=configuration, headers=headers)
        got = await until(receiver, "COMPLETED")
        await until_spans(recorder, 2 + len(got))
    request = recorder.named("SendMessage")
    deliveries = [span for span in recorder.spans if span.name == names.WEBHOOK_SPAN]
    assert {trace_of(span) for span in deliveries} == {trace_of(request)}
    assert {parent_of(span) for span in deliveries} == {CALLER if headers else id_of(request)}
    received = {delivery.headers["traceparent"][36:52] for delivery in got if "traceparent" in delivery.headers}
    assert received == {id_of(span) for span in deliveries}
    assert all(set(attributes(span)) >= {"server.address", "a2a.task.id"} for span in deliveries)
    assert receiver.url not in json.dumps([span.to_json() for span in deliveries])


# ---- without a provider ---------------------------------------------------------------------------------------------


async def test_without_a_provider_there_are_no_spans_and_headers_are_unchanged() -> None:
    agent = ScriptedAgent()
    async with serving(agent) as url:
        await send(url)
    (call,) = agent.calls
    assert call.headers == SAMPLED


def test_a_program_that_does_not_use_opentelemetry_does_not_load_it() -> None:
    code = """
import asyncio, sys
from apcore_a2a import create_app
from apcore_a2a.testing import app_client
async def main():
    async with app_client(create_app(str.upper)) as client:
        await client.send_message("hello")
asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_provider_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'apcore-a2a\[telemetry\]'"):
        build_app(ScriptedAgent(), **Recorder().options)
    build_app(ScriptedAgent())


# ---- logs -----------------------------------------------------------------------------------------------------------


def record() -> logging.LogRecord:
    return logging.makeLogRecord({"msg": "task ended", "levelname": "INFO", "task_id": "t-1"})


def test_a_log_line_within_a_trace_has_its_ids() -> None:
    continue_trace(SAMPLED)
    try:
        entry = json.loads(JSONFormatter().format(record()))
        line = TextFormatter(color=False).format(record())
    finally:
        continue_trace({})
    assert (entry["trace_id"], entry["span_id"]) == ("a" * 32, CALLER)
    assert line.endswith(f"task_id=t-1 trace_id={'a' * 32} span_id={CALLER}")
    assert "trace_id" not in json.loads(JSONFormatter().format(record()))


async def test_the_line_of_a_task_has_the_ids_of_its_run(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JSONFormatter().format(record)))

    recorder = Recorder()
    keep = Keep()
    logger = logging.getLogger("apcore_a2a.engine.runs")
    logger.addHandler(keep)
    caplog.set_level(logging.INFO, "apcore_a2a")
    try:
        async with serving(ScriptedAgent(), **recorder.options) as url:
            await send(url)
    finally:
        logger.removeHandler(keep)
    (line,) = [line for line in lines if line["message"] == "task ended"]
    run = recorder.named("invoke_agent scripted")
    assert (line["trace_id"], line["span_id"]) == (trace_of(run), id_of(run))
