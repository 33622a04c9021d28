"""A newcomer: a clean environment, the wheel, and the README and the tutorial from top to bottom, with every output.

A `python` block that begins with the name of a file is written to it. An `sh` block is run; one that serves goes on
until the next one does. The `text` block behind it is what is seen, where … stands for anything.
"""

import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.sources import ROOT
from tests.test_docs import Block, blocks_of

PATIENCE = 60.0
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
SERVING = ("apcore-a2a dev ", "apcore-a2a serve ", "make run")


def run(*command: str, **environment: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new virtual environment that has the wheel, and nothing of this directory."""
    place = tmp_path_factory.mktemp("newcomer")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(ROOT))
    (wheel,) = place.glob("*.whl")
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    run(*pip, "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    # The dependencies are those of these tests: an index is not at hand. A path in a .pth file brings the packages that
    # lie there, and not this package, which is only linked.
    ours = sysconfig.get_paths()["purelib"]
    theirs = sysconfig.get_path("purelib", vars={"base": str(place / "venv"), "platbase": str(place / "venv")})
    (Path(theirs) / "dependencies.pth").write_text(f"{ours}\n")
    where = [str(python), "-c", "import apcore_a2a; print(apcore_a2a.__file__)"]
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(where, check=True, capture_output=True, text=True, timeout=PATIENCE, env=without, cwd=place)
    assert found.stdout.startswith(theirs)
    return python.parent


@pytest.fixture(scope="module")
def port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def is_like(expected: str, seen: str) -> bool:
    """Whether a line is as it is shown, where … stands for anything."""
    first, *others = expected.rstrip().split("…")
    seen = seen.rstrip()
    if not others:
        return seen == first
    if not seen.startswith(first):
        return False
    place = len(first)
    for piece in others[:-1]:
        found = seen.find(piece, place)
        if found < 0:
            return False
        place = found + len(piece)
    return seen.endswith(others[-1]) and len(seen) - len(others[-1]) >= place


def matches(expected: str, seen: str, *, whole: bool) -> bool:
    """Whether an output is as it is shown; a line that is … alone stands for any lines.

    Without `whole` other lines may stand before and behind.
    """
    lines = seen.strip("\n").splitlines()
    wanted = expected.strip("\n").splitlines()
    if not whole:
        wanted = ["…", *wanted, "…"]
    place = 0
    may_skip = False
    for block in split_at_gaps(wanted):
        if block is None:
            may_skip = True
            continue
        starts = range(place, len(lines) - len(block) + 1) if may_skip else [place]
        for start in starts:
            if all(map(is_like, block, lines[start : start + len(block)])) and start + len(block) <= len(lines):
                place = start + len(block)
                break
        else:
            return False
        may_skip = False
    return may_skip or place == len(lines)


def split_at_gaps(lines: list[str]) -> Iterator[list[str] | None]:
    """The lines between gaps, and None for each gap."""
    block: list[str] = []
    for line in lines:
        if line.strip() != "…":
            block.append(line)
            continue
        if block:
            yield block
        block = []
        yield None
    if block:
        yield block


def steps(page: Path) -> list[tuple[Block, str | None]]:
    """The blocks of a page that are something to do, each with what is to be seen."""
    blocks = blocks_of(page.read_text(encoding="utf-8"), "python", "sh", "text")
    following = [*blocks[1:], Block("", "", 0)]
    found = []
    for block, after in zip(blocks, following, strict=True):
        if block.language != "text":
            found.append((block, after.code if after.language == "text" else None))
    return found


class Server:
    """A command that serves, and what it has said so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._said = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._news:
                self._said += line
                self._news.notify()

    def says(self, expected: str) -> None:
        with self._news:
            said = self._news.wait_for(lambda: matches(expected, self._said, whole=False), PATIENCE)
        assert said, self._said

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._reader.join(PATIENCE)
            assert self._process.stderr is not None
            self._process.stderr.close()
        assert code == 0, self._said


def recipe_of_run() -> str:
    """What `make run` runs, with the programs of the newcomer instead of the environment that it creates first."""
    recipe = re.search(r"^run:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    command = recipe[1].replace("\\\n", " ").strip()
    command = re.sub(r"\$\(if \$\(TRACE\),[^,)]*,?([^)]*)\)", r"\1", command)  # TRACE is not set
    python = "PYTHONPATH=src .venvs/run/bin/python -m apcore_a2a "
    assert command.startswith(python)
    return "apcore-a2a " + command.removeprefix(python).replace("$(PORT)", "8000")


class Newcomer:
    """Does what a page says, in a directory of its own."""

    def __init__(self, programs: Path, port: str, place: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self._environment = {**kept, "PATH": f"{programs}{os.pathsep}{kept['PATH']}", "XDG_CACHE_HOME": str(place)}
        self._environment["APCORE_A2A_GRPC"] = "0"  # as without the extra, which the README does not install
        self._programs = programs
        self._port = port
        self._place = place
        self._server: Server | None = None

    def write(self, code: str) -> None:
        name = re.match(r"# (\w+\.py)\n", code)
        if name is not None:
            (self._place / name[1]).write_text(code)

    def serve(self, code: str, expected: str) -> None:
        self.stop()
        place = self._place
        if code.startswith("make run"):
            code = recipe_of_run()
            place = ROOT
        words = [*shlex.split(code), "--port", self._port]
        words[0] = str(self._programs / words[0])
        process = subprocess.Popen(words, cwd=place, env=self._environment, stderr=subprocess.PIPE, text=True)
        self._server = Server(process)
        self._server.says(expected)

    def run(self, code: str, expected: str) -> None:
        """Run a block at a pseudo-terminal, because commands print another form through a pipe."""
        master, slave = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", code],
            cwd=self._place,
            env={**self._environment, "TERM": "dumb"},
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        seen = b""
        with suppress(OSError):  # on Linux, the end of the last process that has the terminal open
            while read := os.read(master, 65536):
                seen += read
        os.close(master)
        process.wait(PATIENCE)
        screen = seen.decode().replace("\r\n", "\n")
        assert matches(expected, screen, whole=True), f"{code}\n{screen}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._server = None


@requirement("FR-CMD-001")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("page", "least"), [(README, 3), (TUTORIAL, 10)], ids=["readme", "tutorial"])
def test_a_page_works_from_top_to_bottom(page: Path, least: int, programs: Path, port: str, tmp_path: Path) -> None:
    newcomer = Newcomer(programs, port, tmp_path)
    commands = 0
    try:
        for block, shown in steps(page):
            code = block.code.replace("8000", port)
            expected = (shown or "").replace("8000", port)
            if block.language == "python":
                newcomer.write(code)
            elif code.startswith(SERVING):
                newcomer.serve(code, expected)
            elif not code.startswith("pip install"):  # the wheel is installed
                newcomer.run(code, expected)
                commands += 1
    finally:
        newcomer.stop()
    assert commands >= least


def test_the_readme_is_a_front_page() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 150


def test_an_output_that_differs_is_noticed() -> None:
    assert matches("a …\nb", "a whatever\nb", whole=True)
    assert matches("…\nb\n…", "a\nx\nb\nc", whole=True)
    assert matches("b…d", "a\nb c d\ne", whole=False)
    assert not matches("b…d…d", "b c d", whole=True)
    assert not matches("a\nb", "a\nc", whole=True)
    assert not matches("a\nb", "a\nb\nc", whole=True)
    assert not matches("State: COMPLETED", "State: FAILED", whole=False)
