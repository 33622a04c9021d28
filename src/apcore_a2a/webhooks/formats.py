"""What webhooks receive in each protocol version.

Invariant: the body of a notification is derived from what the store has. A new version is one more row in `FORMATS`.
"""

from collections.abc import Mapping
from typing import Final

from apcore_a2a.engine.webhooks.delivery import NotificationFormat
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import ArtifactUpdate, Document
from apcore_a2a.protocol.v03 import jsonrpc as v03


class EventFormat:
    """Posts every event as streams send it (1.0 §4.3.3)."""

    media_type = "application/a2a+json"
    posts_tasks = False

    def is_posted(self, event: bytes) -> bool:
        return True

    def encode(self, stored: bytes) -> bytes:
        return v1.event_of(stored)


class TaskFormat:
    """Posts the whole task after each status, and nothing for the chunks of artifacts (0.3.0 §9.5)."""

    media_type = "application/json"
    posts_tasks = True

    def is_posted(self, event: bytes) -> bool:
        decoded, _ = v1.decode_record(event)
        return not isinstance(decoded, ArtifactUpdate)

    def encode(self, stored: bytes) -> bytes:
        task = Document(stored).task()
        return v03.encode_push(task, task)


FORMATS: Final[Mapping[str, NotificationFormat]] = {v1.VERSION: EventFormat(), v03.VERSION: TaskFormat()}
