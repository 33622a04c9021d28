"""The composition root: whatever you have becomes an agent on a port, or an ASGI application.

Rule: only composition knows everybody; it hands each its part and keeps nothing.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypedDict, Unpack

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from apcore_a2a.agent import Agent
from apcore_a2a.app.application import Application, Hook
from apcore_a2a.app.compose import compose
from apcore_a2a.app.stores import choose_store
from apcore_a2a.auth.authenticator import Authenticator
from apcore_a2a.engine.call_context import Interceptor
from apcore_a2a.http.guard import GuardedProtocol
from apcore_a2a.http.server import Server
from apcore_a2a.protocol.card import AgentCard, CardMode
from apcore_a2a.settings import Settings
from apcore_a2a.storage.task_store import Store, TaskStore

logger = logging.getLogger("uvicorn.error")  # the log that a server without a log configuration of its own writes

NOT_STARTED: Final = 2  # the exit code


class ServeOptions(TypedDict, total=False):
    """What `serve` and `async_serve` take besides the agent; all of it optional."""

    name: str | None
    description: str | None
    version: str | None
    url: str | None
    card: AgentCard | None
    default_skill: str
    approvals_by_caller: bool
    auth: Authenticator | None
    store: str | None
    task_store: TaskStore | Store | None
    interceptors: Sequence[Interceptor]
    on_startup: Sequence[Hook]
    on_shutdown: Sequence[Hook]
    cors_origins: Sequence[str] | None
    trusted_proxies: Sequence[str]
    push_notifications: bool
    explorer: bool
    explorer_prefix: str
    metrics: bool
    cancel_on_disconnect: bool
    same_message_same_task: bool
    execution_timeout: float | None
    shutdown_timeout: float
    drain_delay: float
    context_messages: int
    max_active_tasks: int
    max_streams: int
    max_connections: int
    max_body_bytes_in_flight: int
    max_answer_bytes_in_flight: int
    max_streams_per_caller: int
    max_json_values: int
    card_mode: CardMode
    old_statuses: bool
    log_level: str | None


def serve(target: object, *, host: str = "0.0.0.0", port: int = 8000, **options: Unpack[ServeOptions]) -> None:
    """Serve an agent over A2A 1.0 and 0.3 until SIGINT or SIGTERM; blocks.

    Args:
        target: An apcore Registry, Executor or APCore client; an `AgentExecutor`; an `Agent`; or a plain function.
        host: The address to bind.
        port: The port to bind.
        **options: See `ServeOptions`.

    Raises:
        ValueError: an option makes no sense, or the registry has no modules.
        TypeError: `target`, `auth` or `task_store` lacks methods; the text names them.
        SystemExit: with code 2 when the server cannot start (the port is taken, the store cannot be opened, a start-up
            hook fails); one line in the log says why, and what to do.

    Example:
        >>> from apcore_a2a import serve
        >>> async def echo(message: str) -> str:
        ...     return message
        >>> serve(echo, port=9000)  # doctest: +SKIP
    """
    why_not = run(build(target, options, host=host, port=port), log_level=options.get("log_level") or "info")
    if why_not:
        logger.error(why_not)
        raise SystemExit(NOT_STARTED)


def run(
    app: Application,
    *,
    log_level: str = "info",
    log_config: dict[str, Any] | None = LOGGING_CONFIG,
    on_started: Callable[[str], None] | None = None,
) -> str:
    """Serve an application at its settings' address until a signal; why it did not start, or nothing if it did.

    `on_started` gets the address when the store is open and the socket listens.
    """
    config = uvicorn.Config(
        app,
        host=app.settings.host,
        port=app.settings.port,
        http=GuardedProtocol,
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        log_level=log_level.lower(),
        log_config=log_config,
        timeout_graceful_shutdown=int(app.settings.shutdown_timeout) + 15,
    )
    return Server(config, drain_delay=app.settings.drain_delay, on_started=on_started).run_to_end()


async def async_serve(target: object, **options: Unpack[ServeOptions]) -> Application:
    """What `serve` serves, as an ASGI application for a server or an application of your own; binds nothing.

    Example:
        >>> import asyncio
        >>> from apcore_a2a import async_serve
        >>> async def echo(message: str) -> str:
        ...     return message
        >>> app = asyncio.run(async_serve(echo, name="echo"))
        >>> app.cards.card.name
        'echo'
    """
    return build(target, options)


def build_app(agent: Agent, **options: Unpack[ServeOptions]) -> Application:
    """What `async_serve` answers, for an `Agent` and without a loop."""
    return build(agent, options)


_NOT_SETTINGS: Final = ("card", "auth", "task_store", "interceptors", "on_startup", "on_shutdown")  # but objects


def build(target: object, options: ServeOptions, **address: Any) -> Application:
    """An application from anything `serve` takes; `address` is host and port, for those who bind."""
    plain: dict[str, Any] = {**options, **address}
    for name in _NOT_SETTINGS:
        plain.pop(name, None)
    for name in ("cors_origins", "trusted_proxies"):
        plain[name] = tuple(plain.get(name) or ())
    settings = Settings(**plain).check()
    auth = options.get("auth")
    if auth is not None and not isinstance(auth, Authenticator):
        raise TypeError(f"auth {type(auth).__name__} lacks the method authenticate(headers)")
    parts = compose(target, options.get("card"), settings, auth)
    parts.store = choose_store(settings.store, options.get("task_store"))
    parts.interceptors = tuple(options.get("interceptors", ()))
    parts.on_startup = tuple(options.get("on_startup", ()))
    parts.on_shutdown = tuple(options.get("on_shutdown", ()))
    return Application(parts, settings)
