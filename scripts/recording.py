"""Record the commands of the README at a terminal, and draw them as an animated picture: `make recording`.

The agent of the README runs, each command runs at a pseudo-terminal, and what it prints is drawn at its pace. So the
picture shows what a reader sees. tests/test_readme.py compares it with the README.
"""

import asyncio
import os
import pty
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from tests.processes import running
from tests.sources import ROOT
from tests.test_docs import blocks_of

PICTURE: Final = ROOT / "docs" / "images" / "terminal.svg"
WIDTH: Final = 900
LINE: Final = 20
LEFT: Final = 18
TOP: Final = 46
TYPING: Final = 0.9  # seconds before a command
PAUSE: Final = 0.5
BANNER_LINES: Final = 5
COLOURS: Final = {"prompt": "#7ee787", "dim": "#8b949e", "": "#e6edf3"}
ERASED: Final = b"\x1b[1A"
ESCAPES: Final = re.compile(r"\x1b\[([0-9;]*)m|\x1b\[[?0-9;]*[A-Za-z]")


class Row(NamedTuple):
    """One line on the screen, and when it appears."""

    text: str
    kind: str
    at: float


def commands_of(page: str) -> tuple[str, list[str]]:
    """Return the program of the README, and the commands of its first part."""
    start = page.partition("## Start")[2].partition("\n## ")[0]
    (program,) = [block.code for block in blocks_of(start, "python")]
    commands = [line for block in blocks_of(start, "sh") for line in block.code.splitlines()]
    return program, [command for command in commands if not command.startswith("pip")]


def run_at_terminal(words: list[str], environment: dict[str, str]) -> list[tuple[str, float]]:
    """Run a command at a pseudo-terminal, and return its lines with the seconds after its start."""
    master, slave = pty.openpty()
    began = time.monotonic()
    process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    lines: list[tuple[str, float]] = []
    with suppress(OSError):  # the end of the process that has the terminal open
        while read := os.read(master, 65536):
            seen += read
            *complete, seen = seen.split(b"\n")
            for line in complete:
                if ERASED in line:  # a progress display erases its line above
                    lines.pop()
                lines.append((line.decode().rstrip("\r"), time.monotonic() - began))
    os.close(master)
    process.wait(timeout=30)
    return lines


def to_row(line: str, at: float) -> Row:
    """Return a line without its escape sequences. Dim lines stay dim."""
    line = line.rpartition("\r")[2]  # what a progress display has written before is erased
    is_dim = any("2" in codes.split(";") for codes in ESCAPES.findall(line))
    return Row(ESCAPES.sub("", line).rstrip(), "dim" if is_dim else "", at)


async def record() -> list[Row]:
    program, commands = commands_of((ROOT / "README.md").read_text(encoding="utf-8"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "100"}
    rows: list[Row] = []
    now = 0.0
    with TemporaryDirectory() as place:
        agent = Path(place) / "agent.py"
        agent.write_text(program)
        options = ["--default-skill", "tell", "--port", port]
        async with running("-m", "apcore_a2a", "dev", str(agent), *options, APCORE_A2A_GRPC="0") as process:
            await process.says("running on")
            rows.append(Row(f"$ {commands[0]}", "prompt", now))
            now += TYPING
            said = [line for line in process.said.splitlines() if line and not re.match(r"\d\d:\d\d", line)]
            rows += [Row(line.rstrip(), "", now) for line in said[:BANNER_LINES]]
            for command in commands[1:]:
                now += PAUSE
                rows.append(Row(f"$ {command}", "prompt", now))
                now += TYPING
                words = command.replace("localhost:8000", f"127.0.0.1:{port}").replace('"', "\0").split("\0")
                arguments = words[0].split() + words[1:2]
                ran = await asyncio.to_thread(
                    run_at_terminal, [sys.executable, "-m", "apcore_a2a", *arguments[1:]], environment
                )
                rows += [to_row(line, now + after) for line, after in ran]
                now = max(now, rows[-1].at)
    return [row._replace(text=row.text.replace(f":{port}", ":8000")) for row in rows]


def draw(rows: list[Row]) -> str:
    """Return the picture. Without animation (reduced motion) it shows the last moment."""
    height = TOP + LINE * len(rows) + 16
    lines = []
    for number, row in enumerate(rows):
        place = f'x="{LEFT}" y="{TOP + LINE * number + 14}" fill="{COLOURS[row.kind]}" xml:space="preserve"'
        lines.append(f'<text {place} style="animation-delay:{row.at:.2f}s">{escape(row.text)}</text>')
    dots = "".join(
        f'<circle cx="{22 + 20 * number}" cy="20" r="6" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">
<style>text{{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;animation:show .01s both}}
@keyframes show{{from{{opacity:0}}to{{opacity:1}}}}
@media (prefers-reduced-motion:reduce){{text{{animation:none}}}}</style>
<rect width="{WIDTH}" height="{height}" rx="10" fill="#0d1117"/>{dots}
{chr(10).join(lines)}
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(draw(asyncio.run(record())), encoding="utf-8")
