"""Registers the skills of a remote agent as modules of a local registry.

Invariant: a mounted agent owns a thread with an event loop, its client and its refresher, and `close` ends all three.
Therefore its modules may be called from any loop and any thread.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, Unpack

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client import A2AClient
from apcore_a2a.client.calls import RemoteCall, follow, hide_details
from apcore_a2a.client.options import AuthLike, ClientOptions
from apcore_a2a.client.skills import RemoteSkill
from apcore_a2a.client.sync import LoopThread, Steps
from apcore_a2a.errors import A2AError, AgentError, InvalidParamsError
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.model import Event
from apcore_a2a.remote.module import Delegate, RemoteModule, StreamingRemoteModule, name_modules, to_module_id

logger = logging.getLogger(__name__)

UNMOUNTED: Final = "The remote agent is no longer mounted"


def mount_remote(
    registry: Any,
    url: str,
    *,
    prefix: str = "remote",
    auth: AuthLike | None = None,
    delegate: Delegate | None = None,
    refresh: float | None = 300.0,
    **options: Unpack[ClientOptions],
) -> "RemoteAgent":
    """Register each skill of a remote A2A agent as an apcore module, and keep the modules in sync with its card.

    The module `<prefix>.<skill>` has the input schema that our card extension describes. Without the extension it
    accepts any object, and sends `{"text": …}` as text. A run that is cancelled or times out cancels the remote task.
    `mount_remote` blocks until the card is fetched. In a coroutine, use `await asyncio.to_thread(mount_remote, …)`.

    Args:
        registry: An apcore Registry.
        url: The remote agent's address.
        prefix: The prefix of the module ids, or "" for none.
        auth: The local agent's own credentials for the remote agent, as for `A2AClient`. The credentials of the local
            agent's callers are not sent, unless `delegate` returns them.
        delegate: A function that returns the credentials for a call, given apcore's Context of the local run. If it
            returns None, the call uses `auth`. The credentials that it returns are sent only to the origin of `url`
            and to `allow_origins`.
        refresh: The interval in seconds at which the card is fetched again. None disables refreshing.
        options: See `ClientOptions`.

    Raises:
        A2AError: the agent cannot be reached, or its card cannot be used.
        ValueError: the registry already has a module with that id.

    Example:
        >>> import apcore
        >>> registry = apcore.Registry()
        >>> agent = mount_remote(registry, "https://agent.example.com", prefix="partner")  # doctest: +SKIP
        >>> registry.list()  # doctest: +SKIP
        ['partner.translate']
        >>> agent.close()  # doctest: +SKIP
    """
    client = A2AClient(url, auth=auth, card_ttl=refresh or 300.0, **options)
    agent = RemoteAgent(registry, client, prefix=prefix, delegate=delegate)
    try:
        agent.refresh()
    except BaseException:  # also Ctrl-C
        agent.close()
        raise
    agent.keep_fresh(refresh)
    return agent


class RemoteAgent:
    """A mounted agent and its modules in the registry.

    Example:
        >>> with mount_remote(registry, "https://agent.example.com") as agent:  # doctest: +SKIP
        ...     print(agent.module_ids)
        ('remote.translate',)
    """

    def __init__(self, registry: Any, client: A2AClient, *, prefix: str, delegate: Delegate | None = None) -> None:
        if prefix and to_module_id("", prefix) != prefix:
            raise ValueError(f"The prefix must be a valid apcore module id, such as {to_module_id('', prefix)!r}")
        self._registry = registry
        self._client = client
        self._prefix = prefix
        self.delegate = delegate
        self._mounted: dict[str, RemoteSkill] = {}  # by module id
        self._registry_lock = threading.Lock()  # the refresher, `refresh` and `close` all change the registry
        self._thread = LoopThread()
        self._streams: set[Steps[Event]] = set()  # open streams
        self._is_closed = False

    def __repr__(self) -> str:
        return f"RemoteAgent({self._client.url!r}, prefix={self._prefix!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def module_ids(self) -> tuple[str, ...]:
        """The ids of the modules registered for this agent.

        Example:
            >>> def show(agent: RemoteAgent) -> None:
            ...     print(agent.module_ids)
        """
        return tuple(self._mounted)

    def refresh(self) -> None:
        """Fetch the card now, and update the registry.

        Example:
            >>> def fetch_card_again(agent: RemoteAgent) -> None:
            ...     agent.refresh()
        """
        card = self._thread.run(self._client.refresh_card())
        # While no module is mounted, as in `mount_remote`, an id that is already registered is an error, so that the
        # caller can choose another prefix. Later it is only logged.
        self._update_registry(card, strict=not self._mounted)

    def keep_fresh(self, interval: float | None) -> None:
        """Fetch the card periodically, until the agent is closed.

        Example:
            >>> def refresh_every_minute(agent: RemoteAgent) -> None:
            ...     agent.keep_fresh(60.0)
        """
        if interval is not None:
            self._submit(self._refresh_for_ever(interval))

    async def _refresh_for_ever(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                card = await self._client.refresh_card()
                # On another thread: registering a module calls the listeners of the registry.
                await asyncio.to_thread(self._update_registry, card, strict=False)
            except Exception as error:  # the modules stay registered, and the next refresh may succeed
                logger.warning(
                    "remote agent not refreshed", extra={"url": self._client.url, "reason": clean_line(str(error))}
                )

    def _update_registry(self, card: AgentCard, *, strict: bool) -> None:
        """Register a module for each skill of the card, and remove the others. Unchanged skills keep their modules."""
        with self._registry_lock:
            if self._is_closed:
                return
            wanted = {skill.local_name: skill for skill in name_modules(card, self._prefix)}
            for module_id, skill in list(self._mounted.items()):
                if wanted.get(module_id) != skill:
                    self._registry.unregister(module_id)
                    del self._mounted[module_id]
            for module_id, skill in wanted.items():
                if module_id not in self._mounted and self._is_free(module_id, strict):
                    self._registry.register(module_id, self._make_module(skill))
                    self._mounted[module_id] = skill

    def _make_module(self, skill: RemoteSkill) -> RemoteModule:
        if skill.streams:
            return StreamingRemoteModule(skill, self)
        return RemoteModule(skill, self)

    def _is_free(self, module_id: str, strict: bool) -> bool:
        if self._registry.get(module_id) is None:
            return True
        if strict:
            raise ValueError(f"The registry already has a module {module_id!r}. Choose another prefix")
        logger.warning("remote skill left out: its id is taken", extra={"module_id": module_id})
        return False

    async def events(self, skill: RemoteSkill, call: RemoteCall) -> AsyncGenerator[Event]:
        """Yield the events of a call, in the caller's event loop.

        Example:
            >>> async def show(agent: RemoteAgent, skill: RemoteSkill, call: RemoteCall) -> None:
            ...     async for event in agent.events(skill, call):
            ...         print(event)
        """
        steps = Steps(follow(self._client, call))
        self._streams.add(steps)
        try:
            while True:
                event = await self._in_own_loop(steps.next())
                if event is None:
                    break
                yield event
        except A2AError as error:
            raise self._for_callers(error, skill) from error
        finally:
            self._streams.discard(steps)
            if not self._is_closed:  # otherwise `close` has ended it together with its loop
                await self._in_own_loop(steps.close())

    async def _in_own_loop(self, work: Any) -> Any:  # Any: a coroutine, and what it returns
        """Run a coroutine in the agent's own loop, and wait for it in the caller's."""
        future = self._submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._is_closed:  # `close` cancelled the work, not the caller
                raise AgentError(UNMOUNTED) from None
            raise

    def _submit(self, work: Any) -> Future[Any]:
        try:
            return self._thread.submit(work)
        except RuntimeError:  # its thread is shutting down
            raise AgentError(UNMOUNTED) from None

    def _for_callers(self, error: A2AError, skill: RemoteSkill) -> A2AError:
        """Return the error that callers of the local agent may see, and log the original one."""
        if isinstance(
            error, InvalidParamsError | AgentError
        ):  # about the caller's input, or raised by the remote agent for its callers
            return error
        logger.warning("remote skill failed", extra={"module_id": skill.local_name, "reason": clean_line(str(error))})
        return hide_details(error)

    def close(self) -> None:
        """Remove the modules from the registry, cancel running calls, and close the connections.

        Example:
            >>> def unmount(agent: RemoteAgent) -> None:
            ...     agent.close()
        """
        with self._registry_lock:
            if self._is_closed:
                return
            self._is_closed = True
            for module_id in self._mounted:
                self._registry.unregister(module_id)
            self._mounted.clear()
        self._thread.stop(self._close_client)

    async def _close_client(self) -> None:
        # Each stream cancels its remote task, and needs the client for it.
        async with asyncio.TaskGroup() as group:
            for steps in list(self._streams):
                group.create_task(steps.close())
        await self._client.close()
