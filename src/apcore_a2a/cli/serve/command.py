"""The commands `serve` and `dev`: they read the options, load the target, and start the server."""

import asyncio
import logging
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

from apcore_a2a.agents.apcore.agent import DEFAULT_NAME
from apcore_a2a.agents.mcp.targets import read_mcp_server
from apcore_a2a.app import banner, logs
from apcore_a2a.app.application import Application
from apcore_a2a.app.serve import NOT_STARTED, ServeOptions, build_any, read_settings, run_at
from apcore_a2a.app.site import Site
from apcore_a2a.auth.authenticator import Authenticator
from apcore_a2a.cli.options import example
from apcore_a2a.cli.serve.authentication import auth_options, choose_authenticators
from apcore_a2a.cli.serve.reload import join_supervisor, run_with_reload
from apcore_a2a.cli.serve.setting_options import (
    SETTINGS,
    TLS_SETTINGS,
    agent_options,
    limit_options,
    read_given,
    read_tls,
    serve_option,
    tls_options,
)
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
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.hosts import default_options
from apcore_a2a.http.metrics import make_board, reset_gauges
from apcore_a2a.http.server.server import NotStarted, bind
from apcore_a2a.settings import TABLE, Settings
from apcore_a2a.storage.contract import SharedStore, as_shared
from apcore_a2a.web import is_loopback

logger = logging.getLogger(__name__)

# ---- serve ----------------------------------------------------------------------------------------------------------

DEFAULT_DIRECTORY: Final = "./extensions"
# Defaults of `dev` that differ from those of `serve`. Options and environment variables override them as well.
DEVELOPMENT: Final = {
    "host": "127.0.0.1",
    "explorer": True,
    "reload": True,
    "log_level": "debug",
    "show_exceptions": True,
}
# The options that apply to an ASGI application that is not an agent of ours.
_OF_ANY_APPLICATION: Final = frozenset(
    {"target", "extensions_dir", "factory", "host", "port", "reload", "supervised", "log_level", "log_format"}
    | TLS_SETTINGS
)
_TIMEOUTS: Final = frozenset({"shutdown_timeout", "drain_delay"})
# Options without which authentication, or the signature of the card or of notifications, is off or weaker.
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
    "webhook_secret_file",
)


# The options by section of --help. An option that is not here is listed last.
SECTIONS: Final = {
    "Serving": "extensions_dir mcp mcp_env factory host port workers default_skill execution_timeout shutdown_timeout "
    "drain_delay keep_alive_interval grpc host_profile trusted_proxies allowed_hosts cors_origins metrics otlp",
    "Card": "name description version url card_interfaces card_signing_key",
    "Development": "reload explorer explorer_client_id explorer_trace_url show_exceptions record_content log_level "
    "log_format",
    "Answers": "stream_final data_as_text state_history",
    "Agents of frameworks": "show_tools allow_urls allow_tracing",
    "Storage": "store store_listen_url task_store_ttl task_store_max",
    "Who may call": "auth_type auth_key auth_key_file auth_issuer auth_audience auth_jwks_url auth_id_claim "
    "auth_roles_claim auth_scopes_claim auth_leeway skill_scopes admin_role audit_log",
    "Webhooks": "push_notifications allow_insecure_webhooks webhook_secret webhook_secret_file",
    "Limits": " ".join(setting.parameter for setting in TABLE if setting.group == "limits"),
    "TLS": " ".join(setting.parameter for setting in TABLE if setting.group == "tls"),
}


