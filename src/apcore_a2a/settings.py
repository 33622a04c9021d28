"""Everything that can be set, in one frozen value, checked once.

Rule: read here, and only here; below `app/` everyone receives plain values.
"""

import math
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from apcore_a2a.engine.context import EngineOptions
from apcore_a2a.http.server.tls import ClientCertificates
from apcore_a2a.http.traffic import MAX_BODY, MIB, TrustedProxies
from apcore_a2a.protocol.card import CardMode
from apcore_a2a.protocol.decoding import MAX_VALUES
from apcore_a2a.webhooks.signatures import parse_secret

SECRETS: Final = frozenset({"ssl_keyfile_password", "webhook_secret"})
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_POSITIVE: Final = (
    "shutdown_timeout",
    "execution_timeout",
    "max_active_tasks",
    "max_active_tasks_per_caller",
    "max_requests_per_second",
    "max_anonymous_requests_per_second",
    "max_total_requests_per_second",
    "request_burst",
    "max_streams",
    "max_connections",
    "max_connections_per_address",
    "max_body_bytes_in_flight",
    "max_answer_bytes_in_flight",
    "max_streams_per_caller",
    "max_stored_tasks_per_caller",
    "max_stored_bytes_per_caller",
    "max_stored_bytes",
    "max_json_values",
    "max_request_bytes",
    "max_event_bytes",
    "max_output_bytes",
    "keep_alive_interval",
    "max_context_messages",
    "task_store_ttl",
    "task_store_max",
)
_RATES: Final = ("max_requests_per_second", "max_anonymous_requests_per_second", "max_total_requests_per_second")
_FINITE: Final = ("shutdown_timeout", "drain_delay", *_RATES)


