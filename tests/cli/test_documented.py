"""The documentation contains every option of `apcore-a2a serve`, and docs/operations.md every environment variable."""

import click
import pytest

from apcore_a2a.cli.serve.command import command
from tests.sources import ROOT

OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
OPTIONS = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: str(option.name))
def test_every_serve_option_is_documented_with_its_variable(option: click.Option) -> None:
    page = COMMANDS
    if option.envvar:
        rows = [row for row in OPERATIONS.splitlines() if row.startswith("|") and f"`{option.envvar}`" in row]
        assert rows, f"docs/operations.md has no row for {option.envvar}"
        page = rows[0]
    assert any(f"`{flag}`" in page for flag in option.opts)
