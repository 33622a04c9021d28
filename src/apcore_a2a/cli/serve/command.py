"""`serve` and `dev`: their flags and variables, and what becomes of them."""

import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast, get_args

import click
from click.core import ParameterSource
from msgspec.structs import replace

from apcore_a2a.app import banner, logs
from apcore_a2a.app.application import Application
from apcore_a2a.app.serve import NOT_STARTED, ServeOptions, build, read_settings, run_at
from apcore_a2a.auth.authenticator import Authenticator
from apcore_a2a.cli.options import Function, combine, example
from apcore_a2a.cli.serve.authentication import auth_options, choose_authenticators, read_skill_scopes
from apcore_a2a.cli.serve.reload import join_supervisor, run_with_reload
from apcore_a2a.cli.serve.targets import (
    FORMS,
    DirectoryTarget,
    Extensions,
    ObjectTarget,
    Reloader,
    is_asgi,
    load_target,
    open_extensions,
    parse_target,
)
from apcore_a2a.cli.serve.workers import Workers
from apcore_a2a.http.metrics import forget_gauges, make_board
from apcore_a2a.http.server.server import NotStarted, bind
from apcore_a2a.http.server.tls import ClientCertificates
from apcore_a2a.settings import LOG_LEVELS, Settings
from apcore_a2a.storage.contract import as_shared

# ---- serve options --------------------------------------------------------------------------------------------------
# The options of `serve` that are settings of the agent. Rule: an option has the name and the default of its setting.
#
# Whom the agent lets in is in authentication.py; what is an option of the command alone, in serve.py.

# A default is written once, in Settings: `serve(...)` and `apcore-a2a serve` do the same unless told otherwise.
DEFAULTS: Final = Settings()
TLS_SETTINGS: Final = frozenset(
    {"ssl_certfile", "ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs", "ssl_client_certs"}
)


def _setting(
    name: str, help_text: str, *, kind: Any = None, variable: str = "", metavar: str | None = None
) -> Callable[[Function], Function]:
    """The option `--some-setting`, the variable A2A_SOME_SETTING unless it has another name, and the default.

    Args:
        name: That of the setting.
        help_text: With the default, where None stands for something.
        kind: What click makes of the text; None leaves it a text, or makes it a flag if the setting is one.
        variable: For those whose name the requirements have without A2A_.
        metavar: What the value is called in the help.
    """
    default: Any = getattr(DEFAULTS, name)  # Any: settings have all kinds of values
    is_flag = isinstance(default, bool)
    return click.option(
        "--" + name.replace("_", "-"),
        envvar=variable or f"A2A_{name.upper()}",
        type=kind,
        is_flag=is_flag,
        default=default,
        show_default=default not in (None, "") and not is_flag,
        metavar=metavar,
        help=help_text,
    )


