"""The protocol's values as text: fields and blocks (a2a-cli specification §11.2), and lines for people.

Invariant: text of an agent is sanitized. In fields and blocks there is one `Label: value` per line. A longer value is
indented below its label and ends with a blank line.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import click
import msgspec
from msgspec import UNSET

from apcore_a2a.clean_text import CONTROL, clean_line, clean_text
from apcore_a2a.cli.schemas import signature
from apcore_a2a.client.bindings import WebhookStatus
from apcore_a2a.protocol.card import AgentCard, AgentSkill
from apcore_a2a.protocol.lifecycle import PROGRESS, repeats_answer
from apcore_a2a.protocol.model import Artifact, Message, Part, PushConfig, Role, Task, TaskState, encode
from apcore_a2a.protocol.questions import Question, is_repeated_in_words, questions_of

INDENT: Final = "  "
LOG_HINT: Final = "Reference {0}: the agent's log has the exception under it (with `apcore-a2a dev` it is shown here)"
MAX_WORDS: Final = 60  # characters of a message in a list


# ---- fields and blocks ----------------------------------------------------------------------------------------------


def field(label: str, value: object) -> str:
    """Format one line. Text of an agent is sanitized, so that it cannot begin a line of its own."""
    return f"{label}: {clean_line(str(value))}"


def block(label: str, text: str) -> str:
    """Format a label, the indented text below it, and a blank line."""
    return f"{label}:\n{indent(text)}\n"


def indent(text: str) -> str:
    """Indent sanitized text, so that none of its lines looks like a field of ours."""
    return INDENT + clean_text(text).rstrip("\n").replace("\n", f"\n{INDENT}")


def escape_json(document: bytes) -> str:
    """Escape JSON so that a terminal displays control characters and does not interpret them.

    Unlike text, JSON must arrive complete, so they are escaped instead of removed. JSON allows a raw U+009B, which a
    terminal interprets as the start of an escape sequence.
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode())


def format_json(document: bytes) -> str:
    """Return escaped JSON on several lines, for people."""
    return escape_json(msgspec.json.format(document, indent=2))


def state_name(state: TaskState) -> str:
    """Return the short name of a state (a2a-cli §9.1): COMPLETED, not TASK_STATE_COMPLETED."""
    return state.removeprefix("TASK_STATE_")


