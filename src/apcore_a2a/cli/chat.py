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

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli import failures, options, questions, rendering, schemas
from apcore_a2a.cli.answers import AnswerPrinter
from apcore_a2a.cli.completion import cache_file, complete_skill, remember_skills
from apcore_a2a.cli.connection import open_preferred_client, report_failures
from apcore_a2a.cli.options import NOT_JSON, CommonOptions
from apcore_a2a.cli.output import save_artifacts
from apcore_a2a.cli.send import file_part
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import SendOptions
from apcore_a2a.errors import A2AError, MethodNotFoundError, UnsupportedOperationError
from apcore_a2a.protocol.card import advise
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import Part, Role, Task, TaskState
from apcore_a2a.protocol.questions import Question, questions_of

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


# ---- chat -----------------------------------------------------------------------------------------------------------
# `chat`: a conversation with an agent.
#
# Each line is one turn. The event loop runs only during a turn. Between turns, Python's own `input` reads the line,
# with the terminal's line editing. So Ctrl-C cancels a task during a turn, and exits between turns.

PROMPT: Final = "> "
CANCEL_TIME: Final = 10.0  # seconds for an agent to confirm a cancellation
HISTORY: Final = 10  # messages of each listed task, for its first words
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
        self._asked: Task | None = None  # that task, if it has asked questions with structure
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
        if self._asked is not None:
            return self._ask_questions(self._asked)
        return parse_line(read_line(PROMPT))

    def _ask_questions(self, task: Task) -> ChatCommand | list[Part]:
        """Ask the questions of a task one after the other. A command in place of an answer is returned instead."""
        asked = questions_of(task.status.message)
        answers: dict[str, Any] = {}
        for question in asked:
            for line in questions.describe_question(question, task):
                click.echo(line, err=True)
            answer = self._ask(question)
            if isinstance(answer, ChatCommand):
                return answer
            answers[question.id] = answer
        return [questions.reply_part(asked, answers)]

    def _ask(self, question: Question) -> Any:  # Any: a command, or an answer of the question's schema
        """Ask until the answer fits.

        Raises:
            EOFError: the input has ended.
        """
        prompt = questions.prompt_for(question)
        while True:
            if not sys.stdin.isatty():
                click.echo(prompt, err=True)
            text = read_line(prompt)
            if text.startswith("/") and not text.startswith("//"):
                return parse_line(text)
            try:
                return questions.read_answer(question, text)
            except ValueError as error:
                click.echo(f"Error: {error}", err=True)

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
            if failures.is_about_skill(error):
                hint = failures.skill_hint(error, await self._client.agent_card)
                click.echo(f"Hint: {hint.replace('--skill', '/skill')}", err=True)

    # ---- a turn -----------------------------------------------------------------------------------------------------

    async def _send(self, parts: list[Part]) -> None:
        """Send a message and print the answer. Ctrl-C cancels the task."""
        try:
            parts = await self._read_inputs(parts)
        except click.UsageError as error:
            click.echo(f"Error: {error.format_message()}", err=True)
            return
        printer = AnswerPrinter(asks=True)
        try:
            try:
                await self._send_and_print(parts, printer)
            finally:
                printer.end()
        except asyncio.CancelledError:
            # Only once: the next Ctrl-C makes the Runner raise KeyboardInterrupt, which ends the chat.
            asyncio.current_task().uncancel()  # type: ignore[union-attr]  # a running coroutine has a task
            self._was_interrupted = True
            await self._cancel(printer.task.id)
            return
        self._context_id = printer.task.context_id or self._context_id
        self._note_rest(printer)
        if self._save_to is not None and printer.task.id:
            task = await self._client.get_task(printer.task.id, history_length=0)
            for line in save_artifacts(task.artifacts, self._save_to):
                click.echo(line, err=True)

    async def _send_and_print(self, parts: list[Part], printer: AnswerPrinter) -> None:
        sending: SendOptions = {
            "skill": self._skill,
            "context_id": self._context_id,
            "task_id": self._waiting or None,
        }
        if (await self._client.agent_card).capabilities.streaming:
            async with aclosing(self._client.stream_message(parts, **sending)) as events:
                async for event in events:
                    printer.print(event)
                    self._context_id = printer.task.context_id or self._context_id
            return
        # The task's id is needed at once, to cancel it.
        answer = await self._client.send_message(parts, wait=False, **sending)
        if isinstance(answer, Task) and answer.status.state not in AT_REST:
            printer.print(answer)
            answer = await self._client.wait(answer)
        printer.print(answer)

    async def _read_inputs(self, parts: list[Part]) -> list[Part]:
        """Return the parts, or data if they are a line of `NAME=VALUE` words for a skill with a schema.

        Raises:
            click.UsageError: a name or a value does not fit the schema.
        """
        if self._waiting or len(parts) != 1 or parts[0].text is UNSET:
            return parts
        try:
            words = shlex.split(str(parts[0].text))
        except ValueError:  # a text with a single quotation mark
            return parts
        card = await self._client.agent_card
        skills = [skill for skill in card.skills if skill.id == self._skill or len(card.skills) == 1]
        if not skills or not schemas.looks_typed(words):
            return parts
        inputs = schemas.read_inputs(words, skills[0], card)
        if inputs is None:
            return parts
        return [Part(data=inputs, media_type="application/json")]

    def _note_rest(self, printer: AnswerPrinter) -> None:
        """Record the task that the next line answers, and whether it asks for approval."""
        status = printer.task.status
        is_again = self._waiting == printer.task.id
        self._waiting = ""
        if status.state is TaskState.INPUT_REQUIRED:
            self._waiting = printer.task.id
        self._asked = None
        if self._waiting and questions_of(status.message):
            self._asked = printer.task
            reason = questions.why_again(printer.task)
            if is_again and reason:
                click.echo(reason, err=True)

    async def _cancel(self, task_id: str) -> None:
        if not task_id:
            click.echo("Stopped before the agent answered", err=True)
            return
        click.echo("Canceling (press Ctrl-C again to exit) …", err=True)
        async with asyncio.timeout(CANCEL_TIME):
            task = await self._client.cancel_task(task_id)
        self._waiting = ""
        self._asked = None
        click.echo(f"The task is {rendering.state_name(task.status.state).lower()}", err=True)

    # ---- commands ---------------------------------------------------------------------------------------------------

    async def _run_command(self, entered: ChatCommand) -> None:
        match entered.name:
            case "help":
                for name, text in COMMANDS.items():
                    click.echo(f"/{name:8}{text}", err=True)
            case "skills":
                await self._list_skills()
            case "skill":
                await self._choose_skill(entered.rest)
            case "tasks":
                await self._list_tasks()
            case "cancel" if self._waiting:
                await self._cancel(self._waiting)
            case "cancel":
                click.echo("No task waits for your input. Ctrl-C cancels a running task", err=True)
            case "new":
                self._context_id = None
                self._waiting = ""
                self._asked = None
                click.echo("New conversation", err=True)
            case _:
                click.echo(f"No such command: /{clean_line(entered.name)}. See /help", err=True)

    async def _list_skills(self) -> None:
        card = await self._client.agent_card
        for skill in card.skills:
            for line in rendering.skill_lines(skill, card):
                click.echo(line, err=True)

    async def _choose_skill(self, name: str) -> None:
        known = [clean_line(skill.id) for skill in (await self._client.agent_card).skills]
        if name and name not in known:  # it may exist all the same: a card may show some skills to some callers
            click.echo(f"The card has no skill {clean_line(name)}: {advise(known, name)}", err=True)
        self._skill = name or None
        click.echo(f"Skill: {self._skill or 'chosen by the agent'}", err=True)

    async def _list_tasks(self) -> None:
        if not self._context_id:
            click.echo("No tasks yet", err=True)
            return
        page = await self._client.list_tasks(self._context_id, page_size=MAX_LISTED, history_length=HISTORY)
        for task in page.tasks:
            click.echo(rendering.task_row(task), err=True)

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
                    click.echo(f"{PROMPT}{rendering.shorten(message.parts)}", err=True)
            printer = AnswerPrinter(is_past=True, asks=True)
            printer.print(task)
            printer.end()
            if task.status.state not in TERMINAL:
                self._note_rest(printer)
        if not page.tasks:
            click.echo("The agent has no tasks of this conversation. It starts here", err=True)
