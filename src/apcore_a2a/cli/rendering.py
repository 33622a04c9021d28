"""What the protocol's values look like to a person: fields and blocks (a2a-cli specification §11.2), no colours.

Rule: one `Label: value` a line; what needs more lines stands set in below its label, and a blank line ends it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from apcore_a2a.clean_text import CONTROL, clean_line, clean_text
from apcore_a2a.client.webhooks import WebhookStatus
from apcore_a2a.protocol.card import AgentCard, AgentSkill
from apcore_a2a.protocol.model import Artifact, Message, Part, PushConfig, Task, TaskState, encode

INDENT: Final = "  "


# ---- fields and blocks ----------------------------------------------------------------------------------------------


def field(label: str, value: object) -> str:
    """One line. What an agent wrote is cleaned, so that it cannot begin a line of its own."""
    return f"{label}: {clean_line(str(value))}"


def block(label: str, text: str) -> str:
    """A label, the text set in below it, and a blank line."""
    return f"{label}:\n{indent(text)}\n"


def indent(text: str) -> str:
    """Cleaned text as lines that are set in, so that none of them can be taken for a field of ours."""
    return INDENT + clean_text(text).rstrip("\n").replace("\n", f"\n{INDENT}")


def escape_json(document: bytes) -> str:
    """JSON that a terminal shows and does not obey.

    Unlike text, JSON must arrive whole: what a terminal could obey is escaped (JSON lets U+009B stand as it is, and a
    terminal takes that for the start of an escape sequence), not taken out.
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode())


def format_json(document: bytes) -> str:
    """Escaped JSON, over as many lines as it takes to be read by people."""
    return escape_json(msgspec.json.format(document, indent=2))


def state_name(state: TaskState) -> str:
    """The name of a state as people write it (a2a-cli §9.1): COMPLETED, not TASK_STATE_COMPLETED."""
    return state.removeprefix("TASK_STATE_")


# ---- messages and tasks ---------------------------------------------------------------------------------------------


def parts_lines(parts: Iterable[Part]) -> Iterator[str]:
    """Parts in their order, whatever they are; none is left out (a2a-cli §10.2)."""
    # Texts that follow each other are one text: they are the chunks of a stream, cut anywhere.
    texts: list[str] = []
    for part in parts:
        if part.text is not UNSET:
            texts.append(str(part.text))
            continue
        if texts:
            yield block("Text", "".join(texts))
            texts = []
        yield file_or_data(part)
    if texts:
        yield block("Text", "".join(texts))


def only_text(parts: Sequence[Part]) -> str | None:
    """The text of parts that are nothing but text; None if there is anything else, or nothing at all."""
    texts: list[str] = []
    for part in parts:
        if part.text is UNSET:
            return None
        texts.append(str(part.text))
    if not texts:
        return None
    return "".join(texts)


def file_or_data(part: Part) -> str:
    name = part.filename or "(no name)"
    media_type = part.media_type or "unknown type"
    if part.raw is not UNSET:
        return field("File", f"{name} ({media_type}, {len(part.raw):,} bytes)")
    if part.url is not UNSET:
        return field("File", f"{name} ({media_type}) at {part.url}")
    return block("Data", format_json(encode(part.data)))


def artifact_lines(artifact: Artifact) -> Iterator[str]:
    yield field("Artifact", artifact.name or artifact.artifact_id)
    if artifact.description:
        yield field("Description", artifact.description)
    yield from parts_lines(artifact.parts)


def message_lines(message: Message) -> Iterator[str]:
    yield field("Message", message.message_id)
    if message.context_id:
        yield field("Context", message.context_id)
    yield field("Role", message.role.removeprefix("ROLE_").lower())
    yield from parts_lines(message.parts)


def task_fields(task_id: str, context_id: str, state: TaskState) -> Iterator[str]:
    """What the next command may need (a2a-cli §8.2)."""
    yield field("Task", task_id)
    yield field("Context", context_id)
    yield field("State", state_name(state))


def task_lines(task: Task, *, verbose: bool = False) -> Iterator[str]:
    yield from task_fields(task.id, task.context_id, task.status.state)
    if task.status.timestamp:
        yield field("Updated", task.status.timestamp)
    if task.status.message is not None:
        yield from parts_lines(task.status.message.parts)
    for artifact in task.artifacts:
        yield from artifact_lines(artifact)
    if verbose:
        for message in task.history:
            yield from message_lines(message)
        if task.metadata:
            yield block("Metadata", format_json(encode(task.metadata)))


def summary_lines(task: Task) -> Iterator[str]:
    """A task in a list."""
    yield from task_fields(task.id, task.context_id, task.status.state)
    if task.status.timestamp:
        yield field("Updated", task.status.timestamp)
    yield ""


# ---- cards and webhooks ---------------------------------------------------------------------------------------------


def card_lines(card: AgentCard, *, signatures: str) -> Iterator[str]:
    yield field("Agent", card.name)
    yield field("Description", card.description)
    yield field("Version", card.version)
    if card.provider is not None:
        yield field("Provider", f"{card.provider.organization} {card.provider.url}")
    if card.documentation_url:
        yield field("Documentation", card.documentation_url)
    for interface in card.supported_interfaces:
        line = f"{interface.protocol_binding} {interface.protocol_version} {interface.url}"
        if interface.tenant:
            line += f" tenant {interface.tenant}"
        yield field("Interface", line)
    yield field("Capabilities", ", ".join(_capabilities(card)) or "none")
    for extension in card.capabilities.extensions:
        line = extension.uri
        if extension.required:
            line += " (required)"
        yield field("Extension", line)
    yield field("Input", ", ".join(card.default_input_modes))
    yield field("Output", ", ".join(card.default_output_modes))
    for name, scheme in (card.security_schemes or {}).items():
        # A scheme is an object with one key, which says what kind it is.
        yield field("Security", f"{name} ({', '.join(scheme)})")
    yield field("Signatures", signatures)
    for skill in card.skills:
        yield field("Skill", f"{skill.id}: {skill.description}")


def _capabilities(card: AgentCard) -> Iterator[str]:
    if card.capabilities.streaming:
        yield "streaming"
    if card.capabilities.push_notifications:
        yield "push notifications"
    if card.capabilities.extended_agent_card:
        yield "extended card"


def skill_lines(skill: AgentSkill, card: AgentCard) -> Iterator[str]:
    yield field("Skill", skill.id)
    yield field("Name", skill.name)
    yield field("Description", skill.description)
    if skill.tags:
        yield field("Tags", ", ".join(skill.tags))
    # A skill that names no modes of its own has the agent's (A2A 1.0 §4.4.5).
    yield field("Input", ", ".join(skill.input_modes or card.default_input_modes))
    yield field("Output", ", ".join(skill.output_modes or card.default_output_modes))
    for example in skill.examples:
        yield field("Example", example)
    yield ""


def push_lines(config: PushConfig) -> Iterator[str]:
    """A webhook; its secrets are not repeated."""
    yield field("Config", config.id)
    yield field("Task", config.task_id)
    yield field("URL", config.url)
    if config.authentication is not None:
        yield field("Authentication", config.authentication.scheme)
    yield ""


def webhook_lines(webhook: WebhookStatus) -> Iterator[str]:
    """How far a webhook has got."""
    yield field("Config", webhook.id)
    yield field("Task", webhook.task_id)
    yield field("URL", webhook.url)
    yield field("State", webhook.state)
    yield field("Delivered", webhook.delivered)
    yield field("Undelivered", webhook.undelivered)
    if webhook.reason:
        yield field("Reason", webhook.reason)
    yield ""
