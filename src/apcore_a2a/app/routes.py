"""The routes of the application, which of them are public, and the middleware before them.

Invariant: every route requires authentication, except the public routes, which are named exactly.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.app.access import AuditedRoute, AuthMiddleware
from apcore_a2a.auth.audit import AuditLog
from apcore_a2a.auth.authenticator import Authenticator, credential_headers, security_schemes
from apcore_a2a.engine.engine import Engine
from apcore_a2a.explorer.page import ExplorerPage, Inbox
from apcore_a2a.http.card import (
    CARD_PATH,
    EXTENDED_CARD_PATH,
    JWKS_PATH,
    OLD_CARD_PATH,
    CardEndpoint,
    ExtendedCardEndpoint,
    KeysEndpoint,
)
from apcore_a2a.http.forwarded import ForwardedClient
from apcore_a2a.http.front_page import FrontPage
from apcore_a2a.http.health import HEALTH, LIVE, PING, READY, HealthEndpoint, PingEndpoint
from apcore_a2a.http.jsonrpc import JSONRPCBinding
from apcore_a2a.http.metrics import Metrics
from apcore_a2a.http.middleware import ClientCertificate, Dispatch, OriginGate, OwnNames, PathAliases
from apcore_a2a.http.rate_limit import RateLimit, Rates
from apcore_a2a.http.rest import RESTBinding
from apcore_a2a.http.webhooks import PATH, REDELIVER_PATH, WebhooksEndpoint
from apcore_a2a.settings import Settings
from apcore_a2a.trace_context import TRACE_HEADERS
from apcore_a2a.web import NO_STORE, SAFE

logger = logging.getLogger(__name__)

# With authentication, an anonymous caller has a tenth of the limits of an authenticated caller.
ANONYMOUS_DIVISOR: Final = 10
GRPC_HEALTH: Final = "/grpc.health.v1.Health/"
CORS_HEADERS: Final = (
    "A2A-Version",
    "A2A-Extensions",
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    *TRACE_HEADERS,
)


class Served(Struct, frozen=True, kw_only=True):
    """The objects from which the routes are made."""

    engine: Engine
    cards: CardEndpoint
    health: HealthEndpoint
    settings: Settings
    auth: Authenticator | None
    metrics: Metrics | None
    audit: AuditLog | None
    ping: PingEndpoint | None


def pipeline(served: Served) -> ASGIApp:
    """Return the ASGI application: origin check, CORS, then the route. Only public routes need no authentication."""
    settings = served.settings
    limits = settings.limits
    limited = _rate_limit(served)
    rest = limited(
        RESTBinding(
            served.engine,
            locate=served.cards.at,
            max_values=limits.max_json_values,
            max_body=limits.max_request_bytes,
            old_statuses=settings.old_statuses,
        )
    )
    # Around each endpoint, not around the dispatch: the endpoint that was looked up contains its authentication. No
    # spelling of a path can select one route for the authentication and another one behind it.
    rest = _with_auth(rest, served)
    routes = _public_routes(served)
    explorer = settings.explorer_prefix if settings.explorer else ""
    routes["GET", "/"] = FrontPage(
        served.cards, explorer=explorer, default_skill=settings.default_skill, otherwise=rest
    )
    for route, endpoint in _protected_routes(served, limited).items():
        routes[route] = _with_auth(endpoint, served)
    grpc = None
    if settings.grpc is not False:
        calls = limited(_LazyEndpoint(lambda: _grpc_binding(served)))
        grpc = _grpc_dispatch(_with_auth(calls, served), served)
    dispatch = Dispatch(routes, rest, grpc=grpc, on_request=_counter(served.metrics))
    return _behind_gates(dispatch, settings, served.auth)


def _protected_routes(served: Served, limited: Callable[[ASGIApp], ASGIApp]) -> dict[tuple[str, str], ASGIApp]:
    """Return the routes that need authentication, by method and path, without the authentication."""
    engine = served.engine
    cards = served.cards
    limits = served.settings.limits
    rpc = JSONRPCBinding(engine, locate=cards.at, max_values=limits.max_json_values, max_body=limits.max_request_bytes)
    routes: dict[tuple[str, str], ASGIApp] = {
        ("POST", "/"): limited(rpc),
        ("GET", EXTENDED_CARD_PATH): limited(ExtendedCardEndpoint(engine, cards)),
    }
    if engine.webhooks is not None:
        webhooks = _with_audit(limited(WebhooksEndpoint(engine.webhooks)), served.audit)
        routes["GET", PATH] = webhooks
        routes["POST", REDELIVER_PATH] = webhooks
    if _has_inbox(served.settings):
        inbox = limited(Inbox())
        for method in ("GET", "POST", "DELETE"):
            routes[method, f"{served.settings.explorer_prefix}/inbox"] = inbox
    return routes


def _with_auth(app: ASGIApp, served: Served) -> ASGIApp:
    if served.auth is None:
        return app
    return AuthMiddleware(app, served.auth, audit=served.audit)


class _LazyEndpoint:
    """An endpoint whose code is loaded with its first request, on a thread."""

    def __init__(self, load: Callable[[], ASGIApp]) -> None:
        self._load = load
        self._app: ASGIApp | None = None
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if app is None:
            app = await self._load_once()
        await app(scope, receive, send)

    async def _load_once(self) -> ASGIApp:
        async with self._loading:
            if self._app is None:
                self._app = await asyncio.to_thread(self._load)
            return self._app


def _grpc_binding(served: Served) -> ASGIApp:
    from apcore_a2a.http.grpc import GRPCBinding  # loads the tables of message types, which only gRPC needs

    limits = served.settings.limits
    return GRPCBinding(
        served.engine,
        served.cards,
        max_values=limits.max_json_values,
        max_body=limits.max_request_bytes,
        old_statuses=served.settings.old_statuses,
    )


def _grpc_health(served: Served) -> ASGIApp:
    from apcore_a2a.http.grpc import GRPCHealth  # as above

    return GRPCHealth(served.health)


def _grpc_dispatch(calls: ASGIApp, served: Served) -> Callable[[str], ASGIApp]:
    """Return the endpoint of a gRPC method by its path. Health is public, as over HTTP."""
    health = _LazyEndpoint(lambda: _grpc_health(served))

    def find(path: str) -> ASGIApp:
        return health if path.startswith(GRPC_HEALTH) else calls

    return find


def _counter(metrics: Metrics | None) -> Callable[[], None] | None:
    if metrics is None:
        return None
    return metrics.request_received


def _with_audit(app: ASGIApp, audit: AuditLog | None) -> ASGIApp:
    if audit is None:
        return app
    return AuditedRoute(app, audit)


def _has_inbox(settings: Settings) -> bool:
    """Return whether the Explorer receives webhooks itself, for development."""
    return settings.explorer and settings.push_notifications and settings.allow_insecure_webhooks


def _behind_gates(app: ASGIApp, settings: Settings, auth: Authenticator | None) -> ASGIApp:
    """Wrap the application in the middleware that checks every request. The last one added here runs first."""
    if _asks_for_certificates(auth):
        app = ClientCertificate(app, proxies=settings.trusted_proxies)
    if settings.cors_origins:
        app = _with_cors(app, settings.cors_origins, auth)
    app = OriginGate(
        app,
        host=settings.host,
        names=own_names(settings),
        origins=settings.cors_origins,
        proxies=settings.proxies,
        is_open=auth is None,
    )
    profile = settings.profile
    if profile.rpc_path:
        app = PathAliases(app, rpc=profile.rpc_path, rest=profile.rest_path)
    if settings.proxies:
        app = ForwardedClient(app, proxies=settings.trusted_proxies, forwarders=profile.forwarders)
    return app


def own_names(settings: Settings) -> OwnNames:
    """Return the names by which clients may call, for the check of Host."""
    any_host = not settings.profile.has_browsers
    return OwnNames(url=settings.url or settings.platform_url, allowed_hosts=settings.allowed_hosts, any_host=any_host)


def _asks_for_certificates(auth: Authenticator | None) -> bool:
    if auth is None:
        return False
    return any(scheme.get("type") == "mutualTLS" for scheme in security_schemes(auth))


def _rate_limit(served: Served) -> Callable[[ASGIApp], ASGIApp]:
    """Return the wrapper of each binding, which does nothing if there is no limit. Public routes have no limit."""
    limits = served.settings.limits
    anonymous = limits.max_anonymous_requests_per_second
    if anonymous is None and limits.max_requests_per_second is not None:
        anonymous = limits.max_requests_per_second
        if served.auth is not None:  # without authentication all callers are anonymous, and have the whole limit
            anonymous /= ANONYMOUS_DIVISOR
    rates = Rates(
        per_caller=limits.max_requests_per_second,
        per_anonymous=anonymous,
        total=limits.max_total_requests_per_second,
        burst=limits.request_burst,
    )
    if not rates.are_limited:
        return lambda app: app
    on_refused = None
    if served.metrics is not None:
        on_refused = served.metrics.request_limited
    return RateLimit(rates, on_refused=on_refused).around


def _public_routes(served: Served) -> dict[tuple[str, str], ASGIApp]:
    """Return the public routes by method and path."""
    cards = served.cards
    settings = served.settings
    health = served.health
    public: dict[tuple[str, str], ASGIApp] = {
        ("GET", CARD_PATH): cards,
        ("GET", OLD_CARD_PATH): cards,
        ("GET", HEALTH): health,
        ("GET", LIVE): health,
        ("GET", READY): health,
    }
    if served.ping is not None:
        public["GET", PING] = served.ping
    if cards.signer is not None:
        public["GET", JWKS_PATH] = KeysEndpoint(cards.signer.jwks)
    if served.metrics is not None:
        public["GET", "/metrics"] = served.metrics
    if settings.explorer:
        page = ExplorerPage(
            settings.explorer_prefix,
            schemes=lambda: cards.card.security_schemes,
            options=("inbox",) if _has_inbox(settings) else (),
            client_id=settings.explorer_client_id or "",
            trace_url=settings.explorer_trace_url or "",
        )
        public["GET", settings.explorer_prefix] = page
        public["GET", f"{settings.explorer_prefix}/"] = page
    # Load balancers and monitors send HEAD: it is answered as GET is, and the server leaves out the body.
    heads = {("HEAD", path): endpoint for (_, path), endpoint in public.items()}
    return {**public, **heads}


class _SafeCORS(CORSMiddleware):
    """Starlette's CORS middleware, with the security headers on preflight responses as well."""

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        answer.raw_headers += (*SAFE, *NO_STORE)
        return answer


def _with_cors(app: ASGIApp, origins: tuple[str, ...], auth: Authenticator | None) -> ASGIApp:
    if "*" in origins:
        logger.warning("CORS is open to every origin; name the origins in production")
    keys = () if auth is None else credential_headers(security_schemes(auth))
    return _SafeCORS(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=(*CORS_HEADERS, *sorted(keys)),
        expose_headers=("A2A-Version", "A2A-Extensions", "ETag", "Link", "Retry-After", "WWW-Authenticate"),
    )