def dim(text: str) -> str:
    """Return the text in a dimmed style, unless the user has turned styles off. `click.echo` removes it for a pipe."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, dim=True)


def seconds_text(seconds: float) -> str:
    """Format a duration for people: 0.4 s, 12 s, 3 min, 2 h, 5 days."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def age(timestamp: str) -> str:
    """Return how long ago a time of the protocol was, such as `3 min ago`. Return an unreadable time as it is."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return clean_line(timestamp)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return f"{seconds_text((datetime.now(UTC) - moment).total_seconds())} ago"


# ---- messages and tasks ---------------------------------------------------------------------------------------------


def parts_lines(parts: Iterable[Part]) -> Iterator[str]:
    """Yield all parts in their order, of every kind (a2a-cli §10.2)."""
    # Consecutive texts are one text: they are the chunks of a stream, split at any point.
    texts: list[str] = []
    for part in parts:
        if is_repeated_in_words(part):
            continue
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
    """Return the text of parts that are only text, or None if there is another part or none at all."""
    texts: list[str] = []
    for part in parts:
        if part.text is UNSET:
            return None
        texts.append(str(part.text))
    if not texts:
        return None
    return "".join(texts)


def file_or_data(part: Part) -> str:
    if part.data is not UNSET:
        return block("Data", format_json(encode(part.data)))
    return file_line(part)


def file_line(part: Part) -> str:
    name = part.filename or "(no name)"
    media_type = part.media_type or "unknown type"
    if part.raw is not UNSET:
        return field("File", f"{name} ({media_type}, {len(part.raw):,} bytes)")
    return field("File", f"{name} ({media_type}) at {part.url}")


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
    """Yield the ids that the next command may need (a2a-cli §8.2)."""
    yield field("Task", task_id)
    yield field("Context", context_id)
    yield field("State", state_name(state))


def task_lines(task: Task, *, verbose: bool = False) -> Iterator[str]:
    """Yield the answer, and the ids after it: the last lines contain all that the next command needs."""
    for artifact in task.artifacts:
        yield from artifact_lines(artifact)
    message = task.status.message
    if message is not None and not repeats_answer(message):
        yield from parts_lines(message.parts)
    for question in questions_of(message):
        if question.kind == "approval":
            yield field("Call", planned_call(question, task))
    if verbose:
        for earlier in task.history:
            yield from message_lines(earlier)
        if task.metadata:
            yield block("Metadata", format_json(encode(task.metadata)))
    yield from task_fields(task.id, task.context_id, task.status.state)
    if task.status.timestamp:
        yield field("Updated", task.status.timestamp)


def planned_call(question: Question, task: Task) -> str:
    """Return the call that waits for approval: the tool, and its arguments or what the user sent for it."""
    tool = clean_line(question.tool)
    if question.arguments is not None:
        return f"{tool} {shorten([Part(data=question.arguments)])}".strip()
    for message in task.history:
        if message.role is Role.USER:
            return f"{tool} {shorten(message.parts)}".strip()
    return tool or "the call that the agent describes"


def first_words(task: Task) -> str:
    """Return what the user said first, or an empty string if the task has no history."""
    for message in task.history:
        if message.role is Role.USER:
            return called(message, MAX_WORDS)
    return ""


def called(message: Message, limit: int = 500) -> str:
    """Return what a message of the user calls on one line: the skill, if it names one, and the text or the inputs."""
    skill = (message.metadata or {}).get("skillId")
    words = shorten(message.parts, limit)
    if not skill:
        return words
    return f"{clean_line(str(skill), limit)} {words}".rstrip()


def shorten(parts: Iterable[Part], limit: int = 500) -> str:
    """Summarize parts on one line, so that a person recognizes them."""
    words: list[str] = []
    for part in parts:
        if is_repeated_in_words(part):
            continue
        if part.text is not UNSET:
            words.append(str(part.text))
        elif part.data is not UNSET:
            words.append(escape_json(encode(part.data)))
        else:
            words.append(f"@{part.filename or part.url or 'file'}")
    text = clean_line(" ".join(words), limit + 1)
    if len(text) > limit:
        return f"{text[: limit - 1]}…"
    return text


def progress_text(message: Message) -> str:
    """Return a progress message on one line. If it reports a fraction, that comes first, as a share: `50 %`."""
    text = shorten(message.parts)
    done = (message.metadata or {}).get(PROGRESS)
    if not isinstance(done, int | float) or isinstance(done, bool):
        return text
    share = f"{done * 100:.0f} %"
    if text.replace(" ", "") == share.replace(" ", ""):  # a message without a text of its own
        return share
    return f"{share} {text}"


def failure_lines(message: Message) -> Iterator[str]:
    """Yield where the cause of a failed task can be found, if its message refers to the log of the agent."""
    metadata = message.metadata or {}
    exception = metadata.get("exception")
    if isinstance(exception, str):  # agents show it during development only
        yield indent(exception)
    elif metadata.get("reference"):
        yield LOG_HINT.format(clean_line(str(metadata["reference"])))


def rest_line(task: Task, when: str) -> str:
    """Return the line below an answer: the state, the time, and the ids for the next command (a2a-cli §8.2)."""
    line = f"{state_name(task.status.state)} {when}".rstrip()
    for label, value in (("task", task.id), ("context", task.context_id)):
        if value:
            line += f" · {label} {clean_line(value)}"
    return line


def task_row(task: Task) -> str:
    """Return a task of a list on one line, with the state and the time in columns."""
    when = age(task.status.timestamp) if task.status.timestamp else ""
    row = f"{clean_line(task.id)}  {state_name(task.status.state):<14}  {when:<11}  "
    words = first_words(task)
    room = max(shutil.get_terminal_size().columns - len(row), 20)
    if len(words) > room:
        words = f"{words[: room - 1]}…"
    return (row + words).rstrip()


def summary_lines(task: Task) -> Iterator[str]:
    """Yield the fields of a task in a list."""
    yield from task_fields(task.id, task.context_id, task.status.state)
    if task.status.timestamp:
        yield field("Updated", task.status.timestamp)
    said = first_words(task)
    if said:
        yield field("Message", said)
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
        # A scheme is an object with one key, which names its kind.
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
    """Yield the signature of a skill, and below it the description of the card."""
    yield clean_line(signature(skill, card))
    if skill.description:
        yield indent(skill.description)
    if skill.tags:
        yield INDENT + field("Tags", ", ".join(skill.tags))
    for example in skill.examples:
        yield INDENT + field("Example", example)


def push_lines(config: PushConfig) -> Iterator[str]:
    """Yield the lines of a webhook, without its secrets."""
    yield field("Config", config.id)
    yield field("Task", config.task_id)
    yield field("URL", config.url)
    if config.authentication is not None:
        yield field("Authentication", config.authentication.scheme)
    yield ""


def webhook_lines(webhook: WebhookStatus) -> Iterator[str]:
    """Yield the delivery status of a webhook."""
    yield field("Config", webhook.id)
    yield field("Task", webhook.task_id)
    yield field("URL", webhook.url)
    yield field("State", webhook.state)
    yield field("Delivered", webhook.delivered)
    yield field("Undelivered", webhook.undelivered)
    if webhook.reason:
        yield field("Reason", webhook.reason)
    yield ""
