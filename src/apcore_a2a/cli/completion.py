"""`completion` and `help`: information about the command line itself, and the completion of skills.

For completion, the skills of recently called agents are stored in the user's cache directory, because a shell that
completes a word must not wait for the network. Skills are public names. Nothing else is stored.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import msgspec
from click.shell_completion import CompletionItem, get_completion_class

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli import options
from apcore_a2a.cli.main import cli
from apcore_a2a.cli.options import NOT_JSON
from apcore_a2a.protocol.card import MAX_LENGTH, AgentCard

PROGRAM: Final = "apcore-a2a"
VARIABLE: Final = "_APCORE_A2A_COMPLETE"  # click derives this name from the program's name
MAX_AGENTS: Final = 20
MAX_SKILLS: Final = 500  # maximum per agent
MAX_BYTES: Final = 2_000_000  # maximum size of a cache file that is read: another program could have written it

Known = dict[str, list[str]]
"""Skills by agent, the most recently called agent last."""


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


# ---- skills ---------------------------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Return the path of the cache, following the conventions of the platform."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "apcore-a2a" / "skills.json"


def remember_skills(agent: str, card: AgentCard) -> None:
    """Store the skills of an agent for later completions, if possible."""
    if "@" in agent:
        return  # the address may contain a password
    skills = [clean_line(skill.id, MAX_LENGTH) for skill in card.skills[:MAX_SKILLS]]
    known = read_known()
    if known.get(agent) == skills and list(known)[-1] == agent:
        return  # unchanged: no need to write
    known.pop(agent, None)
    known[agent] = skills
    for oldest in list(known)[:-MAX_AGENTS]:
        del known[oldest]
    path = cache_file()
    # A home directory that cannot be written must not make the command fail. Then there is no completion.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(msgspec.json.encode(known))
        unfinished.replace(path)  # atomically: two commands may end at the same time


def read_known() -> Known:
    """Return the cached skills, or none if the cache cannot be read."""
    try:
        path = cache_file()
        if path.stat().st_size > MAX_BYTES:
            return {}
        return msgspec.json.decode(path.read_bytes(), type=Known)
    except (OSError, *NOT_JSON):
        return {}


def complete_skill(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the skills of the agent on the command line, or of the most recently called agent."""
    known = read_known()
    words = ctx.params.get("words") or ()
    named = [word for word in (ctx.params.get("agent_card"), *words) if word in known]
    agent = named[0] if named else next(reversed(known), "")
    return [CompletionItem(skill) for skill in known.get(agent, []) if skill.startswith(incomplete)]
