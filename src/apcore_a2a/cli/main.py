"""The table of commands, how their names are resolved, and the exit codes of the program.

`serve`, `dev` and `migrate` exit with 0 for success, 1 for wrong arguments, files or settings, and 2 if the server
cannot start or the store cannot be opened. The commands that call agents exit as the a2a-cli specification says
(§11.6): 2 for wrong arguments, 1 and 3 to 5 for failures.
"""

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from apcore_a2a import __version__

# name: (module:attribute, summary for --help). The summaries are repeated from the docstrings of the commands, so that
# listing the commands imports none of them. `serve` alone loads half a second of server code.
COMMANDS: Final = {
    "serve": ("serve.command:command", "Serve modules, a function or an executor as an A2A agent."),
    "dev": ("serve.command:development_command", "Serve during development: reload, Explorer, verbose log."),
    "new": ("new.command:command", "Write a small tested project: an agent, its test, a Dockerfile."),
    "migrate": ("migrate:command", "Create or upgrade the tables of a task store."),
    "keys": ("keys:group", "Create API keys for the callers of your agent (keys new)."),
    "card": ("card:group", "Show an agent's card (card get)."),
    "skills": ("card:skills", "List an agent's skills."),
    "send": ("send:send", "Send a message and wait for the outcome."),
    "stream": ("send:stream", "Send a message and print its events (send --stream)."),
    "chat": ("chat:command", "Chat with an agent, one line per message."),
    "task": ("task:group", "Get, list, cancel, subscribe to, download a task (task get)."),
    "tasks": ("task:list_tasks", "List tasks (task list)."),
    "cancel": ("task:cancel", "Cancel a task (task cancel)."),
    "subscribe": ("task:subscribe", "Subscribe to a running task (task subscribe)."),
    "explore": ("explore:command", "Open the Explorer page for any agent."),
    "push": ("push:group", "Manage a task's webhooks (task push-config)."),
    "mcp": ("mcp:command", "Offer an agent as an MCP server."),
    "validate": ("validate.command:command", "Check an agent against the specification."),
    "conformance": ("validate.command:command", "Another name for validate."),
    "completion": ("completion:command", "Print a completion script for bash, zsh or fish."),
    "help": ("completion:help_command", "Show the help of a command."),
}
SERVING: Final = ("serve", "dev", "migrate")  # commands with their own exit codes, which process managers know


class LazyGroup(click.Group):
    """The commands of the table. Each is imported when it is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Without arguments, click would print the help as an error and exit with 2.
        return super().parse_args(ctx, args or ["--help"])

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
            from difflib import get_close_matches  # only for a mistyped name

            near = get_close_matches(args[0], COMMANDS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own implementation would import each command for its summary.
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from the table, without importing a command."""
        found = []
        for name, (_, text) in COMMANDS.items():
            if name.startswith(incomplete):
                found.append(CompletionItem(name, help=text))
        # click.Command completes the options of the program. click.Group would add the commands a second time.
        return found + click.Command.shell_complete(self, ctx, incomplete)


class DefaultGroup(click.Group):
    """A noun with a default verb: `card AGENT` is short for `card get AGENT`.

    A first word that is not the name of a command is an argument or an option of the default command.
    """

    def __init__(self, *args: Any, default: str, **attributes: Any) -> None:  # Any: as click.Group takes them
        super().__init__(*args, **attributes)
        self._default = default
        # `card --json AGENT`: the option belongs to the default command, the group does not know it.
        self.ignore_unknown_options = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._wants_default(ctx, args):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def _wants_default(self, ctx: click.Context, args: list[str]) -> bool:
        if not args:
            # `task` alone is `task get`, which reports the missing argument. But a shell that completes `task ` needs
            # the names of the commands.
            return not ctx.resilient_parsing
        return args[0] not in self.commands and args[0] not in ctx.help_option_names


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-v", "--version", prog_name="apcore-a2a")
def cli() -> None:
    """Serve and call A2A agents.

    The first argument is the agent to call, unless --agent-card or A2ACLI_AGENT_CARD names it.
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that cannot display a character of an agent's text
            stream.reconfigure(errors="replace")
    try:
        # Not in standalone mode: click would print its own errors as text and exit, even with `--json`.
        code: Any = cli.main(args, prog_name="apcore-a2a", standalone_mode=False, obj=list(args))
    except click.exceptions.Abort:
        click.echo("Aborted", err=True)
        code = 1
    except click.ClickException as error:
        code = _report_wrong_call(error, args)
    if not isinstance(code, int):
        code = 0  # a command that returns None has succeeded
    sys.exit(code)


def _report_wrong_call(error: click.ClickException, args: list[str]) -> int:
    if args and args[0] in SERVING:
        error.show()
        return 1
    from apcore_a2a.cli.failures import report_usage  # loads the client's errors, which `--help` does not need

    return report_usage(error, args)
