"""The `apcore-a2a` command line. Each command is imported when it is called, so that `--help` is fast."""

from apcore_a2a.cli.main import main

__all__ = ["main"]
