"""The `apcore-a2a` command. Commands load when they are called, so that `--help` is quick."""

from apcore_a2a.cli.main import main

__all__ = ["main"]
