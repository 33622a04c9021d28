"""Modules that block, on threads that are counted.

apcore runs them in asyncio's own pool. That one is small (six threads on a machine with two cores), knows nothing of
those that never return, and resolves host names and reads large pages for the server, too: six stuck modules would
freeze it. So the step of a `ServedExecutor` that runs a module hands a blocking one to `Threads`, as functions are.

Rule: only for runs of ours, on the loop that they began on. Whoever calls the executor in another way gets apcore's.
"""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import apcore

from apcore_a2a.agent import CancelToken
from apcore_a2a.agents.threads import Threads


class RunToken(apcore.CancelToken):  # type: ignore[misc]  # apcore is untyped
    """apcore's token for one run of ours, or for one call of a module in it."""

    def __init__(self, run: CancelToken, loop: asyncio.AbstractEventLoop | None, **linked: Any) -> None:
        super().__init__(**linked)
        self.run = run
        self._loop = loop
        self._callbacks: tuple[Callable[[], object], ...] = ()

    @classmethod
    def of_run(cls, run: CancelToken) -> "RunToken":
        """The token of a run on the loop that runs now; on none, if it is only made to look at."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return cls(run, None)
        return cls(run, loop)

    def is_here(self) -> bool:
        """Whether this is the loop of the run: a module that calls another synchronously has a loop of its own."""
        return self._loop is asyncio.get_running_loop()

    def child(self) -> "RunToken":
        """The token of one call, which apcore cancels when the call has used up its time."""
        return RunToken(self.run, self._loop, parent=self)  # not the loop of now: see `is_here`

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback`, on the loop of the run, when this token is cancelled."""
        self._callbacks += (callback,)

    def cancel(self) -> None:
        super().cancel()
        if self._loop is not None and not self._loop.is_closed():
            for callback in self._callbacks:
                self._loop.call_soon_threadsafe(callback)


class BlockingModule:
    """A module whose `execute` blocks, as apcore sees one that can be awaited."""

    def __init__(self, module: Any, threads: Threads, token: RunToken) -> None:  # Any: apcore is untyped
        self._module = module
        self._threads = threads
        self._token = token

    async def execute(self, inputs: Any, context: Any) -> Any:
        async with self._threads.worker(f"module {context.call_chain[-1]}", self._token.run) as worker:
            # apcore stops waiting after the module's own time limit, without a word to this coroutine.
            self._token.on_cancel(partial(self._threads.expect_end, worker))
            return await worker.call(self._module.execute, inputs, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def blocks(module: Any) -> bool:
    return not inspect.iscoroutinefunction(getattr(module, "execute", None))


def on_thread(module: Any, context: Any, threads: Threads) -> Any:
    """The module as apcore is to run it: on one of these threads, if it blocks and is part of a run of ours."""
    token = getattr(context, "cancel_token", None)
    if not isinstance(token, RunToken) or not token.is_here() or not blocks(module):
        return module
    return BlockingModule(module, threads, token)
