"""The processes of a trace: a collector, an agent that asks another one, its replicas, and an agent of a2a-sdk.

    python -m tests.telemetry.participants collector
    python -m tests.telemetry.participants front  OTLP  REPLICA REPLICA
    python -m tests.telemetry.participants worker OTLP  STORE SDK_AGENT
    python -m tests.telemetry.participants sdk    OTLP

Each prints "running on http://…" to standard error. The first run of a worker says so, and waits until it is killed.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, Callable

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a import A2AClient, Call, serve
from apcore_a2a.agent import Admission, AgentEvent
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Part,
    SendConfiguration,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
)


def report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def run_asgi(app: ASGIApp, listener: socket.socket) -> None:
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    report(f"running on http://127.0.0.1:{listener.getsockname()[1]}")
    asyncio.run(server.serve([listener]))


def listen() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener


# ---- the collector --------------------------------------------------------------------------------------------------


def described(span: Span, service: str, scope: str) -> dict[str, object]:
    return {
        "service": service,
        "scope": scope,
        "name": span.name,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "attributes": {each.key: MessageToDict(each.value) for each in span.attributes},
    }


def collector() -> None:
    """Receive spans over OTLP, as protocol buffers. GET /spans returns them as JSON."""
    received: list[dict[str, object]] = []

    async def take(request: Request) -> Response:
        message = ExportTraceServiceRequest()
        message.ParseFromString(await request.body())
        for resource in message.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                received.extend(described(span, names["service.name"], scope.scope.name) for span in scope.spans)
        return Response(b"", media_type="application/x-protobuf")

    async def metrics(request: Request) -> Response:
        await request.body()
        return Response(b"", media_type="application/x-protobuf")

    async def show(request: Request) -> Response:
        return JSONResponse(received)

    routes = [
        Route("/v1/traces", take, methods=["POST"]),
        Route("/v1/metrics", metrics, methods=["POST"]),
        Route("/spans", show),
    ]
    run_asgi(Starlette(routes=routes), listen())


# ---- our agents -----------------------------------------------------------------------------------------------------


def front(otlp: str, first: str, second: str) -> None:
    async def plan(text: str, call: Call) -> str:
        """Begin a task at one replica, and follow it at another one."""
        later = SendConfiguration(return_immediately=True)
        async with A2AClient(first) as client:
            begun = await client.send_message(text, wait=False, configuration=later)
        assert isinstance(begun, Task)
        report("task begun")
        async with A2AClient(second) as client:
            async for _ in client.resubscribe(begun.id):
                pass
        return "done"

    serve(
        plan, name="front", host="127.0.0.1", port=0, otlp=otlp, push_notifications=True, allow_insecure_webhooks=True
    )


class Worker:
    """Asks an agent of a2a-sdk. The first run never gets so far."""

    may_reply = False

    def __init__(self, sdk_agent: str) -> None:
        self._sdk_agent = sdk_agent

    async def admit(self, call: Call) -> Admission:
        return Admission(retry_safe=True)

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        if call.attempt == 1:
            yield StatusUpdate(status=TaskStatus(state=TaskState.WORKING))
            report("first run")
            await asyncio.Event().wait()
        async with A2AClient(self._sdk_agent) as client:
            await client.send_message("help")
        yield ArtifactUpdate(artifact=Artifact(artifact_id="out", parts=[Part(text="helped")]))
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


def worker(otlp: str, store: str, sdk_agent: str) -> None:
    serve(Worker(sdk_agent), name="worker", host="127.0.0.1", port=0, store=store, otlp=otlp)


# ---- the agent of a2a-sdk -------------------------------------------------------------------------------------------


class Helper(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id and context.context_id and context.message
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        await updater.add_artifact([new_text_part("helped")], "answer", last_chunk=True)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


class Extracting:
    """ASGI middleware that makes a server span for each request, as instrumentations of ASGI do. a2a-sdk makes none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        parent = TraceContextTextMapPropagator().extract(headers)
        tracer = trace.get_tracer("instrumentation")
        with tracer.start_as_current_span(f"{scope['method']} {scope['path']}", parent, trace.SpanKind.SERVER):
            await self._app(scope, receive, send)


def sdk(otlp: str) -> None:
    provider = TracerProvider(resource=Resource({"service.name": "sdk"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{otlp}/v1/traces")))
    trace.set_tracer_provider(provider)
    listener = listen()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    card = ParseDict(
        {
            "name": "sdk",
            "description": "helps",
            "version": "1",
            "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
            "capabilities": {"streaming": True},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "help", "name": "Help", "description": "helps", "tags": ["test"]}],
        },
        pb.AgentCard(),
    )
    handler = DefaultRequestHandler(Helper(), InMemoryTaskStore(), card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")]
    run_asgi(Extracting(Starlette(routes=routes)), listener)


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    roles: dict[str, Callable[..., None]] = {"collector": collector, "front": front, "worker": worker, "sdk": sdk}
    roles[role](*rest)
