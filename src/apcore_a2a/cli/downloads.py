"""Artifacts on disk. Rule: an agent chooses neither where a file goes nor which file it replaces."""

import mimetypes
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click
from msgspec import UNSET

from apcore_a2a.protocol.model import Artifact, Part, encode

MAX_NAME: Final = 100
_UNFIT: Final = re.compile(r"[^\w.\- ()]+")
_RESERVED: Final = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def save_artifacts(artifacts: Iterable[Artifact], directory: str) -> Iterator[str]:
    """Write every part with content of its own to a file of its own; a line about each."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for artifact in artifacts:
            for name, content in _files(artifact):
                yield f"Saved: {_write(folder, name, content)}"
    except OSError as error:
        raise click.ClickException(f"Artifacts not saved: {error.strerror or error}: {error.filename}") from error


def _files(artifact: Artifact) -> Iterator[tuple[str, bytes]]:
    base = artifact.name or artifact.artifact_id
    texts = [part for part in artifact.parts if part.text is not UNSET and not part.filename]
    if texts:  # chunks of one text
        kind = texts[0].media_type or "text/plain"
        yield base + _suffix(base, kind, ".txt"), "".join(str(part.text) for part in texts).encode()
    for part in artifact.parts:
        if part.url is UNSET and part not in texts:
            yield _name(part, base), _content(part)


def _name(part: Part, base: str) -> str:
    if part.filename:
        return part.filename
    return base + _suffix(base, part.media_type, ".json" if part.data is not UNSET else ".bin")


def _suffix(base: str, media_type: str, otherwise: str) -> str:
    return "" if Path(base).suffix else mimetypes.guess_extension(media_type.partition(";")[0]) or otherwise


def _content(part: Part) -> bytes:
    if part.text is not UNSET:
        return str(part.text).encode()
    return bytes(part.raw) if part.raw is not UNSET else encode(part.data)


def safe_name(name: str) -> str:
    """A remote name as the name of a file in a directory of ours: no path, nothing hidden, nothing odd."""
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = _UNFIT.sub("_", last).strip(" .")[:MAX_NAME].rstrip(" .")
    return f"_{plain}" if not plain or _RESERVED.fullmatch(plain) else plain


def _write(folder: Path, name: str, content: bytes) -> Path:
    """Under that name, or a numbered one if a file has it already."""
    wanted = Path(safe_name(name))
    for number in range(10_000):
        path = folder / (f"{wanted.stem}-{number}{wanted.suffix}" if number else wanted.name)
        try:
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(0, "no name is left", str(folder / wanted))
