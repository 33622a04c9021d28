"""The command `chat`: the input, the output and the session of a conversation in the terminal."""

import asyncio
import atexit
import re
import shlex
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, Final

import click
import msgspec
from msgspec import UNSET, Struct

from apcore_a2a.clean_text import clean_line, clean_text
from apcore_a2a.cli import failures, options, output
from apcore_a2a.cli.connection import open_preferred_client, report_failures
from apcore_a2a.cli.options import NOT_JSON, CommonOptions
from apcore_a2a.cli.output import save_artifacts
from apcore_a2a.cli.send import file_part
from apcore_a2a.cli.skills import cache_file, complete_skill, is_about_skill, remember_skills, skill_hint
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import SendOptions
from apcore_a2a.errors import A2AError, MethodNotFoundError, UnsupportedOperationError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, repeats_answer
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Part,
    Role,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    encode,
)

# ---- chat input -----------------------------------------------------------------------------------------------------
# The input of a conversation: reading lines, with history and editing at a terminal, and parsing them.

MAX_HISTORY: Final = 1000  # maximum number of lines in the history file
# A word that begins with @ names a file. A name with spaces is put in quotes.
_FILE: Final = re.compile(r'(?<!\S)@(?:"([^"]+)"|([^\s@]\S*))')


class ChatCommand(Struct, frozen=True):
    """A line for this program instead of the agent: `/name rest`."""

    name: str
    rest: str = ""


def read_line(prompt: str) -> str:
    """Read one line, with a prompt if standard input is a terminal.

    Raises:
        EOFError: the input has ended.
    """
    if sys.stdin.isatty():
        return input(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def parse_line(line: str) -> ChatCommand | list[Part]:
    """Parse a line into a command or the parts of a message. An empty line has no parts.

    Raises:
        click.UsageError: a file cannot be read.
    """
    line = line.strip()
    if not line:
        return []
    if line.startswith("//"):
        line = line[1:]
    elif line.startswith("/"):
        name, _, rest = line[1:].partition(" ")
        return ChatCommand(name, rest.strip())
    if line.startswith("{"):
        with suppress(*NOT_JSON):  # otherwise it is text that begins like JSON
            return [Part(data=msgspec.json.decode(line), media_type="application/json")]
    files = [file_part(quoted or plain) for quoted, plain in _FILE.findall(line)]
    text = _FILE.sub("", line).strip()
    # @@home is the text "@home".
    text = re.sub(r"(?<!\S)@@", "@", text)
    if text:
        return [Part(text=text), *files]
    return files


def keep_history() -> None:
    """Load the history of earlier conversations into the line editor, and save it at exit."""
    if not sys.stdin.isatty():
        return
    try:
        import readline
    except ImportError:  # readline is not available on every system; then there is no history
        return
    path = cache_file().with_name("chat_history")
    readline.set_history_length(MAX_HISTORY)
    # A home directory that cannot be read or written must not prevent a conversation.
    with suppress(OSError):
        readline.read_history_file(path)

    def save() -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)  # private: the history contains what the user said to agents
            readline.write_history_file(path)

    atexit.register(save)


def ask_yes_or_no(question: str) -> bool | None:
    """Ask a yes-or-no question. Return None if the input has ended."""
    question = f"{question} [y/n] "
    if not sys.stdin.isatty():
        click.echo(question, err=True)
    while True:
        try:
            answer = read_line(question).strip().lower()
        except EOFError:
            return None
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no"):
            return False
        click.echo("Please answer y or n", err=True)


# ---- chat output ----------------------------------------------------------------------------------------------------
# The output of a conversation: text as it grows, other parts when they are complete, and how the task ended.

MAX_PROGRESS: Final = 70  # characters; a line that wraps could not be cleared
CLEAR_LINE: Final = "\r\x1b[K"
ENDINGS: Final = {
    TaskState.FAILED: "The task failed",
    TaskState.REJECTED: "The agent rejected the task",
    TaskState.CANCELED: "The task was canceled",
    TaskState.AUTH_REQUIRED: "The agent waits for authorization. Grant it where the agent says (Ctrl-C cancels)",
}


