"""What a caller attaches to a message. Rule: parts keep the order in which they were given (specification §10.2).

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

from apcore_a2a.cli.options import combine
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
    """A command that remembers in which order its options were given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[ORDER] = [param.name for param in order]
        return super().parse_args(ctx, args)


def read_parts(text: Sequence[str], given: dict[str, Any]) -> list[Part]:
    """The parts of the message: the text argument, then the options in their order.

    Raises:
        click.UsageError: there are none, or one cannot be read.
    """
    parts = [_text(each) for each in text]
    values = {name: list(given[name]) for name in (*_MAKERS, "media_type")}
    for name in click.get_current_context().meta.get(ORDER, ()):
        if name == "media_type":
            if not parts or len(parts) == len(text):
                raise click.UsageError("--media-type belongs behind the part that it is for.")
            parts[-1] = replace(parts[-1], media_type=values[name].pop(0))
        elif name in _MAKERS:
            parts.append(_MAKERS[name](values[name].pop(0)))
    if not parts:
        raise click.UsageError("What is the message? Give a text, or --text, --file or --data.")
    return parts


def _text(value: str) -> Part:
    if value.startswith("@@"):
        return Part(text=value[1:])
    if value != "-" and not value.startswith("@"):
        return Part(text=value)
    try:
        return Part(text=_contents(value).decode())
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{value} is not text in UTF-8; send it with --file.") from error


def _file(value: str) -> Part:
    media = mimetypes.guess_type(value)[0] or UNKNOWN
    if value.startswith(("http://", "https://")):
        return Part(url=value, media_type=media, filename=value.partition("?")[0].rpartition("/")[2])
    path = value.removeprefix("@")
    name = "" if path == "-" else Path(path).name
    return Part(raw=_contents("-" if path == "-" else f"@{path}"), media_type=media, filename=name)


def _data(value: str) -> Part:
    inline = value.lstrip().startswith(("{", "["))
    source = value if inline or value == "-" or value.startswith("@") else f"@{value}"
    content = value.encode() if inline else _contents(source)
    try:
        return Part(data=msgspec.json.decode(content), media_type="application/json")
    except msgspec.DecodeError as error:
        raise click.UsageError(f"--data {'JSON' if inline else value} is not JSON: {error}") from error


_MAKERS: Final[dict[str, Callable[[str], Part]]] = {"text": _text, "file": _file, "data": _data}


def _contents(source: str) -> bytes:
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(source[1:]).expanduser().read_bytes()
    except OSError as error:
        raise click.UsageError(f"{source[1:]} cannot be read: {error.strerror or error}") from error
