"""The commands by name, how a word becomes a command, and how the program exits.

`serve`, `dev` and `migrate` exit with 0 done, 1 the call is wrong (arguments, files, settings), 2 it failed while
running. The commands that call agents exit as the a2a-cli specification says (§11.6): 2 for wrong arguments, 1 and 3 to
5 for failures.
"""

import sys
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from apcore_a2a import __version__

# name: (module:attribute, one line for --help). The lines are written twice, here and in the command's docstring: to
# list the commands, none of them must be imported. `serve` alone loads half a second of server.
COMMANDS: Final = {
    "serve": ("serve.command:command", "Serve modules, a function or an executor as an A2A agent."),
    "dev": ("serve.command:development_command", "Serve it while you write it: reload, Explorer, verbose log."),
    "migrate": ("migrate:command", "Make the tables of a store, or bring them up to date."),
    "keys": ("keys:group", "Make API keys for the callers of your agent (keys new)."),
    "card": ("card:group", "Show an agent's card (card get)."),
    "skills": ("card:skills", "List what an agent can do."),
    "send": ("send:send", "Send a message and wait for the outcome."),
    "stream": ("send:stream", "Send a message and follow what happens (send --stream)."),
    "chat": ("chat:command", "Talk with an agent, a line at a time."),
    "task": ("task:group", "Get, list, cancel, subscribe to, download a task (task get)."),
    "tasks": ("task:list_tasks", "List tasks (task list)."),
    "cancel": ("task:cancel", "Cancel a task (task cancel)."),
    "subscribe": ("task:subscribe", "Follow a task that is under way (task subscribe)."),
    "explore": ("explore:command", "Open the Explorer page for an agent, wherever it is."),
    "push": ("push:group", "Manage a task's webhooks (task push-config)."),
    "validate": ("validate.command:command", "Check an agent against the specification."),
    "conformance": ("validate.command:command", "Another name for validate."),
    "completion": ("completion:command", "Print a completion script for bash, zsh or fish."),
    "help": ("completion:help_command", "Show how a command is used."),
}
SERVING: Final = ("serve", "dev", "migrate")  # their exit codes are their own: process managers know them


class LazyGroup(click.Group):
    """The commands of the table; each is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(import_module(f"apcore_a2a.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # for a typo alone

            near = get_close_matches(args[0], COMMANDS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own would import each command for its first line of help.
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names from the table: to complete a word, nothing is imported."""
        found = []
        for name, (_, text) in COMMANDS.items():
            if name.startswith(incomplete):
                found.append(CompletionItem(name, help=text))
        # The options of the program come from click.Command; click.Group would add the commands a second time.
        return found + click.Command.shell_complete(self, ctx, incomplete)


class DefaultGroup(click.Group):
    """A noun that is a verb as well: `card AGENT` is `card get AGENT`.

    A first word that is no command's name is an argument, or an option, of the default command.
    """

    def __init__(self, *args: Any, default: str, **attributes: Any) -> None:  # Any: as click.Group takes them
        super().__init__(*args, **attributes)
        self._default = default
        # `card --json AGENT`: the group does not know the option, the default command does.
        self.ignore_unknown_options = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._wants_default(ctx, args):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def _wants_default(self, ctx: click.Context, args: list[str]) -> bool:
        if not args:
            # `task` alone is `task get`, which says what is missing; but a shell that completes `task ` wants the
            # names of the commands.
            return not ctx.resilient_parsing
        return args[0] not in self.commands and args[0] not in ctx.help_option_names


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-v", "--version", prog_name="apcore-a2a")
def cli() -> None:
    """Serve and call A2A agents.

    The agent to call is the first argument, or --agent-card, or A2ACLI_AGENT_CARD in the environment.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Example:
        >>> from apcore_a2a.cli import main
        >>> main(["--version"])
        Traceback (most recent call last):
            ...
        SystemExit: 0
    """
    if args is None:
        args = sys.argv[1:]
    try:
        # Not in standalone mode: there, click would print its own errors as text and exit, `--json` or not.
        code: Any = cli.main(args, prog_name="apcore-a2a", standalone_mode=False, obj=list(args))
    except click.exceptions.Abort:
        click.echo("Aborted", err=True)
        code = 1
    except click.ClickException as error:
        code = _report_wrong_call(error, args)
    if not isinstance(code, int):
        code = 0  # a command that returns nothing has done its job
    sys.exit(code)


def _report_wrong_call(error: click.ClickException, args: list[str]) -> int:
    if args and args[0] in SERVING:
        error.show()
        return 1
    from apcore_a2a.cli.failures import report_usage  # loads the client's errors; `--help` does without

    return report_usage(error, args)
