"""`chat`: a conversation with an agent.

One line a turn. Between two turns nothing runs: the loop turns only while an agent is asked, so that reading a line is
Python's own `input`, with all that a terminal does for it, and Ctrl-C means one thing at a time.
"""

import asyncio
import shlex
from collections.abc import Coroutine
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

import click

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli import chat_input, failures, options, rendering
from apcore_a2a.cli.chat_input import Command
from apcore_a2a.cli.chat_output import TurnPrinter, shorten
from apcore_a2a.cli.connection import open_preferred_client, report_failures
from apcore_a2a.cli.downloads import save_artifacts
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.cli.skills import complete_skill, is_about_skill, remember_skills, skill_hint
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import SendOptions
from apcore_a2a.errors import A2AError, MethodNotFoundError, UnsupportedOperationError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import Message, Part, Role, Task, TaskState

PROMPT: Final = "> "
CANCEL_TIME: Final = 10.0  # seconds for an agent to say that a task is canceled
MAX_TOLD: Final = 5  # tasks of a conversation that is resumed, and of /tasks
COMMANDS: Final = {
    "help": "this list",
    "skills": "what the agent can do",
    "skill": "NAME  talk to this skill from now on; without a name, to the agent's own choice",
    "tasks": "the tasks of this conversation",
    "cancel": "cancel the task that waits for you",
    "new": "begin a new conversation",
    "exit": "leave; so does Ctrl-D",
}


@click.command("chat", epilog=options.example("apcore-a2a chat http://localhost:8000 --skill text.stats"))
@click.option("--skill", shell_complete=complete_skill, help="The skill to talk to (metadata.skillId).")
@options.env_option("--context-id", "--context", help="The conversation to go on with.")
@options.save_option
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT")
def command(skill: str | None, context_id: str | None, save: str | None, **given: Any) -> int:
    """Talk with an agent, a line at a time.

    @PATH in a line sends a file along, and a line of JSON is sent as data. Lines that begin with / are for this
    program: /help lists them. Ctrl-C cancels the task that runs; once more, and you leave. Lines can also come through
    a pipe.
    """
    common, _ = options.read_common(given)

    def run() -> int:
        with asyncio.Runner() as runner:
            return Conversation(common, runner, skill=skill, context_id=context_id, save_to=save).run()

    return report_failures(common, run)


