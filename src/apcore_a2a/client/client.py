"""`A2AClient`: one method for each A2A operation, for any agent, protocol version and binding.

This module contains the public API. channel.py sends the requests, and streaming.py keeps streams alive.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.auth import check_url, to_auth
from apcore_a2a.client.bindings import ReceivedCard, WebhookStatus, ask_redelivery, ask_status
from apcore_a2a.client.channel import Channel
from apcore_a2a.client.messages import Sendable, to_message
from apcore_a2a.client.options import (
    LIST_FILTERS,
    AuthLike,
    CallOptions,
    ClientOptions,
    ClientSettings,
    ListOptions,
    ResolvedOptions,
    SendOptions,
    resolve_options,
)
from apcore_a2a.client.streaming import EventStream, wait_until_at_rest
from apcore_a2a.client.transport import Transport
from apcore_a2a.errors import A2AConnectionError, InvalidAgentResponseError, unknown_options
from apcore_a2a.protocol.card import AgentCard, AgentInterface
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import (
    MAX_ID,
    MAX_PAGE_SIZE,
    CancelTask,
    Event,
    GetExtendedCard,
    GetTask,
    ListPushConfigs,
    ListTasks,
    Message,
    Metadata,
    Operation,
    PushConfig,
    PushConfigRef,
    SendConfiguration,
    SendMessage,
    SubscribeToTask,
    Task,
    TaskPage,
    Value,
)

if TYPE_CHECKING:
    import httpx

MAX_PAGES: Final = 1_000  # limit for the list of webhooks of one task


class A2AClient:
    """Calls a remote A2A agent.

    Every method accepts `auth`, `timeout` and `headers` for that call alone. Errors are subclasses of `A2AError`:
    `A2AConnectionError` if the agent cannot be reached in time, `A2ADiscoveryError` if its card cannot be fetched or
    trusted, and otherwise the class of errors.py for the error that the agent returned.

    Args:
        url: The agent's base address (the card is at a well-known path below it), or the address of its card.
        auth: `"Bearer …"`, a bare token, an async function that returns one, or an `Auth` such as `ApiKeyAuth`.
        timeout: Seconds for one call, all its attempts together. For a stream it bounds only the first byte.
        card_ttl: Seconds for which the card is cached before the client asks whether it has changed.
        http: Your own `httpx.AsyncClient` (`pip install 'apcore-a2a[httpx]'`), instead of the built-in transport. The
            client does not close it.
        options: See `ClientOptions`.

    Raises:
        ValueError: `url` is not an http or https address, or an option is invalid.
        TypeError: there is no such option.

    Example:
        >>> client = A2AClient("https://agent.example.com", auth="Bearer …", timeout=60)
        >>> client
        A2AClient('https://agent.example.com')
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
        self.url = check_url(url)
        unknown = options.keys() - set(ClientSettings.__struct_fields__)
        if unknown:
            known = ("auth", "timeout", "card_ttl", "http", *ClientSettings.__struct_fields__)
            raise TypeError(f"A2AClient has {unknown_options(unknown, known)}")
        settings = ClientSettings(**options)
        defaults = ResolvedOptions(timeout, to_auth(auth))
        self._channel = Channel(self.url, settings, defaults, http=http, card_ttl=card_ttl)

    def __repr__(self) -> str:
        return f"A2AClient({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. An `httpx.AsyncClient` passed in stays open.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     await client.close()
        """
        await self._channel.close()

    @property
    async def agent_card(self) -> AgentCard:
        """The agent's card: `await client.agent_card`. Fetched at first use, then cached for `card_ttl` seconds.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     card = await client.agent_card
            ...     print(card.name, [skill.id for skill in card.skills])
        """
        return await self._channel.discovery.card()

    async def discover(self) -> AgentCard:
        """Return the agent's card, as `await client.agent_card` does.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     print((await client.discover()).description)
        """
        return await self.agent_card

    async def refresh_card(self) -> AgentCard:
        """Fetch the agent's card now, and return it.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     card = await client.refresh_card()
            ...     print(card.version)
        """
        return await self._channel.discovery.card(refresh=True)

    @property
    async def interface(self) -> AgentInterface:
        """The address, binding and version in use: `await client.interface`.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     chosen = await client.interface
            ...     print(chosen.url, chosen.protocol_binding, chosen.protocol_version)
        """
        chosen = await self._channel.discovery.interface()
        return AgentInterface(
            url=chosen.url,
            protocol_binding=chosen.binding,
            protocol_version=chosen.dialect.VERSION,
            tenant=chosen.tenant,
        )

    async def extended_card(self, **options: Unpack[CallOptions]) -> AgentCard:
        """Return the card that the agent shows to authenticated callers.

        It replaces `agent_card`, unless the call has credentials of its own.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     card = await client.extended_card(auth="Bearer …")
            ...     print(len(card.skills))
        """
        received: ReceivedCard = await self._call(Operation.EXTENDED_CARD, GetExtendedCard(), options)
        card = received.card
        discovery = self._channel.discovery
        discovery.verify(card, received.body, self.url)
        # A card fetched with other credentials must not be used for calls without them.
        if "auth" not in options:
            discovery.use_extended_card(card)
        return card

    async def send_message(
        self, message: Sendable, *, wait: bool = True, **options: Unpack[SendOptions]
    ) -> Task | Message:
        """Send a message and wait for the answer: a `Task` that has ended or waits for input, or a `Message`.

        If the agent answers before its task is done, the client waits for the task, within the same `timeout`. With
        `configuration=SendConfiguration(return_immediately=True)` the call returns as soon as the task exists.

        Args:
            message: A text, a dict (data, or a whole message if it has `parts`), `Part`s, or a `Message`.
            wait: False returns the agent's first answer, even if its task is still running.
            options: See `SendOptions`.

        Raises:
            A2AConnectionError: no answer in time, or the task is still running. Then the error names the task.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     answer = await client.send_message("What is the weather?", skill="weather", timeout=60)
            ...     if isinstance(answer, Task):
            ...         print(answer.status.state, answer.artifacts)
        """
        request = _take_request(message, options)
        resolved = self._resolve(options)
        started = asyncio.get_running_loop().time()
        answer: Task | Message = await self._channel.call(Operation.SEND, request, resolved)
        if not wait or request.configuration.return_immediately:
            return answer
        if isinstance(answer, Message) or answer.status.state in AT_REST:
            return answer
        return await self._wait_for_rest(answer, request.configuration, resolved, started)

    async def _wait_for_rest(
        self, task: Task, configuration: SendConfiguration, options: ResolvedOptions, started: float
    ) -> Task:
        """Wait until the task of a message rests. The timeout counts from `started` on the loop's clock."""
        deadline = None
        if options.timeout is not None:
            deadline = started + options.timeout
        waiting = wait_until_at_rest(self._channel, task.id, options, history_length=configuration.history_length)
        name = clean_line(task.id, MAX_ID)
        try:
            async with asyncio.timeout_at(deadline) as scope:
                return await waiting
        except TimeoutError as error:
            if not scope.expired():
                raise  # another timeout, for example of a token provider
            text = f"Task {name} is still running after {options.timeout:g} seconds"
            raise A2AConnectionError(f"{text}. Call wait(), or pass a longer timeout=") from error
        except A2AConnectionError as error:
            # The caller has not seen the task yet, and cannot find it again without its id.
            text = f"The connection is lost, but task {name} may still be running. Call wait(). {error}"
            raise A2AConnectionError(text, sent=error.sent) from error

    def stream_message(self, message: Sendable, **options: Unpack[SendOptions]) -> AsyncGenerator[Event]:
        """Send a message and yield its events, until the task ends or waits for input.

        Yields `Task`, `StatusUpdate` and `ArtifactUpdate`, or one `Message`. A broken connection is resumed: then the
        next item is the next event, or a `Task` that includes all missed events.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     async for event in client.stream_message("Tell me a story"):
            ...         print(event)
        """
        request = _take_request(message, options)
        return EventStream(self._channel, self._resolve(options)).run(request)

    def resubscribe(self, task_id: str, **options: Unpack[CallOptions]) -> AsyncGenerator[Event]:
        """Subscribe to a running task: yield its present state and then its events, as `stream_message` does.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     async for event in client.resubscribe("task-id"):
            ...         print(event)
        """
        stream = EventStream(self._channel, self._resolve(options), task_id)
        return stream.run(SubscribeToTask(id=task_id))

    async def wait(self, task: Task | str, *, within: float | None = None, **options: Unpack[CallOptions]) -> Task:
        """Wait until a task ends, or waits for input or authorization. Return the task.

        Args:
            task: The task or its id.
            within: Maximum number of seconds to wait. The task keeps running.

        Raises:
            TimeoutError: the task is still running after `within` seconds.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     configuration = SendConfiguration(return_immediately=True)
            ...     task = await client.send_message("Count to a million", configuration=configuration)
            ...     if isinstance(task, Task):
            ...         print((await client.wait(task, within=3600)).status.state)
        """
        if isinstance(task, Task) and task.status.state in AT_REST:
            return task
        task_id = task if isinstance(task, str) else task.id
        async with asyncio.timeout(within):
            return await wait_until_at_rest(self._channel, task_id, self._resolve(options))

    async def get_task(
        self, task_id: str, *, history_length: int | None = None, **options: Unpack[CallOptions]
    ) -> Task:
        """Return the present state of a task, with at most `history_length` messages, the latest ones.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     task = await client.get_task("task-id", history_length=10)
            ...     print(task.status.state)
        """
        request = GetTask(id=task_id, history_length=history_length)
        task: Task = await self._call(Operation.GET, request, options)
        return task

    async def cancel_task(
        self, task_id: str, *, metadata: Metadata | None = None, **options: Unpack[CallOptions]
    ) -> Task:
        """Cancel a task and return it. A task that has already ended raises `TaskNotCancelableError`.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     task = await client.cancel_task("task-id")
            ...     print(task.status.state)
        """
        task: Task = await self._call(Operation.CANCEL, CancelTask(id=task_id, metadata=metadata), options)
        return task

    async def list_tasks(
        self, context_id: str | None = None, limit: int | None = None, **options: Unpack[ListOptions]
    ) -> TaskPage:
        """Return one page of the caller's tasks, newest first. `page.next_page_token` is the token of the next page.

        Args:
            context_id: Only the tasks of this conversation.
            limit: Maximum number of tasks: the same as `page_size`, but capped at the largest page size.
            options: See `ListOptions`.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     page = await client.list_tasks(limit=10, status=TaskState.INPUT_REQUIRED)
            ...     print([task.id for task in page.tasks], page.next_page_token)
        """
        if limit is not None:
            if "page_size" in options:
                raise TypeError("limit and page_size mean the same: pass only one of them")
            options["page_size"] = min(limit, MAX_PAGE_SIZE)
        request = _take_filters(context_id, options)
        page: TaskPage = await self._call(Operation.LIST, request, options)
        return page

    async def iter_tasks(self, context_id: str | None = None, **options: Unpack[ListOptions]) -> AsyncGenerator[Task]:
        """Yield all tasks of the caller, page by page.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     async for task in client.iter_tasks("context-id"):
            ...         print(task.id, task.status.state)
        """
        request = _take_filters(context_id, options)
        async with aclosing(self._pages(Operation.LIST, request, options)) as pages:
            async for page in pages:
                for task in page.tasks:
                    yield task

    async def set_push_config(
        self, task_id: str, config: PushConfig | str, **options: Unpack[CallOptions]
    ) -> PushConfig:
        """Send the events of a task to a webhook: a URL, or a `PushConfig` with token and authentication.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     config = await client.set_push_config("task-id", "https://me.example.com/hook")
            ...     print(config.id)
        """
        given = config
        if isinstance(given, str):
            given = PushConfig(url=given)
        stored: PushConfig = await self._call(Operation.CREATE_PUSH, replace(given, task_id=task_id), options)
        return stored

    async def get_push_config(self, task_id: str, config_id: str = "", **options: Unpack[CallOptions]) -> PushConfig:
        """Return one webhook of a task. Over JSON-RPC, 0.3 agents return a task's only webhook without an id.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     config = await client.get_push_config("task-id", "config-id")
            ...     print(config.url)
        """
        config: PushConfig = await self._call(Operation.GET_PUSH, PushConfigRef(task_id=task_id, id=config_id), options)
        return config

    async def list_push_configs(self, task_id: str, **options: Unpack[CallOptions]) -> list[PushConfig]:
        """Return all webhooks of a task.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     for config in await client.list_push_configs("task-id"):
            ...         print(config.id, config.url)
        """
        configs: list[PushConfig] = []
        count = 0
        async with aclosing(self._pages(Operation.LIST_PUSH, ListPushConfigs(task_id=task_id), options)) as pages:
            async for page in pages:
                configs += page.configs
                count += 1
                if count == MAX_PAGES:
                    raise InvalidAgentResponseError(f"The agent's list of webhooks is longer than {MAX_PAGES} pages")
        return configs

    async def delete_push_config(self, task_id: str, config_id: str, **options: Unpack[CallOptions]) -> None:
        """Delete a webhook: no further events are sent to it.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     await client.delete_push_config("task-id", "config-id")
        """
        await self._call(Operation.DELETE_PUSH, PushConfigRef(task_id=task_id, id=config_id), options)

    async def webhooks(self, task_id: str = "", **options: Unpack[CallOptions]) -> list[WebhookStatus]:
        """Return the delivery status of a task's webhooks, or without a task id the caller's dead letters.

        Only apcore-a2a agents support this.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     for webhook in await client.webhooks("task-id"):
            ...         print(webhook.state, webhook.undelivered, webhook.reason)
        """
        found: list[WebhookStatus] = await self._channel.ask(
            lambda interface: ask_status(interface, task_id), self._resolve(options)
        )
        return found

    async def redeliver(self, task_id: str, config_id: str = "", **options: Unpack[CallOptions]) -> list[WebhookStatus]:
        """Deliver the dead letters of one webhook of a task, or of all its webhooks, again.

        Only apcore-a2a agents support this.

        Example:
            >>> async def main(client: A2AClient) -> None:
            ...     for webhook in await client.webhooks():
            ...         await client.redeliver(webhook.task_id, webhook.id)
        """
        retried: list[WebhookStatus] = await self._channel.ask(
            lambda interface: ask_redelivery(interface, task_id, config_id), self._resolve(options)
        )
        return retried

    def _resolve(self, options: CallOptions) -> ResolvedOptions:
        return resolve_options(options, self._channel.defaults)

    async def _pages(
        self, operation: Operation, request: ListTasks | ListPushConfigs, options: CallOptions
    ) -> AsyncGenerator[Any]:  # Any: each list has its own pages
        """Yield the pages of a list."""
        while True:
            page = await self._call(operation, request, options)
            yield page
            if not page.next_page_token:
                return
            if page.next_page_token == request.page_token:  # otherwise the loop would never end
                raise InvalidAgentResponseError("The agent's list never ends: a page names itself as the next page")
            request = replace(request, page_token=page.next_page_token)

    async def _call(self, operation: Operation, request: Value, options: CallOptions) -> Any:
        return await self._channel.call(operation, request, self._resolve(options))


def _take_request(message: Sendable, options: SendOptions) -> SendMessage:
    """Build the request from the options that belong to it. The others stay in `options`."""
    # pop: the remaining options must be call options, otherwise `resolve_options` rejects them.
    composed = to_message(
        message,
        skill=options.pop("skill", None),
        context_id=options.pop("context_id", None),
        task_id=options.pop("task_id", None),
    )
    configuration = options.pop("configuration", SendConfiguration())
    metadata = options.pop("metadata", None)
    return SendMessage(message=composed, configuration=configuration, metadata=metadata)


def _take_filters(context_id: str | None, options: ListOptions) -> ListTasks:
    """Build the request from the options that belong to it. The others stay in `options`."""
    given: dict[str, Any] = {}
    for name in LIST_FILTERS & options.keys():
        given[name] = options.pop(name)  # type: ignore[misc]  # only keys of the TypedDict
    return ListTasks(context_id=context_id or "", **given)
