"""The limits and habits of an engine, and their defaults."""

from typing import Final

from msgspec import Struct


class EngineOptions(Struct, frozen=True, kw_only=True):
    """The engine's share of the settings."""

    execution_timeout: float | None = 300
    shutdown_timeout: float = 30
    max_active_tasks: int = 10_000
    max_active_tasks_per_caller: int = 5_000
    max_streams: int = 10_000
    max_streams_per_caller: int = 1_000
    anonymous_part: int = 1
    """Callers without a name have this part of what one may run and watch: with 10 a tenth, one at least."""
    max_stored_tasks_per_caller: int | None = None
    max_stored_bytes_per_caller: int | None = None
    max_stored_bytes: int | None = None
    max_event_bytes: int = 64 * 1024 * 1024
    max_output_bytes: int = 256 * 1024 * 1024
    context_messages: int = 100
    keep_alive_interval: float = 15
    cancel_on_disconnect: bool = True
    same_message_same_task: bool = False
    state_history: bool = False
    admin_role: str | None = None
    """The role whose bearers may list and cancel everybody's tasks; None: nobody may."""
    streaming: bool = True
    required_extensions: frozenset[str] = frozenset()


DEFAULTS: Final = EngineOptions()
