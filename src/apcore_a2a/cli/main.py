"""The command group, its exit codes and its errors.

Exit codes: 0 done, 1 the call is wrong (arguments, files, settings), 2 it failed while running.
"""

import sys
from importlib import import_module
from typing import Any, Final

import click

from apcore_a2a import __version__

COMMANDS: Final = {  # name: (module, one line for --help)
    "serve": ("apcore_a2a.cli.serve", "Serve a directory of apcore modules as an A2A agent."),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _ = COMMANDS[name]
        command: click.Command = import_module(module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="apcore-a2a")
def cli() -> None:
    """Serve and call A2A agents."""


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Example:
        >>> from apcore_a2a.cli import main
        >>> main(["--version"])
        Traceback (most recent call last):
            ...
        SystemExit: 0
    """
    try:
        code: Any = cli.main(args, prog_name="apcore-a2a", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("Aborted", err=True)
        code = 1
    except click.ClickException as error:
        error.show()
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
