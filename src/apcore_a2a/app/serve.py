"""The composition root: `serve` and `async_serve`, which make an agent of any supported object.

Invariant: only `app` imports all other packages. The functions here pass each package the options that it needs, and
keep no state.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, Unpack, cast

import msgspec
import uvicorn
from msgspec.structs import asdict
from starlette.types import ASGIApp
from uvicorn.config import LOGGING_CONFIG

from apcore_a2a.agent import Agent, ShowTools
from apcore_a2a.app import logs
from apcore_a2a.app.application import Application, Hook, Parts, make_traffic
from apcore_a2a.app.card import SigningKeySource
from apcore_a2a.app.compose import compose, is_apcore
from apcore_a2a.app.site import ONE_AGENT_ONLY, Site, is_site, make_site, store_of, url_of
from apcore_a2a.app.stores import Retention, choose_store, with_listen_url
from apcore_a2a.auth.authenticator import Authenticator, as_authenticator
from apcore_a2a.auth.scopes import ScopedAgent, SkillScopes
from apcore_a2a.engine.context import Interceptor
from apcore_a2a.errors import unknown_options
from apcore_a2a.hosts import HostProfileName, default_options, published_address
from apcore_a2a.http.card import CardSigner
from apcore_a2a.http.server.connection import GuardedProtocol, HTTP2Support
from apcore_a2a.http.server.server import Server
from apcore_a2a.http.server.tls import BadTLSFiles, RenewedContext, TLSFiles
from apcore_a2a.http.traffic import HTTP2_KEY, Traffic
from apcore_a2a.protocol.card import AgentCard, AgentExtension, CardInterfaces, CardMode
from apcore_a2a.protocol.lifecycle import StreamFinal
from apcore_a2a.settings import TLS, Limits, Settings, new_keyword
from apcore_a2a.storage.contract import Store, TaskStore
from apcore_a2a.web import is_loopback

logger = logging.getLogger("uvicorn.error")  # uvicorn's own log configuration shows it, if logging is not set up here

NOT_STARTED: Final = 2  # exit code
LAST_ANSWERS: Final = 15  # seconds after shutdown_timeout for clients to read their last responses


class ServeOptions(TypedDict, total=False):
    """The optional keywords of `serve` and `async_serve`.

    `Settings` has the defaults. docs/operations.md describes each keyword, its flag and its environment variable.

    Example:
        >>> options: ServeOptions = {
        ...     "name": "echo",
        ...     "store": "sqlite:///tasks.db",
        ...     "cors_origins": "https://app.example",
        ... }
    """

    name: str | None
    description: str | None
    version: str | None
    url: str | None
    allowed_hosts: str | Sequence[str] | None
    host_profile: HostProfileName
    card_interfaces: CardInterfaces
    card: AgentCard | None
    extensions: Sequence[AgentExtension]
    default_skill: str
    approvals_by_caller: bool
    auth: Authenticator | Sequence[Authenticator] | None
    store: str | None
    store_listen_url: str | None
    card_signing_key: SigningKeySource | None
    task_store: TaskStore | Store | None
    task_store_ttl: float | None
    task_store_max: int | None
    interceptors: Sequence[Interceptor]
    tracer_provider: Any
    request_context_builder: Any
    on_startup: Sequence[Hook]
    on_shutdown: Sequence[Hook]
    skill_scopes: Mapping[str, Sequence[str]]
    admin_role: str | None
    audit_log: str | None
    cors_origins: str | Sequence[str] | None
    trusted_proxies: str | Sequence[str] | None
    push_notifications: bool
    allow_insecure_webhooks: bool
    webhook_secret: str | None
    explorer: bool
    explorer_client_id: str | None
    explorer_trace_url: str | None
    explorer_prefix: str
    metrics: bool
    otlp: str | None
    record_content: bool
    cancel_on_disconnect: bool
    same_message_same_task: bool
    state_history: bool
    stream_final: StreamFinal
    data_as_text: bool
    show_tools: ShowTools
    allow_urls: bool
    allow_tracing: bool
    show_exceptions: bool
    execution_timeout: float | None
    shutdown_timeout: float
    drain_delay: float
    keep_alive_interval: float
    card_mode: CardMode
    old_statuses: bool
    grpc: bool | None
    log_level: str | None
    limits: Limits
    tls: TLS | None


def serve(
    registry_or_executor: object,
    *,
    host: str = "0.0.0.0",
    port: int | None = None,
    **options: Unpack[ServeOptions],
) -> None:
    """Serve an agent over A2A 1.0 and 0.3, and block until SIGINT or SIGTERM.

    Args:
        registry_or_executor: The object to serve: an apcore Registry, Executor or APCore client; an `AgentExecutor`; an
            `Agent`; a plain function; or several functions: a list, a dict by the ids of their skills, a module, an
            object with public methods. Or the agent of a framework, as docs/frameworks.md lists them. Or several agents
            by their paths: `{"/math": add, "/weather": registry}`.
        host: The address to bind.
        port: The port to bind: 8000, or the one of `host_profile`.
        **options: See `ServeOptions`.

    Raises:
        ValueError: an option is not valid, or the registry has no modules.
        TypeError: there is no such option, or the served object, `auth` or `task_store` lacks methods. The text names
            them.
        RuntimeError: an event loop runs in this thread, as in a coroutine or a notebook.
        SystemExit: with code 2 if the server cannot start (the port is in use, the store cannot be opened, a start-up
            hook fails). One line says why, and what to do.

    After the start a banner on standard error shows the address, the skills and warnings. If the program has not set up
    logging, the log goes to standard error as well.

    Example:
        >>> from apcore_a2a import serve
        >>> async def echo(message: str) -> str:
        ...     return message
        >>> serve(echo, port=9000)  # doctest: +SKIP
    """
    _refuse_running_loop()
    address: dict[str, Any] = {"host": host}
    if port is not None:
        address["port"] = port
    read_settings({**options, **address})  # checks the log level before it is used
    level = options.get("log_level") or "info"
    log_is_ours = logs.configure_server(level)  # before the card is built, which logs problems of modules
    app = build_any(registry_or_executor, options, **address)

    def show_banner(address: str) -> None:
        from apcore_a2a.app import banner  # loads rich, which is not needed before

        banner.show_any(app, address)

    log_config: dict[str, Any] | None = LOGGING_CONFIG
    if log_is_ours:
        log_config = None
    why_not = run_at(app, app.settings, log_level=level, log_config=log_config, on_started=show_banner)
    if why_not:
        if log_is_ours:
            sys.stderr.write(f"Error: {why_not}\n")  # a log record would be truncated, with all lines on one
        else:
            logger.error(why_not)
        raise SystemExit(NOT_STARTED)


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "serve() blocks, and an event loop is already running in this thread: call it with asyncio.to_thread(serve, …),"
        " or pass the application that `await async_serve(…)` returns to your server"
    )


def run_at(
    app: ASGIApp,
    settings: Settings,
    *,
    log_level: str = "info",
    log_config: dict[str, Any] | None = LOGGING_CONFIG,
    on_started: Callable[[str], None] | None = None,
    sockets: list[socket.socket] | None = None,
) -> str:
    """Serve any ASGI application until a signal, and return why it did not start, or an empty string.

    The address, TLS and the timeouts are those of the settings. `sockets` replace the address. `on_started` receives
    the address when the store is open and the socket listens.
    """
    lifespan: Literal["on", "auto"] = "auto"
    ws: Literal["none", "auto"] = "auto"
    if isinstance(app, Application | Site):
        lifespan = "on"
        ws = "none"  # a WebSocket handshake is answered as any other request
    http2 = _http2_support(settings)
    try:
        tls = _tls_context(settings, http2)
    except BadTLSFiles as error:
        return str(error)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=GuardedProtocol,
        headers=_server_headers(settings),
        ws=ws,
        lifespan=lifespan,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        log_level=log_level.lower(),
        log_config=log_config,
        timeout_graceful_shutdown=int(settings.shutdown_timeout) + LAST_ANSWERS,
    )
    state: dict[str, object] = {}
    if http2 is not None:
        state[HTTP2_KEY] = http2
    server = Server(config, drain_delay=settings.drain_delay, tls=tls, state=state, on_started=on_started)
    return server.run_to_end(sockets)


def _http2_support(settings: Settings) -> HTTP2Support | None:
    """Return the support of HTTP/2, or None if it is turned off."""
    if settings.grpc is False:
        return None
    return HTTP2Support()


def _server_headers(settings: Settings) -> list[tuple[str, str]]:
    """Return the headers that the server adds to every response: with TLS, HSTS (RFC 6797)."""
    # Not on the loopback interface: it would apply to every other server that a developer runs there.
    if settings.tls is None or is_loopback(settings.host):
        return []
    return [("strict-transport-security", "max-age=31536000")]


def _tls_context(settings: Settings, http2: HTTP2Support | None) -> RenewedContext | None:
    tls = settings.tls
    if tls is None:
        return None
    files = TLSFiles(
        certfile=tls.certfile,
        keyfile=tls.keyfile,
        keyfile_password=tls.keyfile_password,
        ca_certs=tls.ca_certs,
        client_certs=tls.client_certs,
        http2=http2 is not None and http2.is_installed,
    )
    return RenewedContext(files)


def create_app(target: object, **options: Unpack[ServeOptions]) -> Application:
    """Return the agent as an ASGI application, for `uvicorn module:app` or for your own application. Binds nothing.

    The application opens and closes by its lifespan. In an application of your own, pass `lifespan=agent.lifespan`, and
    mount it: `app.mount("/agent", agent)`.

    Raises:
        ValueError: an option is not valid, or the registry has no modules.
        TypeError: there is no such option, or the object cannot be served.

    Example:
        >>> from apcore_a2a import create_app
        >>> async def echo(message: str) -> str:
        ...     return message
        >>> app = create_app(echo, name="echo")
        >>> app.cards.card.name
        'echo'
    """
    _refuse_address(options)
    if is_site(target):
        raise TypeError("create_app makes one agent: for several agents by their paths, call create_site")
    return build(target, options)


def create_site(agents: Mapping[str, object], **options: Unpack[ServeOptions]) -> Site:
    """Return several agents as one ASGI application, each at its own path, with an index and a catalog.

    Args:
        agents: What to serve at each path: anything that `create_app` takes, or an application that it has returned.
        **options: See `ServeOptions`. They hold for every agent that is not an application yet. `store` becomes a file
            or a schema for each agent.

    Raises:
        ValueError: a path or an option is not valid.
        TypeError: there is no such option, or it is for one agent only, or an object cannot be served.

    Example:
        >>> from apcore_a2a import create_site
        >>> def add(a: int, b: int) -> int:
        ...     return a + b
        >>> site = create_site({"/math": add, "/shout": str.upper})
        >>> sorted(site.agents)
        ['/math', '/shout']
    """
    _refuse_address(options)
    if not is_site(agents):
        raise TypeError('create_site takes agents by their paths, as in {"/math": add}')
    return build_site(agents, options)


def _refuse_address(options: ServeOptions) -> None:
    for name in options:
        if name in ("host", "port", "tls"):
            raise TypeError(f"an application binds nothing: give {name} to the server that runs it")


async def async_serve(registry_or_executor: object, **options: Unpack[ServeOptions]) -> Application:
    """Return the application of `create_app`, in a coroutine.

    Example:
        >>> import asyncio
        >>> from apcore_a2a import async_serve
        >>> async def echo(message: str) -> str:
        ...     return message
        >>> app = asyncio.run(async_serve(echo, name="echo"))
        >>> app.cards.card.name
        'echo'
    """
    return create_app(registry_or_executor, **options)


def build_app(agent: Agent, **options: Unpack[ServeOptions]) -> Application:
    """Return the application of `async_serve` for an `Agent`, without an event loop.

    Example:
        >>> from apcore_a2a import as_agent
        >>> async def echo(message: str) -> str:
        ...     return message
        >>> build_app(as_agent(echo), name="echo").cards.card.name
        'echo'
    """
    return build(agent, options)


_NOT_SETTINGS: Final = (
    "card",
    "auth",
    "card_signing_key",
    "task_store",
    "interceptors",
    "tracer_provider",
    "request_context_builder",
    "on_startup",
    "on_shutdown",
)


_MODULE_OPTIONS: Final = ("approvals_by_caller",)
"""Options that only apply to apcore modules."""


def build_any(target: object, options: ServeOptions, **address: Any) -> Application | Site:
    """Return an application for any object that `serve` takes. `address` is host and port, for `serve` only."""
    if is_site(target):
        return build_site(cast(Mapping[str, object], target), options, **address)  # `is_site` has checked it
    return build(target, options, **address)


def build_site(agents: Mapping[str, object], options: ServeOptions, **address: Any) -> Site:
    """Return the application of several agents."""
    for name in ONE_AGENT_ONLY:
        if options.get(name):
            raise TypeError(f"{name} is an option of one agent: serve create_app(agent, {name}=…) at its path")

    def build_one(target: object, path: str, traffic: Traffic) -> Application:
        given = options.copy()
        given["store"] = store_of(options.get("store"), path)
        given["url"] = url_of(options.get("url"), path)
        try:
            return build(target, given, traffic=traffic, **address)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from error

    settings = read_settings({**options, **address})
    return make_site(agents, build_one, settings, make_traffic(settings))


def build(target: object, options: ServeOptions, *, traffic: Traffic | None = None, **address: Any) -> Application:
    """Return the application of one agent."""
    settings = read_settings({**options, **address})
    if not is_apcore(target):
        for name in _MODULE_OPTIONS:
            if name in options:
                raise ValueError(f"{name} is an option for apcore modules, and {type(target).__name__} has none")
    if settings.log_level is not None:
        logging.getLogger("apcore_a2a").setLevel(settings.log_level.upper())
    auth = as_authenticator(options.get("auth"))
    retention = Retention(
        ttl=settings.task_store_ttl,
        max_tasks=settings.task_store_max,
        max_bytes=settings.limits.max_stored_bytes,
        max_bytes_per_owner=settings.limits.max_stored_bytes_per_caller,
        max_tasks_per_owner=settings.limits.max_stored_tasks_per_caller,
    )
    builder = options.get("request_context_builder")
    parts = compose(target, options.get("card"), settings, auth, request_context_builder=builder)
    _require_scopes(parts, settings)
    url = with_listen_url(settings.store, settings.store_listen_url)
    parts.store = choose_store(url, options.get("task_store"), retention)
    parts.signer = _make_signer(options.get("card_signing_key"), parts.card)
    parts.interceptors = tuple(options.get("interceptors", ()))
    parts.tracer_provider = options.get("tracer_provider")
    parts.on_startup = tuple(options.get("on_startup", ()))
    parts.on_shutdown = tuple(options.get("on_shutdown", ()))
    return Application(parts, settings, traffic=traffic)


def _require_scopes(parts: Parts, settings: Settings) -> None:
    """Make the agent require the scopes that the settings name, if they name any."""
    if settings.admin_role and parts.auth is None:
        raise ValueError("admin_role needs auth: without it callers have no roles, and there is no administrator")
    scopes = SkillScopes(settings.skill_scopes)
    if not scopes:
        return
    if parts.auth is None:
        raise ValueError("skill_scopes needs auth: without it callers have no scopes, and cannot call these skills")
    parts.agent = ScopedAgent(parts.agent, scopes, [skill.id for skill in parts.card.skills])


def _make_signer(source: SigningKeySource | None, card: AgentCard) -> CardSigner | None:
    if source is None:
        return None
    from apcore_a2a.app.signing import make_signer  # it loads a cryptography library

    signer = make_signer(source)
    signer.check(card)
    return signer


def read_settings(options: dict[str, Any]) -> Settings:  # Any: as the user gave them
    """Return the checked settings among the options.

    Raises:
        ValueError: a setting is not valid.
        TypeError: there is no such option, or a value has the wrong type.
    """
    for name in _NOT_SETTINGS:
        options.pop(name, None)
    _refuse_unknown(options.keys() - set(Settings.__struct_fields__))
    options = {**default_options(options.get("host_profile"), os.environ), **options}
    options.setdefault("platform_url", _platform_url(os.environ))
    for name in ("allowed_hosts", "cors_origins", "trusted_proxies"):
        options[name] = _to_names(options.get(name))
    scopes = options.get("skill_scopes") or {}
    if isinstance(scopes, Mapping):
        scopes = {pattern: _to_names(names) for pattern, names in scopes.items()}
    options["skill_scopes"] = scopes
    for name, kind in (("limits", Limits), ("tls", TLS)):
        value = options.get(name)
        if isinstance(value, kind):
            # As a mapping, because msgspec does not check the fields of a struct that exists already.
            options[name] = _with_paths_as_text(asdict(value))
        elif value is not None:
            raise TypeError(f"{name} has the wrong type: expected {kind.__name__}, got {type(value).__name__}")
    try:
        return msgspec.convert(_with_paths_as_text(options), Settings).check()
    except msgspec.ValidationError as error:
        reason, _, name = str(error).partition(" - at `$.")
        name = name.removesuffix("`").removeprefix("limits.")
        raise TypeError(f"{name} has the wrong type: {reason}") from error


def _platform_url(environ: Mapping[str, str]) -> str | None:
    """Return the public address that the platform publishes, if it does."""
    published = published_address(environ)
    if published is None:
        return None
    return published.url


def _refuse_unknown(names: set[str]) -> None:
    for name in sorted(names):
        moved = new_keyword(name)
        if moved:
            raise TypeError(f"{name} is now {moved}")
    if names:
        raise TypeError(f"there is {unknown_options(names, ServeOptions.__annotations__)}")


def _with_paths_as_text(options: dict[str, Any]) -> dict[str, Any]:  # Any: as the user gave them
    given = dict(options)
    for name, value in options.items():
        if isinstance(value, os.PathLike):
            given[name] = os.fspath(value)
    return given


def _to_names(given: str | Sequence[str] | None) -> Sequence[str]:
    if given is None:
        return ()
    if isinstance(given, str):  # one name, not a sequence of letters
        return (given,)
    return given
