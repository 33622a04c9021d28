"""docs/operations.md tells of every variable that `apcore-a2a serve` reads."""

import pytest

from apcore_a2a.cli.serve import command
from tests.sources import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
WITH_VARIABLE = {option.name: option for option in command.params if option.envvar}


@pytest.mark.parametrize("name", sorted(map(str, WITH_VARIABLE)))
def test_an_option_and_its_variable_are_in_the_table(name: str) -> None:
    option = WITH_VARIABLE[name]
    rows = [row for row in PAGE.splitlines() if row.startswith("|") and f"`{option.envvar}`" in row]
    assert rows, f"docs/operations.md has no row for {option.envvar}"
    assert any(f"`{flag}`" in rows[0] for flag in option.opts)
