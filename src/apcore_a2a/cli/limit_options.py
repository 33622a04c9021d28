"""The options of `serve` that say how much callers may ask for. Rule: an option has the name of its setting."""

from collections.abc import Callable
from typing import Any, Final

import click

from apcore_a2a.cli.options import Function, combine
from apcore_a2a.settings import Settings

DEFAULTS: Final = Settings()


def _limit(name: str, help_text: str, *, kind: type = int) -> Callable[[Function], Function]:
    """An option `--some-limit`, the variable A2A_SOME_LIMIT, and the default of the setting."""
    default: Any = getattr(DEFAULTS, name)
    return click.option(
        "--" + name.replace("_", "-"),
        envvar=f"A2A_{name.upper()}",
        type=kind,
        default=default,
        show_default=default is not None,
        help=help_text,
    )


limit_options: Final = combine(
    _limit(
        "max_requests_per_second",
        "Most requests a second of one caller.  [default: no limit]",
        kind=float,
    ),
    _limit(
        "max_anonymous_requests_per_second",
        "The same for each address of callers without a name.  [default: as others; with authentication a tenth]",
        kind=float,
    ),
    _limit(
        "max_total_requests_per_second",
        "Most requests a second of all callers together.  [default: no limit]",
        kind=float,
    ),
    _limit("request_burst", "Requests that may come at once before that.  [default: those of two seconds]"),
    _limit("max_active_tasks", "Most tasks running at once."),
    _limit("max_active_tasks_per_caller", "Most tasks of one caller running at once."),
    _limit("max_streams", "Most event streams open at once."),
    _limit("max_streams_per_caller", "Most event streams of one caller open at once."),
    _limit("max_connections", "Most connections open at once."),
    _limit("max_body_bytes_in_flight", "Most bytes of request bodies that are not complete."),
    _limit("max_answer_bytes_in_flight", "Most bytes of answers that clients have yet to read."),
    _limit("max_request_bytes", "Most bytes of one request."),
    _limit("max_json_values", "Most JSON values in one request."),
    _limit("max_event_bytes", "Most bytes of one event that a task makes."),
    _limit("max_output_bytes", "Most bytes of all events that one run of a task makes."),
    click.option(
        "--trusted-proxies",
        envvar="A2A_TRUSTED_PROXIES",
        metavar="ADDRESSES",
        help="Proxies whose X-Forwarded-* headers are believed, separated by commas.",
    ),
)