class TurnPrinter:
    """Prints the agent's answer to one message, and keeps the resulting task."""

    def __init__(self) -> None:
        self.task_id = ""
        self.context_id = ""
        self.state: TaskState | None = None  # of the task, if there is one
        self.asked: Message | None = None  # the agent's message when the task came to rest
        self._printed: dict[str, str] = {}  # printed text by artifact
        self._unprinted: dict[str, Artifact] = {}  # artifacts other than text, in their latest form
        self._line_is_open = False
        self._has_answered = False  # whether anything was printed
        self._progress_is_shown = False

    def print(self, event: Event) -> None:
        match event:
            case Task():
                self._print_task(event)
            case StatusUpdate():
                self._record_ids(event.task_id, event.context_id)
                self._print_status(event)
            case ArtifactUpdate():
                self._print_artifact(event)
            case Message():
                self._record_ids("", event.context_id)
                self._print_parts(list(event.parts))

    def end(self) -> None:
        """Print the parts that were held back until now, and end the line."""
        for artifact in self._unprinted.values():
            self._print_parts(artifact.parts)
        self._unprinted.clear()
        self._end_line()

    def _record_ids(self, task_id: str, context_id: str) -> None:
        self.task_id = task_id or self.task_id
        self.context_id = context_id or self.context_id

    def _print_task(self, task: Task) -> None:
        self._record_ids(task.id, task.context_id)
        self.state = task.status.state
        for artifact in task.artifacts:
            self._print_artifact(ArtifactUpdate(artifact=artifact))
        self._print_state(task.status)

    def _print_status(self, event: StatusUpdate) -> None:
        self.state = event.status.state
        self._print_state(event.status)

    def _print_state(self, status: TaskStatus) -> None:
        state = status.state
        message = status.message
        if message is not None and self._has_answered and repeats_answer(message):
            message = None
        if state in AT_REST:
            self.end()
            self.asked = message
        if state in ENDINGS:
            self._end_line()
            click.echo(ENDINGS[state], err=True)
        elif state is TaskState.COMPLETED and not self._has_answered and message is None:
            click.echo("Completed without output", err=True)
        if message is None:
            return
        if state in AT_REST:
            self._print_parts(list(message.parts))
            self._end_line()
        else:  # a progress message is not part of the answer
            self._end_line()
            click.echo(f"… {shorten(list(message.parts))}", err=True)

    # ---- parts ------------------------------------------------------------------------------------------------------

    def _print_artifact(self, update: ArtifactUpdate) -> None:
        artifact = update.artifact
        text = output.only_text(artifact.parts)
        append = update.append
        if text is None:
            text = _text_of_object(artifact.parts)
            append = False  # each object has a whole text, not a chunk of one
        if text is None:
            # An update without `append` replaces the earlier data, because a person needs only the last state.
            if not update.append or artifact.artifact_id not in self._unprinted:
                self._unprinted[artifact.artifact_id] = artifact
            else:
                self._unprinted[artifact.artifact_id].parts.extend(artifact.parts)
            self._show_progress(artifact.parts)
            return
        before = self._printed.get(artifact.artifact_id)
        if before is None:
            self._end_line()
            self._print_text(text)
        elif append:
            self._print_text(text)
            text = before + text
        elif text.startswith(before):  # the whole text again, with new text at its end
            self._print_text(text[len(before) :])
        else:
            self._end_line()
            self._print_text(text)
        self._printed[artifact.artifact_id] = text

    def _show_progress(self, parts: list[Part]) -> None:
        """Show text that is held back on a temporary line, if standard error is a terminal."""
        if not sys.stderr.isatty():
            return
        self._end_line()
        click.echo(f"{CLEAR_LINE}… {shorten(parts)[:MAX_PROGRESS]}", nl=False, err=True)
        self._progress_is_shown = True

    def _clear_progress(self) -> None:
        if self._progress_is_shown:
            click.echo(CLEAR_LINE, nl=False, err=True)
            self._progress_is_shown = False

    def _print_text(self, text: str) -> None:
        if not text:
            return
        self._clear_progress()
        self._has_answered = True
        click.echo(clean_text(text), nl=False)
        self._line_is_open = not text.endswith("\n")

    def _print_parts(self, parts: list[Part]) -> None:
        for part in parts:
            self._end_line()
            if part.text is not UNSET:
                self._print_text(str(part.text))
            else:
                self._has_answered = True
                click.echo(output.file_or_data(part).rstrip("\n"))

    def _end_line(self) -> None:
        self._clear_progress()
        if self._line_is_open:
            click.echo()
            self._line_is_open = False


