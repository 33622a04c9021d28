"""The agent for the official conformance kits: the prefix of a messageId selects its behaviour.

    python examples/conformance_agent.py --card 1.0

`docs/conformance.md` lists the commands of both kits and the scores.
"""

import argparse
import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Final

from apcore_a2a import (
    Admission,
    AgentCapabilities,
    AgentCard,
    AgentEvent,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    Artifact,
    ArtifactUpdate,
    Call,
    Caller,
    Message,
    Part,
    Role,
    StatusUpdate,
    TaskState,
    TaskStatus,
    serve,
)
from apcore_a2a.errors import ContentTypeNotSupportedError

Step = AgentEvent | float  # a number is a pause in seconds

MODES: Final = ("text/plain", "application/json", "image/png", "file", "data")  # the 0.3 kit requires the last two
STREAMING_TIMEOUT: Final = float(os.environ.get("TCK_STREAMING_TIMEOUT", "2"))


def says(text: str) -> Message:
    return Message(message_id="", role=Role.AGENT, parts=(Part(text=text),))  # the engine adds an id


def status(state: TaskState, text: str = "") -> StatusUpdate:
    return StatusUpdate(status=TaskStatus(state=state, message=says(text) if text else None))


def makes(part: Part) -> ArtifactUpdate:
    return ArtifactUpdate(artifact=Artifact(artifact_id="output", parts=[part]), last_chunk=True)


WORKING: Final = status(TaskState.WORKING)
COMPLETED: Final = status(TaskState.COMPLETED, "Hello from TCK")
ASKS: Final = status(TaskState.INPUT_REQUIRED, "Go on")

# The first matching prefix is used, so longer prefixes come first.
SCRIPTS: Final[dict[str, tuple[Step, ...]]] = {
    "tck-input-required": (ASKS,),
    "tck-reject-task": (status(TaskState.REJECTED, "rejected"),),
    "tck-message-response": (says("Direct message response"),),
    "tck-artifact-text": (makes(Part(text="Generated text content")), COMPLETED),
    "tck-artifact-file-url": (
        makes(Part(url="https://example.com/output.txt", filename="output.txt", media_type="text/plain")),
        COMPLETED,
    ),
    "tck-artifact-file": (makes(Part(raw=b"output", filename="output.txt", media_type="text/plain")), COMPLETED),
    "tck-artifact-data": (makes(Part(data={"key": "value", "count": 42})), COMPLETED),
    "tck-stream-002": (COMPLETED,),
    "tck-stream": (WORKING, makes(Part(text="Stream hello from TCK")), COMPLETED),
    "tck-": (COMPLETED,),
    "test-resubscribe-message-id": (WORKING, 2 * STREAMING_TIMEOUT + 1, COMPLETED),
    "": (ASKS,),  # the 0.3 kit continues these tasks, or cancels them
}


class ConformanceAgent:
    """Plays the script for a message."""

    may_reply = True

    async def admit(self, call: Call) -> Admission:
        for part in call.message.parts:
            if part.media_type and part.media_type not in MODES:
                raise ContentTypeNotSupportedError(f"{part.media_type[:100]} is not among the input modes of the card")
        return Admission()

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        steps = next(steps for prefix, steps in SCRIPTS.items() if call.message.message_id.startswith(prefix))
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                yield step


class Everyone:
    """Authenticates every caller as the same one: the kit sends no credentials with its requests."""

    def authenticate(self, headers: dict[str, str]) -> Caller:
        return Caller(id="kit", type="user")

    def security_schemes(self) -> list[dict[str, str]]:
        return []


def build_card(url: str, *, streaming: bool = True, required: tuple[str, ...] = ()) -> AgentCard:
    interfaces: list[AgentInterface] = []
    for version in ("1.0", "0.3"):
        for binding in ("JSONRPC", "HTTP+JSON", "GRPC"):
            address = url
            if (binding, version) == ("GRPC", "1.0"):
                address = url.removeprefix("http://")  # 1.0 has a bare target for gRPC
            interfaces.append(AgentInterface(url=address, protocol_binding=binding, protocol_version=version))
    return AgentCard(
        name="Conformance agent",
        description="Behaves as the official conformance kits expect.",
        version="1.0.0",
        supported_interfaces=tuple(interfaces),
        capabilities=AgentCapabilities(
            streaming=streaming,
            extensions=tuple(AgentExtension(uri=uri, required=True) for uri in required),
        ),
        default_input_modes=MODES,
        default_output_modes=MODES,
        skills=(AgentSkill(id="conform", name="Conform", description="Plays the kits' scripts.", tags=("tck",)),),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9999)
    parser.add_argument("--card", default="auto", choices=("1.0", "0.3", "auto"), help="the form of card to serve")
    parser.add_argument("--old-statuses", action="store_true", help="the HTTP and gRPC statuses of A2A 1.0.0")
    parser.add_argument("--no-streaming", action="store_true", help="an agent that does not stream")
    parser.add_argument("--no-push", action="store_true", help="an agent that has no webhooks")
    parser.add_argument("--extended-card", action="store_true", help="an extended card, which every caller gets")
    parser.add_argument("--required-extension", metavar="URI", action="append", default=[])
    options = parser.parse_args()
    url = f"http://{options.host}:{options.port}"
    card = build_card(url, streaming=not options.no_streaming, required=tuple(options.required_extension))
    serve(
        ConformanceAgent(),
        host=options.host,
        port=options.port,
        card=card,
        card_mode=options.card,
        old_statuses=options.old_statuses,
        push_notifications=not options.no_push,
        auth=Everyone() if options.extended_card else None,
        allow_insecure_webhooks=True,  # the kits receive webhooks on this machine
        log_level="warning",
    )


if __name__ == "__main__":
    main()