agent_options: Final = combine(
    _setting("host", "Address to bind.", variable="HOST"),
    _setting("port", "Port to bind; 0 picks a free one.", kind=click.IntRange(0, 65535), variable="PORT"),
    _setting("name", "Name on the agent card.", variable="AGENT_NAME"),
    _setting("description", "Description on the agent card.", variable="AGENT_DESCRIPTION"),
    click.option("--version-str", "--version", "version", envvar="AGENT_VERSION", help="Version on the agent card."),
    _setting("url", "Address clients reach this agent at, for the card."),
    _setting("default_skill", "Skill for messages that name none."),
    _setting("store", "Where tasks are kept: sqlite:///tasks.db survives a crash. Default: memory.", metavar="URL"),
    _setting(
        "task_store_ttl",
        "Seconds a finished task is kept.  [default: 3600 in memory, a week in SQLite]",
        kind=float,
        variable="TASK_STORE_TTL",
    ),
    _setting(
        "task_store_max",
        "Most tasks kept.  [default: 10,000 in memory, a million in SQLite]",
        kind=int,
        variable="TASK_STORE_MAX",
    ),
)
tls_options: Final = combine(
    _setting(
        "ssl_certfile",
        "Serve https with this certificate (PEM, those between it and its authority after it).",
        metavar="FILE",
    ),
    _setting("ssl_keyfile", "The key of the certificate.  [default: in the same file]", metavar="FILE"),
    _setting(
        "ssl_keyfile_password",
        "Passphrase of the key. Others can see arguments: prefer A2A_SSL_KEYFILE_PASSWORD.",
    ),
    _setting("ssl_ca_certs", "Ask callers for certificates of these authorities (PEM).", metavar="FILE"),
    _setting(
        "ssl_client_certs",
        "Whether a caller without one is refused by TLS, or only where authentication is asked for.",
        kind=click.Choice(get_args(ClientCertificates)),
    ),
    click.option(
        "--card-signing-key",
        envvar="A2A_CARD_SIGNING_KEY",
        metavar="FILE",
        help="Sign the card with this private key (PEM or JSON Web Key).",
    ),
)
running_options: Final = combine(
    click.option("--cors-origins", envvar="CORS_ORIGINS", help="Origins browsers may call from, separated by commas."),
    _setting("push_notifications", "Offer webhooks.", variable="PUSH_NOTIFICATIONS"),
    _setting(
        "allow_insecure_webhooks",
        "Let webhooks be plain HTTP, and point into this network: for development.",
        variable="ALLOW_INSECURE_WEBHOOKS",
    ),
    _setting(
        "webhook_secret",
        "Sign notifications with it: whsec_ and base64. Better set as a variable: flags are seen by others.",
        variable="WEBHOOK_SECRET",
    ),
    _setting("explorer", "Serve the Explorer page."),
    _setting("metrics", "Serve GET /metrics."),
    _setting("state_history", "Have tasks say which states they have passed through."),
    _setting("execution_timeout", "Seconds a task may run.", kind=float, variable="EXECUTION_TIMEOUT"),
    _setting(
        "shutdown_timeout",
        "Seconds running tasks get to finish at shutdown.",
        kind=float,
        variable="SHUTDOWN_TIMEOUT",
    ),
    click.option(
        "--workers",
        envvar="A2A_WORKERS",
        type=click.IntRange(1, 256),
        default=1,
        show_default=True,
        help="Processes that serve the port; more than one needs a PostgreSQL store.",
    ),
    _setting(
        "drain_delay",
        "Seconds after a signal in which the port stays open and answers 503, for balancers to notice.",
        kind=float,
    ),
    _setting(
        "keep_alive_interval",
        "Seconds after which a stream that has nothing to tell says that it is alive.",
        kind=float,
    ),
    _setting(
        "max_context_messages",
        "Most messages of a conversation that an agent is told.  [default: 100]",
        kind=int,
    ),
)
limit_options: Final = combine(
    _setting(
        "max_requests_per_second",
        "Most requests a second of one caller.  [default: no limit]",
        kind=float,
    ),
    _setting(
        "max_anonymous_requests_per_second",
        "The same for each address of callers without a name.  [default: as others; with authentication a tenth]",
        kind=float,
    ),
    _setting(
        "max_total_requests_per_second",
        "Most requests a second of all callers together.  [default: no limit]",
        kind=float,
    ),
    _setting(
        "request_burst",
        "Requests of one caller that may come at once before that.  [default: those of two seconds]",
        kind=int,
    ),
    _setting("max_active_tasks", "Most tasks running at once.", kind=int),
    _setting("max_active_tasks_per_caller", "Most tasks of one caller running at once.", kind=int),
    _setting("max_streams", "Most event streams open at once.", kind=int),
    _setting("max_streams_per_caller", "Most event streams of one caller open at once.", kind=int),
    _setting("max_stored_tasks_per_caller", "Most tasks kept of one caller.  [default: no limit]", kind=int),
    _setting(
        "max_stored_bytes_per_caller", "Most bytes of JSON in them.  [default: no limit; in memory 128 MiB]", kind=int
    ),
    _setting("max_stored_bytes", "The same of all callers together.  [default: no limit; in memory 256 MiB]", kind=int),
    _setting("max_connections", "Most connections open at once.", kind=int),
    _setting(
        "max_connections_per_address",
        "Most connections of one address; trusted proxies have no limit.  [default: half of all]",
        kind=int,
    ),
    _setting("max_body_bytes_in_flight", "Most bytes of request bodies that are not complete.", kind=int),
    _setting("max_answer_bytes_in_flight", "Most bytes of answers that clients have yet to read.", kind=int),
    _setting("max_request_bytes", "Most bytes of one request.", kind=int),
    _setting("max_json_values", "Most JSON values in one request.", kind=int),
    _setting("max_event_bytes", "Most bytes of one event that a task makes.", kind=int),
    _setting("max_output_bytes", "Most bytes of all events that one run of a task makes.", kind=int),
    click.option(
        "--trusted-proxies",
        envvar="A2A_TRUSTED_PROXIES",
        metavar="ADDRESSES",
        help="Addresses or networks of proxies whose X-Forwarded-* headers are believed, separated by commas.",
    ),
)


# ---- serve ----------------------------------------------------------------------------------------------------------
# `apcore-a2a serve` and `dev`: what you have, one command, an agent.