def _text_of_object(parts: list[Part]) -> str | None:
    """Return the text of an object whose only field is a text: modules that only return objects answer like this."""
    if len(parts) != 1 or not isinstance(parts[0].data, dict):
        return None
    values = list(parts[0].data.values())
    if len(values) != 1 or not isinstance(values[0], str):
        return None
    return values[0]


def shorten(parts: list[Part]) -> str:
    """Summarize parts on one line, so that a person recognizes them."""
    words: list[str] = []
    for part in parts:
        if part.text is not UNSET:
            words.append(str(part.text))
        elif part.data is not UNSET:
            words.append(output.escape_json(encode(part.data)))
        else:
            words.append(f"@{part.filename or part.url or 'file'}")
    return clean_line(" ".join(words), 500)


# ---- chat -----------------------------------------------------------------------------------------------------------
# `chat`: a conversation with an agent.
#
# Each line is one turn. The event loop runs only during a turn. Between turns, Python's own `input` reads the line,
# with the terminal's line editing. So Ctrl-C cancels a task during a turn, and exits between turns.

PROMPT: Final = "> "
CANCEL_TIME: Final = 10.0  # seconds for an agent to confirm a cancellation
MAX_LISTED: Final = 5  # maximum number of tasks listed by /tasks and when a conversation is resumed
COMMANDS: Final = {
    "help": "this list",
    "skills": "list the agent's skills",
    "skill": "NAME  use this skill from now on. Without a name, the agent chooses",
    "tasks": "list the tasks of this conversation",
    "cancel": "cancel the task that waits for your input",
    "new": "start a new conversation",
    "exit": "exit (or press Ctrl-D)",
}


@click.command("chat", epilog=options.example("apcore-a2a chat http://localhost:8000 --skill text.stats"))
@click.option("--skill", shell_complete=complete_skill, help="Skill to use (metadata.skillId).")
@options.env_option("--context-id", "--context", help="Conversation to resume.")
@options.save_option
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT")
def command(skill: str | None, context_id: str | None, save: str | None, **given: Any) -> int:
    """Chat with an agent, one line per message.

    @PATH in a line attaches a file, and a line of JSON is sent as data. Lines that begin with / are commands: /help
    lists them. Ctrl-C cancels the running task, and a second Ctrl-C exits. Input can also come from a pipe.
    """
    common, _ = options.read_common(given)

    def run() -> int:
        with asyncio.Runner() as runner:
            return ChatSession(common, runner, skill=skill, context_id=context_id, save_to=save).run()

    return report_failures(common, run)


