"""Several agents in one server, each at its own path, with an index for people and a catalog for programs.

Invariant: the agents share the address, the connections and the shutdown. Each has its own card, store and callers.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from html import escape
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.types import Message, Receive, Scope, Send

from apcore_a2a.app.application import Application
from apcore_a2a.app.routes import own_names
from apcore_a2a.errors import InvalidRequestError
from apcore_a2a.http.asgi import inbound, path_of, refuse_early, respond
from apcore_a2a.http.card import CARD_PATH
from apcore_a2a.http.front_page import HTML, POLICY, STYLE
from apcore_a2a.http.health import HEALTH, LIVE, PING, READY, PingEndpoint
from apcore_a2a.http.middleware import OriginGate
from apcore_a2a.http.server.server import on_exit_signal
from apcore_a2a.http.traffic import KEY, Traffic
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.model import encode
from apcore_a2a.settings import Settings

CATALOG_PATH: Final = "/.well-known/ai-catalog.json"
CATALOG_TYPE: Final = b"application/ai-catalog+json"
CARD_TYPE: Final = "application/a2a-agent-card+json"
CATALOG_VERSION: Final = "1.0"
CATALOG_LINK: Final = (b"link", f'<.{CATALOG_PATH}>; rel="ai-catalog"; type="{CATALOG_TYPE.decode()}"'.encode())
READS: Final = ("GET", "HEAD")
ONE_AGENT_ONLY: Final = (
    "name",
    "description",
    "version",
    "card",
    "default_skill",
    "task_store",
    "request_context_builder",
    "on_startup",
    "on_shutdown",
)
"""Options that several agents cannot share."""
_PATH: Final = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")  # no segment begins with a dot
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Agents</title><style>{style}</style>
<link rel="ai-catalog" href=".{catalog}" type="application/ai-catalog+json"></head><body>
<h1>{count} agents</h1>
<p>Each is an <a href="https://a2a-protocol.org">A2A</a> agent. The <a href=".{catalog}">catalog</a> lists them for
programs.</p>
<ul>{agents}</ul>
</body></html>
"""


def is_site(target: object) -> bool:
    """Return whether `target` maps paths to agents. A mapping without a leading / has skill ids as its keys."""
    if not isinstance(target, Mapping) or not target:
        return False
    return all(isinstance(path, str) and path.startswith("/") for path in target)


def check_paths(paths: list[str]) -> None:
    """Reject paths that are not valid, and names of stores that would be equal.

    Raises:
        ValueError: the text names the path.
    """
    names: dict[str, str] = {}
    for path in paths:
        if not _PATH.fullmatch(path) or path.split("/")[1] == HEALTH.strip("/"):
            raise ValueError(f"an agent's path must be like /math, and not {HEALTH}; got {path!r}")
        name = name_of(path)
        if name in names:
            raise ValueError(f"{names[name]} and {path} would have the same store: choose paths that differ in letters")
        names[name] = path


def name_of(path: str) -> str:
    """Return the path of an agent as a part of a file name or a schema name."""
    return _NOT_IN_NAMES.sub("_", path.strip("/").lower())


def store_of(url: str | None, path: str) -> str | None:
    """Return the URL of the store of the agent at `path`: a file or a schema of its own.

    Example:
        >>> store_of("sqlite:///tasks.db", "/math")
        'sqlite:///tasks-math.db'
        >>> store_of("postgresql://agent@db/agents", "/math")
        'postgresql://agent@db/agents?schema=apcore_a2a_math'
    """
    if url is None:
        return None
    parts = urlsplit(url)
    name = name_of(path)
    if parts.scheme == "sqlite":
        stem, dot, suffix = parts.path.rpartition(".")
        if not dot or "/" in suffix:
            stem, dot, suffix = parts.path, "", ""
        # Not urlunsplit, which drops the empty host.
        query = f"?{parts.query}" if parts.query else ""
        return f"sqlite://{stem}-{name}{dot}{suffix}{query}"
    if parts.scheme in ("postgresql", "postgres"):
        options = [option for option in parts.query.split("&") if option]
        schema = "apcore_a2a"
        for option in list(options):
            if option.startswith("schema="):
                schema = option.removeprefix("schema=")
                options.remove(option)
        return urlunsplit(parts._replace(query="&".join([*options, f"schema={schema}_{name}"])))
    return url


def url_of(url: str | None, path: str) -> str | None:
    """Return the public address of the agent at `path`, if the server has one."""
    if url is None:
        return None
    return f"{url.rstrip('/')}{path}/"


class _ListedAgent(Struct, frozen=True):
    """An agent as the index shows it."""

    path: str
    address: str
    card: AgentCard


