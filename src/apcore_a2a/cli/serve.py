"""`apcore-a2a serve`: a directory of modules, one command, an agent."""

import sys
from pathlib import Path
from typing import Any, Final, cast, get_args

import click

from apcore_a2a.app.serve import NOT_STARTED, ServeOptions, build, run
from apcore_a2a.cli import banner, logs
from apcore_a2a.cli.authentication import auth_options, choose_authenticators
from apcore_a2a.cli.extensions import Reloader, open_extensions
from apcore_a2a.cli.limit_options import limit_options
from apcore_a2a.cli.options import example
from apcore_a2a.settings import LOG_LEVELS, Settings

# A default is written once, in Settings: `serve(...)` and `apcore-a2a serve` do the same unless told otherwise.
DEFAULTS: Final = Settings()
DEFAULT_LOG_LEVEL: Final = "info"  # Settings leaves it open


@click.command("serve", epilog=example("apcore-a2a serve --extensions-dir ./extensions --store sqlite:///tasks.db"))
@click.option(
    "--extensions-dir",
    envvar="EXTENSIONS_DIR",
    default="./extensions",
    show_default=True,
    metavar="DIR",
    help="Directory with the apcore modules.",
)
@click.option("--host", envvar="HOST", default=DEFAULTS.host, show_default=True, help="Address to bind.")
@click.option(
    "--port",
    envvar="PORT",
    type=click.IntRange(0, 65535),
    default=DEFAULTS.port,
    show_default=True,
    help="Port to bind; 0 picks a free one.",
)
@click.option("--name", envvar="AGENT_NAME", help="Name on the agent card.")
@click.option("--description", envvar="AGENT_DESCRIPTION", help="Description on the agent card.")
@click.option("--version-str", "--version", "version", envvar="AGENT_VERSION", help="Version on the agent card.")
@click.option("--url", envvar="A2A_URL", help="Address clients reach this agent at, for the card.")
@click.option(
    "--default-skill",
    envvar="A2A_DEFAULT_SKILL",
    default=DEFAULTS.default_skill,
    help="Skill for messages that name none.",
)
@click.option(
    "--store",
    envvar="A2A_STORE",
    metavar="URL",
    help="Where tasks are kept: sqlite:///tasks.db survives a crash. Default: memory.",
)
@click.option(
    "--task-store-ttl",
    envvar="TASK_STORE_TTL",
    type=float,
    help="Seconds a finished task is kept.  [default: 3600 in memory, a week in SQLite]",
)
@click.option(
    "--task-store-max",
    envvar="TASK_STORE_MAX",
    type=int,
    help="Most tasks kept.  [default: 10,000 in memory, a million in SQLite]",
)
@auth_options
@click.option("--cors-origins", envvar="CORS_ORIGINS", help="Origins browsers may call from, separated by commas.")
@click.option(
    "--push-notifications", envvar="PUSH_NOTIFICATIONS", is_flag=True, help="Offer webhooks (not available yet)."
)
@click.option("--explorer", envvar="A2A_EXPLORER", is_flag=True, help="Serve the Explorer page.")
@click.option("--metrics", envvar="A2A_METRICS", is_flag=True, help="Serve GET /metrics.")
@click.option(
    "--state-history",
    envvar="A2A_STATE_HISTORY",
    is_flag=True,
    help="Have tasks say which states they have passed through.",
)
@click.option(
    "--execution-timeout",
    envvar="EXECUTION_TIMEOUT",
    type=float,
    default=DEFAULTS.execution_timeout,
    show_default=True,
    help="Seconds a task may run.",
)
@click.option(
    "--shutdown-timeout",
    envvar="SHUTDOWN_TIMEOUT",
    type=float,
    default=DEFAULTS.shutdown_timeout,
    show_default=True,
    help="Seconds running tasks get to finish at shutdown.",
)
@click.option(
    "--drain-delay",
    envvar="A2A_DRAIN_DELAY",
    type=float,
    default=DEFAULTS.drain_delay,
    show_default=True,
    help="Seconds after a signal in which the port stays open and answers 503, for balancers to notice.",
)
@click.option(
    "--keep-alive-interval",
    envvar="A2A_KEEP_ALIVE_INTERVAL",
    type=float,
    default=DEFAULTS.keep_alive_interval,
    show_default=True,
    help="Seconds after which a stream that has nothing to tell says that it is alive.",
)
@click.option(
    "--max-context-messages",
    envvar="A2A_MAX_CONTEXT_MESSAGES",
    type=int,
    help="Most messages of a conversation that an agent is told.  [default: 100]",
)
@limit_options
@click.option("--reload", is_flag=True, help="Take in modules again when their files change.")
@click.option(
    "--log-level",
    envvar="LOG_LEVEL",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default=DEFAULT_LOG_LEVEL,
    show_default=True,
)
@click.option(
    "--log-format",
    envvar="A2A_LOG_FORMAT",
    type=click.Choice(get_args(logs.LogFormat)),
    default="text",
    show_default=True,
)
def command(**given: Any) -> int:
    """Serve the apcore modules in a directory as one A2A agent.

    Every option can also be set in the environment; an option given here wins.
    """
    logs.configure(given["log_level"], given["log_format"], color=sys.stderr.isatty())
    return _serve(given)


def _serve(given: dict[str, Any]) -> int:
    auth = choose_authenticators(given)
    extensions = open_extensions(Path(given["extensions_dir"]))
    options = _app_options(given) | {"auth": auth}
    if given["reload"]:
        reloader = Reloader(extensions)
        options |= {"on_startup": [reloader.start], "on_shutdown": [reloader.stop]}
    try:
        app = build(extensions.registry, cast(ServeOptions, options), host=given["host"], port=given["port"])
    except (ValueError, TypeError) as error:
        raise click.ClickException(str(error)) from error

    def show_banner(address: str) -> None:
        banner.show(app, address, reload=given["reload"])

    # No log configuration of uvicorn's: ours is set up, and has its loggers, too.
    why_not = run(app, log_level=given["log_level"], log_config=None, on_started=show_banner)
    if why_not:
        # Not as a record of the log: there, a text is cut where a client could have made it long.
        click.echo(f"Error: {why_not}", err=True)
        return NOT_STARTED
    return 0


def _app_options(given: dict[str, Any]) -> dict[str, Any]:  # Any: the values of Options
    """The options of the command that are settings of the application."""
    options = {}
    for name in Settings.__struct_fields__:
        # An option has the name of its setting. Where to bind is no option of an application.
        if name in given and name not in ("host", "port"):
            options[name] = given[name]
    for name in ("cors_origins", "trusted_proxies"):
        options[name] = _split(given[name])
    return options


def _split(text: str | None) -> list[str]:
    """What stands between commas; an empty text, as an environment may hold, is nothing."""
    words = (text or "").split(",")
    return [word.strip() for word in words if word.strip()]