class ChatSession:
    """A conversation: the connection, the chosen skill, and the task that waits for an answer, if there is one."""

    def __init__(
        self,
        common: CommonOptions,
        runner: asyncio.Runner,
        *,
        skill: str | None,
        context_id: str | None,
        save_to: str | None,
    ) -> None:
        self._common = common
        self._runner = runner
        self._skill = skill
        self._context_id = context_id
        self._save_to = save_to
        self._stack = AsyncExitStack()
        self._client: A2AClient  # set by `_open`
        self._waiting = ""  # the id of the task that asked for input: the next line answers it
        self._approval: list[Part] | None = None  # the inputs of a call that asks for approval
        self._was_interrupted = False  # whether the previous event was a Ctrl-C
        self._failed = False  # whether a message could not be sent or was rejected

    def run(self) -> int:
        """Run turns until the input ends. Return the exit code."""
        try:
            self._runner.run(self._open())
            keep_history()
            self._take_turns()
        except KeyboardInterrupt:
            click.echo(err=True)
        finally:
            self._runner.run(self._stack.aclose())
        if self._context_id:
            agent = shlex.quote(self._common.agent)
            context = shlex.quote(clean_line(self._context_id))
            click.echo(f"Resume: apcore-a2a chat {agent} --context {context}", err=True)
        if self._failed:
            return failures.EXIT_FAILED
        return 0

    async def _open(self) -> None:
        self._client = await self._stack.enter_async_context(open_preferred_client(self._common))
        card = await self._client.agent_card
        remember_skills(self._common.agent, card)
        click.echo(f"{clean_line(card.name)}: {clean_line(card.description)} (/help, Ctrl-D to exit)", err=True)
        if self._context_id:
            await self._show_earlier()

    def _take_turns(self) -> None:
        """Read lines and send them to the agent, until the input ends."""
        while True:
            try:
                entered = self._read()
            except EOFError:
                return
            except KeyboardInterrupt:
                if self._was_interrupted:
                    raise
                self._was_interrupted = True
                click.echo("\n(Press Ctrl-C again or Ctrl-D to exit)", err=True)
                continue
            except click.UsageError as error:
                click.echo(f"Error: {error.format_message()}", err=True)
                continue
            self._was_interrupted = False
            if isinstance(entered, ChatCommand):
                if entered.name in ("exit", "quit"):
                    return
                self._runner.run(self._report_errors(self._run_command(entered)))
            elif entered:
                self._runner.run(self._report_errors(self._send(entered)))

    def _read(self) -> ChatCommand | list[Part]:
        """Return the user's next input, or the user's answer to a question of the agent."""
        if self._approval is not None:
            return self._ask_approval(self._approval)
        return parse_line(read_line(PROMPT))

    def _ask_approval(self, inputs: list[Part]) -> list[Part]:
        approved = ask_yes_or_no(f"Approve {shorten(inputs)}?")
        if approved is None:
            raise EOFError
        if approved:
            return [Part(text="approve")]
        return [Part(text="reject")]

    async def _report_errors(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine. Errors of the agent are reported, and the conversation continues."""
        try:
            await work
        except TimeoutError:
            click.echo("The agent does not answer. The task may still be running", err=True)
        except A2AError as error:
            self._failed = True
            failure = failures.explain(error, with_credentials=self._common.has_credentials)
            failures.report(failure, json=False)
            if is_about_skill(error):
                hint = skill_hint(error, await self._client.agent_card)
                click.echo(f"Hint: {hint.replace('--skill', '/skill')}", err=True)

    # ---- a turn -----------------------------------------------------------------------------------------------------

    async def _send(self, parts: list[Part]) -> None:
        """Send a message and print the answer. Ctrl-C cancels the task."""
        printer = TurnPrinter()
        try:
            try:
                await self._send_and_print(parts, printer)
            finally:
                printer.end()
        except asyncio.CancelledError:
            # Only once: the next Ctrl-C makes the Runner raise KeyboardInterrupt, which ends the chat.
            asyncio.current_task().uncancel()  # type: ignore[union-attr]  # a running coroutine has a task
            self._was_interrupted = True
            await self._cancel(printer.task_id)
            return
        self._context_id = printer.context_id or self._context_id
        self._note_rest(printer, parts)
        if self._save_to is not None and printer.task_id:
            task = await self._client.get_task(printer.task_id, history_length=0)
            for line in save_artifacts(task.artifacts, self._save_to):
                click.echo(line, err=True)

    async def _send_and_print(self, parts: list[Part], printer: TurnPrinter) -> None:
        sending: SendOptions = {
            "skill": self._skill,
            "context_id": self._context_id,
            "task_id": self._waiting or None,
        }
        if (await self._client.agent_card).capabilities.streaming:
            async with aclosing(self._client.stream_message(parts, **sending)) as events:
                async for event in events:
                    printer.print(event)
                    self._context_id = printer.context_id or self._context_id
            return
        # The task's id is needed at once, to cancel it.
        answer = await self._client.send_message(parts, wait=False, **sending)
        if isinstance(answer, Task) and answer.status.state not in AT_REST:
            printer.task_id = answer.id
            answer = await self._client.wait(answer)
        printer.print(answer)

    def _note_rest(self, printer: TurnPrinter, parts: list[Part]) -> None:
        """Record the task that the next line answers, and whether it asks for approval."""
        was_waiting = bool(self._waiting)
        self._waiting = ""
        if printer.state is not TaskState.INPUT_REQUIRED:
            self._approval = None
            return
        self._waiting = printer.task_id
        if not _asks_approval(printer.asked):
            self._approval = None
        elif not was_waiting or self._approval is None:  # otherwise the answer is not an input of the call
            self._approval = parts

    async def _cancel(self, task_id: str) -> None:
        if not task_id:
            click.echo("Stopped before the agent answered", err=True)
            return
        click.echo("Canceling (press Ctrl-C again to exit) …", err=True)
        async with asyncio.timeout(CANCEL_TIME):
            task = await self._client.cancel_task(task_id)
        self._waiting = ""
        self._approval = None
        click.echo(f"The task is {output.state_name(task.status.state).lower()}", err=True)

    # ---- commands ---------------------------------------------------------------------------------------------------

    async def _run_command(self, entered: ChatCommand) -> None:
        match entered.name:
            case "help":
                for name, text in COMMANDS.items():
                    click.echo(f"/{name:8}{text}")
            case "skills":
                for skill in (await self._client.agent_card).skills:
                    click.echo(f"{clean_line(skill.id)}: {clean_line(skill.description)}")
            case "skill":
                self._skill = entered.rest or None
                click.echo(f"Skill: {self._skill or 'chosen by the agent'}", err=True)
            case "tasks":
                await self._list_tasks()
            case "cancel" if self._waiting:
                await self._cancel(self._waiting)
            case "cancel":
                click.echo("No task waits for your input. Ctrl-C cancels a running task", err=True)
            case "new":
                self._context_id = None
                self._waiting = ""
                self._approval = None
                click.echo("New conversation", err=True)
            case _:
                click.echo(f"No such command: /{clean_line(entered.name)}. See /help", err=True)

    async def _list_tasks(self) -> None:
        if not self._context_id:
            click.echo("No tasks yet", err=True)
            return
        page = await self._client.list_tasks(self._context_id, page_size=MAX_LISTED)
        for task in page.tasks:
            click.echo(f"{clean_line(task.id)} {output.state_name(task.status.state)} {task.status.timestamp}")

    async def _show_earlier(self) -> None:
        """Show the latest messages of a resumed conversation, and select the task that waits for an answer."""
        try:
            page = await self._client.list_tasks(self._context_id, page_size=MAX_LISTED)
        except (MethodNotFoundError, UnsupportedOperationError):  # 0.3 agents need not support ListTasks
            click.echo("The agent cannot list earlier messages. The conversation continues", err=True)
            return
        for listed in reversed(page.tasks):
            task = await self._client.get_task(listed.id)
            for message in task.history:
                if message.role is Role.USER:
                    click.echo(f"{PROMPT}{shorten(list(message.parts))}")
            printer = TurnPrinter()
            printer.print(task)
            printer.end()
            if task.status.state not in TERMINAL:
                self._note_rest(printer, _first_message(task))
        if not page.tasks:
            click.echo("The agent has no tasks of this conversation. It starts here", err=True)


def _asks_approval(message: Message | None) -> bool:
    return message is not None and bool((message.metadata or {}).get("approvalId"))


def _first_message(task: Task) -> list[Part]:
    """Return the parts of the first message of a task."""
    for message in task.history:
        if message.role is Role.USER:
            return list(message.parts)
    return []
