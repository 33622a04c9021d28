"""The names of spans, attributes and packages. One table, with the conventions that it follows.

The names of A2A follow the proposal in semantic-conventions-genai (pull request 195, October 2026), those of GenAI its
conventions for agent spans (in development). A name that begins with `apcore` is in neither.

Invariant: no attribute has contents, credentials or names of callers, unless contents are asked for.
"""

from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

SCOPE: Final = "apcore_a2a"

# Spans. A server span and a client span are named by the method of A2A 1.0, for example SendMessage.
RUN_SPAN: Final = "invoke_agent {agent}"
WEBHOOK_SPAN: Final = "deliver webhook"
FIRST_EVENT: Final = "a2a.first_event"  # an event of a run span: when the agent yielded its first event
LAST_EVENT: Final = "a2a.last_event"

METHOD: Final = "a2a.method.name"
VERSION: Final = "a2a.protocol.version"
BINDING: Final = "a2a.protocol.binding"
TASK_ID: Final = "a2a.task.id"
TASK_STATE: Final = "a2a.task.state"
OPERATION: Final = "gen_ai.operation.name"
INVOKE_AGENT: Final = "invoke_agent"  # the value of OPERATION
CONVERSATION: Final = "gen_ai.conversation.id"  # the contextId
AGENT: Final = "gen_ai.agent.name"
STREAM: Final = "gen_ai.request.stream"
INPUT: Final = "gen_ai.input.messages"  # only if contents are recorded
OUTPUT: Final = "gen_ai.output.messages"
REQUEST_ID: Final = "jsonrpc.request.id"
STATUS_CODE: Final = "rpc.response.status_code"
ERROR: Final = "error.type"
SERVER: Final = "server.address"
PORT: Final = "server.port"
SKILL: Final = "apcore.skill.id"
ATTEMPT: Final = "apcore.task.attempt"
EVENT_ID: Final = "apcore.webhook.event.id"

# ---- packages -------------------------------------------------------------------------------------------------------

CONSOLE: Final = "console"  # instead of the address of a collector: traces are printed
_SDK: Final = ("opentelemetry.sdk", "opentelemetry-sdk")
_EXPORTER: Final = ("opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http")


def check_target(target: str | None) -> None:
    """Check the address of a collector, if there is one, and that what exports to it is installed.

    Raises:
        ValueError: The text says what is wrong, or which packages to install.
    """
    if target is None:
        return
    if target != CONSOLE and urlsplit(target).scheme not in ("http", "https"):
        raise ValueError(f"otlp must be an http or https address, or 'console', not {target!r}")
    needed = [_SDK] if target == CONSOLE else [_SDK, _EXPORTER]
    missing = [package for module, package in needed if not _is_installed(module)]
    if missing:
        raise ValueError(f"otlp needs packages that are not installed: pip install {' '.join(missing)}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package around it is missing
        return False
