"""What a person types into a conversation, with history and editing where there is a terminal; and what it means."""

import atexit
import re
import sys
from contextlib import suppress
from typing import Final

import click
import msgspec
from msgspec import Struct

from apcore_a2a.cli.options import NOT_JSON
from apcore_a2a.cli.parts import file_part
from apcore_a2a.cli.skills import cache_file
from apcore_a2a.protocol.model import Part

MAX_HISTORY: Final = 1000  # lines
# A word that begins with @ is a file; one with spaces in its name stands in quotes.
_FILE: Final = re.compile(r'(?<!\S)@(?:"([^"]+)"|([^\s@]\S*))')


class Command(Struct, frozen=True):
    """A line that is for us, not for the agent: `/name rest`."""

    name: str
    rest: str = ""


def read_line(prompt: str) -> str:
    """One line; at a terminal with a prompt, else without.

    Raises:
        EOFError: there are no more.
    """
    if sys.stdin.isatty():
        return input(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def parse_line(line: str) -> Command | list[Part]:
    """What a line means: a command, or the parts of a message; no parts if it is empty.

    Raises:
        click.UsageError: a file cannot be read.
    """
    line = line.strip()
    if not line:
        return []
    if line.startswith("//"):
        line = line[1:]
    elif line.startswith("/"):
        name, _, rest = line[1:].partition(" ")
        return Command(name, rest.strip())
    if line.startswith("{"):
        with suppress(*NOT_JSON):  # then it is a text that begins so
            return [Part(data=msgspec.json.decode(line), media_type="application/json")]
    files = [file_part(quoted or plain) for quoted, plain in _FILE.findall(line)]
    text = _FILE.sub("", line).strip()
    # @@home is a text.
    text = re.sub(r"(?<!\S)@@", "@", text)
    if text:
        return [Part(text=text), *files]
    return files


def keep_history() -> None:
    """Let the arrow keys bring back earlier lines, also those of earlier conversations."""
    if not sys.stdin.isatty():
        return
    try:
        import readline
    except ImportError:  # not on every system; then there is no history
        return
    path = cache_file().with_name("chat_history")
    readline.set_history_length(MAX_HISTORY)
    # A home that cannot be read or written is no reason not to talk.
    with suppress(OSError):
        readline.read_history_file(path)

    def save() -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)  # what one says to an agent is nobody else's business
            readline.write_history_file(path)

    atexit.register(save)


def ask_yes_or_no(question: str) -> bool | None:
    """The answer; None if there is none, because the input has ended."""
    question = f"{question} [y/n] "
    if not sys.stdin.isatty():
        click.echo(question, err=True)
    while True:
        try:
            answer = read_line(question).strip().lower()
        except EOFError:
            return None
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no"):
            return False
        click.echo("Please answer y or n", err=True)