DEFAULT_LOG_LEVEL: Final = "info"  # Settings leaves it open
DEFAULT_DIRECTORY: Final = "./extensions"
# What `dev` sets that `serve` does not; an option or a variable of the environment wins here as there.
DEVELOPMENT: Final = {"host": "127.0.0.1", "explorer": True, "reload": True, "log_level": "debug"}
# What an application that is ready leaves to say.
_OF_ANY_APPLICATION: Final = frozenset(
    {"target", "extensions_dir", "factory", "host", "port", "reload", "supervised", "log_level", "log_format"}
    | TLS_SETTINGS
)
_TIMES: Final = frozenset({"shutdown_timeout", "drain_delay"})
# Without these an agent is open, or its card and notifications are not signed.
_PROTECTING: Final = (
    "auth_key",
    "auth_key_file",
    "auth_issuer",
    "auth_audience",
    "auth_jwks_url",
    "auth_id_claim",
    "auth_roles_claim",
    "auth_scopes_claim",
    "card_signing_key",
    "webhook_secret",
)


@click.command("serve", epilog=example("apcore-a2a serve agent.py:agent --store sqlite:///tasks.db"))
@click.argument("target", required=False)
@click.option(
    "--extensions-dir",
    envvar="EXTENSIONS_DIR",
    default=DEFAULT_DIRECTORY,
    show_default=True,
    metavar="DIR",
    help="Directory of apcore modules, if there is no TARGET.",
)
@click.option("--factory", is_flag=True, help="TARGET is a function without arguments that makes what to serve.")
@agent_options
@auth_options
@tls_options
@running_options
@limit_options
@click.option("--supervised", hidden=True)  # we are the process that --reload has started
@click.option("--reload", is_flag=True, help="Take in code again when its files change.")
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
    """Serve TARGET as an A2A agent.

    TARGET is a directory of apcore modules; a file, whose functions are the skills; or the name of an object:
    file.py:name or package.module:name. The object can be a function or several, an apcore Registry or Executor, an
    AgentExecutor, or an application that is ready. Without a TARGET, the modules of --extensions-dir are served.

    Every option can also be set in the environment, under the name beside it; an option given here wins.
    """
    return _serve(given)


def develop(**given: Any) -> int:
    """Serve TARGET while you write it.

    The same as serve with --reload, --explorer, --log-level debug, and on this machine only (--host 127.0.0.1).
    """
    return _serve(given)


def _show_variables(params: list[click.Parameter]) -> None:
    """Have --help name the variable of each option that has one."""
    for param in params:
        if isinstance(param, click.Option):
            param.show_envvar = True


_show_variables(command.params)
development_command: Final = click.Command(
    "dev",
    callback=develop,
    params=command.params,
    help=develop.__doc__,
    context_settings={"default_map": DEVELOPMENT},
    epilog=example("apcore-a2a dev agent.py:agent"),
)


def _serve(given: dict[str, Any]) -> int:
    logs.configure(given["log_level"], given["log_format"], color=sys.stderr.isatty())
    if given["workers"] > 1 and given["reload"]:
        raise click.ClickException("Give either --workers or --reload, not both.")
    _refuse_empty(given)
    target = _choose_target(given)
    auth = choose_authenticators(given)
    if isinstance(target, DirectoryTarget):
        extensions = open_extensions(target.directory)
        return _serve_modules(extensions, given, auth)
    sockets = None
    if given["supervised"] is not None:
        sockets = join_supervisor(given["supervised"])
    elif given["reload"]:
        return _supervise(target.root, given)
    loaded = load_target(target, factory=given["factory"])
    changes = ""
    if given["reload"]:
        changes = f"on: a change below {target.root} starts it anew"
    if is_asgi(loaded):
        if auth:  # it may come from the environment, where nobody sees that it has no effect
            raise click.ClickException(f"{target} is a ready application: give it auth= where it is made")
        return _serve_application(loaded, str(target), given, changes, sockets)
    app = _build(loaded, _app_options(given) | {"auth": auth}, given, name=f"{target}: ")
    return _run(app, given, changes, sockets)


def _refuse_empty(given: dict[str, Any]) -> None:
    """`--auth-key "$KEY"` is empty where KEY is not set: whoever wrote that does not want to do without."""
    for name in _PROTECTING:
        value = given[name]
        if value == "" or (isinstance(value, tuple) and "" in value):
            raise click.ClickException(f"--{name.replace('_', '-')} is empty: give it a value, or leave it out")


def _supervise(directory: Path, given: dict[str, Any]) -> int:
    sockets: list[socket.socket] = []
    if os.name == "posix":  # elsewhere no child can take them over
        try:
            sockets = bind(given["host"], given["port"])
        except NotStarted as error:
            return _exit_code(str(error))
    return run_with_reload(click.get_current_context().obj, directory, sockets)


def _choose_target(given: dict[str, Any]) -> DirectoryTarget | ObjectTarget:
    if given["target"] is None:
        return DirectoryTarget(Path(given["extensions_dir"]))
    if _is_given("extensions_dir"):
        raise click.UsageError(f"Give either a TARGET ({FORMS}) or --extensions-dir, not both.")
    return parse_target(given["target"])


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _serve_modules(extensions: Extensions, given: dict[str, Any], auth: list[Authenticator] | None) -> int:
    options = _app_options(given) | {"auth": auth}
    changes = ""
    if given["reload"]:
        reloader = Reloader(extensions)
        options |= {"on_startup": [reloader.start], "on_shutdown": [reloader.stop]}
        changes = "on: changed modules are taken in again"
    return _run(_build(extensions.registry, options, given), given, changes)