class Site(Starlette):
    """Several agents as one ASGI application.

    Example:
        >>> from apcore_a2a import create_site
        >>> site = create_site({"/shout": str.upper})
        >>> site.agents["/shout"].cards.card.skills[0].id
        'upper'
    """

    def __init__(self, agents: Mapping[str, Application], settings: Settings, traffic: Traffic) -> None:
        self.agents = dict(agents)
        self.settings = settings
        self.traffic = traffic
        self._gate = OriginGate(
            self._answer,
            host=settings.host,
            names=own_names(settings),
            origins=settings.cors_origins,
            proxies=settings.proxies,
            is_open=True,
        )
        watched = [(agent.engine, agent.activity) for agent in agents.values() if agent.activity is not None]
        self._ping = PingEndpoint(*watched) if watched else None
        super().__init__(lifespan=self.lifespan)
        self.router.default = self._dispatch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self.user_middleware and not self.router.routes:
            await self._dispatch(scope, receive, send)
            return
        if scope["type"] == "lifespan":
            if "state" in scope:
                scope["state"][KEY] = self.traffic
            send = self._with_reason(send)
        await super().__call__(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, host: Starlette) -> AsyncIterator[None]:
        """Open every agent, then close them together. `host` may be the application in which the site is mounted."""
        async with AsyncExitStack() as closing:
            for agent in self.agents.values():
                await agent.open_or_keep_reason()
                closing.push_async_callback(agent.close)
            # First of all, so that the runs of all agents end during the same shutdown_timeout.
            closing.callback(self._begin_drain)
            with on_exit_signal(self._begin_drain):
                yield

    def _begin_drain(self) -> None:
        for agent in self.agents.values():
            agent.engine.begin_drain()

    def _with_reason(self, send: Send) -> Send:
        """Return `send` with the reason of an agent that did not open in the message of the failure."""

        async def send_with_reason(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                reasons = [f"{path}: {agent.why_not_open}" for path, agent in self.agents.items() if agent.why_not_open]
                if reasons:
                    message = {**message, "message": "; ".join(reasons)}
            await send(message)

        return send_with_reason

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        path = self._find(path_of(scope))
        if path:
            await self.agents[path](_below(scope, path), receive, send)
        else:
            await self._gate(scope, receive, send)

    def _find(self, path: str) -> str:
        """Return the longest path of an agent that contains `path`, or an empty string."""
        while path:
            if path in self.agents:
                return path
            path = path.rpartition("/")[0]
        return ""

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_of(scope)
        if scope["method"] in READS:
            if path == CATALOG_PATH:
                await self._send_catalog(scope, send)
                return
            if path in (HEALTH, LIVE, READY):
                await self._send_health(scope, receive, send)
                return
            if path == PING and self._ping is not None:
                await self._ping(scope, receive, send)
                return
            if path == "/":
                await self._send_index(scope, send)
                return
        known = ", ".join(f"{path}/" for path in self.agents)
        error = InvalidRequestError(f"No agent is at this path. The agents are at {known}")
        await refuse_early(scope, send, 404, error)

    def _entries(self, scope: Scope) -> list[_ListedAgent]:
        found = []
        for path, agent in self.agents.items():
            card = agent.cards.at(agent.cards.card, _below(scope, path), "1.0")
            found.append(_ListedAgent(path, card.supported_interfaces[0].url, card))
        return found

    async def _send_catalog(self, scope: Scope, send: Send) -> None:
        """Answer with an AI Catalog: https://github.com/Agent-Card/ai-catalog, version 1.0."""
        entries = []
        for entry in self._entries(scope):
            listed = {
                "identifier": entry.address,
                "displayName": entry.card.name,
                "description": entry.card.description,
                "version": entry.card.version,
                "mediaType": CARD_TYPE,
                "url": f"{entry.address.rstrip('/')}{CARD_PATH}",
            }
            entries.append(listed)
        body = encode({"specVersion": CATALOG_VERSION, "entries": entries})
        await respond(send, 200, body, media=CATALOG_TYPE)

    async def _send_index(self, scope: Scope, send: Send) -> None:
        vary = (b"vary", b"Accept")
        entries = self._entries(scope)
        if not inbound(scope).accepts(HTML):
            agents = {entry.path: f"{entry.address.rstrip('/')}{CARD_PATH}" for entry in entries}
            await respond(send, 200, encode({"agents": agents}), headers=(CATALOG_LINK, vary))
            return
        items = []
        for entry in entries:
            name = f'<a href=".{escape(entry.path)}/">{escape(entry.card.name)}</a>'
            items.append(f"<li>{name} <code>{escape(entry.path)}/</code> {escape(entry.card.description)}</li>")
        page = PAGE.format(style=STYLE, catalog=CATALOG_PATH, count=len(entries), agents="".join(items))
        headers = ((b"content-security-policy", POLICY.encode()), CATALOG_LINK, vary)
        await respond(send, 200, page.encode(), media=b"text/html; charset=utf-8", headers=headers)

    async def _send_health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the health of every agent. One that is not healthy makes the whole answer 503."""
        agents: dict[str, Any] = {}  # Any: the answers of the agents, which are JSON objects
        status = 200
        for path, agent in self.agents.items():
            answer = _AgentAnswer()
            await agent(_below(scope, path), receive, answer.send)
            status = max(status, answer.status)
            agents[path] = msgspec.json.decode(answer.body)
        summary = "healthy" if status == 200 else "unhealthy"
        await respond(send, status, encode({"status": summary, "agents": agents}))


class _AgentAnswer:
    """The response of an agent to a request of the site itself."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")


def _below(scope: Scope, path: str) -> Scope:
    """Return the scope of a request for the agent at `path`, as a mounted application receives it."""
    root = scope.get("root_path", "").rstrip("/")
    below = dict(scope)
    below["root_path"] = f"{root}{path}"
    if not scope["path"].startswith(f"{root}{path}"):  # a request of the site itself
        below["path"] = f"{root}{path}{path_of(scope)}"
    return below


def make_site(
    targets: Mapping[str, object],
    build_one: Callable[[object, str, Traffic], Application],
    settings: Settings,
    traffic: Traffic,
) -> Site:
    """Return the site of `targets`. `build_one` makes the application of a target that is not an application yet."""
    check_paths(list(targets))
    agents: dict[str, Application] = {}
    for path, target in targets.items():
        if isinstance(target, Application):
            agents[path] = target
        else:
            agents[path] = build_one(target, path, traffic)
    return Site(agents, settings, traffic)
