"""The command group, its exit codes and its errors.

`serve` exits with 0 done, 1 the call is wrong (arguments, files, settings), 2 it failed while running. The commands
that call agents exit as the a2a-cli specification says: 2 for wrong arguments, 1 and 3 to 5 for failures.
"""

import sys
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from apcore_a2a import __version__

COMMANDS: Final = {  # name: (module:attribute, one line for --help)
    "serve": ("serve:command", "Serve a directory of apcore modules as an A2A agent."),
    "card": ("card:group", "Show an agent's card (card get)."),
    "skills": ("card:skills", "List what an agent can do."),
    "send": ("send:send", "Send a message and wait for the outcome."),
    "stream": ("send:stream", "Send a message and follow what happens (send --stream)."),
    "task": ("task:group", "Get, list, cancel, subscribe to, download a task (task get)."),
    "tasks": ("task:list_tasks", "List tasks (task list)."),
    "cancel": ("task:cancel", "Cancel a task (task cancel)."),
    "subscribe": ("task:subscribe", "Follow a task that is under way (task subscribe)."),
    "push": ("push:group", "Manage a task's webhooks (task push-config)."),
    "validate": ("conformance.command:command", "Check an agent against the specification."),
    "conformance": ("conformance.command:command", "Another name for validate."),
    "completion": ("completion:command", "Print a completion script for bash, zsh or fish."),
    "help": ("completion:help_command", "Show how a command is used."),
}
SERVE: Final = "serve"  # its exit codes are its own: process managers know them


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(import_module(f"apcore_a2a.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names from the table: to complete a word, nothing is imported."""
        names = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


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
    given = sys.argv[1:] if args is None else args
    try:
        code: Any = cli.main(given, prog_name="apcore-a2a", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("Aborted", err=True)
        code = 1
    except click.ClickException as error:
        code = _refuse(error, given)
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(error: click.ClickException, args: list[str]) -> int:
    if args[:1] == [SERVE]:
        error.show()
        return 1
    from apcore_a2a.cli.failures import report_usage

    return report_usage(error, args)
