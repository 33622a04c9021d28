"""`Client`: the synchronous client. Invariant: each method only runs the method of `A2AClient` with the same name."""

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, Unpack

from apcore_a2a.client.bindings import WebhookStatus
from apcore_a2a.client.client import A2AClient
from apcore_a2a.client.messages import Sendable
from apcore_a2a.client.options import AuthLike, CallOptions, ClientOptions, ListOptions, SendOptions
from apcore_a2a.client.transport import Transport
from apcore_a2a.protocol.card import AgentCard, AgentInterface
from apcore_a2a.protocol.model import Event, Message, Metadata, PushConfig, Task, TaskPage

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

CLOSED: Final = "The client is closed"
FORKED: Final = "A client does not survive a fork. Make one in each process"
END_WAIT: Final = 6.0  # seconds for cancelled calls to finish: a mounted agent cancels its remote task in this time


class Steps(Generic[T]):
    """An asynchronous generator whose items are consumed from outside its event loop.

    An interrupted `next` may still be running when `close` is called, and Python cannot close a running generator.
    Therefore `close` waits for `next`, by a lock.
    """

    def __init__(self, source: AsyncGenerator[T]) -> None:
        self._source = source
        self._lock = asyncio.Lock()

    async def next(self) -> T | None:
        """Return the next item, or None after the last."""
        async with self._lock:
            return await anext(self._source, None)

    async def close(self) -> None:
        async with self._lock:
            await self._source.aclose()


class LoopThread:
    """An event loop that runs on its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # Work is either submitted before the loop is stopped, or rejected. An RLock, because the garbage collector may
        # call `_abandon` in the middle of `submit`.
        self._lock = threading.RLock()
        self._is_stopped = False
        self._streams: set[Steps[Any]] = set()  # open streams. Any: of events or of tasks
        # A daemon thread: a program that does not close its client must still be able to exit.
        self._thread = threading.Thread(target=self._loop.run_forever, name="apcore-a2a-client", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedule the work on the loop. Any thread may wait for the future."""
        with self._lock:
            if self._is_running():
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()  # otherwise Python warns that it was never awaited
        raise RuntimeError(CLOSED if self._is_stopped else FORKED)

    def _is_running(self) -> bool:
        # Threads do not survive a fork: the child process has the loop, but no thread that runs it.
        return not self._is_stopped and self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work on the loop, and block until it is done."""
        future = self.submit(work)
        try:
            return future.result()
        except CancelledError:  # cancelled by `stop` in another thread
            raise RuntimeError(CLOSED) from None
        except BaseException:  # for example Ctrl-C: the result is no longer needed
            future.cancel()
            raise

    def iterate(self, source: AsyncGenerator[T]) -> Generator[T]:
        steps = Steps(source)
        self._streams.add(steps)
        try:
            while True:
                item = self.run(steps.next())
                if item is None:
                    break
                yield item
        finally:
            self._abandon(steps)

    def _abandon(self, steps: Steps[T]) -> None:
        """Close an abandoned stream without waiting for it, because the garbage collector may call this.

        The garbage collector runs on any thread, also on the loop's own, and at the end of the program, when the loop
        has stopped already.
        """
        if self._is_running() and not sys.is_finalizing():  # otherwise `stop` has closed it, or the loop has ended
            self.submit(self._close(steps))

    async def _close(self, steps: Steps[T]) -> None:
        await steps.close()
        self._streams.discard(steps)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel running calls, await `last()`, and end the thread. To stop it again does nothing."""
        with self._lock:
            if not self._is_running():
                return
            self._is_stopped = True
            ending = asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        try:
            ending.result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # Other threads wait for these calls. They would block forever if the loop stopped first.
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=END_WAIT)
        # Streams are closed on their own loop while it still runs, and before their client closes its connections.
        for steps in list(self._streams):
            await steps.close()
        await last()


