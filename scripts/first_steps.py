"""Measure the first steps with this package and others: `python -m scripts.first_steps` writes a table of a page.

The page is docs/comparison.md. Each program of benchmarks/first_steps is the same agent, in an environment of its own
with the newest packages.
"""

import asyncio
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from apcore_a2a import A2AClient, A2AError, Task
from scripts.code_lines import count_code_lines
from tests.sources import ROOT

PAGE: Final = ROOT / "docs" / "comparison.md"
BEGIN: Final = "<!-- first steps: begin -->\n"
END: Final = "<!-- first steps: end -->\n"
STARTS: Final = 5
PATIENCE: Final = 60.0


class Subject(NamedTuple):
    """A program, and the packages that it needs."""

    name: str
    program: str
    packages: tuple[str, ...]
    speaks_a2a: bool = True


SUBJECTS: Final = (
    Subject("apcore-a2a", "ours.py", (str(ROOT),)),
    Subject("a2a-sdk", "sdk.py", ("a2a-sdk[http-server]", "uvicorn")),
    Subject("pydantic-ai, fasta2a", "fasta.py", ("pydantic-ai-slim", "fasta2a", "uvicorn")),
    Subject("ADK `to_a2a`", "adk.py", ("google-adk[a2a]", "uvicorn")),
    Subject("FastMCP (not A2A)", "fast_mcp.py", ("fastmcp",), False),
)


class Figures(NamedTuple):
    """What was measured of one subject."""

    lines: int
    packages: int
    megabytes: float
    start: float
    answer: str


def install(subject: Subject, place: Path) -> Path:
    """Create an environment without pip, and return its Python."""
    python = place / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    tool = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    if shutil.which("uv") is not None:
        tool = ["uv", "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*tool, *subject.packages], check=True, stderr=subprocess.DEVNULL)
    return python


def size_of(place: Path) -> tuple[int, float]:
    """Return the number of packages in an environment, and its size in MB without compiled files."""
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink() and path.suffix != ".pyc"]
    packages = [path for path in place.rglob("*.dist-info") if path.is_dir()]
    return len(packages), sum(path.stat().st_size for path in files) / 1e6


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def start(python: Path, subject: Subject, port: int) -> "tuple[subprocess.Popen[bytes], float]":
    """Start the program, and return it with the seconds of processor time until it accepts a connection.

    Other processes of the machine change the time on the clock, and hardly the time on the processor.
    """
    program = ROOT / "benchmarks" / "first_steps" / subject.program
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    began = time.perf_counter()
    process = subprocess.Popen(
        [python, program, str(port)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while time.perf_counter() - began < PATIENCE:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return process, processor_time(process.pid)
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.005)
    process.kill()
    raise SystemExit(f"{subject.name} does not serve")


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def answer_of(port: int) -> str:
    """Return what a client gets for one message: the state of the task in the answer, and its text."""
    try:
        async with A2AClient(f"http://127.0.0.1:{port}", timeout=20) as client:
            answer = await client.send_message("hello")
    except A2AError as error:
        return f"{type(error).__name__}"
    if not isinstance(answer, Task):
        return f"a message: {answer.text}"
    return f"{answer.status.state}: {answer.text or 'no text yet'}"


def measure(subject: Subject) -> Figures:
    with TemporaryDirectory() as place:
        python = install(subject, Path(place) / "environment")
        packages, megabytes = size_of(Path(place))
        seconds = []
        answer = "another protocol"
        for number in range(STARTS + 1):  # the first start compiles, and does not count
            port = free_port()
            process, after = start(python, subject, port)
            if number == STARTS and subject.speaks_a2a:
                answer = asyncio.run(answer_of(port))
            process.kill()
            process.wait()
            if number:
                seconds.append(after)
    source = (ROOT / "benchmarks" / "first_steps" / subject.program).read_text(encoding="utf-8")
    lines = count_code_lines(re.sub(r"^# mypy.*\n", "", source))
    return Figures(lines, packages, megabytes, statistics.median(seconds), answer)


def table(measured: dict[str, Figures]) -> str:
    """Return the table of the page."""
    rows = [
        "| | lines | packages | MB installed | CPU s to the first connection | one `send_message` answers |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, figures in measured.items():
        rows.append(
            f"| {name} | {figures.lines} | {figures.packages} | {figures.megabytes:.0f} | {figures.start:.2f} "
            f"| {figures.answer} |"
        )
    return "\n".join(rows) + "\n"


def replace_table(page: str, text: str) -> str:
    """Return the page with another table between the marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{text}\n{END}{tail}"


if __name__ == "__main__":
    found = {subject.name: measure(subject) for subject in SUBJECTS}
    PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8"), table(found)), encoding="utf-8")