def _build(target: object, options: dict[str, Any], given: dict[str, Any], *, name: str = "") -> Application:
    """The application; `name` is what is served, for errors that are its own."""
    address = {"host": given["host"], "port": given["port"]}
    try:
        read_settings({**options, **address})
    except (ValueError, TypeError) as error:
        raise click.ClickException(str(error)) from error
    try:
        return build(target, cast(ServeOptions, options), **address)
    except (ValueError, TypeError, ImportError) as error:
        raise click.ClickException(f"{name}{error}") from error


def _run(app: Application, given: dict[str, Any], changes: str, sockets: list[socket.socket] | None = None) -> int:
    def show_banner(address: str) -> None:
        if given["log_format"] == "json":
            banner.log(app, address, settings=settings, reload=changes)
        else:
            banner.show(app, address, settings=settings, reload=changes)

    # Where to bind is said by the command, also for an application that was made without knowing.
    settings = replace(app.settings, **_where_to_bind(given))
    if given["workers"] > 1:
        return _run_workers(app, settings, given, show_banner)
    # No log configuration of uvicorn's: ours is set up, and has its loggers, too.
    level = given["log_level"]
    why_not = run_at(app, settings, log_level=level, log_config=None, on_started=show_banner, sockets=sockets)
    return _exit_code(why_not)


def _run_workers(app: Application, settings: Settings, given: dict[str, Any], on_started: Callable[[str], None]) -> int:
    count: int = given["workers"]
    if as_shared(app.engine.store) is None:
        raise click.ClickException(
            "--workers needs a store that processes can share: --store postgresql://user@host/database; "
            "memory and SQLite are for one process"
        )
    if not hasattr(os, "fork"):
        raise click.ClickException("--workers needs a system that can fork; start the processes one by one here")
    try:
        sockets = bind(settings.host, settings.port)
    except NotStarted as error:
        return _exit_code(str(error))
    board = make_board(count)

    def serve_worker(worker: int, note_that_it_serves: Callable[[], None]) -> int:
        def note_and_show(address: str) -> None:
            note_that_it_serves()
            if not workers.has_served:
                on_started(address)

        if app.metrics is not None:
            app.metrics.share(board, worker)
        level = given["log_level"]
        why_not = run_at(app, settings, log_level=level, log_config=None, on_started=note_and_show, sockets=sockets)
        return _exit_code(why_not)

    workers = Workers(count, serve_worker, sockets, partial(forget_gauges, board))
    return workers.run()


def _serve_application(
    app: Any,  # an ASGI application
    name: str,
    given: dict[str, Any],
    changes: str,
    sockets: list[socket.socket] | None,
) -> int:
    """Serve an application that is ready: who made it has said all that the other options say."""
    possible = _OF_ANY_APPLICATION
    if isinstance(app, Application):  # it has times of its own
        possible |= {"workers"}
    elif given["workers"] > 1:  # it may come from the environment
        text = f"--workers is for agents, and {name} is another application: start its processes one by one"
        raise click.ClickException(text)
    else:
        possible |= _TIMES
    for option in click.get_current_context().command.params:
        if option.name not in possible and _is_given(option.name):
            text = f"{option.opts[0]} has no effect: {name} is a ready application; set it where that is made"
            raise click.ClickException(text)
    if isinstance(app, Application):
        return _run(app, given, changes, sockets)
    times = {"shutdown_timeout": given["shutdown_timeout"], "drain_delay": given["drain_delay"]}
    settings = Settings(**_where_to_bind(given), **times)

    def show_banner(address: str) -> None:
        if given["log_format"] == "json":
            banner.log_other(name, address, settings, reload=changes)
        else:
            banner.show_other(name, address, settings, reload=changes)

    level = given["log_level"]
    why_not = run_at(app, settings, log_level=level, log_config=None, on_started=show_banner, sockets=sockets)
    return _exit_code(why_not)


def _where_to_bind(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("host", "port", *TLS_SETTINGS)}


def _exit_code(why_not: str) -> int:
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
    if given["card_signing_key"]:
        options["card_signing_key"] = Path(given["card_signing_key"])
    if not options["default_skill"]:
        del options["default_skill"]  # what has no modules refuses it, even if it says nothing
    options["skill_scopes"] = read_skill_scopes(given["skill_scopes"])
    return options


def _split(text: str | None) -> list[str]:
    """What stands between commas; an empty text, as an environment may hold, is nothing."""
    words = (text or "").split(",")
    return [word.strip() for word in words if word.strip()]