class Client:
    """`A2AClient` without `await`: the same arguments, results and errors.

    Calls block the calling thread. Several threads may share one client. It works on a thread of its own, which ends
    with `close()` or the `with` block.

    Example:
        >>> with Client("https://agent.example.com") as client:
        ...     print(client)
        Client('https://agent.example.com')
    """

    def __init__(
        self,
        url: str,
        *,
        auth: AuthLike | None = None,
        timeout: float | None = 30.0,
        card_ttl: float = 300.0,
        http: "httpx.AsyncClient | Transport | None" = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        # First, so that a wrong argument raises before a thread exists.
        self._client = A2AClient(url, auth=auth, timeout=timeout, card_ttl=card_ttl, http=http, **options)
        self._thread = LoopThread()

    def __repr__(self) -> str:
        return f"Client({self._client.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the client's thread. Leaving the `with` block does the same.

        Example:
            >>> def main(client: Client) -> None:
            ...     client.close()
        """
        self._thread.stop(self._client.close)

    @property
    def url(self) -> str:
        """The agent's address.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.url)
        """
        return self._client.url

    @property
    def agent_card(self) -> AgentCard:
        """The agent's card, as in `A2AClient.agent_card`.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.agent_card.name)
        """
        return self._thread.run(self._client.agent_card)

    def discover(self) -> AgentCard:
        """Return the agent's card, as `agent_card` does.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.discover().description)
        """
        return self._thread.run(self._client.discover())

    def refresh_card(self) -> AgentCard:
        """Fetch the agent's card now, and return it.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.refresh_card().version)
        """
        return self._thread.run(self._client.refresh_card())

    @property
    def interface(self) -> AgentInterface:
        """The address, binding and version in use.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.interface.protocol_binding)
        """
        return self._thread.run(self._client.interface)

    def extended_card(self, **options: Unpack[CallOptions]) -> AgentCard:
        """Return the card that the agent shows to authenticated callers. See `A2AClient.extended_card`.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.extended_card(auth="Bearer …").skills)
        """
        return self._thread.run(self._client.extended_card(**options))

    def send_message(self, message: Sendable, *, wait: bool = True, **options: Unpack[SendOptions]) -> Task | Message:
        """Send a message and wait for the answer. See `A2AClient.send_message`.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.send_message("What is the weather?", skill="weather", timeout=60))
        """
        return self._thread.run(self._client.send_message(message, wait=wait, **options))

    def stream_message(self, message: Sendable, **options: Unpack[SendOptions]) -> Generator[Event]:
        """Send a message and yield its events. See `A2AClient.stream_message`.

        Example:
            >>> def main(client: Client) -> None:
            ...     for event in client.stream_message("Tell me a story"):
            ...         print(event)
        """
        return self._thread.iterate(self._client.stream_message(message, **options))

    def resubscribe(self, task_id: str, **options: Unpack[CallOptions]) -> Generator[Event]:
        """Subscribe to a running task. See `A2AClient.resubscribe`.

        Example:
            >>> def main(client: Client) -> None:
            ...     for event in client.resubscribe("task-id"):
            ...         print(event)
        """
        return self._thread.iterate(self._client.resubscribe(task_id, **options))

    def wait(self, task: Task | str, *, within: float | None = None, **options: Unpack[CallOptions]) -> Task:
        """Wait until a task rests, and return it. See `A2AClient.wait`.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.wait("task-id", within=3600).status.state)
        """
        return self._thread.run(self._client.wait(task, within=within, **options))

    def get_task(self, task_id: str, *, history_length: int | None = None, **options: Unpack[CallOptions]) -> Task:
        """Return a task in its present state. See `A2AClient.get_task`.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.get_task("task-id").status.state)
        """
        return self._thread.run(self._client.get_task(task_id, history_length=history_length, **options))

    def cancel_task(self, task_id: str, *, metadata: Metadata | None = None, **options: Unpack[CallOptions]) -> Task:
        """Cancel a task and return it. See `A2AClient.cancel_task`.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.cancel_task("task-id").status.state)
        """
        return self._thread.run(self._client.cancel_task(task_id, metadata=metadata, **options))

    def list_tasks(
        self, context_id: str | None = None, limit: int | None = None, **options: Unpack[ListOptions]
    ) -> TaskPage:
        """Return one page of the caller's tasks. See `A2AClient.list_tasks`.

        Example:
            >>> def main(client: Client) -> None:
            ...     print([task.id for task in client.list_tasks(limit=10).tasks])
        """
        return self._thread.run(self._client.list_tasks(context_id, limit, **options))

    def iter_tasks(self, context_id: str | None = None, **options: Unpack[ListOptions]) -> Generator[Task]:
        """Yield all tasks of the caller, page by page.

        Example:
            >>> def main(client: Client) -> None:
            ...     for task in client.iter_tasks("context-id"):
            ...         print(task.id, task.status.state)
        """
        return self._thread.iterate(self._client.iter_tasks(context_id, **options))

    def set_push_config(self, task_id: str, config: PushConfig | str, **options: Unpack[CallOptions]) -> PushConfig:
        """Send the events of a task to a webhook. See `A2AClient.set_push_config`.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.set_push_config("task-id", "https://me.example.com/hook").id)
        """
        return self._thread.run(self._client.set_push_config(task_id, config, **options))

    def get_push_config(self, task_id: str, config_id: str = "", **options: Unpack[CallOptions]) -> PushConfig:
        """Return one webhook of a task. See `A2AClient.get_push_config`.

        Example:
            >>> def main(client: Client) -> None:
            ...     print(client.get_push_config("task-id").url)
        """
        return self._thread.run(self._client.get_push_config(task_id, config_id, **options))

    def list_push_configs(self, task_id: str, **options: Unpack[CallOptions]) -> list[PushConfig]:
        """Return all webhooks of a task.

        Example:
            >>> def main(client: Client) -> None:
            ...     print([config.url for config in client.list_push_configs("task-id")])
        """
        return self._thread.run(self._client.list_push_configs(task_id, **options))

    def delete_push_config(self, task_id: str, config_id: str, **options: Unpack[CallOptions]) -> None:
        """Delete a webhook: no further events are sent to it.

        Example:
            >>> def main(client: Client) -> None:
            ...     client.delete_push_config("task-id", "config-id")
        """
        self._thread.run(self._client.delete_push_config(task_id, config_id, **options))

    def webhooks(self, task_id: str = "", **options: Unpack[CallOptions]) -> list[WebhookStatus]:
        """Return the delivery status of webhooks. See `A2AClient.webhooks`.

        Example:
            >>> def main(client: Client) -> None:
            ...     for webhook in client.webhooks("task-id"):
            ...         print(webhook.state, webhook.undelivered, webhook.reason)
        """
        return self._thread.run(self._client.webhooks(task_id, **options))

    def redeliver(self, task_id: str, config_id: str = "", **options: Unpack[CallOptions]) -> list[WebhookStatus]:
        """Deliver dead letters again. See `A2AClient.redeliver`.

        Example:
            >>> def main(client: Client) -> None:
            ...     for dead in client.webhooks():
            ...         client.redeliver(dead.task_id, dead.id)
        """
        return self._thread.run(self._client.redeliver(task_id, config_id, **options))
