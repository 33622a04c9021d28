"""The committed page equals its sources: a rebuild gives the same bytes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sources import ROOT

SOURCES = ROOT / "explorer"
PAGE = ROOT / "src" / "apcore_a2a" / "explorer" / "page.html"
MISSING = "no Node toolchain: install Node and npm, then `make setup`"


@pytest.fixture(scope="module")
def node() -> str:
    path = shutil.which("node")
    if path is None or not (SOURCES / "node_modules" / "esbuild").is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    return path


def test_a_rebuild_gives_the_same_bytes(node: str, tmp_path: Path) -> None:
    again = tmp_path / "page.html"
    subprocess.run([node, "build.mjs", str(again)], cwd=SOURCES, check=True, capture_output=True, timeout=60)
    assert again.read_bytes() == PAGE.read_bytes(), "the page is older than its sources: run `make explorer`"


def test_the_sources_are_well_typed(node: str) -> None:
    compiler = SOURCES / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run(
        [node, str(compiler), "--noEmit"], cwd=SOURCES, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_toolchain_is_pinned_and_names_no_registry() -> None:
    lock = (SOURCES / "package-lock.json").read_text()
    assert '"integrity"' in lock
    assert '"resolved"' not in lock
    manifest = (SOURCES / "package.json").read_text()
    assert '"^' not in manifest and '"~' not in manifest
