"""`apcore-a2a keys`: API keys for the callers of an agent."""

import os
from pathlib import Path
from typing import Final

import click

from apcore_a2a.auth.api_keys import APIKey, check_key, format_line, hash_key, new_key
from apcore_a2a.cli.options import example

PRIVATE: Final = 0o600


@click.group("keys")
def group() -> None:
    """Create API keys for the callers of your agent."""


@group.command("new", epilog=example("apcore-a2a keys new ada --file keys.txt --role ops"))
@click.argument("id", metavar="ID")
@click.option("--file", "path", metavar="FILE", help="Append the key's hash to this file, for serve --auth-key-file.")
@click.option("--role", "roles", multiple=True, help="Role of the caller. May be repeated.")
@click.option("--scope", "scopes", multiple=True, help="Scope of the key. May be repeated.")
def new(id: str, path: str | None, roles: tuple[str, ...], scopes: tuple[str, ...]) -> int:
    """Create an API key for the caller ID. It is printed once, and only its hash is stored.

    To replace a key, create a second one for the same ID, give it to the caller, and remove the line of the first key
    from the file. A running agent reloads the file by itself.
    """
    key = new_key()
    try:
        line = format_line(check_key(APIKey(id=id, hash=hash_key(key), roles=roles, scopes=scopes)))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if path is None:
        click.echo(f"Add this line to the file of --auth-key-file:\n{line}", err=True)
    else:
        _append(Path(path), line)
        click.echo(f"The key's hash is in {path}. The key is shown only this once:", err=True)
    click.echo(key)  # alone on standard output, for pipes
    return 0


def _append(path: Path, line: str) -> None:
    try:
        # Only its owner may read the file. A single write, so that concurrent calls do not mix their lines.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE), "r+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END) > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # an editor may have left the last line unterminated
                    line = f"\n{line}"
            file.write(line.encode())
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
