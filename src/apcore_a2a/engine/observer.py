"""What the engine tells whoever watches it: metrics, tracing, tests. Rule: an observer is told, never asked."""

from typing import Protocol

from apcore_a2a.protocol.model import TaskState


class Observer(Protocol):
    """Hooks called on the event loop; they must be quick and must not raise."""

    def run_started(self, task_id: str) -> None: ...

    def run_ended(self, task_id: str, state: TaskState, seconds: float) -> None: ...

    def run_abandoned(self, task_id: str) -> None:
        """An agent ignored its cancellation, or what it began goes on all the same; its task has ended without it."""

    def task_ended(self, task_id: str, owner: str, state: TaskState) -> None:
        """A task has come to its end, and it is stored: by a run, by a cancel, or because its process died."""

    def stream_opened(self, task_id: str) -> None: ...

    def stream_closed(self, task_id: str) -> None: ...

    def notification_sent(self, task_id: str) -> None:
        """A webhook has got an event."""

    def notification_failed(self, task_id: str) -> None:
        """An attempt to post an event to a webhook was in vain."""

    def notification_retried(self, task_id: str) -> None:
        """An event will be posted again."""

    def webhook_given_up(self, task_id: str) -> None:
        """What it waits for are dead letters now."""

    def storage_refused(self, account: str) -> None:
        """A message was refused because too much is stored: of that account, or of EVERYBODY."""


class Silent:
    """The default observer: sees nothing."""

    def run_started(self, task_id: str) -> None: ...

    def run_ended(self, task_id: str, state: TaskState, seconds: float) -> None: ...

    def run_abandoned(self, task_id: str) -> None: ...

    def task_ended(self, task_id: str, owner: str, state: TaskState) -> None: ...

    def stream_opened(self, task_id: str) -> None: ...

    def stream_closed(self, task_id: str) -> None: ...

    def notification_sent(self, task_id: str) -> None: ...

    def notification_failed(self, task_id: str) -> None: ...

    def notification_retried(self, task_id: str) -> None: ...

    def webhook_given_up(self, task_id: str) -> None: ...

    def storage_refused(self, account: str) -> None: ...
