"""The names of spans and attributes: one table, with the conventions that it follows.

The names of A2A follow the proposal in semantic-conventions-genai (pull request 195, October 2026), those of GenAI its
conventions for agent spans (in development). A name that begins with `apcore` is in neither.

Invariant: no attribute has contents, credentials or names of callers, unless contents are asked for.
"""

from typing import Final

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

# What the command line calls the packages of an export.
PACKAGES: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
