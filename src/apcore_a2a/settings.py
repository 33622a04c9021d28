"""Everything that can be set, in one frozen value, checked once.

Rule: read here, and only here; below `app/` everyone receives plain values.
"""

from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from apcore_a2a.engine.options import EngineOptions
from apcore_a2a.http.traffic import MIB
from apcore_a2a.protocol.card import CardMode
from apcore_a2a.protocol.decoding import MAX_VALUES

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_POSITIVE: Final = (
    "shutdown_timeout",
    "execution_timeout",
    "max_active_tasks",
    "max_streams",
    "max_connections",
    "max_body_bytes_in_flight",
    "max_answer_bytes_in_flight",
    "max_streams_per_caller",
    "max_json_values",
)


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
    cors_origins: tuple[str, ...] = ()
    push_notifications: bool = False
    explorer: bool = False
    explorer_prefix: str = "/explorer"
    metrics: bool = False
    cancel_on_disconnect: bool = True
    same_message_same_task: bool = False
    shutdown_timeout: float = 30
    drain_delay: float = 0
    execution_timeout: float | None = 300
    context_messages: int = 100  # earlier messages of a conversation that an agent is told
    max_active_tasks: int = 10_000
    max_streams: int = 10_000
    max_connections: int = 10_000
    max_body_bytes_in_flight: int = 256 * MIB
    max_answer_bytes_in_flight: int = 256 * MIB
    max_streams_per_caller: int = 1_000
    max_json_values: int = MAX_VALUES
    trusted_proxies: tuple[str, ...] = ()
    card_mode: CardMode = "auto"
    old_statuses: bool = False
    log_level: str | None = None

    def check(self) -> "Settings":
        """This value, if it makes sense.

        Raises:
            ValueError: it does not; the text names the setting.
        """
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, not {self.port}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive, not {value}")
        for name in ("drain_delay", "context_messages"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.url is not None and urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError(f"url must be an http or https address, not {self.url!r}")
        if not self.explorer_prefix.startswith("/") or self.explorer_prefix.endswith("/"):
            raise ValueError(f"explorer_prefix must look like '/explorer', not {self.explorer_prefix!r}")
        if self.log_level is not None and self.log_level.lower() not in LOG_LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        return self

    def engine_options(self) -> EngineOptions:
        """The engine's share."""
        return EngineOptions(
            execution_timeout=self.execution_timeout,
            shutdown_timeout=self.shutdown_timeout,
            max_active_tasks=self.max_active_tasks,
            max_streams=self.max_streams,
            max_streams_per_caller=self.max_streams_per_caller,
            context_messages=self.context_messages,
            cancel_on_disconnect=self.cancel_on_disconnect,
            same_message_same_task=self.same_message_same_task,
        )
