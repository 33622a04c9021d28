"""`completion` and `help`: information about the command line itself."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from apcore_a2a.cli import options
from apcore_a2a.cli.main import cli

PROGRAM: Final = "apcore-a2a"
VARIABLE: Final = "_APCORE_A2A_COMPLETE"  # click derives this name from the program's name


@click.command(
    "completion",
    epilog=options.example("apcore-a2a completion bash > ~/.local/share/bash-completion/completions/apcore-a2a"),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a completion script for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None  # click supports all three shells
    click.echo(kind(cli, {}, PROGRAM, VARIABLE).source())


@click.command("help")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
def help_command(names: tuple[str, ...]) -> None:
    """Show the help of a command."""
    # Resilient parsing: otherwise click would print the help of the program and exit, because no command is named here.
    with cli.make_context(PROGRAM, [], resilient_parsing=True) as context:
        command: click.Command = cli
        for name in names:
            found = None
            if isinstance(command, click.Group):
                found = command.get_command(context, name)
            if found is None:
                raise click.UsageError(f"No such command: {' '.join(names)}")
            command = found
            # Nested contexts, so that the usage line contains all names.
            context = click.Context(found, info_name=name, parent=context)
        click.echo(command.get_help(context))
