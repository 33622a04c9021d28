"""The documentation contains every option of `apcore-a2a serve`, and docs/operations.md every environment variable."""

import click
import pytest

from apcore_a2a.cli.serve.command import command
from tests.sources import ROOT

OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
REQUIRED = set(
    "HOST PORT AGENT_NAME AGENT_DESCRIPTION AGENT_VERSION EXTENSIONS_DIR LOG_LEVEL EXECUTION_TIMEOUT SHUTDOWN_TIMEOUT "
    "JWT_KEY JWT_ISSUER JWT_AUDIENCE PUSH_NOTIFICATIONS TASK_STORE_TTL TASK_STORE_MAX".split()
)
OPTIONS = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]


def test_every_variable_follows_one_scheme_and_the_requirements_names_are_kept() -> None:
    first = {str(option.envvar[0]) for option in OPTIONS if option.envvar}
    assert all(name.startswith("APCORE_A2A_") for name in first)
    kept = {name for option in OPTIONS for name in (option.envvar or ())[1:]}
    assert kept >= REQUIRED


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: str(option.name))
def test_every_serve_option_is_documented_with_its_variable(option: click.Option) -> None:
    page = COMMANDS
    if option.envvar:
        names = [f"`{name}`" for name in option.envvar]
        rows = [row for row in OPERATIONS.splitlines() if row.startswith("|") and all(name in row for name in names)]
        assert rows, f"docs/operations.md has no row for {option.envvar}"
        page = rows[0]
    flags = {"/".join(option.opts + option.secondary_opts), *option.opts}
    assert any(f"`{flag}`" in page for flag in flags)
