"""The application: an engine, its cards, health and metrics, and how it opens and closes. Its routes are in `routes`.

Invariant: the application opens once, in this order: the store, the start-up hooks, the agent, the recovery of
interrupted tasks. It closes in the reverse order.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.types import Message, Receive, Scope, Send

from apcore_a2a.agent import Agent, Caller
from apcore_a2a.app.access import AuditedOperations, AuditedTasks, Observers
from apcore_a2a.app.routes import ANONYMOUS_DIVISOR, Served, pipeline
from apcore_a2a.app.stores import why_not_open
from apcore_a2a.auth.audit import AuditLog
from apcore_a2a.auth.authenticator import Authenticator, close_authenticator, open_authenticator, trouble_of
from apcore_a2a.auth.scopes import ScopedAgent
from apcore_a2a.engine.context import EngineOptions, Hooks, Interceptor
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.runs import SHUTTING_DOWN
from apcore_a2a.engine.webhooks.delivery import Posting, Sender
from apcore_a2a.errors import A2AError, OverloadedError, wire
from apcore_a2a.http.asgi import error_headers, refuse_early
from apcore_a2a.http.card import CardEndpoint, CardRules, CardSigner
from apcore_a2a.http.forwarded import PublicAddress
from apcore_a2a.http.health import Activity, HealthEndpoint, PingEndpoint, is_health
from apcore_a2a.http.metrics import Metrics
from apcore_a2a.http.server.server import on_exit_signal
from apcore_a2a.http.traffic import KEY, Traffic, limit_to_file_descriptors
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.settings import Settings
from apcore_a2a.storage.contract import ALL_OWNERS, Store, Usage
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.telemetry.tracing import TracedSender, Tracing

if TYPE_CHECKING:
    from apcore_a2a.telemetry.export import Export

logger = logging.getLogger(__name__)

Hook = Callable[[], Awaitable[None] | None]
Lifespan = Callable[[], AbstractAsyncContextManager[object]]
CLOSE_TIME: Final = 10.0  # seconds for the agent to close


class Parts(Struct, kw_only=True):
    """The parts of an application besides its settings."""

    agent: Agent
    card: AgentCard
    store: Store | None = None
    auth: Authenticator | None = None
    signer: CardSigner | None = None
    extended_card: Callable[[Caller], AgentCard] | None = None
    interceptors: tuple[Interceptor, ...] = ()
    count_modules: Callable[[], int] | None = None
    on_open: "Callable[[Application], None] | None" = None
    tracer_provider: Any = None
    """The TracerProvider of OpenTelemetry for this application. None: the one that the program has set, if any."""
    lifespan: Lifespan | None = None
    """The `lifespan` of the agent, if it has one."""
    build_card: Callable[[], AgentCard] | None = None
    """Builds the card again, for an agent that may know its skills only when its lifespan has begun."""
    list_skills: Callable[[], list[str]] | None = None
    """Returns the ids of all skills, for an agent whose public card does not show all."""
    on_startup: tuple[Hook, ...] = ()
    on_shutdown: tuple[Hook, ...] = ()


def make_traffic(settings: Settings) -> Traffic:
    """Return the limits on connections and on the bytes of requests and responses in progress."""
    limits = settings.limits
    return Traffic(
        max_connections=limit_to_file_descriptors(limits.max_connections),
        max_connections_per_address=limits.max_connections_per_address,
        max_body_bytes=limits.max_body_bytes_in_flight,
        max_body=limits.max_request_bytes,
        max_answer_bytes=limits.max_answer_bytes_in_flight,
        proxies=settings.proxies,
    )


class Application(Starlette):
    """The agent as a Starlette application.

    Requests skip Starlette's own layers, which take a third of the time of a request, unless middleware or routes were
    added to the application. Added routes are matched before those of the agent, and not authenticated. If the agent is
    mounted in another application and receives no lifespan events, it opens with the first request.

    Example:
        >>> from apcore_a2a import create_app
        >>> async def shout(text: str) -> str:
        ...     return text.upper()
        >>> app = create_app(shout)
        >>> [skill.id for skill in app.cards.card.skills]
        ['shout']
    """

    def __init__(self, parts: Parts, settings: Settings, *, traffic: Traffic | None = None) -> None:
        self.traffic = traffic or make_traffic(settings)
        self.metrics = _metrics_of(self) if settings.metrics or settings.otlp is not None else None
        self.activity = Activity() if settings.profile.answers_ping else None
        self._audit = None if settings.audit_log is None else AuditLog(settings.audit_log)
        self.observers = Observers()
        self.tracing = _tracing_of(parts, settings)
        self._export: Export | None = None
        self.engine = _make_engine(self, parts, settings, self._audit)
        self.cards = _card_endpoint(parts, settings)
        self.settings = settings
        self._parts = parts
        self._opening = asyncio.Lock()
        self._opened = False
        self._agent_lifespan: AgentLifespan | None = None
        self.why_not_open = ""
        self.health = HealthEndpoint(
            self.engine,
            parts.count_modules or self._count_skills,
            auth_trouble=partial(trouble_of, parts.auth),
        )
        self._core = pipeline(
            Served(
                engine=self.engine,
                cards=self.cards,
                health=self.health,
                settings=settings,
                auth=parts.auth,
                metrics=self.metrics if settings.metrics else None,
                audit=self._audit,
                ping=None if self.activity is None else PingEndpoint((self.engine, self.activity)),
            )
        )
        super().__init__(lifespan=self.lifespan)
        self.router.default = self._answer_rest  # all requests that no route of the user matches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(*self._around_lifespan(scope, receive, send))
            return
        if not self._opened and not await self._opens_now(scope, send):
            return
        scope[KEY] = self.traffic
        try:
            if self.user_middleware or self.router.routes:
                await super().__call__(scope, receive, send)
            else:
                await self._core(scope, receive, send)
        except asyncio.CancelledError:
            if self.engine.draining:
                await self._refuse_at_shutdown(scope, send)
            raise

    async def _refuse_at_shutdown(self, scope: Scope, send: Send) -> None:
        """Answer a request that the server ends at the limit of its shutdown. It waits for an agent or a store."""
        error = OverloadedError(SHUTTING_DOWN, retry_after=5)
        try:
            await refuse_early(scope, send, wire(error).http, error, error_headers(error))
        except RuntimeError:  # of the server: the response, for example a stream, has begun
            logger.debug("response not completed at the shutdown")

    async def _opens_now(self, scope: Scope, send: Send) -> bool:
        """Open for the first request, and return whether it may proceed.

        If not, the request is answered here, and the next request tries again.
        """
        if is_health(scope) and self._opening.locked():  # a health request does not wait for the start
            await self.health.answer_while_starting(scope, send)
            return False
        try:
            await self.open_or_keep_reason()
        except A2AError as error:
            logger.error("application did not open", extra={"reason": self.why_not_open})
            if is_health(scope):
                await self.health.answer_while_starting(scope, send)
            else:
                await refuse_early(scope, send, wire(error).http, error, error_headers(error))
            return False
        return True

    async def _answer_rest(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # other servers than ours may pass one on
            await send({"type": "websocket.close", "code": 1000})
            return
        await self._core(scope, receive, send)

    def _around_lifespan(self, scope: Scope, receive: Receive, send: Send) -> tuple[Scope, Receive, Send]:
        """Return the arguments of a lifespan call, with the connection limits and the reason of a failed start added.

        Our server reads the limits from the state, and the reason from the message of the failure.
        """
        if "state" in scope:
            scope["state"][KEY] = self.traffic

        async def send_with_reason(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed" and self.why_not_open:
                message = {**message, "message": self.why_not_open}
            await send(message)

        return scope, receive, send_with_reason

    def skill_ids(self) -> list[str]:
        """Return the ids of all skills, also of those that the public card does not show.

        Example:
            >>> from apcore_a2a import create_app
            >>> create_app([str.upper, str.lower]).skill_ids()
            ['upper', 'lower']
        """
        if self._parts.list_skills is not None:
            return self._parts.list_skills()
        return [skill.id for skill in self.cards.card.skills]

    def _count_skills(self) -> int:
        return len(self.cards.card.skills)

    @asynccontextmanager
    async def lifespan(self, host: Starlette) -> AsyncIterator[None]:
        """Open this agent, then close it. `host` may be the application in which it is mounted.

        Example:
            >>> from apcore_a2a import create_app
            >>> agent = create_app(str.upper)
            >>> host = Starlette(lifespan=agent.lifespan)
            >>> host.mount("/agent", agent)
        """
        await self.open_or_keep_reason()
        with on_exit_signal(self.engine.begin_drain):
            yield
        await self.close()

    async def open(self) -> None:
        """Open the store, run the start-up hooks, then recover interrupted tasks. Further calls do nothing.

        Example:
            >>> from apcore_a2a import async_serve
            >>> async def shout(text: str) -> str:
            ...     return text.upper()
            >>> async def main() -> None:
            ...     app = await async_serve(shout, on_startup=[lambda: print("open")])
            ...     await app.open()
            ...     await app.close()
            >>> asyncio.run(main())
            open
        """
        async with self._opening:
            if not self._opened:
                await self.engine.open()
                try:
                    await self._start()
                except BaseException:
                    await self._close_all(self.engine.store.close)  # otherwise the file of the store stays locked
                    raise
                self._opened = True

    async def _start(self) -> None:
        if self._parts.on_open is not None:
            self._parts.on_open(self)
        if self._audit is not None:
            self._audit.open()
        await open_authenticator(self._parts.auth)
        # Hooks first: the agent of a recovered task may need their results.
        for hook in self._parts.on_startup:
            await _call(hook)
        if self.settings.otlp is not None:
            from apcore_a2a.telemetry.export import observe_metrics, start_export  # loads OpenTelemetry's SDK

            self._export = start_export(self.settings.otlp, self._parts.card.name)
            if self.metrics is not None:
                observe_metrics(self.metrics)
        if self.tracing is not None and self.tracing.start():
            self.observers.add(self.tracing)
        await self._open_agent()
        await self.engine.recover()

    async def _open_agent(self) -> None:
        """Begin the lifespan of the agent, if it has one."""
        if self._parts.lifespan is None:
            return
        self._agent_lifespan = AgentLifespan(self._parts.lifespan)
        await self._agent_lifespan.open()
        if self._parts.build_card is None:
            return
        card = self._parts.build_card()
        self.cards.replace(card)
        if isinstance(self._parts.agent, ScopedAgent):
            self._parts.agent.protect([skill.id for skill in card.skills])

    async def open_or_keep_reason(self) -> None:
        """Open, and keep the reason of a failure for the server to report."""
        try:
            await self.open()
        except A2AError as error:
            self.why_not_open = why_not_open(error)
            raise
        if self.metrics is not None:
            self.metrics.watch_loop()

    async def close(self) -> None:
        """End every run and stream in bounded time, run the shutdown hooks, close the store.

        Example:
            >>> from apcore_a2a import async_serve
            >>> async def shout(text: str) -> str:
            ...     return text.upper()
            >>> async def main() -> None:
            ...     app = await async_serve(shout, on_shutdown=[lambda: print("closed")])
            ...     await app.open()
            ...     await app.close()
            >>> asyncio.run(main())
            closed
        """
        if self.metrics is not None:
            self.metrics.stop()
        await self._close_all(self.engine.close, self._parts.on_shutdown)

    async def _close_all(self, close_engine: Callable[[], Awaitable[None]], hooks: tuple[Hook, ...] = ()) -> None:
        """Close the engine, the agent and all other parts, each even if another one fails to close."""
        async with AsyncExitStack() as closing:  # in reverse order
            if self._export is not None:
                closing.push_async_callback(asyncio.to_thread, self._export.close)  # last: it has all spans then
            if self._audit is not None:
                closing.push_async_callback(asyncio.to_thread, self._audit.close)  # it waits for the disk
            for hook in reversed(hooks):
                closing.push_async_callback(_call, hook)
            closing.push_async_callback(close_authenticator, self._parts.auth)
            if self._agent_lifespan is not None:
                closing.push_async_callback(self._agent_lifespan.close)
            closing.push_async_callback(close_engine)


def _metrics_of(app: Application) -> Metrics:
    # Lambdas, because the engine does not exist yet.
    return Metrics(
        app.traffic,
        stuck_threads=lambda: app.engine.stuck_threads,
        backlog=lambda: app.engine.backlog(),
        usage=lambda: _usage_of(app.engine),
        lease_age=lambda: app.engine.lease_age,
    )


async def _usage_of(engine: Engine) -> Usage:
    """Return the stored tasks and bytes if they are counted anyway, else zero: counting may be expensive."""
    if engine.stored is not None:
        return await engine.stored.usage()
    if isinstance(engine.store, InMemoryTaskStore):
        return await engine.store.usage(ALL_OWNERS)
    return Usage(0, 0)


def _make_engine(app: "Application", parts: Parts, settings: Settings, audit: AuditLog | None) -> Engine:
    store = parts.store or InMemoryTaskStore()
    interceptors = parts.interceptors
    if app.metrics is not None:
        app.observers.add(app.metrics)
    if app.activity is not None:
        app.observers.add(app.activity)
    if audit is not None:
        app.observers.add(AuditedTasks(audit))
        interceptors = (AuditedOperations(audit), *interceptors)
    return Engine(
        parts.agent,
        store,
        options=_engine_options(parts, settings, store),
        hooks=Hooks(
            observer=app.observers,
            tracer=app.tracing,
            interceptors=interceptors,
            extended_card=parts.extended_card,
        ),
        posting=_webhook_posting(settings, app.tracing),
    )


def _tracing_of(parts: Parts, settings: Settings) -> Tracing | None:
    """Return the spans of this agent, or None if OpenTelemetry is not installed."""
    if find_spec("opentelemetry") is None:
        if parts.tracer_provider is not None:
            raise ValueError("tracer_provider needs OpenTelemetry: pip install 'apcore-a2a[telemetry]'")
        return None
    return Tracing(parts.card.name, parts.tracer_provider, record_content=settings.record_content)


def _card_endpoint(parts: Parts, settings: Settings) -> CardEndpoint:
    address = PublicAddress(
        settings.url,
        platform_url=settings.platform_url,
        proxies=settings.proxies,
        allowed_hosts=settings.allowed_hosts,
        uses_host=parts.signer is None,
    )
    profile = settings.profile
    rules = CardRules(
        mode=settings.card_mode,
        interfaces=settings.card_interfaces,
        rpc_path=profile.rpc_path,
        rest_path=profile.rest_path,
        rest=profile.rest,
        grpc=settings.grpc,
    )
    if parts.card.supported_interfaces and not rules.select(parts.card.supported_interfaces):
        raise ValueError(f"card_interfaces {settings.card_interfaces!r}: the card has no interface of that version")
    return CardEndpoint(parts.card, address=address, rules=rules, signer=parts.signer)


def _engine_options(parts: Parts, settings: Settings, store: Store) -> EngineOptions:
    """Return the options of the engine: those of the settings, and what the card promises."""
    options = settings.engine_options()
    if parts.auth is not None:  # without authentication all callers are anonymous, and have the whole limits
        options = replace(options, anonymous_divisor=ANONYMOUS_DIVISOR)
    if isinstance(store, InMemoryTaskStore):  # it has limits of its own, and evicts finished tasks for new ones
        options = replace(
            options, max_stored_tasks_per_caller=None, max_stored_bytes_per_caller=None, max_stored_bytes=None
        )
    # The store may have a limit for this too. The setting overrides it.
    context_messages = settings.limits.max_context_messages or getattr(store, "max_context_messages", None)
    if context_messages is not None:
        options = replace(options, context_messages=context_messages)
    declared = parts.card.capabilities.extensions
    return replace(
        options,
        streaming=bool(parts.card.capabilities.streaming),
        extensions=frozenset(extension.uri for extension in declared),
        required_extensions=frozenset(extension.uri for extension in declared if extension.required),
    )


async def _call(hook: Hook) -> None:
    done = hook()
    if done is not None:
        await done


def _webhook_posting(settings: Settings, tracing: Tracing | None) -> Posting | None:
    if not settings.push_notifications:
        return None
    # This import loads aiohttp, which a server without webhooks does not need.
    from apcore_a2a.webhooks.sender import FORMATS, WebhookSender

    if settings.allow_insecure_webhooks:
        logger.warning("webhooks may use plain HTTP and private addresses; for development only")
    secrets = (settings.webhook_secret or "").split()
    sender: Sender = WebhookSender(allow_insecure=settings.allow_insecure_webhooks, secrets=secrets)
    if tracing is not None:
        sender = TracedSender(sender, tracing)
    return Posting(sender=sender, formats=FORMATS)


class AgentLifespan:
    """Opens and closes an agent that has a `lifespan`.

    Invariant: one asyncio task enters and leaves the context manager, because those of other libraries (anyio) require
    it. An application may be opened by its first request, and closed by its server.
    """

    def __init__(self, begin: Lifespan) -> None:
        self._begin = begin
        self._stop = asyncio.Event()
        self._is_open = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Enter the lifespan. Raises what the agent raises."""
        self._task = asyncio.create_task(self._run(), name="agent lifespan")
        opened = asyncio.create_task(self._is_open.wait())
        try:
            await asyncio.wait({self._task, opened}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        finally:
            opened.cancel()
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Leave the lifespan, if it was entered. An agent that does not close in time is cancelled."""
        task = self._task
        if task is None or task.done():
            return
        self._stop.set()
        await asyncio.wait({task}, timeout=CLOSE_TIME)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_TIME)
            logger.warning("agent did not close in time")
        elif not task.cancelled() and task.exception() is not None:
            logger.error("agent did not close", exc_info=task.exception())

    async def _run(self) -> None:
        async with self._begin():
            self._is_open.set()
            await self._stop.wait()