class SectionedCommand(click.Command):
    """A command whose --help lists the options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records: dict[str, tuple[str, str]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                records[param.name or ""] = record
        for section, names in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([records.pop(name) for name in names.split()])
        with formatter.section("Other"):
            formatter.write_dl(list(records.values()))


@click.command(
    "serve", cls=SectionedCommand, epilog=example("apcore-a2a serve agent.py:agent --store sqlite:///tasks.db")
)
@click.argument("target", required=False)
@serve_option(
    "--extensions-dir",
    variable="EXTENSIONS_DIR",
    default=DEFAULT_DIRECTORY,
    show_default=True,
    metavar="DIR",
    help="Directory of apcore modules, if there is no TARGET.",
)
@serve_option(
    "--mcp",
    metavar="COMMAND|URL",
    help="Serve the tools of this MCP server, instead of a TARGET: the command that starts it, or its URL.",
)
@serve_option(
    "--mcp-env",
    multiple=True,
    metavar="NAME",
    help="Pass this environment variable to the command of --mcp. Can be repeated.",
)
@click.option(
    "--factory", is_flag=True, help="TARGET is a function without arguments that returns the object to serve."
)
@agent_options
@auth_options
@tls_options
@serve_option(
    "--card-signing-key",
    metavar="FILE",
    help="Sign the card with this private key (PEM or JSON Web Key).",
)
@serve_option(
    "--webhook-secret-file",
    metavar="FILE",
    help="File with the secret of --webhook-secret, for example a mounted secret.",
)
@limit_options
@serve_option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Number of processes that serve the port. More than one needs a PostgreSQL store.",
)
@click.option("--supervised", hidden=True)  # this is the process that --reload has started
@click.option("--reload", is_flag=True, help="Reload the code when its files change.")
@serve_option(
    "--log-format",
    type=click.Choice(get_args(logs.LogFormat)),
    default="text",
    show_default=True,
    help="Format of the log.",
)
def command(**given: Any) -> int:
    """Serve TARGET as an A2A agent.

    TARGET is a directory of apcore modules, a file whose functions are the skills, or the name of an object:
    file.py:name or package.module:name. The object can be one or several functions, an apcore Registry or Executor, an
    AgentExecutor, the agent of a framework, an MCP server, or an ASGI application. Without a TARGET, the modules of
    --extensions-dir are served, or the tools of the MCP server that --mcp names.

    Every option can also be set by the environment variable beside it: APCORE_A2A_ and its name. An option on the
    command line overrides it.
    """
    return _serve(given)


def develop(**given: Any) -> int:
    """Serve TARGET during development.

    The same as serve with --reload, --explorer, --log-level debug and --show-exceptions, and on this machine only
    (--host 127.0.0.1).
    """
    return _serve(given)


def _show_variables(params: list[click.Parameter]) -> None:
    """Make --help show the variable of each option that has one."""
    for param in params:
        if isinstance(param, click.Option):
            param.show_envvar = True


_show_variables(command.params)
development_command: Final = SectionedCommand(
    "dev",
    callback=develop,
    params=command.params,
    help=develop.__doc__,
    context_settings={"default_map": DEVELOPMENT},
    epilog=example("apcore-a2a dev agent.py:agent"),
)


def _serve(given: dict[str, Any]) -> int:
    logs.configure(given["log_level"], given["log_format"], color=sys.stderr.isatty())
    _reject_old_variables()
    if not is_loopback(given["host"]) and _source_of("show_exceptions") is ParameterSource.DEFAULT_MAP:
        given["show_exceptions"] = False  # `dev --host 0.0.0.0`: other machines must not see code
    given = {**given, **_profile_defaults(given["host_profile"])}
    if given["workers"] > 1 and given["reload"]:
        raise click.ClickException("Give either --workers or --reload, not both.")
    # Byte code belongs to a source of the same second and size, so it would hide the later one of two quick edits.
    sys.dont_write_bytecode = sys.dont_write_bytecode or given["reload"]
    _reject_empty(given)
    given["webhook_secret"] = _read_webhook_secret(given)
    if given["mcp"] is not None:
        return _serve_mcp(given)
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
        changes = f"on: a change below {target.root} restarts it"
    if is_asgi(loaded):
        if auth:  # it may come from the environment, and would silently have no effect
            raise click.ClickException(f"{target} is an ASGI application: give it auth= where it is created")
        return _serve_application(loaded, str(target), given, changes, sockets)
    app = _build(loaded, _app_options(given) | {"auth": auth}, given, name=f"{target}: ")
    return _run(app, given, changes, sockets)


def _serve_mcp(given: dict[str, Any]) -> int:
    """Serve the tools of an MCP server."""
    if given["target"] is not None or _is_given("extensions_dir") or given["reload"] or given["factory"]:
        raise click.UsageError("--mcp is instead of a TARGET, and without --extensions-dir, --factory and --reload.")
    try:
        server = read_mcp_server(given["mcp"], given["mcp_env"])
    except (ValueError, ImportError) as error:
        raise click.ClickException(f"--mcp: {error}") from error
    auth = choose_authenticators(given)
    app = _build(server, _app_options(given) | {"auth": auth}, given, name="--mcp: ")
    return _run(app, given, "")


def _profile_defaults(profile: str) -> dict[str, Any]:
    """Return the options that a host profile sets, without those that were given."""
    source = click.get_current_context().get_parameter_source
    unset = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    options = default_options(profile, os.environ)
    return {name: value for name, value in options.items() if source(name) in unset}


def _reject_empty(given: dict[str, Any]) -> None:
    """Reject empty security options: `--auth-key "$KEY"` is empty if KEY is not set."""
    for name in _PROTECTING:
        value = given[name]
        if value == "" or (isinstance(value, tuple) and "" in value):
            raise click.ClickException(f"--{name.replace('_', '-')} is empty: give it a value, or omit it")


def _read_webhook_secret(given: dict[str, Any]) -> str | None:
    """Return the secret that signs notifications, from its file if there is one."""
    path: str | None = given["webhook_secret_file"]
    if path is None:
        secret: str | None = given["webhook_secret"]
        return secret
    if given["webhook_secret"] is not None:
        raise click.ClickException("Give either --webhook-secret or --webhook-secret-file, not both.")
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise click.ClickException(f"the file of --webhook-secret-file is not readable: {path}") from error
    if not secret:
        raise click.ClickException(f"the file of --webhook-secret-file is empty: {path}")
    return secret


def _supervise(directory: Path, given: dict[str, Any]) -> int:
    sockets: list[socket.socket] = []
    if os.name == "posix":  # on other systems a child cannot inherit them
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
    return _source_of(name) is ParameterSource.COMMANDLINE


def _source_of(name: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(name)


def _reject_old_variables() -> None:
    """Reject variables under their former names: an ignored A2A_STORE would silently lose tasks at the next restart."""
    for name in (*SETTINGS, *(param.name or "" for param in command.params)):
        old = f"A2A_{name.upper()}"
        if old in os.environ:
            raise click.ClickException(f"the environment variable {old} is now APCORE_{old}")


def _serve_modules(extensions: Extensions, given: dict[str, Any], auth: list[Authenticator] | None) -> int:
    options = _app_options(given) | {"auth": auth}
    options["name"] = options.get("name") or DEFAULT_NAME  # a registry that was made here has no configuration
    changes = ""
    if given["reload"]:
        reloader = Reloader(extensions)
        options |= {"on_startup": [reloader.start], "on_shutdown": [reloader.stop]}
        changes = "on: changed modules are reloaded"
    return _run(_build(extensions.registry, options, given), given, changes)


def _build(target: object, options: dict[str, Any], given: dict[str, Any], *, name: str = "") -> Application | Site:
    """Return the application. `name` is the target, as a prefix of the errors that it causes."""
    address = {"host": given["host"], "port": given["port"]}
    try:
        read_settings({**options, **address})
    except (ValueError, TypeError) as error:
        raise click.ClickException(str(error)) from error
    try:
        return build_any(target, cast(ServeOptions, options), **address)  # checked by `read_settings`
    except (ValueError, TypeError, ImportError) as error:
        raise click.ClickException(f"{name}{error}") from error


def _run(
    app: Application | Site, given: dict[str, Any], changes: str, sockets: list[socket.socket] | None = None
) -> int:
    def show_banner(address: str) -> None:
        if given["log_format"] == "json":
            banner.log_any(app, address, settings=settings, reload=changes)
        else:
            banner.show_any(app, address, settings=settings, reload=changes)

    # The command determines the address and TLS, also of an application that was created elsewhere.
    settings = replace(app.settings, host=given["host"], port=given["port"], tls=read_tls(given))
    if given["workers"] > 1:
        if isinstance(app, Site):
            raise click.ClickException("--workers serves one agent: start a command for each of several agents")
        return _run_workers(app, settings, given, show_banner)
    # No log configuration of uvicorn: ours is set up, and includes its loggers.
    level = given["log_level"]
    why_not = run_at(app, settings, log_level=level, log_config=None, on_started=show_banner, sockets=sockets)
    return _exit_code(why_not)


def _run_workers(app: Application, settings: Settings, given: dict[str, Any], on_started: Callable[[str], None]) -> int:
    count: int = given["workers"]
    store = as_shared(app.engine.store)
    if store is None:
        raise click.ClickException(
            "--workers needs a store that processes can share: --store postgresql://user@host/database. "
            "Memory and SQLite are for one process"
        )
    if not hasattr(os, "fork"):
        raise click.ClickException("--workers needs a system that can fork. Start the processes one by one instead")
    try:
        sockets = bind(settings.host, settings.port)
    except NotStarted as error:
        return _exit_code(str(error))
    board = make_board(count)

    def serve_worker(worker: int, report_serving: Callable[[], None]) -> int:
        def report_and_show(address: str) -> None:
            report_serving()
            if not workers.has_served:
                on_started(address)

        if app.metrics is not None:
            app.metrics.share(board, worker)
        level = given["log_level"]
        why_not = run_at(app, settings, log_level=level, log_config=None, on_started=report_and_show, sockets=sockets)
        return _exit_code(why_not)

    workers = Workers(count, serve_worker, sockets, partial(reset_gauges, board), partial(_report_crash, store))
    return workers.run()


def _report_crash(store: SharedStore, pid: int) -> None:
    """Tell the other replicas at once that a worker is dead, instead of when its lease expires."""
    try:
        asyncio.run(store.report_dead_process(pid))
    except StoreUnavailableError:
        logger.warning("the crash of a worker is not in the store: its lease expires later", extra={"pid": pid})


def _serve_application(
    app: Any,  # an ASGI application
    name: str,
    given: dict[str, Any],
    changes: str,
    sockets: list[socket.socket] | None,
) -> int:
    """Serve an ASGI application that was created elsewhere, where most options must be set."""
    possible = _OF_ANY_APPLICATION
    if isinstance(app, Application | Site):  # it has timeouts of its own
        possible |= {"workers"}
    elif given["workers"] > 1:  # it may come from the environment
        text = f"--workers is for agents, and {name} is another ASGI application: start its processes one by one"
        raise click.ClickException(text)
    else:
        possible |= _TIMEOUTS
    for option in click.get_current_context().command.params:
        if option.name not in possible and _is_given(option.name):
            text = f"{option.opts[0]} has no effect: {name} is an ASGI application. Set it where that is created"
            raise click.ClickException(text)
    if isinstance(app, Application | Site):
        return _run(app, given, changes, sockets)
    settings = Settings(
        host=given["host"],
        port=given["port"],
        tls=read_tls(given),
        shutdown_timeout=given["shutdown_timeout"],
        drain_delay=given["drain_delay"],
    )

    def show_banner(address: str) -> None:
        if given["log_format"] == "json":
            banner.log_other(name, address, settings, reload=changes)
        else:
            banner.show_other(name, address, settings, reload=changes)

    level = given["log_level"]
    why_not = run_at(app, settings, log_level=level, log_config=None, on_started=show_banner, sockets=sockets)
    return _exit_code(why_not)


def _exit_code(why_not: str) -> int:
    if why_not:
        # Not as a log record, because those truncate their texts.
        click.echo(f"Error: {why_not}", err=True)
        return NOT_STARTED
    return 0


def _app_options(given: dict[str, Any]) -> dict[str, Any]:  # Any: the values of the options
    """Return the keywords of `async_serve` that the options set."""
    options = read_given(given)
    for name in ("host", "port"):  # those of the server
        del options[name]
    if given["card_signing_key"]:
        options["card_signing_key"] = Path(given["card_signing_key"])
    return options
