"""`apcore-a2a new`: writes a small project that works and is tested, as the start of an agent.

The files are in `templates`. Invariant: `new` never overwrites a file.
"""

import re
import shlex
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import click

from apcore_a2a import __version__
from apcore_a2a.cli.options import example

KINDS: Final = {
    "functions": "typed functions as skills: a stream, a question, an approval",
    "chat": "a conversation that remembers, with a place for your model",
    "modules": "a directory of apcore modules, one file each",
    "orchestrator": "an agent that asks other agents at the same time",
}
SUFFIX: Final = ".template"  # so that no tool takes a template for a program
TARGETS: Final = {"modules": "extensions"}
DEFAULT_TARGET: Final = "agent.py"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")  # the name stands in Python, in shell commands and as an image


_KIND_LINES: Final = "\n".join(f"{kind:13} {what}" for kind, what in KINDS.items())
# click keeps the lines of a paragraph that begins with a backspace as they are.
HELP: Final = f"Write a project of a kind into DIRECTORY: an agent, its test, a Dockerfile.\n\n\b\n{_KIND_LINES}"


@click.command("new", help=HELP, epilog=example("apcore-a2a new functions my-agent"))
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("directory", type=click.Path(path_type=Path))
def command(kind: str, directory: Path) -> int:
    contents = _contents(kind, _NOT_IN_NAMES.sub("-", directory.resolve().name).strip("-") or "agent")
    try:
        if directory.exists() and any(directory.iterdir()):
            raise click.UsageError(f"{directory} exists and is not empty. Choose another directory.")
        for name, content in contents.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(content)
    except OSError as error:
        raise click.UsageError(f"cannot write {directory}: {error.strerror}") from error
    target = TARGETS.get(kind, DEFAULT_TARGET)
    click.echo(f"{directory} has {KINDS[kind]}. Next:", err=True)
    click.echo(f"  cd {shlex.quote(str(directory))}\n  python -m pip install pytest")
    click.echo(f"  python -m pytest\n  apcore-a2a dev {target}")
    return 0


def _contents(kind: str, name: str) -> dict[str, str]:
    """Return the files of a project, by path."""
    templates = files("apcore_a2a.cli.new") / "templates"
    found: dict[str, str] = {}
    for folder in ("common", kind):
        _collect(templates / folder, "", found)
    values = {
        "@NAME@": name,
        "@VERSION@": __version__,
        "@TARGET@": TARGETS.get(kind, DEFAULT_TARGET),
        "@WHAT@": KINDS[kind],
    }
    for path, content in found.items():
        for place, value in values.items():
            content = content.replace(place, value)
        found[path] = content
    return found


def _collect(folder: Traversable, prefix: str, found: dict[str, str]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _collect(entry, f"{prefix}{entry.name}/", found)
        elif entry.name.endswith(SUFFIX):
            found[prefix + entry.name.removesuffix(SUFFIX)] = entry.read_text(encoding="utf-8")
