"""Artifacts on disk. Rule: an agent chooses neither where a file goes nor which file it replaces."""

import mimetypes
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click
from msgspec import UNSET

from apcore_a2a.protocol.model import Artifact, Part, encode

MAX_NAME: Final = 200  # bytes; a number may follow, and most file systems take 255
MAX_NUMBER: Final = 10_000
_UNFIT: Final = re.compile(r"[^\w.\- ()]+")
# Names of devices on Windows, where `NUL.txt` is one as well.
_RESERVED: Final = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def save_artifacts(artifacts: Iterable[Artifact], directory: str) -> list[str]:
    """Write every part with content of its own to a file of its own; a line about each.

    Raises:
        click.ClickException: a file or the directory cannot be written.
    """
    folder = Path(directory)
    lines = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for artifact in artifacts:
            for name, content in _files(artifact):
                path = _write_new(folder, name, content)
                lines.append(f"Saved: {path}")
    except OSError as error:
        raise click.ClickException(f"Artifacts not saved: {error.strerror or error}: {error.filename}") from error
    return lines


def _files(artifact: Artifact) -> Iterator[tuple[str, bytes]]:
    """The name that the agent gives to each file, and what is in it."""
    base = artifact.name or artifact.artifact_id
    # Texts without a name are the chunks of one text that was streamed: they are one file.
    chunks = [part for part in artifact.parts if _is_chunk(part)]
    if chunks:
        text = "".join(str(part.text) for part in chunks)
        media_type = chunks[0].media_type or "text/plain"
        yield base + _suffix(base, media_type, otherwise=".txt"), text.encode()
    for part in artifact.parts:
        # What is only an address is not fetched: the agent would choose whom we call, and from inside our network.
        if part.url is UNSET and not _is_chunk(part):
            yield _file_name(part, base), _content(part)


def _is_chunk(part: Part) -> bool:
    return part.text is not UNSET and not part.filename


def _file_name(part: Part, base: str) -> str:
    if part.filename:
        return part.filename
    if part.data is not UNSET:
        return base + _suffix(base, part.media_type, otherwise=".json")
    return base + _suffix(base, part.media_type, otherwise=".bin")


def _suffix(base: str, media_type: str, *, otherwise: str) -> str:
    if Path(base).suffix:
        return ""
    without_parameters = media_type.partition(";")[0]
    return mimetypes.guess_extension(without_parameters) or otherwise


def _content(part: Part) -> bytes:
    if part.text is not UNSET:
        return str(part.text).encode()
    if part.raw is not UNSET:
        return bytes(part.raw)
    return encode(part.data)


def safe_name(name: str) -> str:
    """A remote name as the name of a file in a directory of ours: no path, nothing hidden, nothing odd."""
    last = name.replace("\\", "/").rpartition("/")[2]
    # Dots and spaces at the end are dropped again after the cut: Windows ignores them, and would see another name.
    safe = _cut(_UNFIT.sub("_", last).strip(" .")).rstrip(" .")
    if not safe or _RESERVED.fullmatch(safe):
        return f"_{safe}"
    return safe


def _cut(name: str) -> str:
    """The name, as long as a file system takes it, with its suffix."""
    path = Path(name)
    room = MAX_NAME - len(path.suffix.encode())
    if room < MAX_NAME // 2:  # that is no suffix
        return name.encode()[:MAX_NAME].decode(errors="ignore")
    return path.stem.encode()[:room].decode(errors="ignore") + path.suffix


def _write_new(folder: Path, name: str, content: bytes) -> Path:
    """Write a file under that name, or a numbered one if a file has it already."""
    wanted = Path(safe_name(name))
    file_name = wanted.name
    for number in range(1, MAX_NUMBER + 1):
        path = folder / file_name
        try:
            # "x" fails if there is a file or a link: between a look whether there is one and the opening, one could
            # be put there.
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            file_name = f"{wanted.stem}-{number}{wanted.suffix}"
            continue
        return path
    raise FileExistsError(0, "no name is left", str(folder / wanted))