class Settings(Struct, frozen=True, kw_only=True):
    """How an agent is served. `serve(...)` takes each of these as a keyword.

    Example:
        >>> from apcore_a2a import Settings
        >>> Settings(port=9000).check().port
        9000
    """

    host: str = "0.0.0.0"  # what the requirements ask for; the banner warns
    port: int = 8000
    name: str | None = None
    description: str | None = None
    version: str | None = None
    url: str | None = None
    default_skill: str = ""
    approvals_by_caller: bool = True
    store: str | None = None
    task_store_ttl: float | None = None
    """Seconds that a finished task is kept; None is the store's own: 3,600 in memory, a week in SQLite."""
    task_store_max: int | None = None
    """Most tasks kept; None is the store's own: 10,000 in memory, a million in SQLite."""
    skill_scopes: dict[str, tuple[str, ...]] = {}
    """The scopes that a caller's credentials must have, by patterns of skill ids."""
    admin_role: str | None = None
    """The role whose bearers may list and cancel everybody's tasks; None: nobody may."""
    audit_log: str | None = None
    """Where the audit log goes: a file, or "-" for the logger `apcore_a2a.audit`."""
    cors_origins: tuple[str, ...] = ()
    push_notifications: bool = False
    """Whether tasks may have webhooks."""
    allow_insecure_webhooks: bool = False
    """Whether they may be plain HTTP, and point into this machine and its network. For development."""
    webhook_secret: str | None = None
    """What notifications are signed with: `whsec_` and base64; two with a space between while it is being changed."""
    explorer: bool = False
    explorer_prefix: str = "/explorer"
    metrics: bool = False
    cancel_on_disconnect: bool = True
    same_message_same_task: bool = False
    state_history: bool = False
    """Whether tasks say in their metadata which states they have passed through."""
    shutdown_timeout: float = 30
    drain_delay: float = 0
    keep_alive_interval: float = 15
    """Seconds after which a stream that has nothing to tell says that it is alive."""
    max_context_messages: int | None = None
    """Messages of a conversation that an agent is told; None leaves it to the store, or to the usual 100."""
    execution_timeout: float | None = 300
    max_requests_per_second: float | None = None
    """Requests a second that each caller may make; None is without a limit."""
    max_anonymous_requests_per_second: float | None = None
    """The same for each address of callers without a name; None is as others, with authentication a tenth of that."""
    max_total_requests_per_second: float | None = None
    """Requests a second that all callers together may make; None is without a limit."""
    request_burst: int | None = None
    """Requests of one caller that may come at once before those limits hold; None is those of two seconds."""
    max_active_tasks: int = 10_000
    max_active_tasks_per_caller: int = 5_000
    max_streams: int = 10_000
    max_connections: int = 10_000
    max_connections_per_address: int | None = None
    """Most connections of one address that is no trusted proxy; None is half of those of all."""
    max_body_bytes_in_flight: int = 256 * MIB
    max_answer_bytes_in_flight: int = 256 * MIB
    max_streams_per_caller: int = 1_000
    max_stored_tasks_per_caller: int | None = None
    """Most tasks that are kept of one caller; None is without a limit."""
    max_stored_bytes_per_caller: int | None = None
    """Most bytes of JSON that their tasks have together; None is without a limit, in memory half of those of all."""
    max_stored_bytes: int | None = None
    """The same of all callers; None is without a limit, in memory 256 MiB."""
    max_json_values: int = MAX_VALUES
    max_request_bytes: int = MAX_BODY
    """Bytes of one request: of a message with all its parts."""
    max_event_bytes: int = 64 * MIB
    """Bytes of one event of an agent as JSON: a status, or a piece of an artifact."""
    max_output_bytes: int = 256 * MIB
    """Bytes of all events of one run: of the artifacts that it makes, piece by piece."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses, or networks, of proxies whose X-Forwarded-* and Client-Cert are believed."""
    ssl_certfile: str | None = None
    """The server's certificate, PEM, and those between it and its authority; None serves without TLS."""
    ssl_keyfile: str | None = None
    """Its key; None if that is in the same file."""
    ssl_keyfile_password: str | None = None
    ssl_ca_certs: str | None = None
    """The authorities whose certificates callers must show, PEM; None asks for none."""
    ssl_client_certs: ClientCertificates = "required"
    """Whether a caller without one is refused by TLS, or gets to where authentication decides."""
    card_mode: CardMode = "auto"
    old_statuses: bool = False
    log_level: str | None = None

    def __repr__(self) -> str:
        """Every setting; of those that are secrets, only whether they are set."""
        shown: list[str] = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in SECRETS and value is not None:
                value = "***"
            if name == "store" and value is not None:
                value = hide_password(value)
            shown.append(f"{name}={value!r}")
        return f"Settings({', '.join(shown)})"

    def check(self) -> "Settings":
        """This value, if it makes sense.

        Raises:
            ValueError: it does not; the text names the setting.

        Example:
            >>> from apcore_a2a import Settings
            >>> Settings(keep_alive_interval=0).check()
            Traceback (most recent call last):
            ValueError: keep_alive_interval must be positive, not 0
        """
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, not {self.port}")
        self._check_numbers()
        for origin in self.cors_origins:
            if not _is_origin(origin):
                raise ValueError(f"cors_origins must hold origins such as 'https://app.example' or '*', not {origin!r}")
        TrustedProxies(self.trusted_proxies)
        if self.url is not None and not _is_http(self.url):
            raise ValueError(f"url must be an http or https address, not {self.url!r}")
        if not self.explorer_prefix.startswith("/") or self.explorer_prefix.endswith("/"):
            raise ValueError(f"explorer_prefix must look like '/explorer', not {self.explorer_prefix!r}")
        self._check_tls()
        _check_secrets(self.webhook_secret or "")
        if self.log_level is not None and self.log_level.lower() not in LOG_LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        return self

    def _check_numbers(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:  # not `<= 0`: NaN is neither
                raise ValueError(f"{name} must be positive, not {value}")
        if not self.drain_delay >= 0:
            raise ValueError(f"drain_delay must not be negative, not {self.drain_delay}")
        for name in _FINITE:
            if getattr(self, name) == math.inf:
                raise ValueError(f"{name} must be finite")
        if self.request_burst is not None and not any(getattr(self, name) for name in _RATES):
            raise ValueError(f"request_burst is of no use without {' or '.join(_RATES)}")

    def _check_tls(self) -> None:
        if self.ssl_certfile is None:
            for name in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is of no use without ssl_certfile")
        if self.ssl_client_certs not in ("required", "optional"):
            raise ValueError(f"ssl_client_certs must be 'required' or 'optional', not {self.ssl_client_certs!r}")

    def engine_options(self) -> EngineOptions:
        """The engine's share.

        Example:
            >>> from apcore_a2a import Settings
            >>> Settings(execution_timeout=60).engine_options().execution_timeout
            60
        """
        return EngineOptions(
            execution_timeout=self.execution_timeout,
            shutdown_timeout=self.shutdown_timeout,
            max_active_tasks=self.max_active_tasks,
            max_active_tasks_per_caller=self.max_active_tasks_per_caller,
            max_streams=self.max_streams,
            max_streams_per_caller=self.max_streams_per_caller,
            max_stored_tasks_per_caller=self.max_stored_tasks_per_caller,
            max_stored_bytes_per_caller=self.max_stored_bytes_per_caller,
            max_stored_bytes=self.max_stored_bytes,
            max_event_bytes=self.max_event_bytes,
            max_output_bytes=self.max_output_bytes,
            cancel_on_disconnect=self.cancel_on_disconnect,
            same_message_same_task=self.same_message_same_task,
            keep_alive_interval=self.keep_alive_interval,
            state_history=self.state_history,
            admin_role=self.admin_role or None,
        )


def hide_password(url: str) -> str:
    """The URL of a store as it may be shown: without what may be a password, before an `@` or in the query.

    Example:
        >>> hide_password("postgresql://agent:secret@db/tasks?ttl=60")
        'postgresql://…@db/tasks?ttl=60'
    """
    scheme, separator, rest = url.partition("://")
    if rest.startswith("/"):  # a file, of which nothing is secret
        return url
    address, question_mark, query = rest.partition("?")
    if "@" in query:  # a "?" in a password looks like this, and so does an "@" in one: nothing is known for sure
        return f"{scheme}{separator}…"
    if "@" in address:
        address = f"…@{address.rpartition('@')[2]}"
    if "password" in query:
        query = "…"
    return f"{scheme}{separator}{address}{question_mark}{query}"


def _check_secrets(given: str) -> None:
    for secret in given.split():
        try:
            parse_secret(secret)
        except ValueError as error:
            raise ValueError(f"webhook_secret makes no sense: {error}") from error


def _is_http(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _is_origin(text: str) -> bool:
    """Whether a browser could say this in Origin: a scheme and a host, and nothing after them."""
    if text in ("*", "null"):
        return True
    scheme, separator, host = text.partition("://")
    return bool(scheme and separator and host) and "/" not in host
