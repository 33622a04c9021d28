"""`apcore-a2a keys`: API keys for the callers of an agent of yours."""

import os
from pathlib import Path
from typing import Final

import click

from apcore_a2a.auth.api_keys import APIKey, check_key, format_line, hash_key, new_key
from apcore_a2a.cli.options import example

PRIVATE: Final = 0o600


@click.group("keys")
def group() -> None:
    """Make API keys for the callers of your agent."""


@group.command("new", epilog=example("apcore-a2a keys new ada --file keys.txt --role ops"))
@click.argument("id", metavar="ID")
@click.option("--file", "path", metavar="FILE", help="Add the key's hash to this file, for serve --auth-key-file.")
@click.option("--role", "roles", multiple=True, help="A role of the caller's. May be repeated.")
@click.option("--scope", "scopes", multiple=True, help="A scope of the key's. May be repeated.")
def new(id: str, path: str | None, roles: tuple[str, ...], scopes: tuple[str, ...]) -> int:
    """Make a key for the caller ID: print it, once, and keep its hash.

    The agent knows only the hash. To replace a key, make a second one for the same ID, give it to the caller, and
    remove the line of the first from the file; a running agent reads the file again by itself.
    """
    key = new_key()
    try:
        line = format_line(check_key(APIKey(id=id, hash=hash_key(key), roles=roles, scopes=scopes)))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if path is None:
        click.echo(f"Put this line into the file of --auth-key-file:\n{line}", err=True)
    else:
        _append(Path(path), line)
        click.echo(f"The key's hash is in {path}. The key is shown this once:", err=True)
    click.echo(key)  # alone on standard output, for a pipe
    return 0


def _append(path: Path, line: str) -> None:
    try:
        # Created for its owner alone; one write, so that two of these do not mix their lines.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE), "r+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END) > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # somebody's editor left the last line open
                    line = f"\n{line}"
            file.write(line.encode())
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error