class Conversation:
    """What is said, by whom it is to be answered, and the task that waits for an answer, if one does."""

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
        self._waiting = ""  # the id of the task that asked for input; the next line is for it
        self._approval: list[Part] | None = None  # what that task would do, if it asks whether it may
        self._was_interrupted = False  # whether the last thing that happened was a Ctrl-C
        self._failed = False  # whether a message could not be sent, or was refused

    def run(self) -> int:
        """Talk until the input ends; the exit code."""
        try:
            self._runner.run(self._open())
            chat_input.keep_history()
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
        click.echo(f"{clean_line(card.name)}: {clean_line(card.description)} (/help, Ctrl-D leaves)", err=True)
        if self._context_id:
            await self._recall()

    def _take_turns(self) -> None:
        """Read lines and have them answered, until there are no more."""
        while True:
            try:
                meant = self._read()
            except EOFError:
                return
            except KeyboardInterrupt:
                if self._was_interrupted:
                    raise
                self._was_interrupted = True
                click.echo("\n(Ctrl-C again leaves, and so does Ctrl-D)", err=True)
                continue
            except click.UsageError as error:
                click.echo(f"Error: {error.format_message()}", err=True)
                continue
            self._was_interrupted = False
            if isinstance(meant, Command):
                if meant.name in ("exit", "quit"):
                    return
                self._runner.run(self._guarded(self._obey(meant)))
            elif meant:
                self._runner.run(self._guarded(self._say(meant)))

    def _read(self) -> Command | list[Part]:
        """What the person says next, or answers to what the agent asks."""
        if self._approval is not None:
            return self._ask_approval(self._approval)
        return chat_input.parse_line(chat_input.read_line(PROMPT))

    def _ask_approval(self, inputs: list[Part]) -> list[Part]:
        approved = chat_input.ask_yes_or_no(f"Approve {shorten(inputs)}?")
        if approved is None:
            raise EOFError
        if approved:
            return [Part(text="approve")]
        return [Part(text="reject")]

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it; what the agent refuses is told, and the conversation goes on."""
        try:
            await work
        except TimeoutError:
            click.echo("The agent does not answer; the task may go on", err=True)
        except A2AError as error:
            self._failed = True
            failure = failures.explain(error, with_credentials=self._common.has_credentials)
            failures.report(failure, json=False)
            if is_about_skill(error):
                hint = skill_hint(error, await self._client.agent_card)
                click.echo(f"Hint: {hint.replace('--skill', '/skill')}", err=True)

    # ---- a turn -----------------------------------------------------------------------------------------------------

    async def _say(self, parts: list[Part]) -> None:
        """Send a message and print what comes back; Ctrl-C cancels the task."""
        printer = TurnPrinter()
        try:
            try:
                await self._follow(parts, printer)
            finally:
                printer.end()
        except asyncio.CancelledError:
            # Once: then the Runner raises KeyboardInterrupt wherever we are, and that leaves.
            asyncio.current_task().uncancel()  # type: ignore[union-attr]  # a coroutine that runs has a task
            self._was_interrupted = True
            await self._cancel(printer.task_id)
            return
        self._context_id = printer.context_id or self._context_id
        self._note_rest(printer, parts)
        if self._save_to is not None and printer.task_id:
            task = await self._client.get_task(printer.task_id, history_length=0)
            for line in save_artifacts(task.artifacts, self._save_to):
                click.echo(line, err=True)

    async def _follow(self, parts: list[Part], printer: TurnPrinter) -> None:
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
        answer = await self._client.send_message(parts, wait=False, **sending)  # its id is needed, to cancel it
        if isinstance(answer, Task) and answer.status.state not in AT_REST:
            printer.task_id = answer.id
            answer = await self._client.wait(answer)
        printer.print(answer)

    def _note_rest(self, printer: TurnPrinter, parts: list[Part]) -> None:
        """Which task the next line is for, and whether that is a yes or a no."""
        was_waiting = bool(self._waiting)
        self._waiting = ""
        if printer.state is not TaskState.INPUT_REQUIRED:
            self._approval = None
            return
        self._waiting = printer.task_id
        if not _asks_approval(printer.asked):
            self._approval = None
        elif not was_waiting or self._approval is None:  # else the answer is no input of the call
            self._approval = parts

    async def _cancel(self, task_id: str) -> None:
        if not task_id:
            click.echo("Stopped: the agent had not answered yet", err=True)
            return
        click.echo("Canceling (Ctrl-C again leaves) …", err=True)
        async with asyncio.timeout(CANCEL_TIME):
            task = await self._client.cancel_task(task_id)
        self._waiting = ""
        self._approval = None
        click.echo(f"The task is {rendering.state_name(task.status.state).lower()}", err=True)

    # ---- commands ---------------------------------------------------------------------------------------------------

    async def _obey(self, meant: Command) -> None:
        match meant.name:
            case "help":
                for name, text in COMMANDS.items():
                    click.echo(f"/{name:8}{text}")
            case "skills":
                for skill in (await self._client.agent_card).skills:
                    click.echo(f"{clean_line(skill.id)}: {clean_line(skill.description)}")
            case "skill":
                self._skill = meant.rest or None
                click.echo(f"Skill: {self._skill or 'as the agent chooses'}", err=True)
            case "tasks":
                await self._list_tasks()
            case "cancel" if self._waiting:
                await self._cancel(self._waiting)
            case "cancel":
                click.echo("No task waits for you; Ctrl-C cancels one that runs", err=True)
            case "new":
                self._context_id = None
                self._waiting = ""
                self._approval = None
                click.echo("A new conversation", err=True)
            case _:
                click.echo(f"No such command: /{clean_line(meant.name)}; /help lists them", err=True)

    async def _list_tasks(self) -> None:
        if not self._context_id:
            click.echo("No task yet", err=True)
            return
        page = await self._client.list_tasks(self._context_id, page_size=MAX_TOLD)
        for task in page.tasks:
            click.echo(f"{clean_line(task.id)} {rendering.state_name(task.status.state)} {task.status.timestamp}")

    async def _recall(self) -> None:
        """Show what was said last in a conversation that is gone on with, and take up the task that waits."""
        try:
            page = await self._client.list_tasks(self._context_id, page_size=MAX_TOLD)
        except (MethodNotFoundError, UnsupportedOperationError):  # in 0.3 an agent need not have it
            click.echo("The agent does not tell what was said before; the conversation goes on", err=True)
            return
        for listed in reversed(page.tasks):
            task = await self._client.get_task(listed.id)
            for said in task.history:
                if said.role is Role.USER:
                    click.echo(f"{PROMPT}{shorten(list(said.parts))}")
            printer = TurnPrinter()
            printer.print(task)
            printer.end()
            if task.status.state not in TERMINAL:
                self._note_rest(printer, _first_said(task))
        if not page.tasks:
            click.echo("Nothing is known of this conversation; it begins here", err=True)


def _asks_approval(message: Message | None) -> bool:
    return message is not None and bool((message.metadata or {}).get("approvalId"))


def _first_said(task: Task) -> list[Part]:
    """The message that began a task."""
    for said in task.history:
        if said.role is Role.USER:
            return list(said.parts)
    return []
