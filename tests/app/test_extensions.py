"""The rules of docs/modules.md for a directory of modules."""

import logging
import sys
from pathlib import Path

import click
import pytest

from apcore_a2a.cli.serve.targets import Reloader, import_file, open_extensions
from tests.sources import ROOT

MODULE = (ROOT / "examples" / "extensions" / "text" / "stats.py").read_text()


def test_a_module_is_a_file_its_id_is_its_path_and_what_begins_with_a_dot_or_a_line_is_none(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for name in ("text/stats.py", "top.py", "_helper.py", ".hidden.py"):
        (tmp_path / name).write_text(MODULE)
    (tmp_path / "notes.txt").write_text("no module")

    assert sorted(open_extensions(tmp_path).registry.list()) == ["text.stats", "top"]


def test_a_file_that_cannot_be_imported_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.py").write_text(MODULE)
    (tmp_path / "bad.py").write_text("x = 1\ny = undefined\n")
    caplog.set_level(logging.WARNING, "apcore_a2a")

    assert open_extensions(tmp_path).registry.list() == ["good"]
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("apcore_a2a")]
    assert said == "module left out: bad.py:2: NameError: name 'undefined' is not defined, in: y = undefined"


async def test_that_files_cannot_be_watched_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "good.py").write_text(MODULE)
    extensions = open_extensions(tmp_path)
    extensions.directory = tmp_path / "gone"
    reloader = Reloader(extensions)

    reloader.start()
    await reloader.stop()

    assert "files are not watched; changes need a restart" in caplog.text


def test_a_file_that_fails_to_import_leaves_no_module(tmp_path: Path) -> None:
    (tmp_path / "half_a_file.py").write_text("x = 1\ny = undefined\n")

    with pytest.raises(NameError):
        import_file(tmp_path / "half_a_file.py")
    assert "half_a_file" not in sys.modules


def test_a_directory_without_any_is_told_what_a_module_is(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match=r"No modules discovered in .*: a module is a file with one class"):
        open_extensions(tmp_path)
