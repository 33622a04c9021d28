"""What a caller attaches to a message. Rule: parts keep the order in which they were given (a2a-cli §10.2).

Wherever a text or data stands, `-` is standard input, `@FILE` the contents of a file, and `@@…` a text that begins so.
"""

import mimetypes
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec.structs import replace

from apcore_a2a.cli.options import NOT_JSON, combine
from apcore_a2a.protocol.model import Part

ORDER: Final = "apcore_a2a.cli.order"
UNKNOWN: Final = "application/octet-stream"

part_options: Final = combine(
    click.option("--text", multiple=True, metavar="TEXT|-|@FILE", help="A text part."),
    click.option("--file", multiple=True, metavar="PATH|URL", help="A file part: its bytes, or where it is."),
    click.option("--data", multiple=True, metavar="JSON|PATH|-|@FILE", help="A data part."),
    click.option("--media-type", multiple=True, metavar="TYPE", help="Media type of the part before it."),
)


class OrderedCommand(click.Command):
    """A command that remembers in which order its options were given.

    click hands over the values of each option in their order, and forgets how those of different options alternate.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Parsed twice: what click parses with is not handed out, and parsing empties the list it is given.
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[ORDER] = [param.name for param in order]
        return super().parse_args(ctx, args)


def read_parts(text: Sequence[str], given: dict[str, Any]) -> list[Part]:
    """The parts of the message: the text argument, then the options in their order.

    Raises:
        click.UsageError: there are none, or one cannot be read.
    """
    parts = [_text_part(each) for each in text]
    values = {name: list(given[name]) for name in (*_MAKERS, "media_type")}
    for name in click.get_current_context().meta.get(ORDER, ()):
        if name == "media_type":
            # The text argument cannot have one: it may stand anywhere among the options, so "before" means nothing.
            if len(parts) == len(text):
                raise click.UsageError("--media-type belongs behind the part that it is for.")
            parts[-1] = replace(parts[-1], media_type=values[name].pop(0))
        elif name in _MAKERS:
            make_part = _MAKERS[name]
            parts.append(make_part(values[name].pop(0)))
    if not parts:
        raise click.UsageError("What is the message? Give a text, or --text, --file or --data.")
    return parts


def _text_part(value: str) -> Part:
    if value.startswith("@@"):
        return Part(text=value[1:])
    if value == "-":
        content = _read_stdin()
    elif value.startswith("@"):
        content = _read_file(value[1:])
    else:
        return Part(text=value)
    try:
        return Part(text=content.decode())
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{value} is not text in UTF-8; send it with --file.") from error


def file_part(value: str) -> Part:
    media_type = mimetypes.guess_type(value)[0] or UNKNOWN
    if value.startswith(("http://", "https://")):
        name = value.partition("?")[0].rpartition("/")[2]
        return Part(url=value, media_type=media_type, filename=name)
    path = value.removeprefix("@")
    if path == "-":
        return Part(raw=_read_stdin(), media_type=media_type, filename="")
    # Its name alone: where it lies on this machine is none of the agent's business.
    return Part(raw=_read_file(path), media_type=media_type, filename=Path(path).name)


def _data_part(value: str) -> Part:
    source = value
    if value.lstrip().startswith(("{", "[")):
        content = value.encode()
        source = "JSON"
    elif value == "-":
        content = _read_stdin()
    else:
        content = _read_file(value.removeprefix("@"))
    try:
        return Part(data=msgspec.json.decode(content), media_type="application/json")
    except NOT_JSON as error:
        raise click.UsageError(f"--data {source} is not JSON: {error}") from error


_MAKERS: Final[dict[str, Callable[[str], Part]]] = {"text": _text_part, "file": file_part, "data": _data_part}


def _read_stdin() -> bytes:
    return sys.stdin.buffer.read()


def _read_file(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except RuntimeError as error:  # of expanduser: ~somebody who is not there
        raise click.UsageError(f"{path} cannot be read: there is no such user") from error
