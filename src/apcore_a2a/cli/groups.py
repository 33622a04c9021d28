"""A noun that is a verb as well: `card AGENT` is `card get AGENT`."""

from typing import Any

import click


class DefaultGroup(click.Group):
    """A group with a command for those who name none. What is no command's name is that command's argument."""

    def __init__(self, *args: Any, default: str, **attributes: Any) -> None:  # Any: as click.Group takes them
        super().__init__(*args, **attributes)
        self._default = default
        self.ignore_unknown_options = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        unnamed = args[0] not in self.commands and args[0] not in ctx.help_option_names if args else True
        if unnamed and (args or not ctx.resilient_parsing):  # a shell that completes `task ` wants the commands
            args = [self._default, *args]
        return super().parse_args(ctx, args)
